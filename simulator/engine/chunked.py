"""How does a collective move, chunk by chunk, over the links?

Every directed link between two ranks is a SimPy resource. A transfer waits for the
transfers that it depends on, holds its link while its bytes flow, and arrives one hop
latency later. This is the reference for the closed forms in
:mod:`simulator.cost.collectives`, and it shows a person how a ring works.

An algorithm is one function that yields transfers. Ignores: protocols, nodes, and ports
that several links of a rank share.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.cost.collectives.tree import double_tree_parents
from simulator.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


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


@dataclass(frozen=True)
class ChunkTimeline:
    """When every chunk was on its way; one row per transfer.

    Attributes:
        step: Round, shape (transfers,).
        source: Sending rank.
        destination: Receiving rank.
        chunk: Piece of the buffer.
        channel: Which of the parallel links between the two ranks.
        num_bytes: Size [B].
        start_s: When its link was free and its first byte left [s].
        end_s: When its last byte arrived [s].
    """

    step: NDArray[np.int64]
    source: NDArray[np.int64]
    destination: NDArray[np.int64]
    chunk: NDArray[np.int64]
    channel: NDArray[np.int64]
    num_bytes: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    @property
    def seconds(self) -> float:
        """When the last chunk arrived [s]."""
        return float(self.end_s.max(initial=0.0))

    def sent_bytes(self, ranks: int) -> NDArray[np.float64]:
        """Bytes that each rank sent, shape (ranks,) [B]."""
        return _sums(self.source, self.num_bytes, ranks)

    def received_bytes(self, ranks: int) -> NDArray[np.float64]:
        """Bytes that each rank received, shape (ranks,) [B]."""
        return _sums(self.destination, self.num_bytes, ranks)

    def to_frame(self) -> pd.DataFrame:
        """The table as pandas shows it, one row per transfer."""
        import pandas as pd

        return pd.DataFrame(vars(self))


def _sums(keys: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    sums = np.zeros(size)
    np.add.at(sums, keys, values)
    return sums


def simulate_collective(
    algorithm: str,
    num_bytes: float,
    ranks: int,
    link_bytes_per_s: float,
    hop_latency_s: float,
    chunks: int = 1,
) -> ChunkTimeline:
    """Every chunk transfer of a collective, alone on equal links.

    Args:
        algorithm: A key of :data:`CHUNK_ALGORITHMS`.
        num_bytes: Message size as nccl-tests counts it [B].
        ranks: Group size, at least 1.
        link_bytes_per_s: Rate of one link, one direction [B/s].
        hop_latency_s: From the last byte sent to its arrival [s].
        chunks: Pieces that each message is cut into, so that hops overlap.

    Raises:
        InputError: The algorithm is unknown or a number out of range.
    """
    _check(algorithm, num_bytes, ranks, link_bytes_per_s, hop_latency_s, chunks)
    transfers = list(CHUNK_ALGORITHMS[algorithm](ranks, chunks)) if ranks > 1 else []
    start_s, end_s = _run(transfers, num_bytes / link_bytes_per_s, hop_latency_s)
    columns = zip(*transfers, strict=True) if transfers else ((),) * len(Transfer._fields)
    step, source, destination, chunk, share, _, channel = columns
    return ChunkTimeline(
        step=np.array(step, dtype=np.int64),
        source=np.array(source, dtype=np.int64),
        destination=np.array(destination, dtype=np.int64),
        chunk=np.array(chunk, dtype=np.int64),
        channel=np.array(channel, dtype=np.int64),
        num_bytes=np.array(share, dtype=np.float64) * num_bytes,
        start_s=start_s,
        end_s=end_s,
    )


def _check(
    algorithm: str,
    num_bytes: float,
    ranks: int,
    link_bytes_per_s: float,
    hop_latency_s: float,
    chunks: int,
) -> None:
    if algorithm not in CHUNK_ALGORITHMS:
        hint = f"use one of {', '.join(CHUNK_ALGORITHMS)}"
        raise InputError.single("algorithm", "is not known", algorithm, hint)
    least = {"ranks": (ranks, 1), "chunks": (chunks, 1), "num_bytes": (num_bytes, 0)}
    least["hop_latency_s"] = (hop_latency_s, 0)
    for name, (value, bound) in least.items():
        if not value >= bound:
            raise InputError.single(name, f"must be at least {bound}", value)
    if not link_bytes_per_s > 0:
        raise InputError.single("link_bytes_per_s", "must be above 0", link_bytes_per_s)


def _run(
    transfers: Sequence[Transfer], buffer_s: float, hop_latency_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer; ``buffer_s`` is the whole buffer on one link."""
    env = simpy.Environment()
    links: dict[tuple[int, int, int], simpy.Resource] = {}
    arrivals: list[simpy.Event] = []
    start_s, end_s = np.zeros(len(transfers)), np.zeros(len(transfers))

    def carry(index: int, transfer: Transfer) -> Generator[simpy.Event, Any, None]:
        for earlier in transfer.after:
            yield arrivals[earlier]
        key = (transfer.channel, transfer.source, transfer.destination)
        link = links.setdefault(key, simpy.Resource(env))
        with link.request() as granted:
            yield granted
            start_s[index] = env.now
            yield env.timeout(transfer.share * buffer_s)
        yield env.timeout(hop_latency_s)
        end_s[index] = env.now

    for index, transfer in enumerate(transfers):
        arrivals.append(env.process(carry(index, transfer)))
    env.run()
    return start_s, end_s


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
            for step, (source, destination) in enumerate(routes):
                after = tuple(inputs.get(source, ()))
                chunk = tree * chunks + piece
                yield Transfer(step, source, destination, chunk, 0.5 / chunks, after, tree)
                if step >= len(upward):
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
