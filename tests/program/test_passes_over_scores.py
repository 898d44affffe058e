"""How often does attention in PyTorch's own operators read and write scores?"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.program.layer import core_attention

ROWS = 24
PRODUCTS = ("mm", "bmm")


class Traffic(TorchDispatchMode):
    """Counts what kernels move of matrices of scores, in 16-bit ones."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in PRODUCTS:
            moved = [*(each for each in args if isinstance(each, torch.Tensor)), out]
            scores = [t for t in moved if t.numel() == ROWS * ROWS and t.is_floating_point()]
            self.passes += sum(t.element_size() for t in scores) / 2
        return out


def test_a_softmax_in_fp32_of_16_bit_scores_makes_the_passes_of_pytorchs_operators():
    scores = torch.zeros(ROWS, ROWS, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(ROWS, ROWS).triu(1).bool()
    with Traffic() as forward:
        masked = (scores * 0.5).masked_fill(mask, float("-inf"))
        probabilities = torch.softmax(masked.float(), -1).to(torch.bfloat16)
    gradient = torch.ones_like(probabilities)
    with Traffic() as backward:
        probabilities.backward(gradient)
    expected, expected_back = core_attention._WIDE_SCORE_PASSES
    assert forward.passes == expected
    mask_back = core_attention._FULL_MASK_BACKWARD_PASSES
    assert backward.passes == pytest.approx(expected_back + mask_back)
