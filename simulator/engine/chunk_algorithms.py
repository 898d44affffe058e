"""Which chunk goes from which rank to which, and after which others?

An algorithm is one function that yields the transfers of a collective, each after those
that it depends on. :mod:`simulator.engine.chunked` says when they happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from simulator.cost.collectives.tree import double_tree_parents


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


ChunkAlgorithm = Callable[[int, int], Iterator[Transfer]]
"""(ranks, chunks) -> transfers, each after those that it depends on."""


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


CHUNK_ALGORITHMS: Mapping[str, ChunkAlgorithm] = MappingProxyType(
    {
        "ring_all_reduce": ring_all_reduce,
        "ring_all_gather": ring_all_gather,
        "ring_reduce_scatter": ring_reduce_scatter,
        "tree_all_reduce": tree_all_reduce,
        "chain_broadcast": chain_broadcast,
        "pairwise_all_to_all": pairwise_all_to_all,
    }
)
"""Every algorithm that can be simulated chunk by chunk."""
