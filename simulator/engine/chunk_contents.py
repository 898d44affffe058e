"""Who holds what after each step of a collective?

A buffer is cut into columns: the segments of the algorithm, or, in an all_to_all, the
parts by their sender. A rank starts with contributions of some ranks in each column; what
it receives adds the sender's contributions to its own. A reduction is done where all ranks
have contributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS, Transfer


@dataclass(frozen=True)
class Contents:
    """What every rank holds, step by step.

    Attributes:
        held: Whether rank r holds the contribution of rank c to column k after step t,
            shape (steps + 1, ranks, columns, ranks); the first entry is the start.
        moves: What moved in each step, as (sender, receiver, column); nothing at the start.
        wanted: How many contributions a complete entry has: all ranks in a reduction,
            one where data are only copied.
    """

    held: NDArray[np.bool_]
    moves: Sequence[Sequence[tuple[int, int, int]]]
    wanted: int

    @property
    def steps(self) -> int:
        """Rounds after the start."""
        return len(self.held) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """Contributions that each entry holds, shape (steps + 1, ranks, columns)."""
        return np.asarray(self.held.sum(axis=3), dtype=np.int64)


def contents(algorithm: str, ranks: int, chunks: int = 1) -> Contents:
    """Replay the transfers of an algorithm on the buffers of all ranks.

    Args:
        algorithm: A key of ``CHUNK_ALGORITHMS``.
        ranks: Group size.
        chunks: Pieces that each message is cut into.
    """
    transfers = list(CHUNK_ALGORITHMS[algorithm](ranks, chunks)) if ranks > 1 else []
    columns = _columns(algorithm, ranks, chunks)
    held = _start(algorithm, ranks, columns)
    steps = max((transfer.step for transfer in transfers), default=-1) + 1
    history = np.zeros((steps + 1, *held.shape), dtype=bool)
    moves: list[list[tuple[int, int, int]]] = [[]]
    history[0] = held
    for step in range(steps):
        sent = [transfer for transfer in transfers if transfer.step == step]
        moves.append([(t.source, t.destination, _column(algorithm, t)) for t in sent])
        before = held.copy()
        for sender, receiver, column in moves[-1]:
            held[receiver, column] |= before[sender, column]
        history[step + 1] = held
    reduces = algorithm in _REDUCTIONS
    return Contents(history, moves, ranks if reduces else 1)


_REDUCTIONS = ("ring_all_reduce", "ring_reduce_scatter", "tree_all_reduce")


def _columns(algorithm: str, ranks: int, chunks: int) -> int:
    if algorithm == "pairwise_all_to_all":
        return ranks
    segments = {"tree_all_reduce": 2, "chain_broadcast": 1}.get(algorithm, ranks)
    return segments * chunks


def _column(algorithm: str, transfer: Transfer) -> int:
    return transfer.source if algorithm == "pairwise_all_to_all" else transfer.chunk


def _start(algorithm: str, ranks: int, columns: int) -> NDArray[np.bool_]:
    """Contributions before the first step, shape (ranks, columns, ranks)."""
    held = np.zeros((ranks, columns, ranks), dtype=bool)
    own: Sequence[int] = range(ranks)
    if algorithm in _REDUCTIONS:
        held[own, :, own] = True
    elif algorithm == "chain_broadcast":
        held[0, :, 0] = True
    elif algorithm == "pairwise_all_to_all":
        held[own, own, own] = True
    else:
        pieces = columns // ranks
        for rank in own:
            held[rank, rank * pieces : (rank + 1) * pieces, rank] = True
    return held
