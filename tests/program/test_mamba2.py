"""The Mamba-2 layer against the paper's formulas and torch, and what each strategy does to it."""

from __future__ import annotations

import pytest

from simulator.api import simulate
from simulator.described.load import load_model
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.errors import InputError
from simulator.exporters.megatron import megatron_script
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, layer_tensors, model_layer
from simulator.program.layer.model_totals import model_flop_per_token, parameter_count
from simulator.program.layer.pieces import Exchange, Gemm, Layer, MemoryBound
from simulator.program.layer.tensors import tensor_shard_numel
from simulator.program.strategies.tensor_parallel import tensor_parallel
from tests.jobs import small_job, small_model

# h 64, inner width w 128, head size 16, so 8 heads in 4 groups, state 32, chunks of 16.
SSM = {"state": 32, "head_dim": 16, "groups": 4, "chunk": 16}
TOKENS, WIDTH, HEADS, GROUPS, STATE, CHUNK = 64, 128, 8, 4, 32, 16


def mamba_model(**fields: object) -> Model:
    """Four Mamba-2 layers without MLP; ``ssm`` adds to those of ``SSM``."""
    ssm = {**SSM, **fields.pop("ssm", {})}  # type: ignore[dict-item]
    return small_model(**{"ffn_hidden": 0, "positions": "none", "ssm": ssm, **fields})


def layer_of(model: Model, index: int = 0) -> Layer:
    plan = Plan()
    shape = microbatch_shape(plan, sequences=1, seq_len=TOKENS)
    return model_layer(model, layer_kinds(model)[index], plan, shape)


def scan_flop(layer: Layer) -> float:
    products = [each for each in layer.pieces if isinstance(each, Gemm) and not each.has_weight]
    return sum(2.0 * each.batch * each.m * each.n * each.k for each in products)


def test_a_layer_has_the_parameters_of_the_paper():
    # in: z x B C dt; conv of 4 over x B C, with bias; dt bias, A and D per head; norms; out.
    mixed = WIDTH + 2 * GROUPS * STATE
    ours = {t.name: t.numel for t in layer_tensors(mamba_model(), 0)}
    assert ours == {
        "norm.0": 64, "ssm.in": 64 * (WIDTH + mixed + HEADS), "ssm.conv": mixed * 4,
        "ssm.conv.bias": mixed, "ssm.step_bias": HEADS, "ssm.decay": HEADS, "ssm.skip": HEADS,
        "ssm.norm": WIDTH, "ssm.out": WIDTH * 64,
    }  # fmt: skip


def test_the_published_model_of_2_7_billion_counts_to_the_last_parameter():
    assert parameter_count(load_model("mamba2-2.7b")) == 2_702_599_680


def test_the_scan_has_the_products_of_torch_and_they_give_what_the_recurrence_gives():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    size, per_group, chunks = WIDTH // HEADS, HEADS // GROUPS, TOKENS // CHUNK
    x = torch.randn(TOKENS, HEADS, size, dtype=torch.float64)
    b, c = torch.randn(2, TOKENS, GROUPS, STATE, dtype=torch.float64)
    decay = torch.rand(TOKENS, HEADS, dtype=torch.float64).log() / 4

    # One token after another: state = exp(decay) state + x B', y = state C.
    state, recurrent = torch.zeros(HEADS, size, STATE, dtype=torch.float64), []
    for t in range(TOKENS):
        of_head = [m[t].repeat_interleave(per_group, 0) for m in (b, c)]
        state = decay[t].exp()[:, None, None] * state + x[t][:, :, None] * of_head[0][:, None]
        recurrent.append((state @ of_head[1][:, :, None])[:, :, 0])

    # Chunks: (chunk, group, token, ...), all heads of a group side by side.
    x, b, c, decay = (m.unflatten(0, (chunks, CHUNK)) for m in (x, b, c, decay))
    sums = decay.cumsum(1).transpose(1, 2)  # chunk, head, token
    ours, before = [], torch.zeros(HEADS, STATE, size, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        for i in range(chunks):
            keys, queries, values = b[i].transpose(0, 1), c[i].transpose(0, 1), x[i].transpose(0, 1)
            scores = queries @ keys.transpose(1, 2)
            mask = (sums[i][:, :, None] - sums[i][:, None]).exp().tril()
            own = (scores.repeat_interleave(per_group, 0) * mask) @ values
            read = (queries.repeat_interleave(per_group, 0) @ before) * sums[i].exp()[:, :, None]
            ours.append((own + read).transpose(0, 1))
            left = (sums[i][:, -1:] - sums[i]).exp()[:, :, None] * values
            made = keys.transpose(1, 2).repeat_interleave(per_group, 0) @ left
            before = sums[i][:, -1].exp()[:, None, None] * before + made
    torch.testing.assert_close(torch.cat(ours), torch.stack(recurrent))
    assert scan_flop(layer_of(mamba_model())) == counter.get_total_flops()


def test_flop_of_the_model_are_matrices_and_the_scan():
    model = mamba_model()
    matrices = 64 * (2 * WIDTH + 2 * GROUPS * STATE + HEADS) + WIDTH * 64
    scan = scan_flop(layer_of(model)) / TOKENS
    assert model_flop_per_token(model, TOKENS) == 3 * (4 * (2 * matrices + scan) + 2 * 1000 * 64)


def test_the_scan_grows_with_tokens_and_not_with_their_square():
    flop = [model_flop_per_token(mamba_model(), length) for length in (64, 4096)]
    assert flop[0] == flop[1]


def test_without_an_mlp_a_layer_has_one_norm_and_one_residual():
    names = [piece.name for piece in layer_of(mamba_model()).pieces]
    assert [name for name in names if "norm" in name or "residual" in name] == [
        "attention_norm", "ssm_gated_norm", "attention_residual",
    ]  # fmt: skip
    assert not any("mlp" in saved.name for saved in layer_of(mamba_model()).saved)


def test_what_stays_for_backward_is_what_the_kernel_keeps():
    # Per token in 16 bits: residual and its norm; z x B C dt; y; the out product's input.
    saved = {each.name: each.num_bytes / TOKENS for each in layer_of(mamba_model()).saved}
    assert saved["ssm_input"] == 2 * 64
    assert saved["ssm_projected"] == 2 * (2 * WIDTH + 2 * GROUPS * STATE + HEADS)
    assert saved["ssm_scanned"] == saved["ssm_out_input"] == 2 * WIDTH


def test_step_sizes_are_read_and_come_out_twice_in_32_bits_beside_their_decays():
    """Per token and head: dt in 16 bits, and in 32 its softplus and the sum of decays."""
    (steps,) = (each for each in layer_of(mamba_model()).pieces if each.name == "ssm_steps")
    assert isinstance(steps, MemoryBound)
    assert steps.forward_bytes == TOKENS * HEADS * (2 + 4 + 4)
    assert steps.backward_bytes == 2 * steps.forward_bytes


def test_four_tensor_ranks_have_a_group_each_and_exchange_around_the_two_products():
    layer = layer_of(mamba_model())
    shard = tensor_parallel(layer, 4, sequence_parallel=False, element_bytes=2)
    assert scan_flop(shard) == scan_flop(layer) / 4
    assert [each.name for each in shard.pieces if isinstance(each, Exchange)] == [
        "ssm_in.gather", "ssm_out.reduce",
    ]  # fmt: skip
    tensors = layer_tensors(mamba_model(), 0)
    whole = {"norm.0": 1}
    assert all(tensor_shard_numel(t, 4) == t.numel // whole.get(t.name, 4) for t in tensors)


def test_ranks_that_do_not_divide_the_groups_are_refused():
    with pytest.raises(InputError, match="must divide the 4 groups of Mamba-2 layers"):
        simulate(small_job(mamba_model(), gpus=8, tp=8))


@pytest.mark.parametrize("method", ["ring", "all_to_all", "all_gather"])
def test_ranks_that_share_a_sequence_are_refused_with_the_reason(method):
    with pytest.raises(InputError, match=r"pass on the state of the scan; use plan\.cp: 1"):
        simulate(small_job(mamba_model(), gpus=2, cp=2, cp_method=method))


def test_heads_of_attention_bind_only_where_some_layer_attends():
    simulate(small_job(mamba_model(heads=1, kv_heads=1), gpus=4, global_batch=4, tp=4))
    hybrid = mamba_model(heads=1, kv_heads=1, ssm={"attention_layers": [2]})
    with pytest.raises(InputError, match="must divide the model's 1 heads"):
        small_job(hybrid, gpus=4, global_batch=4, tp=4)


def test_a_hybrid_has_attention_where_its_pattern_says():
    model = mamba_model(ffn_hidden=128, ssm={"attention_layers": [1, 3]})
    kinds = [(kind.mixer, kind.mlp) for kind in layer_kinds(model)]
    assert kinds == [("mamba2", "dense"), ("attention", "dense")] * 2


@pytest.mark.parametrize(
    "plan", [{"recompute": "full"}, {"zero": 3}, {"pp": 2, "schedule": "zb-h1"}, {"tp": 2}], ids=str
)
def test_a_hybrid_runs_under_the_strategies_of_other_layers(plan):
    model = mamba_model(ffn_hidden=128, ssm={"attention_layers": [1]})
    result = simulate(small_job(model, gpus=2, **plan))
    assert 0 < result.mfu <= result.hfu < 1


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"ssm": {"head_dim": 48}}, "must divide expand x hidden = 128"),
        ({"ssm": {"groups": 3}}, "must divide the 8 heads"),
        ({"ssm": {"attention_layers": [4]}}, "contains 4, but the last layer is 3"),
        ({"parallel_block": True}, "no MLP to run in parallel"),
    ],
    ids=str,
)
def test_sizes_that_do_not_go_together_are_refused(fields, fault):
    with pytest.raises(ValueError, match=fault):
        mamba_model(**fields)


def test_only_models_with_a_scan_may_have_no_mlp():
    with pytest.raises(ValueError, match="only models with Mamba-2 layers may have no MLP"):
        small_model(ffn_hidden=0)


def test_what_knows_no_scan_refuses_it():
    with pytest.raises(InputError, match=r"model\.ssm"):
        megatron_script(small_job(mamba_model(), stack="megatron-core"))
