"""What does it take to weigh copies of tokens by eager kernels in fp32?

torchtitan's mixture of experts casts the copies to fp32, multiplies each by the router's weight for
it, and casts the products down again. Whether it does so before the experts or behind them, as many
numbers are weighed. Backward casts the gradient up, multiplies it by the weights and by the copies,
sums the second product over the width for the gradient of the weights, and casts the first down.

Ignores: reads of the weights, of which there is one per copy.

Source: operators that torch dispatches (tests/program/test_eager_kernels_are_torchs.py);
torchtitan, ``MoE.forward`` of models/moe/moe.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.program.layer.pieces import MemoryBound, Region

_HALF, _FULL = 2.0, 4.0
_CAST = _HALF + _FULL
"""Traffic of a cast per element [B]."""

_PRODUCT = 2 * _FULL
"""Traffic of a product with a number per row [B]."""

_WEIGHTS_GRADIENT, _WEIGHTS_GRADIENT_KERNELS = 3 * _FULL + _FULL, 2
"""Traffic per element of the product of gradient and copies, and of its sum over rows [B]."""


def weighing_pieces(elements: float) -> Iterator[MemoryBound]:
    """Both directions of weighing so many numbers, in the order of forward.

    Args:
        elements: Copies times their width.
    """
    cast, product = _CAST * elements, _PRODUCT * elements
    yield MemoryBound("weighing_cast", cast, cast, Region.SEQUENCE)
    yield MemoryBound("weighing", product, product, Region.SEQUENCE)
    yield MemoryBound(
        "weighing_gradient", 0.0, _WEIGHTS_GRADIENT * elements, Region.SEQUENCE,
        _WEIGHTS_GRADIENT_KERNELS,
    )  # fmt: skip
    yield MemoryBound("weighed_cast", cast, cast, Region.SEQUENCE, widens_backward=True)
