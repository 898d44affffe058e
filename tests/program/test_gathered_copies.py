"""Copies of tokens that every rank gathers, in releases that pick them first and sort them then."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.plan.plan import Plan
from simulator.program.layer.pieces import MemoryBound
from tests.program.test_experts import (
    HALF,
    HIDDEN,
    TOKENS,
    TOP_K,
    divided,
    saved_bytes,
    whole_layer,
)

COPIES = TOKENS * TOP_K
SORTS = ("expert_sort", "expert_unsort")


def sorts(*, etp: int = 1, ep: int = 1, **plan: Any) -> dict[str, MemoryBound]:
    layer = divided(whole_layer(**plan), ep=ep, etp=etp)
    return {
        piece.name: piece
        for piece in layer.pieces
        if isinstance(piece, MemoryBound) and piece.name in (*SORTS, "expert_weighing")
    }


@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (4, 1), (2, 2), (1, 4)])
def test_every_copy_that_a_rank_computes_is_moved_once_more_each_way(ep: int, etp: int):
    pieces = sorts(ep=ep, etp=etp, ep_dispatch="all_gather", stack="megatron-core@0.9")
    moved = 2 * COPIES * etp * HIDDEN * HALF
    for name in SORTS:
        assert pieces[name].forward_bytes == pieces[name].backward_bytes == moved
        assert pieces[name].scatters_rows


@pytest.mark.parametrize(
    ("dispatch", "stack"),
    [("all_gather", "megatron-core@0.10"), ("all_to_all", "megatron-core@0.9"),
     ("all_gather", "torchtitan")],
)  # fmt: skip
def test_other_releases_and_dispatchers_sort_once(dispatch: str, stack: str):
    assert not sorts(ep_dispatch=dispatch, stack=stack)


def kept_by_torch(*, indices_alone: bool) -> dict[str, int]:
    """What the early dispatcher's operators keep of a rank's tokens, in the order of their use."""
    torch = pytest.importorskip("torch")

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, index):  # type: ignore[no-untyped-def]
            ctx.index = index
            return torch.gather(rows, 0, index)

    pick = Gather.apply if indices_alone else lambda rows, index: torch.gather(rows, 0, index)
    tokens = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    scores = torch.zeros(COPIES, dtype=torch.bfloat16, requires_grad=True)
    picked = torch.arange(TOKENS).repeat_interleave(TOP_K).view(-1, 1).expand(-1, HIDDEN)
    order = torch.randperm(COPIES).view(-1, 1).expand(-1, HIDDEN)
    kept: dict[int, int] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: kept.setdefault(each.data_ptr(), each.nbytes) and each, lambda each: each
    ):
        copies = pick(tokens, picked)
        rows = pick(copies, order)
        results = torch.zeros_like(rows).scatter_add(0, order, rows)
        torch.zeros_like(tokens).scatter_add(0, picked, results * scores.view(-1, 1))
    named = {"tokens": tokens, "picked_copies": copies, "expert_results": results}
    return {name: kept[each.data_ptr()] for name, each in named.items() if each.data_ptr() in kept}


@pytest.mark.parametrize("release", ["0.6", "0.7", "0.9"])
def test_a_rank_keeps_results_and_what_it_picked_from_as_torch_does(release: str):
    """The tokens themselves are the router's input."""
    expected = kept_by_torch(indices_alone=release != "0.6")
    expected.pop("tokens", None)
    layer = divided(whole_layer(ep_dispatch="all_gather", stack=f"megatron-core@{release}"))
    new = divided(whole_layer(ep_dispatch="all_gather", stack="megatron-core@0.10"))
    names = {each.name for each in layer.saved} - {each.name for each in new.saved}
    assert {name: saved_bytes(layer, name) for name in names} == expected


@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (2, 2), (1, 4)])
def test_early_releases_keep_the_tokens_of_all_ranks(ep: int, etp: int):
    plan = {"ep": ep, "tp": etp, "ep_dispatch": "all_gather", "stack": "megatron-core@0.6"}
    layer = divided(whole_layer(**plan), ep=ep, etp=etp)
    assert saved_bytes(layer, "gathered_tokens") == TOKENS * ep * etp * HIDDEN * HALF
    assert saved_bytes(layer, "picked_copies") == COPIES * etp * HIDDEN * HALF


def test_plans_say_it_themselves():
    stack = {"base": "megatron-core", "sorts_gathered_copies": True}
    assert Plan(ep_dispatch="all_gather", stack=stack).stack.sorts_gathered_copies
