"""Which chunk goes from which rank to which, after which others, and who then holds what?

An algorithm is one function that yields the transfers of a collective, each after those
that it depends on, and one entry in a table that says the rest. When transfers happen is for
:mod:`simulator.engine.chunked` to say.

What ranks hold is counted by columns of a buffer: the segments of the algorithm, or, in an
all_to_all, the parts by their sender. A rank starts with contributions of some ranks in each
column; what it receives adds the sender's contributions to its own. A reduction is done where all
ranks have contributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost.collectives import (
    all_to_all_s,
    chain_broadcast_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
    tree_all_reduce_s,
)
from simulator.cost.collectives.closed_forms import double_tree_parents


class Transfer(NamedTuple):
    """One chunk on its way from one rank to another.

    Attributes:
        step: Number of the round that it belongs to.
        source, destination: Ranks.
        chunk: Which piece of the buffer it is.
        share: Its part of the buffer, between 0 and 1.
        after: Positions of earlier transfers that must have arrived.
        channel: Which of several parallel links between the two ranks carries it.
    """

    step: int
    source: int
    destination: int
    chunk: int
    share: float
    after: tuple[int, ...] = ()
    channel: int = 0


@dataclass(frozen=True, slots=True)
class ChunkAlgorithm:
    """A collective that can be simulated chunk by chunk.

    Attributes:
        transfers: (ranks, chunks) -> transfers, each after those that it depends on.
        closed_form_s: (bytes, ranks, link rate, hop latency) -> seconds on equal links, with
            messages in one piece.
        starts_with: What ranks hold before the first step: a summand of ``all`` of the buffer,
            their ``own`` part of it, or all of it on rank 0, the ``root``.
        segments: Parts of the buffer that take ways of their own; one per rank if None.
        counts_by_sender: Whether parts are distinguished by who sent them, not by their place in
            the buffer: in an all-to-all every rank has a buffer of its own.
    """

    transfers: Callable[[int, int], Iterator[Transfer]]
    closed_form_s: Callable[[float, int, float, float], float]
    starts_with: Literal["all", "own", "root"]
    segments: int | None = None
    counts_by_sender: bool = False

    @property
    def reduces(self) -> bool:
        """Whether data are added up on their way, not only copied."""
        return self.starts_with == "all"


def ring_reduce_scatter(ranks: int, chunks: int) -> Iterator[Transfer]:
    """Each rank passes 1/n of the buffer on, adding its own, n-1 times."""
    return _ring(ranks, chunks, steps=ranks - 1)


def ring_all_gather(ranks: int, chunks: int) -> Iterator[Transfer]:
    """Each rank passes on the 1/n of the buffer that it got last, n-1 times."""
    return _ring(ranks, chunks, steps=ranks - 1)


def ring_all_reduce(ranks: int, chunks: int) -> Iterator[Transfer]:
    """A reduce-scatter, then an all-gather of the sums."""
    return _ring(ranks, chunks, steps=2 * (ranks - 1))


def _ring(ranks: int, chunks: int, steps: int) -> Iterator[Transfer]:
    """In step t rank i sends segment i - t to rank i + 1, in ``chunks`` pieces."""
    per_step = ranks * chunks
    for step in range(steps):
        for rank in range(ranks):
            for piece in range(chunks):
                # The same piece arrived from the left neighbour one step ago.
                left = (rank - 1) % ranks
                before = (step - 1) * per_step + left * chunks + piece
                yield Transfer(
                    step,
                    rank,
                    (rank + 1) % ranks,
                    (rank - step) % ranks * chunks + piece,
                    1 / per_step,
                    (before,) if step else (),
                )


def chain_broadcast(ranks: int, chunks: int) -> Iterator[Transfer]:
    """Rank 0's buffer passes from rank to rank, in ``chunks`` pieces."""
    for rank in range(ranks - 1):
        for piece in range(chunks):
            after = ((rank - 1) * chunks + piece,) if rank else ()
            yield Transfer(rank, rank, rank + 1, piece, 1 / chunks, after)


def pairwise_all_to_all(ranks: int, chunks: int) -> Iterator[Transfer]:
    """In step t rank i sends its part for rank i + t + 1, one peer after another."""
    per_step = ranks * chunks
    for step in range(ranks - 1):
        for rank in range(ranks):
            peer = (rank + step + 1) % ranks
            for piece in range(chunks):
                last = step * per_step - per_step + (rank + 1) * chunks - 1
                after = (last,) if step else ()
                yield Transfer(step, rank, peer, peer * chunks + piece, 1 / per_step, after)


def tree_all_reduce(ranks: int, chunks: int) -> Iterator[Transfer]:
    """Half the buffer up and down each of two complementary trees, in ``chunks`` pieces.

    Each tree has links of its own (channels).
    """
    position = 0
    for tree, parents in enumerate(double_tree_parents(ranks)):
        upward = _deepest_first(parents)
        routes = [(rank, parents[rank]) for rank in upward]
        routes += [(parent, rank) for rank, parent in reversed(routes)]
        for piece in range(chunks):
            inputs: dict[int, list[int]] = {}
            rounds: dict[int, int] = {}
            for index, (source, destination) in enumerate(routes):
                after = tuple(inputs.get(source, ()))
                step = 1 + max((rounds[earlier] for earlier in after), default=-1)
                chunk = tree * chunks + piece
                yield Transfer(step, source, destination, chunk, 0.5 / chunks, after, tree)
                rounds[position] = step
                if index >= len(upward):
                    inputs[destination] = []
                inputs.setdefault(destination, []).append(position)
                position += 1


def _deepest_first(parents: Sequence[int]) -> list[int]:
    """All ranks but the root, the farthest from it first."""

    def depth(rank: int) -> int:
        return 0 if parents[rank] < 0 else 1 + depth(parents[rank])

    children = [rank for rank in range(len(parents)) if parents[rank] >= 0]
    return sorted(children, key=depth, reverse=True)


CHUNK_ALGORITHMS: Mapping[str, ChunkAlgorithm] = {
    "ring_all_reduce": ChunkAlgorithm(ring_all_reduce, ring_all_reduce_s, "all"),
    "ring_all_gather": ChunkAlgorithm(ring_all_gather, ring_all_gather_s, "own"),
    "ring_reduce_scatter": ChunkAlgorithm(ring_reduce_scatter, ring_reduce_scatter_s, "all"),
    "tree_all_reduce": ChunkAlgorithm(tree_all_reduce, tree_all_reduce_s, "all", segments=2),
    "chain_broadcast": ChunkAlgorithm(chain_broadcast, chain_broadcast_s, "root", segments=1),
    "pairwise_all_to_all": ChunkAlgorithm(
        pairwise_all_to_all, all_to_all_s, "own", counts_by_sender=True
    ),
}
"""Every algorithm that can be simulated chunk by chunk."""


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
    return transfer.source if algorithm.counts_by_sender else transfer.chunk


def _start(algorithm: ChunkAlgorithm, ranks: int, chunks: int) -> NDArray[np.bool_]:
    """Contributions before the first step, shape (ranks, columns, ranks)."""
    per_segment = 1 if algorithm.counts_by_sender else chunks
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
