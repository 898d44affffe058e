"""Into which grid do the ranks that share a layer arrange themselves, beyond a line?

Megatron's tensor parallelism (1D) lays tp ranks in a line. Colossal-AI's three others lay
them in a grid and divide activations and weights along all of its sides:

- 2d: q x q ranks, SUMMA (Optimus, arXiv 2104.05343);
- 2.5d: d such squares, each with 1/d of the tokens and a copy of the weights (Tesseract,
  arXiv 2105.14500);
- 3d: q x q x q ranks (arXiv 2105.14450).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

TensorMethod = Literal["1d", "2d", "2.5d", "3d"]


class TensorGrid(NamedTuple):
    """A grid of tensor-parallel ranks.

    Attributes:
        method: How they multiply matrices.
        side: q, ranks along each side of a square.
        depth: Squares behind each other: 1 in 2D, d in 2.5D, q in 3D.
    """

    method: TensorMethod
    side: int
    depth: int

    @property
    def ranks(self) -> int:
        """All ranks of the grid."""
        return self.side**2 * self.depth

    @property
    def token_ways(self) -> int:
        """Into how many parts the tokens of an activation are cut."""
        return self.side * self.depth

    @property
    def width_ways(self) -> int:
        """Into how many parts the width of an activation is cut."""
        return self.side

    @property
    def weight_ways(self) -> int:
        """Into how many parts a weight matrix is cut; in 2.5D every square holds it whole."""
        return self.ranks if self.method == "3d" else self.side**2

    @property
    def vector_ways(self) -> int:
        """Into how many parts a bias or the weight of a norm is cut.

        Source: ``Linear2D``, ``LayerNorm2D``, ``Linear2p5D``, ``Linear3D`` and ``LayerNorm3D``
        of Colossal-AI: h / q^2 in 2D, else h / q.
        """
        return self.side**2 if self.method == "2d" else self.side


def tensor_grid(method: TensorMethod, tp: int, depth: int) -> TensorGrid | None:
    """The grid of tp ranks; None where they are in a line, or do not fill the grid."""
    if method == "1d" or tp == 1:
        return None
    if method == "3d":
        side = round(tp ** (1 / 3))
        depth = side
    else:
        side = math.isqrt(tp // depth)
    grid = TensorGrid(method, side, depth)
    return grid if side > 1 and grid.ranks == tp else None
