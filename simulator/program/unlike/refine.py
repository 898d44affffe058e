"""Which places of a stage must behave alike?

Colour refinement (1-dimensional Weisfeiler-Leman) on a hypergraph: places begin with the
colour of what is known of them and split as long as two of one colour are in groups of
different colours. What is left alike has the same past whatever happens.

Source: Berkholz, Bonsma and Grohe, Tight lower and upper bounds for the complexity of
canonical colour refinement (arXiv 1509.08251).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Colours = NDArray[np.int64]
"""A number per place, shape (places,)."""


def refined(colours: Colours, partitions: Sequence[Colours]) -> Colours:
    """The coarsest colours, at least as fine as the given ones, that groups agree with.

    Two places of one colour are then in groups with the same colours in the same numbers.
    Colours are numbered by their first place.

    Args:
        colours: What tells places apart from the start, shape (places,).
        partitions: Groups of places, as labels of shape (places,) each.
    """
    colours = _numbered(colours)
    while True:
        finer = colours
        for labels in partitions:
            finer = _numbered(np.stack([finer, _group_colours(finer, labels)], axis=1))
        if finer.max(initial=0) == colours.max(initial=0):
            return colours
        colours = finer


def _group_colours(colours: Colours, labels: Colours) -> Colours:
    """A number per place that says which colours its group has, and how many of each."""
    order = np.lexsort((colours, labels))
    _, group = np.unique(labels, return_inverse=True)
    sorted_colours = colours[order]
    bounds = np.cumsum(np.bincount(group))[:-1]
    known: dict[bytes, int] = {}
    numbers = [
        known.setdefault(members.tobytes(), len(known))
        for members in np.split(sorted_colours, bounds)
    ]
    return np.asarray(numbers, dtype=np.int64)[group]


def _numbered(rows: NDArray[np.int64]) -> Colours:
    """Equal rows get equal numbers, in order of their first appearance."""
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
