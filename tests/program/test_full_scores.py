"""Separate kernels over attention scores of full precision, counted as torch dispatches them."""

from __future__ import annotations

import pytest

from simulator.program.layer.pieces import MemoryBound
from simulator.program.price.stage_cost import StageCosts
from tests.jobs import SIXTEEN_BIT_TORCH, gpt_model, small_job


def softmax(*, causal: bool, precision: str, widens: bool = True) -> tuple[MemoryBound, float]:
    """The separate kernels, and bytes of all scores of a layer."""
    costs = StageCosts(
        small_job(
            gpt_model(causal=causal, widens_scores=widens),
            precision=precision,
            attention="unfused",
            stack=SIXTEEN_BIT_TORCH,
        )
    )
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    (found,) = (p for p in pieces if isinstance(p, MemoryBound) and p.name == "softmax")
    model, shape = costs.job.model, costs.units.shape
    length = costs.job.batch.seq_len
    scores = costs.job.batch.micro_batch * model.heads * length * length
    return found, scores * shape.element_bytes


@pytest.mark.parametrize(("causal", "backward_passes"), [(True, 7), (False, 5)])
def test_full_scores_are_passed_over_six_times_forward_and_seven_backward(causal, backward_passes):
    """Scale, mask and softmax read and write; softmax reads three, and only a choice has a pass."""
    found, scores_bytes = softmax(causal=causal, precision="fp32")
    assert found.forward_bytes == 6 * scores_bytes
    assert found.backward_bytes == backward_passes * scores_bytes


def test_scores_of_16_bits_are_cast_besides():
    found, scores_bytes = softmax(causal=True, precision="bf16")
    assert found.forward_bytes > 6 * scores_bytes


def test_a_model_that_casts_no_scores_passes_over_16_bit_ones_as_over_full_ones():
    found, scores_bytes = softmax(causal=True, precision="bf16", widens=False)
    assert (found.forward_bytes, found.backward_bytes) == (6 * scores_bytes, 7 * scores_bytes)
