"""What is the largest of n normal numbers, drawn in one go?

A group waits for the slowest of its n ranks. The largest of n independent draws has the
distribution function F^n, so it lies at quantile U^(1/n) of F, with U drawn evenly from 0 to 1.
Here U takes the midpoints of 65,536 equal parts: one draw is a look into a table.

Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 2.1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTS = 65_536
"""Entries of a table: all that a draw of 16 bits can ask for."""

_REACH, _GRID = 9.0, 8192
"""Where the normal distribution is looked at, in standard deviations, and at how many places."""


def largest_of_normals(count: int) -> Floats:
    """Equally likely values of the largest of so many standard normal numbers, shape (PARTS,)."""
    places = np.linspace(-_REACH, _REACH, _GRID)
    log_below = np.log([0.5 * math.erfc(-place / math.sqrt(2)) for place in places.tolist()])
    log_u = np.log((np.arange(PARTS) + 0.5) / PARTS)
    return np.interp(log_u / count, log_below, places)


def drawn_from(
    table: NDArray[np.float32], shape: tuple[int, ...], random: np.random.Generator
) -> NDArray[np.float32]:
    """Entries of a table of :data:`PARTS`, each as likely, in an array of a shape."""
    return table[random.integers(0, PARTS, shape, dtype=np.uint16)]
