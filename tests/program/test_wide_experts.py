"""Experts whose products stay in the format of fp32 weights under autocast."""

from __future__ import annotations

import math

import pytest
import torch

from simulator.cost.kernel_time import gemm_s
from simulator.described.plan.plan import Plan
from simulator.program.layer.pieces import GroupedGemm, MemoryBound
from simulator.program.price.stage_cost import StageCosts
from simulator.program.strategies.backward_memory import gradient_sizes
from tests.jobs import small_job, small_model

COUNT, TOP_K, T, H, F = 4, 2, 64, 64, 32
COPIES = T * TOP_K
EXPERTS = {"count": COUNT, "top_k": TOP_K, "ffn_hidden": F}
UNDER_AUTOCAST = {"stack": "trl", "zero": 0, "precision": "bf16"}
OF_16_BITS = {"master_weights": False}


def costs_of(**plan) -> StageCosts:
    model = small_model(experts=EXPERTS, gated_mlp=True)
    costs = StageCosts(small_job(model, seq_len=T, **{**UNDER_AUTOCAST, **plan}))
    assert model.hidden == H
    assert costs.units.shape.tokens == T
    return costs


def layer_of(**plan):
    units = costs_of(**plan).units
    return units.divided(units.layers[0])


@pytest.mark.parametrize(
    ("changes", "is_wide"),
    [
        ({}, True),
        ({"compile": True}, True),
        ({"precision": "fp16"}, True),
        ({"zero": 3}, False),
        ({"zero": 2}, False),
        ({"zero": 3, "stack": {"base": "trl", "gathers_fp32_weights": True}}, True),
        (OF_16_BITS, False),
        ({"precision": "fp32"}, False),
        ({"lora": {"rank": 8}}, False),
        ({"libraries": {"transformers": "4.57"}}, False),
        ({"libraries": {"torch": "2.8"}}, False),
        ({"stack": "torch"}, False),
        ({"stack": "deepspeed"}, False),
        ({"stack": "unsloth"}, False),
        ({"stack": {"base": "trl", "grouped_experts": False}}, False),
    ],
)
def test_experts_are_fp32_where_autocast_alone_casts_and_leaves_them_out(changes, is_wide):
    assert Plan(**{**UNDER_AUTOCAST, **changes}).has_wide_experts is is_wide


def test_autocast_leaves_a_grouped_product_of_torch_in_the_format_of_its_weights():
    rows, weights = torch.ones(8, 16), torch.ones(2, 16, 16)
    ends = torch.tensor([4, 8], dtype=torch.int32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.functional.grouped_mm(rows, weights, offs=ends).dtype is torch.float32
        assert (rows @ weights[0]).dtype is torch.bfloat16


def test_each_expert_has_an_fp32_product_of_its_own():
    pieces, timer = (costs := costs_of()).layer_pieces(costs.units.layers[0].kind)
    products = {piece.name: piece for piece in pieces if isinstance(piece, GroupedGemm)}
    assert {piece.launches for piece in products.values()} == {COUNT}
    down = timer.gemm_s(products["expert_down"])
    one = gemm_s(timer.profile, COPIES // COUNT, H, F, precision="fp32")
    assert down == pytest.approx(COUNT * one, rel=1e-9)


def kept_by_torch(dtype: torch.dtype) -> int:
    """Bytes of rows that backward of grouped experts reads, beside weights and masks."""
    up, down = torch.ones(COUNT, H, 2 * F, dtype=dtype), torch.ones(COUNT, F, H, dtype=dtype)
    rows = torch.ones(COPIES, H, dtype=dtype, requires_grad=True)
    scores = torch.ones(COPIES, 1, requires_grad=True, dtype=dtype)
    nobody, ends = torch.zeros(COPIES, 1, dtype=torch.bool), torch.arange(1, COUNT + 1) * 32
    up, down, ends = up.requires_grad_(), down.requires_grad_(), ends.int()
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        is_rows = tensor.shape[0] == COPIES and tensor.shape[-1] > 1
        if is_rows and tensor.is_floating_point():
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    multiply = torch.nn.functional.grouped_mm
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        made = multiply(rows * 1.0, up, offs=ends).masked_fill(nobody, 0.0)
        gate, value = made.chunk(2, dim=-1)
        made = multiply(torch.nn.functional.silu(gate) * value, down, offs=ends)
        result = made.masked_fill(nobody, 0.0) * scores
    assert result.shape == (COPIES, H)
    return sum(kept.values())


@pytest.mark.parametrize(("dtype", "changes"), [(torch.float32, {}), (torch.bfloat16, OF_16_BITS)])
def test_grouped_experts_keep_what_torch_keeps(dtype, changes):
    kept = {saved.name: saved.num_bytes for saved in layer_of(**changes).saved}
    found = math.fsum(size for name, size in kept.items() if name.startswith("expert_"))
    assert found == kept_by_torch(dtype)


def masks_of(release: str, **plan) -> list[MemoryBound]:
    pieces = layer_of(libraries={"transformers": release}, **plan).pieces
    found = [piece for piece in pieces if isinstance(piece, MemoryBound)]
    return [piece for piece in found if piece.name.endswith(("_mask", "_copy"))]


@pytest.mark.parametrize(("plan", "size"), [({}, 4), (OF_16_BITS, 2)])
def test_since_5_17_copies_results_and_their_gradients_are_masked(plan, size):
    """Each mask reads and writes its rows, and so does each copy before it."""
    assert masks_of("5.14", **plan) == []
    masks = masks_of("5.17", **plan)
    rows = H + 2 * F + H
    assert math.fsum(each.backward_bytes for each in masks) == 4 * size * COPIES * rows
    assert math.fsum(each.forward_bytes for each in masks) == size * COPIES * (4 * rows - 2 * H)


@pytest.mark.parametrize(("plan", "size"), [({}, 4), (OF_16_BITS, 2)])
def test_gradients_of_what_experts_read_are_as_wide_as_their_products(plan, size):
    layer = layer_of(**plan)
    sizes = gradient_sizes(layer, 2)
    (up,) = (i for i, piece in enumerate(layer.pieces) if piece.name == "expert_up")
    assert sizes[up] == size * COPIES * H
    assert sizes[up + 1] == size * COPIES * 2 * F
