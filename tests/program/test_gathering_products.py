"""Experts whose products pick the rows of their tokens, and keep what SonicMoE keeps.

Oracle: SonicMoE (arXiv 2512.14080): without parallelism of experts, backward keeps ``2 T d`` bytes
of what experts are handed and ``4 T K n`` of what the first product gives, and nothing else.
"""

from __future__ import annotations

import pytest

from simulator.program.layer.pieces import Layer, MemoryBound, Role
from tests.program.test_experts import HALF, HIDDEN, TOKENS, TOP_K, WIDTH, divided, whole_layer

COPIES = TOKENS * TOP_K
ACTIVATION = "expert_activation_input"
ROUTED = ("expert_input", ACTIVATION, "expert_activation_output", "expert_down_input")
"""Names of all that experts may keep for backward."""


def experts_layer(*, gathers: bool, ep: int = 1) -> Layer:
    stack = {"grouped_experts": True, "gathers_in_products": gathers}
    return divided(whole_layer(ep=ep, stack=stack), ep=ep)


def kept_bytes(layer: Layer) -> dict[str, float]:
    return {saved.name: saved.num_bytes for saved in layer.saved if saved.name in ROUTED}


def test_backward_keeps_what_the_first_product_gives_and_picks_rows_of_the_routers_input_again():
    layer = experts_layer(gathers=True)
    assert kept_bytes(layer) == {ACTIVATION: 2 * COPIES * WIDTH * HALF}
    (handed,) = (saved for saved in layer.saved if saved.name == "router_input")
    assert handed.num_bytes == TOKENS * HIDDEN * HALF


def test_tokens_that_came_from_other_ranks_stay_as_they_came():
    kept = kept_bytes(experts_layer(gathers=True, ep=4))
    assert set(kept) == {"expert_input", ACTIVATION}
    assert kept["expert_input"] == kept_bytes(experts_layer(gathers=False, ep=4))["expert_input"]


@pytest.mark.parametrize(("ep", "permutes"), [(1, False), (4, True)])
def test_nothing_is_copied_before_products_that_pick_rows_of_a_ranks_own_tokens(ep, permutes):
    pieces = experts_layer(gathers=True, ep=ep).pieces
    roles = {piece.role for piece in pieces if isinstance(piece, MemoryBound)}
    assert (Role.PERMUTE in roles) is permutes
    assert Role.UNPERMUTE in roles
