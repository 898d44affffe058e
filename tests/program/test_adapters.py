"""Are adapters as large, and products with frozen weights as cheap, as their definitions say?"""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from simulator.described.load import load_profile
from simulator.described.plan.plan_blocks import Lora, quantised_bytes
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.ir import Category, Owner, total_bytes
from simulator.program.layer.adapters import casts_inputs
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.resident import resident_memory, slice_parameters, state_bytes
from simulator.schedule.slots import Phase
from tests.jobs import small_job, small_model

H, KV, F, V, LAYERS = 64, 32, 128, 1000, 2
"""Of the small model: 8 heads of 8, 4 of keys and values, a gated MLP."""
QKV, OUT, MLP = (H + 2 * KV) * H, H * H, 3 * F * H
LAYER = Slice(1, 2)


def small(**plan):
    return small_job(small_model(layers=LAYERS), stack="torch", zero=0, **plan)


def count(job):
    (run,) = stage_slices(job, 1)
    return slice_parameters(job, run)


def test_an_adapter_has_a_row_and_a_column_of_its_matrix_for_each_of_its_rank():
    job = small(lora={"rank": 4, "targets": ["query", "down"]})
    assert count(job).trained == LAYERS * 4 * ((H + H) + (H + F))


def test_all_matrices_of_layers_are_adapted_by_default():
    sides = (H + H) + 2 * (H + KV) + (H + H) + 3 * (H + F)
    assert count(small(lora={"rank": 4})).trained == LAYERS * 4 * sides


def test_one_product_of_several_matrices_has_one_adapter_that_goes_down():
    """As Megatron's linear_qkv: one (4, h), and (h + 2 kv, 4) up."""
    job = small_job(
        small_model(layers=LAYERS), zero=0, lora={"rank": 4, "targets": ["query", "key", "value"]}
    )
    assert count(job).trained == LAYERS * 4 * (H + H + 2 * KV)


def test_dora_learns_the_size_of_every_output():
    plain, dora = (
        count(small(lora={"rank": 4, "targets": ["up"], "kind": kind})).trained
        for kind in ("lora", "dora")
    )
    assert dora - plain == LAYERS * F


@pytest.mark.parametrize("tp", [1, 2])
def test_tensor_ranks_hold_a_share_of_what_their_matrix_is_cut_by_and_all_of_the_rest(tp):
    """Up of a column product and down of a row product are cut; the narrow rest is whole."""
    job = small_job(
        small_model(layers=1),
        tp=tp,
        gpus=tp,
        zero=0,
        lora={"rank": 4, "targets": ["gate", "up", "down"]},
    )
    # One (4, h) for gate and up together, and (h, 4) for down, are whole on both ranks.
    cut = 4 * 2 * F + 4 * F
    assert count(job).trained == cut / tp + 4 * H + 4 * H


def test_every_expert_has_adapters_of_its_own():
    model = small_model(layers=1, experts={"count": 4, "top_k": 2, "ffn_hidden": F})
    job = small_job(model, zero=0, stack="torch", lora={"rank": 2, "targets": ["up", "down"]})
    assert count(job).expert == 4 * 2 * 2 * (H + F)


def test_frozen_weights_have_no_gradients_and_no_states():
    job = small(lora={"rank": 4}, master_weights=False)
    (run,) = stage_slices(job, 1)
    parameters = slice_parameters(job, run)
    held = dict(resident_memory(job, parameters))
    assert held[Owner.OPTIMIZER_STATES] == 4 * parameters.trained
    assert held[Owner.WEIGHTS] == 2 * parameters.total


def test_only_4_bit_blocks_have_constants_that_may_be_quantised():
    with pytest.raises(ValidationError, match="constants of nf4 and fp4"):
        Lora(rank=1, double_quantisation=False)


def test_matrices_of_four_bits_take_a_constant_of_eight_bits_per_block():
    """0.5 + (1 + 4 / 256) / 64 with double quantisation, 0.5 + 4 / 64 without."""
    assert quantised_bytes(Lora(rank=1, base_precision="nf4")) == pytest.approx(0.515869140625)
    lora = Lora(rank=1, base_precision="fp4", double_quantisation=False)
    assert quantised_bytes(lora) == 0.5625


def test_only_matrices_of_layers_are_quantised():
    plain, quantised = (
        count(small(lora={"rank": 4, "base_precision": base})) for base in (None, "int8")
    )
    assert plain.total - quantised.total == LAYERS * (QKV + OUT + MLP) / 2


@pytest.mark.parametrize(("profile", "copies"), [("b200-sxm-180gb", 1), ("h200-sxm-141gb", 2)])
def test_frozen_matrices_of_8_bits_are_there_twice_where_products_read_rows_alone(profile, copies):
    """Transformer Engine's ``is_non_tn_fp8_gemm_supported``: Blackwell's do, Hopper's do not."""
    plan = {"stack": "megatron-core", "zero": 0, "precision": "fp8"}
    system = load_profile(profile)
    plain, narrow = (
        count(
            small_job(
                small_model(layers=LAYERS),
                profile=system,
                lora={"rank": 4, "base_precision": base},
                **plan,
            )
        )
        for base in (None, "fp8")
    )
    assert plain.total - narrow.total == LAYERS * (QKV + OUT + MLP) * (1 - copies / 2)


def test_8_bit_products_read_8_bit_matrices_as_they_are():
    lora = {"rank": 4, "targets": ["query"], "base_precision": "fp8"}
    job = small_job(small_model(layers=LAYERS), stack="megatron-core", lora=lora, precision="fp8")
    names = [part.name for part in StageCosts(job).work(LAYER, Phase.FORWARD).parts]
    assert not [name for name in names if name.endswith("_dequantise")]
    with pytest.raises(InputError, match="8-bit products"):
        build_program(small(lora=lora))


def backward_flop(job) -> float:
    return StageCosts(job).work(LAYER, Phase.BACKWARD).flop


def test_backward_of_a_frozen_product_costs_as_much_as_forward():
    job = small(frozen=["layers.1.*"])
    costs = StageCosts(job)
    products = 2 * 2.0 * job.batch.micro_batch * job.batch.seq_len * (QKV + OUT + MLP)
    full = backward_flop(small())
    assert full - costs.work(LAYER, Phase.BACKWARD).flop == products / 2


def test_nothing_goes_backward_through_layers_below_the_first_that_is_trained():
    job = small(frozen=["embedding.*", "layers.0.*"])
    costs = StageCosts(job)
    assert costs.work(Slice(0, 1), Phase.BACKWARD).seconds == 0
    assert costs.saved(Slice(0, 1)) == ()
    assert costs.work(LAYER, Phase.BACKWARD).seconds > 0


def test_a_quantised_matrix_is_read_and_written_before_every_use():
    seconds = []
    for base in (None, "int8"):
        lora = {"rank": 4, "targets": ["query"], "base_precision": base}
        work = StageCosts(small(lora=lora)).work(LAYER, Phase.FORWARD)
        parts = {part.name: part.seconds for part in work.parts}
        seconds.append(sum(s for name, s in parts.items() if name.endswith("_dequantise")))
    assert seconds[0] == 0
    assert seconds[1] > 0


@pytest.mark.parametrize(("is_fp32", "size"), [(False, 2), (True, 4)])
def test_adapters_that_peft_keeps_in_fp32_have_fp32_gradients_and_states(is_fp32, size):
    """What ranks gather, frozen weights among it, stays 16-bit."""
    job = small_job(
        small_model(layers=LAYERS), zero=0, precision="bf16", lora={"rank": 4},
        master_weights=False, stack={"base": "torch", "casts_adapter_inputs": is_fp32},
    )  # fmt: skip
    per = state_bytes(job)
    assert (per.weights, per.gradients, per.moments, per.gathered) == (size, size, 2 * size, 2)


@pytest.mark.parametrize(
    ("release", "base", "casts"),
    [("0.25", "nf4", True), ("0.26", "nf4", False), ("0.26", "int8", False), ("0.26", None, True)],
)
def test_trl_leaves_adapters_of_models_that_are_not_quantised_in_fp32(release, base, casts):
    lora = {"rank": 4, "base_precision": base}
    job = small_job(
        small_model(layers=LAYERS), zero=0, precision="bf16", lora=lora,
        stack=f"trl@{release}",
    )  # fmt: skip
    assert casts_inputs(job) is casts


@pytest.mark.parametrize("stack", ["axolotl", "llama-factory", "ms-swift"])
def test_frameworks_that_call_peft_themselves_leave_all_adapters_in_fp32(stack):
    lora = {"rank": 4, "base_precision": "nf4"}
    job = small_job(small_model(layers=LAYERS), zero=0, precision="bf16", lora=lora, stack=stack)
    assert casts_inputs(job)


def test_data_parallel_ranks_reduce_the_gradients_of_adapters_alone():
    job = small_job(small_model(layers=LAYERS), stack="torch", zero=0, gpus=2, lora={"rank": 4})
    reductions = [
        op for op in build_program(job).operations if op.category is Category.DATA_PARALLEL
    ]
    reduced_bytes = sum(op.work.num_bytes for op in reductions)
    assert reduced_bytes == count(job).trained * state_bytes(job).reduced


QLORA = {"rank": 4, "base_precision": "nf4"}


def quantised(lora=QLORA, recompute="none", **stack):
    return small_job(
        small_model(layers=LAYERS), stack={"base": "torch", **stack}, zero=0, precision="bf16",
        lora=lora, recompute=recompute,
    )  # fmt: skip


def test_peft_keeps_in_fp32_what_is_not_quantised():
    """Norms, embedding and head; two bytes more for each of their elements."""
    kept = [dict(resident_memory(job, count(job)))[Owner.WEIGHTS]
            for job in (quantised(), quantised(widens_unquantised=True))]  # fmt: skip
    assert kept[1] - kept[0] == 2 * (2 * V * H + (2 * LAYERS + 1) * H)


def test_layers_pass_on_fp32_numbers_where_peft_widens_them():
    inputs = 2.0 * quantised().batch.seq_len * H
    plain, widened = (
        StageCosts(quantised(recompute="full", widens_unquantised=widens)).saved(LAYER)
        for widens in (False, True)
    )
    assert (total_bytes(plain), total_bytes(widened)) == (inputs, 2 * inputs)


def test_products_of_bitsandbytes_keep_inputs_that_no_gradient_reads():
    """Of the only product without an adapter: the one down."""
    lora = {**QLORA, "targets": ["query", "key", "value", "output", "gate", "up"]}
    plain, keeping = (
        total_bytes(StageCosts(quantised(lora, quantised_products_keep_inputs=keeps)).saved(LAYER))
        for keeps in (False, True)
    )
    assert keeping - plain == 2.0 * quantised().batch.seq_len * F


@pytest.mark.parametrize(
    ("lora", "kept_share"),
    [
        ({"rank": 4}, 0),
        ({"rank": 4, "dropout": 0.1}, 1),
        ({"rank": 4, "targets": ["gate", "down"]}, 1),
    ],
)
def test_one_function_for_an_adapted_mlp_makes_the_input_of_its_last_product_again(
    lora, kept_share
):
    apart, in_place = (
        StageCosts(
            small_job(
                small_model(layers=LAYERS),
                stack={"base": "torch", "adapted_mlp_in_place": at_once},
                zero=0,
                lora=lora,
                master_weights=False,
            )
        )
        for at_once in (False, True)
    )
    down_input_bytes = 2 * 64 * F
    saved = apart.saved_bytes(LAYER) - in_place.saved_bytes(LAYER)
    assert saved == (1 - kept_share) * down_input_bytes
    assert in_place.working_bytes(LAYER) <= apart.working_bytes(LAYER)
