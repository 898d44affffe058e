"""Masked scores of separate kernels, of which the larger of them and a number goes on."""

from __future__ import annotations

import pytest

from simulator.program.grid.stage_layers import Slice
from simulator.program.layer.pieces import MemoryBound
from simulator.program.price.stage_cost import StageCosts
from tests.jobs import SIXTEEN_BIT_TORCH, gpt_model, small_job, small_model
from tests.program.kernels_of_torch import moved_bytes, size_bytes

torch = pytest.importorskip("torch")


def costs_of(*, rotary: bool = False, **stack) -> StageCosts:
    model = small_model() if rotary else gpt_model()
    stack = {**SIXTEEN_BIT_TORCH, **stack}
    return StageCosts(small_job(model, attention="unfused", stack=stack, zero=0))


def kept_more(**case) -> float:
    """With a floor than without, until backward of a layer begins, in its 16-bit scores."""
    floors = case.pop("floors")
    plain, floored = costs_of(**case), costs_of(**case, floors_scores=floors)
    model, batch = plain.job.model, plain.job.batch
    scores = 2 * batch.micro_batch * model.heads * batch.seq_len**2
    kept = [sum(held for _, held in each.saved(Slice(1, 2))) for each in (plain, floored)]
    return (kept[1] - kept[0]) / scores


@pytest.mark.parametrize(
    ("floors", "rotary", "copies"),
    [(True, False, 1), (True, True, 1), ("rotary", True, 1), ("rotary", False, 0)],
)
def test_backward_has_the_masked_scores_beside_what_softmax_gave(floors, rotary, copies):
    assert kept_more(floors=floors, rotary=rotary) == copies


def test_masked_scores_are_fp32_where_autocast_adds_a_mask_to_them():
    autocasts = {"keeps_half_weights": False, "adds_causal_mask": True}
    assert kept_more(floors=True, **autocasts) == 2


def test_the_floor_moves_what_torch_does():
    costs = costs_of(floors_scores=True)
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    (floor,) = (p for p in pieces if isinstance(p, MemoryBound) and p.name == "score_floor")
    scores = torch.zeros(2, 64, 64, dtype=torch.bfloat16, requires_grad=True)
    least, results = torch.tensor(torch.finfo(scores.dtype).min, dtype=scores.dtype), []
    forward = moved_bytes(lambda: results.append(torch.max(scores, least)))
    gradient = torch.zeros_like(scores)
    backward = moved_bytes(lambda: results[0].backward(gradient))
    ratio = floor.forward_bytes / (2 * size_bytes(scores))
    assert forward == pytest.approx(2 * size_bytes(scores), rel=0.01)
    assert floor.backward_bytes == pytest.approx(ratio * backward, rel=0.01)
