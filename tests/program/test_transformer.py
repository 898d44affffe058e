"""Activations and products of a layer, against published formulas.

Letters of Korthikanti et al. (arXiv 2205.05198): a heads, b microbatch, h hidden,
s sequence, t tensor-parallel ranks, v vocabulary; numbers are bytes of 16-bit training
with dropout.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.load import load_profile
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Kind, Owner
from simulator.program.layer.layer_kinds import layer_kinds
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.resident import padded_vocab
from simulator.schedule import Phase
from tests.jobs import SIXTEEN_BIT_TORCH, gpt_model, small_job, small_model

B, S, H, A = 4, 64, 64, 8  # with 8 ranks, as many scores as Megatron's fused softmax takes
SBH, AS2B = S * B * H, A * S * S * B
LAYER = Slice(1, 2)
EMBEDDING = Slice(0, 0, has_embedding=True)
HEAD = Slice(4, 4, has_head=True, has_loss=True)
STATISTICS = 2 * 4 * S * B
"""Mean and 1/deviation of every token of one layer norm, which the formulas leave out."""


def korthikanti_job(tp: int = 1, **plan) -> Job:
    """GPT in 16 bit, with dropout and attention that keeps its scores."""
    plan = {"stack": "megatron-lm-2021", "attention": "unfused", **plan}
    return small_job(gpt_model(), gpus=tp, tp=tp, micro_batch=B, seq_len=S, **plan)


def saved_bytes(job: Job, run: Slice = LAYER, *, norms: int = 0) -> float:
    """Without the statistics of so many layer norms."""
    kept = sum(num_bytes for _, num_bytes in StageCosts(job).saved(run))
    share = 1 / job.plan.tp if job.plan.cuts_sequence else 1.0
    return kept - norms * STATISTICS * share


def test_a_layer_keeps_34_sbh_and_5_as2b():
    """Equation 1."""
    assert saved_bytes(korthikanti_job(), norms=2) == 34 * SBH + 5 * AS2B


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallelism_leaves_10_of_the_34_sbh_whole(t):
    """Equation 2."""
    kept = saved_bytes(korthikanti_job(t), norms=2)
    assert kept == pytest.approx(SBH * (10 + 24 / t + 5 * A * S / (H * t)), rel=1e-12)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_sequence_parallelism_divides_all_of_it(t):
    """Equation 4."""
    kept = saved_bytes(korthikanti_job(t, sequence_parallel=True), norms=2)
    assert kept == pytest.approx(SBH / t * (34 + 5 * A * S / H), rel=1e-12)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_selective_recompute_leaves_34_sbh(t):
    """Equation 6."""
    job = korthikanti_job(t, sequence_parallel=True, recompute="selective")
    assert saved_bytes(job, norms=2) == pytest.approx(34 * SBH / t, rel=1e-12)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_full_recompute_keeps_only_the_input_of_the_layer(t):
    """Section 4.2.3 and table 2: 2 sbh, whole on every tensor-parallel rank."""
    assert saved_bytes(korthikanti_job(t, recompute="full")) == 2 * SBH


@pytest.mark.parametrize("t", [2, 4])
def test_full_recompute_of_a_cut_sequence_keeps_a_share_of_the_input(t):
    """Table 2 gathers the input again; nothing is whole under sequence parallelism."""
    job = korthikanti_job(t, recompute="full", sequence_parallel=True)
    assert saved_bytes(job) == 2 * SBH / t


@pytest.mark.parametrize("t", [1, 2, 4])
def test_recompute_brings_back_in_backward_exactly_what_it_did_not_keep(t):
    everything = saved_bytes(korthikanti_job(t))
    for recompute in ("selective", "full"):
        job = korthikanti_job(t, recompute=recompute)
        holds = StageCosts(job).half_working(LAYER, Phase.BACKWARD_INPUT)
        again = sum(size for owner, size in holds if owner is Owner.RECOMPUTE)
        assert saved_bytes(job) + again == pytest.approx(everything)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_embedding_keeps_the_mask_of_its_dropout(t):
    """Section 4.3: sbh, divided where the sequence is."""
    assert saved_bytes(korthikanti_job(t, sequence_parallel=True), EMBEDDING) == SBH / t


@pytest.mark.parametrize("t", [1, 2, 4])
def test_head_keeps_two_inputs_and_fp32_probabilities(t):
    """Section 4.3: 4 sbh / t (1 + v / h)."""
    job = korthikanti_job(t, sequence_parallel=True)
    vocab = padded_vocab(job)
    assert saved_bytes(job, HEAD, norms=1) == pytest.approx(4 * SBH / t * (1 + vocab / H))


def test_flash_attention_keeps_one_fp32_number_per_row_of_scores_instead():
    """FlashAttention-2 (arXiv 2307.08691), section 3.1: the log-sum-exp of each row."""
    kept = saved_bytes(korthikanti_job(attention="flash"), norms=2)
    assert kept == 34 * SBH + 4 * A * S * B


def test_without_dropout_masks_and_dropped_scores_are_gone():
    stack = {"base": "megatron-lm-2021", "dropout": False}
    assert saved_bytes(korthikanti_job(stack=stack), norms=2) == 32 * SBH + 2 * AS2B


def test_a_gated_mlp_with_grouped_heads_keeps_what_its_products_read():
    """Llama: norms 4, inputs 4, q 2, k and v 1 each, context 2; gate, up and down inputs."""
    job = small_job(micro_batch=B, stack="megatron-core")
    f = job.model.ffn_hidden / H
    kv = job.model.kv_heads / A
    rms_norms = STATISTICS / 2 * 2
    expected = SBH * (4 + 4 + 2 + 4 * kv + 2 + 6 * f) + 4 * A * S * B + rms_norms
    assert saved_bytes(job) == pytest.approx(expected)


@pytest.mark.parametrize(("cp", "method"), [(2, "ring"), (4, "ring"), (2, "all_to_all")])
def test_context_parallelism_divides_activations(cp, method):
    whole = small_job(micro_batch=B)
    shared = small_job(micro_batch=B, gpus=cp, cp=cp, cp_method=method)
    assert saved_bytes(shared) == pytest.approx(saved_bytes(whole) / cp)


def layer_flop(job: Job, phase: Phase) -> float:
    return StageCosts(job).work(LAYER, phase).flop


def test_a_gpt_layer_needs_24_bsh2_and_4_bs2h_forward_and_twice_that_backward():
    """Megatron-LM (arXiv 2104.04473), appendix."""
    forward = 24 * B * S * H**2 + 4 * B * S**2 * H
    job = korthikanti_job()
    assert layer_flop(job, Phase.FORWARD) == forward
    assert layer_flop(job, Phase.BACKWARD) == 2 * forward


def test_full_recompute_adds_a_forward_and_selective_the_attention():
    forward, attention = 24 * B * S * H**2 + 4 * B * S**2 * H, 4 * B * S**2 * H
    full, selective = (
        layer_flop(korthikanti_job(recompute=r), Phase.BACKWARD) for r in ("full", "selective")
    )
    assert full == 3 * forward
    assert selective == 2 * forward + attention


def test_a_causal_fused_kernel_computes_half_of_the_scores():
    job = korthikanti_job(attention="flash")
    assert layer_flop(job, Phase.FORWARD) == 24 * B * S * H**2 + 2 * B * S**2 * H


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.booleans())
@settings(deadline=None)
def test_tensor_and_context_ranks_share_the_products_exactly(tp, cp, sequence_parallel):
    model = small_model(kv_heads=8)
    whole = small_job(model)
    shared = small_job(model, gpus=tp * cp, tp=tp, cp=cp, sequence_parallel=sequence_parallel)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert layer_flop(shared, phase) * tp * cp == pytest.approx(layer_flop(whole, phase))


@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_a_step_computes_what_its_layers_do_whatever_the_pipeline(attention):
    totals = []
    for pp in (1, 2, 4):
        job = small_job(gpus=pp, pp=pp, attention=attention)
        totals.append(sum(op.work.flop for op in build_program(job).operations))
    assert totals == pytest.approx([totals[0]] * 3)


def test_halves_of_a_backward_add_up_to_the_whole():
    costs = StageCosts(korthikanti_job(2, recompute="full"))
    whole = costs.work(LAYER, Phase.BACKWARD)
    halves = [costs.work(LAYER, p) for p in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)]
    assert whole.flop == sum(half.flop for half in halves)


def test_parts_of_every_pass_sum_to_its_time():
    program = build_program(korthikanti_job(2, recompute="selective"))
    computed = [op for op in program.operations if op.kind in (Kind.FORWARD, Kind.BACKWARD)]
    assert computed
    for operation in computed:
        work = operation.work
        assert work.seconds == pytest.approx(sum(part.seconds for part in work.parts))


@pytest.mark.parametrize("persistent", [True, False])
def test_persistent_norms_sum_their_weight_gradient_in_registers(persistent):
    stack = {"base": "megatron-core", "persistent_norms": persistent}
    costs = StageCosts(small_job(gpus=1, stack=stack))
    pieces, _ = costs.layer_pieces(layer_kinds(costs.job.model)[0])
    norms = [piece for piece in pieces if piece.name.endswith("norm")]
    assert len(norms) == 2
    assert all(norm.reduces_rows is not persistent for norm in norms)


def test_scales_of_rows_cast_every_use_of_an_operand_anew():
    """Worked out by hand for the up product: T tokens of width H to F columns, 2 and 1 byte."""
    stack = {"base": "torchtitan", "float8_scaling": "rows"}
    plan = {"stack": stack, "precision": "fp8", "micro_batch": B, "seq_len": S}
    costs = StageCosts(small_job(gpt_model(), gpus=1, **plan))
    pieces = {piece.name: piece for piece in costs.layer_pieces(layer_kinds(gpt_model())[0])[0]}
    tokens, wide = B * S, gpt_model().ffn_hidden
    given, made = pieces["mlp_up_input_cast"], pieces["mlp_up_output_cast"]
    # Forward: read for maxima, read, write cast. Backward: read, write cast; scale what it gives.
    assert given.forward_bytes == tokens * H * (2 + 2 + 1)
    assert given.backward_bytes == tokens * H * (2 + 1 + (2 + 2))
    # The output's gradient: by rows for one product, by columns for the other.
    assert made.forward_bytes == 0
    assert made.backward_bytes == tokens * wide * (2 + 2 + 1 + 2 + 1)
    maxima = pieces["mlp_up_input_maxima"]
    assert maxima.reduces_rows
    assert maxima.backward_bytes == tokens * H * 2


def test_four_bits_are_read_for_their_maximum_and_cast_by_kernels_of_their_own():
    """Worked out by hand for the up product: T tokens of width H to F columns, 2 and 9/16 byte.

    A norm writes 8 bits itself, but cannot know the maximum of all that it writes.
    """
    of, profile = {}, load_profile("b200-sxm-180gb")
    for precision in ("fp8", "mxfp8", "nvfp4"):
        plan = {"precision": precision, "micro_batch": B, "seq_len": S}
        costs = StageCosts(small_job(gpt_model(), profile=profile, gpus=1, **plan))
        pieces = costs.layer_pieces(layer_kinds(gpt_model())[0])[0]
        of[precision] = next(piece for piece in pieces if piece.name == "mlp_up_cast")
    tokens, wide = B * S, gpt_model().ffn_hidden
    assert of["nvfp4"].forward_bytes == tokens * H * (2 + 2 + 2 * 9 / 16)
    assert of["nvfp4"].backward_bytes == tokens * wide * (2 + 2 + 2 * 9 / 16)
    assert of["fp8"].forward_bytes == of["mxfp8"].forward_bytes == 0
    assert of["fp8"].backward_bytes == tokens * wide * (2 + 2)


def test_input_gradients_of_products_apart_are_added_up():
    """Each is read and the sum is written; a fused product adds them itself.

    Eager kernels add two at a time.
    """
    kind = layer_kinds(small_model())[0]
    apart, fused, eager = (
        {
            piece.name: piece
            for piece in StageCosts(small_job(stack=stack, micro_batch=B, seq_len=S)).layer_pieces(
                kind
            )[0]
        }
        for stack in ("torchtitan", "megatron-core", SIXTEEN_BIT_TORCH)
    )
    gradient = B * S * H * 2
    assert eager["qkv_gradient_sum"].backward_bytes == 2 * 3 * gradient
    assert apart["qkv_gradient_sum"].backward_bytes == (3 + 1) * gradient
    assert apart["mlp_up_gradient_sum"].backward_bytes == (2 + 1) * gradient
    assert not any("gradient_sum" in name for name in fused)


@pytest.mark.parametrize("t", [1, 2])
def test_biases_and_the_layout_of_heads_move_16_sbh_forward_and_38_backward(t):
    """The 4 of biases behind row products stay whole on tensor-parallel ranks.

    Forward, the bias of queries, keys and values reads 3 widths and writes them (12), and the
    heads' outputs are copied (4). Backward, three gradients are joined (12) and two scaled (8),
    and those of biases are summed up over 3 + 1 + 4 + 1 widths (18).
    """
    biased = gpt_model(qkv_bias=True, attention_output_bias=True, mlp_bias=True)
    plan = {"stack": "megatron-lm-2021", "attention": "unfused", "micro_batch": B, "seq_len": S}
    costs = StageCosts(small_job(biased, gpus=t, tp=t, **plan))
    pieces, _ = costs.layer_pieces(layer_kinds(biased)[0])
    names = ("qkv_bias", "attention_layout", "attention_scale")
    extra = [each for each in pieces if each.name in names or each.name.endswith("_bias_gradient")]
    assert sum(each.forward_bytes for each in extra) == SBH * 16 / t
    assert sum(each.backward_bytes for each in extra) == SBH * (34 / t + 4)


def test_eager_code_adds_every_bias_by_a_kernel_of_its_own_before_pytorch_1_12():
    """Over 3 + 1 + 4 + 1 widths, read and written: 36; Megatron's kernels add all but the first."""
    biased = gpt_model(qkv_bias=True, attention_output_bias=True, mlp_bias=True)
    eager = {**SIXTEEN_BIT_TORCH, "fused_biases": False}
    for stack, added in ((eager, 36), ("megatron-lm-2021", 12)):
        costs = StageCosts(small_job(biased, stack=stack, micro_batch=B, seq_len=S))
        pieces, _ = costs.layer_pieces(layer_kinds(biased)[0])
        biases = [each for each in pieces if each.name.endswith("_bias")]
        assert sum(each.forward_bytes for each in biases) == SBH * added


def test_a_fused_bias_costs_no_kernel():
    biased = gpt_model(qkv_bias=True, attention_output_bias=True, mlp_bias=True)
    pieces, _ = StageCosts(small_job(biased, gpus=1)).layer_pieces(layer_kinds(biased)[0])
    assert not any("bias" in each.name for each in pieces)


def test_copies_of_nanotron_around_its_rotary_kernel_move_28_sbh_forward_and_32_backward():
    """Copying a tensor of 2 sbh bytes moves 4.

    Forward, queries, keys and values are copied (12), keys and values joined (8) and copied (8);
    backward, two are joined (8) and three copied twice (24).
    """
    plan = {"stack": {"base": "nanotron"}, "micro_batch": B, "seq_len": S}
    model = small_model(kv_heads=8)
    pieces, _ = StageCosts(small_job(model, **plan)).layer_pieces(layer_kinds(model)[0])
    by_name = {piece.name: piece for piece in pieces}
    copies, lengths = by_name["attention_layout"], by_name["attention_lengths"]
    assert copies.forward_bytes == SBH * (4 + 24)
    assert copies.backward_bytes == SBH * (8 + 24)
    assert (copies.kernels, lengths.kernels, lengths.backward_bytes) == (3, 6, 0.0)
