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

from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS, ChunkAlgorithm, Transfer


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
    described = CHUNK_ALGORITHMS[algorithm]
    transfers = list(described.transfers(ranks, chunks)) if ranks > 1 else []
    held = _start(described, ranks, chunks)
    steps = max((transfer.step for transfer in transfers), default=-1) + 1
    history = np.zeros((steps + 1, *held.shape), dtype=bool)
    moves: list[list[tuple[int, int, int]]] = [[]]
    history[0] = held
    for step in range(steps):
        sent = [transfer for transfer in transfers if transfer.step == step]
        moves.append([(t.source, t.destination, _column(described, t)) for t in sent])
        before = held.copy()
        for sender, receiver, column in moves[-1]:
            held[receiver, column] |= before[sender, column]
        history[step + 1] = held
    return Contents(history, moves, ranks if described.reduces else 1)


def _column(algorithm: ChunkAlgorithm, transfer: Transfer) -> int:
    return transfer.source if algorithm.keeps_senders_apart else transfer.chunk


def _start(algorithm: ChunkAlgorithm, ranks: int, chunks: int) -> NDArray[np.bool_]:
    """Contributions before the first step, shape (ranks, columns, ranks)."""
    per_segment = 1 if algorithm.keeps_senders_apart else chunks
    columns = (algorithm.segments or ranks) * per_segment
    held = np.zeros((ranks, columns, ranks), dtype=bool)
    for rank in range(ranks):
        match algorithm.starts_with:
            case "all":
                held[rank, :, rank] = True
            case "own":
                held[rank, rank * per_segment : (rank + 1) * per_segment, rank] = True
            case "root":
                held[rank, :, rank] = rank == 0
    return held
