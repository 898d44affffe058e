"""Kernels that cast the operands of 8-bit products, by recipe: bytes worked out by hand.

The up product of T tokens has k columns in and n columns out; 16 bits are 2 bytes, 8 are 1. Of
torchao's recipes the bytes are those of its roofline (testing/training/roofline_utils.py,
get_tensor_memory_traffic_ovhd_s).
"""

from __future__ import annotations

import pytest

from simulator.described.load import load_profile
from simulator.program.layer.eight_bit_casts import Casting
from simulator.program.layer.layer_kinds import layer_kinds
from simulator.program.price.stage_cost import StageCosts
from tests.jobs import small_job, small_model

MODEL = small_model(hidden=128, ffn_hidden=256)
T = 128
BLACKWELL = load_profile("b200-sxm-180gb")


def _pieces(stack, precision="fp8", **plan):
    job = small_job(MODEL, profile=BLACKWELL, seq_len=T, stack=stack, precision=precision, **plan)
    pieces, _ = StageCosts(job).layer_pieces(layer_kinds(MODEL)[0])
    return {piece.name: piece for piece in pieces}


def _moved(pieces, name):
    piece = pieces[name]
    return piece.forward_bytes, piece.backward_bytes


def test_delayed_scaling_reads_an_operand_once_and_current_scaling_twice():
    """Transformer Engine before 2.8, whose norms find no maximum; its norms cast for delayed."""
    bare = {"base": "megatron-core", "finds_maxima": "none"}
    delayed, current = (_pieces({**bare, "float8_scaling": way}) for way in ("delayed", "tensor"))
    n, k = T * 2 * 256, T * 128
    assert _moved(delayed, "mlp_up_cast") == (0, (2 + 2) * n)
    assert _moved(current, "mlp_up_cast") == ((2 + 2 + 2) * k, (2 + 2 + 2) * n)


def test_norms_of_transformer_engine_find_the_maximum_of_what_they_write():
    old, new = (
        _pieces({"base": "megatron-core", "float8_scaling": "tensor", "finds_maxima": finds})
        for finds in ("none", "norms")
    )
    for name, elements in (("qkv_cast", T * 128), ("mlp_up_cast", T * 128)):
        assert old[name].forward_bytes - new[name].forward_bytes == 2 * elements
    for name in ("attention_output_cast", "mlp_down_cast"):
        assert old[name].forward_bytes == new[name].forward_bytes


def test_activations_of_megatron_write_16_bits_that_are_cast_afterwards():
    """NVIDIA-NeMo/Megatron-Bridge, issue 577."""
    assert _pieces("megatron-core")["mlp_down_cast"].forward_bytes == T * 256 * (2 + 2)
    whole = {"base": "megatron-core", "fused_activation_casts": True}
    assert _pieces(whole)["mlp_down_cast"].forward_bytes == 0


def test_the_recipe_tensorwise_of_torchao_casts_weights_in_every_pass():
    """max_abs (2), to_float8 (2 + 1) forward, and by columns (2 + 1) backward."""
    pieces = _pieces("torchtitan")
    weights = 2 * 256 * 128
    assert _moved(pieces, "mlp_up_weight_cast") == ((2 + 2 + 1) * weights, (2 + 1) * weights)
    # Inductor finds the maxima of what norms and activations make (fuse_with_prev).
    assert pieces["mlp_up_cast"].forward_bytes == T * 128 * (2 + 2)
    assert pieces["attention_output_cast"].forward_bytes == T * 128 * (2 + 2 + 2)


def test_mxfp8_of_torchao_casts_each_layout_by_a_kernel_of_its_own():
    """Kernels 1 and 2 of the roofline: 2 + 1 each, and a scale for every 32 elements."""
    one = 2 + 1 + 1 / 32
    pieces = _pieces("torchtitan", "mxfp8")
    n, k = T * 2 * 256, T * 128
    assert _moved(pieces, "mlp_up_cast") == (one * k, one * k + 2 * one * n)
    assert pieces["mlp_up_cast"].kernels == 2
    assert _moved(pieces, "mlp_up_weight_cast") == (one * 2 * 256 * 128, one * 2 * 256 * 128)
    together = _pieces("megatron-core", "mxfp8")["mlp_up_cast"]
    assert together.backward_bytes == (2 + 2 * (1 + 1 / 32)) * n


def test_the_recipe_rowwise_casts_weights_by_rows_and_by_columns():
    pieces = _pieces({"base": "torchtitan", "float8_scaling": "rows"})
    weights = 2 * 256 * 128
    assert _moved(pieces, "mlp_up_weight_cast") == ((2 + 2 + 1) * weights, (2 + 1) * weights)
    assert _moved(pieces, "mlp_up_weight_maxima") == (0, 2 * weights)


@pytest.mark.parametrize("tp", [1, 2])
def test_each_rank_casts_its_part_of_a_weight(tp):
    pieces = _pieces("torchtitan", gpus=tp, tp=tp)
    assert pieces["mlp_up_weight_cast"].forward_bytes == 5 * 2 * 256 * 128 / tp


def test_what_casts_itself_cannot_know_its_maximum():
    known = Casting(2, 1, reads_twice=False, casts=frozenset(("norm",)))
    unknown = Casting(2, 1, reads_twice=True, casts=frozenset(("norm",)))
    assert known.input_bytes("norm") == (0, 0)
    assert unknown.input_bytes("norm") == (2 + 4, 0)


def _expert_job(gpus=1, ep=1, **stack):
    model = small_model(experts={"count": 4, "top_k": 1, "ffn_hidden": 256})
    plan = {"ep": ep, "stack": {"base": "megatron-core", "grouped_experts": True, **stack}}
    return small_job(model, gpus=gpus, profile=BLACKWELL, seq_len=T, precision="fp8", **plan)


def _timed(job):
    kind = layer_kinds(job.model)[0]
    pieces, timer = StageCosts(job).layer_pieces(kind)
    return {piece.name: piece for piece in pieces}, timer


@pytest.mark.parametrize(
    ("which", "of_linears", "of_experts"),
    [("all", "fp8", "fp8"), ("dense", "fp8", "bf16"), ("experts", "bf16", "fp8")],
)
def test_linear_layers_and_experts_are_narrow_each_by_themselves(which, of_linears, of_experts):
    pieces, timer = _timed(_expert_job(narrow_products=which))
    for name, precision in (("qkv", of_linears), ("expert_up", of_experts)):
        assert timer.precision_of(pieces[name]) == precision
        assert (f"{name}_cast" in pieces) == (precision == "fp8")
    assert timer.precision_of(pieces["router"]) == "bf16"


def test_what_experts_keep_has_the_format_of_their_products():
    kept = {}
    for which in ("all", "dense"):
        job = _expert_job(narrow_products=which)
        layer = StageCosts(job).units.divided(StageCosts(job).units.layers[0])
        kept[which] = {saved.name: saved.num_bytes for saved in layer.saved}
    assert kept["dense"]["expert_input"] == 2 * kept["all"]["expert_input"]
    assert kept["dense"]["qkv_input"] == kept["all"]["qkv_input"]


@pytest.mark.parametrize("ep", [1, 2])
def test_weights_of_a_ranks_experts_are_cast_in_every_pass_where_all_weights_are(ep):
    """Four experts of 2 x 64 x 256 and 256 x 64: read, read and written; again for backward."""
    casts = {"float8_scaling": "tensor", "casts_layouts_apart": True}
    pieces, _ = _timed(_expert_job(ep, ep, casts_weights_each_pass=True, **casts))
    up, down = (pieces[f"expert_{name}_weight_cast"] for name in ("up", "down"))
    assert up.forward_bytes == 2 * down.forward_bytes == 4 / ep * 2 * 64 * 256 * (2 + 2 + 1)
    assert up.backward_bytes == 2 * down.backward_bytes == 4 / ep * 2 * 64 * 256 * (2 + 1)
    assert "expert_up_weight_cast" not in _timed(_expert_job(**casts))[0]


def test_gradients_of_weights_in_16_bits_need_no_casts_by_columns():
    """As torchao's rowwise_with_gw_hp: input and gradient are cast by rows, for one product."""
    stack = {"base": "torchtitan", "float8_scaling": "rows", "wide_weight_gradients": True}
    pieces = _pieces(stack)
    assert not any(name.endswith("_maxima") for name in pieces)
    n = T * 2 * 256
    assert pieces["mlp_up_output_cast"].backward_bytes == (2 + 2 + 1) * n
    job = small_job(MODEL, profile=BLACKWELL, seq_len=T, stack=stack, precision="fp8")
    pieces, timer = _timed(job)
    product = pieces["mlp_up"]
    assert timer.precision_of(product) == "fp8"
    assert timer.precision_of(product, of_weight=True) == "bf16"
