"""Copies of tokens that are added up again, against kernels that were measured.

Sources: runs moe-8, moe-8-recompute and moe-32 of ``reports/gpu`` (H100, PyTorch 2.11), medians of
each kernel; pytorch/ao, pull request 4623 (B200).
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.cost.collectives import Group
from simulator.cost.kernel_time import row_sum_s
from simulator.described.load import load_profile
from simulator.described.model import Experts
from simulator.program.layer.pieces import Layer, MemoryBound
from simulator.program.strategies.expert_parallel import expert_parallel
from tests.program.test_experts import (
    COUNT,
    HALF,
    HIDDEN,
    TOKENS,
    TOP_K,
    WIDTH,
    divided,
    expert_model,
    whole_layer,
)
from tests.tiny import tiny_profile

COPIES = TOKENS * TOP_K * HIDDEN
"""Their elements."""

EXPERTS = Experts(count=COUNT, top_k=TOP_K, ffn_hidden=WIDTH)


@pytest.mark.parametrize(
    ("gpu", "sorts", "rows", "width", "measured_us"),
    [
        ("h100-sxm-80gb", False, 1024, 1024, 10.1),
        ("h100-sxm-80gb", False, 2048, 1024, 17.7),
        ("h100-sxm-80gb", False, 4096, 1024, 33.4),
        ("h100-sxm-80gb", True, 2048, 1024, 8.3),
        ("h100-sxm-80gb", True, 4096, 1024, 18.7),
        ("b200-sxm-180gb", True, 196608, 2048, 1848.0),
    ],
)
def test_rows_are_added_up_in_about_the_measured_time(gpu, sorts, rows, width, measured_us):
    seconds = row_sum_s(load_profile(gpu), float(rows * width), sorts=sorts)
    assert 1e6 * seconds == pytest.approx(measured_us, rel=0.3)


def test_a_processor_adds_rows_up_while_they_stream():
    tiny = tiny_profile()
    processor = tiny.model_copy(
        update={"device": tiny.device.model_copy(update={"launches_itself": True})}
    )
    assert row_sum_s(processor, 1e9, sorts=False) == 0.0


def named(layer: Layer, name: str) -> MemoryBound:
    return next(p for p in layer.pieces if isinstance(p, MemoryBound) and p.name == name)


def piece(name: str, *, ep: int = 1, **plan: Any) -> MemoryBound:
    return named(divided(whole_layer(**plan), ep=ep), name)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan"])
@pytest.mark.parametrize("dispatcher", ["all_to_all", "hierarchical"])
def test_what_is_picked_up_in_one_direction_is_added_up_in_the_other(stack, dispatcher):
    layer = expert_parallel(
        whole_layer(stack=stack), Group(4, 4), 1,
        experts=EXPERTS, element_bytes=HALF, dispatcher=dispatcher,
    )  # fmt: skip
    permute, unpermute = (named(layer, name).row_sums for name in ("permute", "unpermute"))
    assert (permute.forward, permute.backward) == (0.0, COPIES)
    assert (unpermute.forward, unpermute.backward) == (COPIES, 0.0)


def test_kernels_made_for_it_add_up_while_they_stream():
    stack = {"base": "megatron-core", "fused_permutation": True}
    assert piece("unpermute", stack=stack).row_sums is None


@pytest.mark.parametrize("name", ["permute", "unpermute"])
def test_copies_that_are_summed_as_they_lie_are_read_and_written_once_more(name):
    """Each way: tokens are repeated before they are sorted, copies sorted, then summed."""
    found = piece(name, stack="jax")
    assert found.row_sums is None
    assert found.forward_bytes == found.backward_bytes == HALF * (3 * COPIES + TOKENS * HIDDEN)


@pytest.mark.parametrize("name", ["permute", "unpermute"])
def test_products_with_masks_leave_no_copies_to_move(name):
    layer = whole_layer(expert_model(capacity_factor=1.0), stack="jax")
    assert named(layer, name).forward_bytes == named(layer, name).backward_bytes == 0.0


def test_what_arrives_is_added_up_backward_where_it_is_sorted_by_indices():
    """Torchtitan picks it up as ``x[indices]``; Megatron-Core joins chunks."""
    assert piece("dispatch_sort", stack="torchtitan", ep=4).row_sums.backward == COPIES
    assert piece("dispatch_sort", stack="megatron-core", ep=4).row_sums is None
