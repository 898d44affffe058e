"""What Megatron-Core's recompute modules keep and repeat, in closed form, one layer at a time.

Letters: T tokens, h hidden, f MLP width, a heads, d head size, e experts, k copies per token,
q and c ranks of the latents of queries and of keys with values, n and r head sizes without and
with position, v of values. Bytes are of one layer and one rank, activations in 16 bits.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.job import Job
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.rules.all_rules import job_faults
from simulator.errors import InputError
from simulator.program.grid.stage_layers import Slice
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kind, model_layer
from simulator.program.layer.model_totals import model_flop_per_token
from simulator.program.layer.pieces import Layer
from simulator.program.price.executed_flop import hardware_flop_per_token
from simulator.program.price.stage_cost import StageCosts
from simulator.program.strategies.recompute import Recomputation, recomputation
from simulator.program.strategies.tensor_parallel import tensor_parallel
from simulator.results.simulation import run_step
from tests.jobs import small_job, small_model

T, H, A, F = 64, 64, 8, 128
Q, C, N, R, V = 24, 16, 8, 4, 8
E, K, W, SHARED = 8, 2, 32, 48
LATENT = {
    "q_lora_rank": Q, "kv_lora_rank": C, "qk_nope_head_dim": N, "qk_rope_head_dim": R,
    "v_head_dim": V,
}  # fmt: skip
STATISTICS = 4 * T
"""One fp32 number per token: what an RMS norm keeps beside its input [B]."""


def latent_model(**fields: Any) -> Model:
    return small_model(kv_heads=A, latent_attention=LATENT, **fields)


def expert_model(**fields: Any) -> Model:
    experts = {"count": E, "top_k": K, "ffn_hidden": W, "shared_ffn_hidden": SHARED}
    return small_model(experts=experts | fields.pop("experts", {}), **fields)


def whole_layer(model: Model, **plan: Any) -> Layer:
    made = Plan(**{"stack": {"base": "megatron-core", "dropout": False}, **plan})
    shape = microbatch_shape(made, 1, T)
    return model_layer(model, layer_kind(model, 0), made, shape)


def again(layer: Layer, *modules: Any) -> Recomputation:
    return recomputation(layer, "selective", "core-attention", modules=modules)


def dropped(layer: Layer, *modules: Any) -> float:
    """Bytes that are not kept, all of which are there again while backward runs."""
    everything = sum(recomputation(layer, "none", "core-attention").kept_bytes)
    outcome = again(layer, *modules)
    missing = everything - sum(outcome.kept_bytes)
    assert sum(outcome.restored_bytes) == missing
    return missing


def repeated(layer: Layer, *modules: Any) -> set[str]:
    """Names of the layer's pieces that backward repeats."""
    return {piece.name for piece in layer.pieces} & set(again(layer, *modules).repeated)


def test_core_attention_is_what_selective_repeats_by_default():
    layer = whole_layer(small_model())
    assert again(layer) == again(layer, "core_attn")
    assert repeated(layer) == {"attention"}
    assert dropped(layer) == 4 * T * A


def test_norms_inside_products_are_left_alone():
    """Query, key and value, and a dense MLP's first product, are ``LayerNormLinear``."""
    layer = whole_layer(small_model())
    assert repeated(layer, "layernorm") == set()
    assert dropped(layer, "layernorm") == 0


def test_the_input_norm_of_latent_attention_drops_its_output():
    layer = whole_layer(latent_model())
    assert repeated(layer, "layernorm") == {"attention_norm"}
    assert dropped(layer, "layernorm") == 2 * T * H


def test_the_norm_before_experts_drops_its_output():
    """The router and the shared expert read it, and keep it once."""
    layer = whole_layer(expert_model())
    assert repeated(layer, "layernorm") == {"mlp_norm"}
    assert dropped(layer, "layernorm") == 2 * T * H


def test_the_norm_before_experts_drops_the_shared_ones_8_bit_copy_too():
    layer = whole_layer(expert_model(), precision="fp8")
    assert dropped(layer, "layernorm") == (2 + 1) * T * H


def test_norms_before_8_bit_products_keep_no_cast_either():
    """With ``save_original_input`` backward casts anew, one layout of the two."""
    layer = whole_layer(latent_model(), precision="fp8")
    assert dropped(layer, "layernorm") == T * H
    outcome = again(layer, "layernorm")
    assert outcome.repeated["query_down_cast"] == outcome.repeated["key_value_down_cast"] == 0.5


@pytest.mark.parametrize(
    ("precision", "share"), [("fp8", 1 / 2), ("mxfp8", 64 / 130), ("nvfp4", 32 / 41)]
)
def test_the_second_cast_reads_16_bits_again_beside_what_the_first_moved(precision, share):
    """One cast moves 2 + 2 x bytes of an operand of so many with its scales.

    Four bits have a scale of the whole operand, too, and so read it for its maximum before.
    """
    outcome = again(whole_layer(expert_model(), precision=precision), "layernorm", "moe_act")
    assert outcome.repeated["shared_mlp_up_cast"] == pytest.approx(share)
    assert outcome.repeated["expert_down_cast"] == pytest.approx(share)


def test_the_activation_of_experts_keeps_its_input_only():
    layer = whole_layer(expert_model())
    assert repeated(layer, "moe_act") == {"expert_activation"}
    assert dropped(layer, "moe_act") == 2 * T * K * W


def test_separate_activation_kernels_drop_what_passes_between_them():
    stack = {"base": "megatron-core", "dropout": False, "fused_elementwise": False}
    layer = whole_layer(expert_model(), stack=stack)
    assert dropped(layer, "moe_act") == 2 * (2 * T * K * W)


def test_a_clamped_activation_keeps_what_it_clamps():
    layer = whole_layer(expert_model(clamped_gate=True))
    assert repeated(layer, "moe_act") == {"expert_activation_clamp", "expert_activation"}
    clamped, product = 2 * (2 * T * K * W), 2 * T * K * W
    assert dropped(layer, "moe_act") == clamped + product


def test_a_plain_relu_saves_nothing_by_keeping_its_input_instead():
    layer = whole_layer(expert_model(activation="relu", gated_mlp=False))
    assert dropped(layer, "moe_act") == 0


def test_up_projections_are_made_again_from_the_latents_that_norms_read():
    layer = whole_layer(latent_model())
    assert repeated(layer, "mla_up_proj") == {
        "query_latent_norm", "query_up", "key_value_latent_norm", "key_value_up", "rotary",
    }  # fmt: skip
    heads = A * (2 * (N + R) + V)
    assert dropped(layer, "mla_up_proj") == 2 * T * (heads + Q + C + R)


def test_tensor_parallel_ranks_gather_latents_again():
    layer = tensor_parallel(
        whole_layer(latent_model()), 2, sequence_parallel=True, element_bytes=2.0
    )
    assert {"query_up.gather", "key_value_up.gather"} <= repeated(layer, "mla_up_proj")


def test_a_dense_mlp_is_repeated_from_the_residual_stream_on():
    layer = whole_layer(small_model())
    assert repeated(layer, "mlp") == {"mlp_norm", "mlp_up", "activation", "mlp_down"}
    assert dropped(layer, "mlp") == STATISTICS + 2 * T * (H + 2 * F + F)


def test_experts_are_repeated_from_the_output_of_their_norm_on():
    layer = whole_layer(expert_model())
    assert repeated(layer, "moe") == {
        "router", "routing", "permute", "expert_up", "expert_activation", "expert_down",
        "unpermute", "shared_mlp_up", "shared_activation", "shared_mlp_down", "shared_sum",
    }  # fmt: skip
    scores = 2 * 4 * T * E
    routed, shared = 2 * T * K * (H + 3 * W), 2 * T * 3 * SHARED
    assert dropped(layer, "moe") == scores + routed + shared


def test_the_shared_expert_is_repeated_from_what_the_router_keeps():
    layer = whole_layer(expert_model(experts={"shared_gate": True}))
    assert repeated(layer, "shared_experts") == {
        "shared_mlp_up", "shared_activation", "shared_mlp_down", "shared_gate",
        "shared_gate_product",
    }  # fmt: skip
    assert dropped(layer, "shared_experts") == 2 * T * (3 * SHARED + H + 1)


@pytest.mark.parametrize(("model", "module"), [(expert_model(), "mlp"), (small_model(), "moe")])
def test_layers_without_a_module_keep_everything(model, module):
    layer = whole_layer(model)
    assert (repeated(layer, module), dropped(layer, module)) == (set(), 0)


def test_modules_together_drop_what_each_of_them_drops_once():
    layer = whole_layer(expert_model())
    apart = dropped(layer, "moe_act") + dropped(layer, "layernorm")
    assert dropped(layer, "layernorm", "moe_act") == apart
    assert dropped(layer, "moe", "moe_act") == dropped(layer, "moe")


def test_a_step_repeats_the_modules_and_keeps_less():
    plain, chosen = (
        small_job(latent_model(), global_batch=1, recompute="selective", **plan)
        for plan in ({"recompute_modules": ["mla_up_proj"]}, {"recompute_modules": ["core_attn"]})
    )
    up = 2 * T * A * (Q * (N + R) + C * (N + V))
    costs = StageCosts(plain)
    assert costs.units.of(costs.units.layers[0]).times.time.recompute.flop == pytest.approx(up)
    layer = Slice(1, 2)
    saved = [sum(size for _, size in StageCosts(job).saved(layer)) for job in (plain, chosen)]
    assert saved[0] < saved[1]


@pytest.mark.parametrize(
    ("model", "modules", "per_token"),
    [
        (latent_model(), ["mla_up_proj"], 2 * A * (Q * (N + R) + C * (N + V))),
        (small_model(), ["mlp"], 2 * 3 * H * F),
        (small_model(), ["layernorm"], 0),
        (small_model(), ["core_attn"], 4 * A * 8 * T),
        (expert_model(), ["shared_experts"], 2 * 3 * H * SHARED),
        (expert_model(), ["moe", "shared_experts", "moe_act"],
         2 * (3 * H * SHARED + K * 3 * H * W + H * E)),
    ],
)  # fmt: skip
def test_hardware_flop_count_the_products_of_the_modules(model, modules, per_token):
    job = small_job(model, recompute="selective", recompute_modules=modules)
    more = hardware_flop_per_token(job) - model_flop_per_token(model, job.batch.seq_len)
    assert more == pytest.approx(model.layers * per_token)
    step = run_step(job)
    ratio = more / model_flop_per_token(model, T)
    assert step.hfu / step.mfu == pytest.approx(1 + ratio)


def refused(model: Model | None = None, **plan: Any) -> list[str]:
    fields = {"recompute": "selective", "recompute_modules": ["moe_act"], **plan}
    job: Job = small_job(model or expert_model()).model_copy(update={"plan": Plan(**fields)})
    return [fault.rule for fault in job_faults(job) if fault.path == "plan.recompute_modules"]


@pytest.mark.parametrize(
    ("model", "plan", "words"),
    [
        (None, {"recompute": "full"}, "names parts of layers, but plan.recompute is full"),
        (None, {"recompute": "none"}, "plan.recompute is none"),
        (None, {"stack": "torchtitan"}, "selective means alternate-products"),
        (small_model(), {}, "needs a model with experts"),
        (small_model(), {"recompute_modules": ["moe"]}, "needs a model with experts"),
        (small_model(), {"recompute_modules": ["mla_up_proj"]}, "with latent attention"),
        (expert_model(experts={"shared_ffn_hidden": 0}),
         {"recompute_modules": ["shared_experts"]}, "with shared experts"),
        (small_model(parallel_block=True, norms_per_layer=1), {"recompute_modules": ["mlp"]},
         "a norm between attention and the MLP"),
    ],
)  # fmt: skip
def test_modules_that_would_repeat_nothing_are_refused(model, plan, words):
    (rule,) = refused(model, **plan)
    assert words in rule


def test_sound_modules_are_not_refused():
    assert refused(recompute_modules=["core_attn", "layernorm", "mlp", "moe_act"]) == []


def test_an_unknown_module_is_refused_with_those_that_there_are():
    with pytest.raises((InputError, ValueError), match="moe_act"):
        Plan(recompute="selective", recompute_modules=["moe_acts"])
