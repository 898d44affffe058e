"""How do collectives move, chunk by chunk, over links and shared NICs?

Every directed link between two ranks is a SimPy resource that carries one chunk at a time.
A transfer waits for the transfers that it depends on, holds its link while its bytes flow,
and arrives one hop latency later. Where ranks share NICs, a chunk also holds the sending
side of one NIC and the receiving side of the other; links take turns there, first come,
first served. The switches between NICs never block: a chunk whose receiver is busy waits
in them, not on the sender's NIC.

This is the reference for the closed forms in :mod:`simulator.cost.collectives` and for the
shared ports of :mod:`simulator.engine.fluid_network`, and it shows a person how a ring works.

Ignores: protocols, full switch buffers, and the links inside a node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS, Transfer
from simulator.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Process = Generator[simpy.Event, Any, None]

_MOST_HELD = 1_000_000
"""Chunks that all ranks hold: what can be looked at has a few hundred."""
_MOST_TRANSFERS = 500_000
"""About a minute of simulation."""


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
        sums = np.zeros(ranks)
        np.add.at(sums, self.source, self.num_bytes)
        return sums

    def to_frame(self) -> pd.DataFrame:
        """The table as pandas shows it, one row per transfer."""
        import pandas as pd

        return pd.DataFrame(vars(self))


@dataclass(frozen=True)
class ChunkedCollective:
    """A collective to simulate beside others.

    Attributes:
        algorithm: A key of :data:`~simulator.engine.chunk_algorithms.CHUNK_ALGORITHMS`.
        num_bytes: Message size as nccl-tests counts it [B].
        ranks: Who takes part, in the order of the ring.
        chunks: Pieces that each message is cut into, so that hops overlap.
        start_s: When it begins [s].
    """

    algorithm: str
    num_bytes: float
    ranks: Sequence[int]
    chunks: int = 1
    start_s: float = 0.0


def simulate_collectives(
    collectives: Sequence[ChunkedCollective],
    link_bytes_per_s: float,
    hop_latency_s: float,
    nic_of: Callable[[int], int] | None = None,
) -> list[ChunkTimeline]:
    """Every chunk transfer of several collectives at once, one timeline each.

    Args:
        collectives: What runs; each has links of its own.
        link_bytes_per_s: Rate of one link, and of one NIC, one direction [B/s].
        hop_latency_s: From the last byte sent to its arrival [s].
        nic_of: NIC of a rank, which it may share with others; without it, links are the
            only limit. Between ranks of one NIC nothing passes it.

    Raises:
        InputError: An algorithm is unknown or a number out of range.
    """
    _check_links(link_bytes_per_s, hop_latency_s)
    for collective in collectives:
        _check(collective)
    run = _Run(link_bytes_per_s, hop_latency_s, nic_of)
    started = [run.add(collective) for collective in collectives]
    run.env.run()
    return [
        _timeline(collective, transfers, start_s, end_s)
        for collective, (transfers, start_s, end_s) in zip(collectives, started, strict=True)
    ]


def _check_links(link_bytes_per_s: float, hop_latency_s: float) -> None:
    if not link_bytes_per_s > 0:
        raise InputError.single("link_bytes_per_s", "must be above 0", link_bytes_per_s)
    if not hop_latency_s >= 0:
        raise InputError.single("hop_latency_s", "must be at least 0", hop_latency_s)


def _check(collective: ChunkedCollective) -> None:
    if collective.algorithm not in CHUNK_ALGORITHMS:
        hint = f"use one of {', '.join(CHUNK_ALGORITHMS)}"
        raise InputError.single("algorithm", "is unknown", collective.algorithm, hint)
    least = {
        "ranks": (len(collective.ranks), 1),
        "chunks": (collective.chunks, 1),
        "num_bytes": (collective.num_bytes, 0),
        "start_s": (collective.start_s, 0),
    }
    for name, (value, bound) in least.items():
        if not value >= bound:
            raise InputError.single(name, f"must be at least {bound}", value)
    held = len(collective.ranks) ** 2 * collective.chunks
    if held > _MOST_HELD:
        rule = f"makes {held:,} chunks (ranks squared x chunks), of at most {_MOST_HELD:,}"
        hint = "every chunk is an event; use fewer ranks or chunks"
        raise InputError.single("ranks", rule, len(collective.ranks), hint)


_Started = tuple[Sequence[Transfer], NDArray[np.float64], NDArray[np.float64]]
"""Transfers of one collective, and the start and end of each, filled in by the run."""


class _Run:
    """The clock, the links and the NICs of one simulation."""

    def __init__(
        self, link_bytes_per_s: float, hop_latency_s: float, nic_of: Callable[[int], int] | None
    ) -> None:
        self.env = simpy.Environment()
        self._link_bytes_per_s = link_bytes_per_s
        self._hop_latency_s = hop_latency_s
        self._nic_of = nic_of
        self._nics: dict[tuple[int, str], simpy.Resource] = {}

    def add(self, collective: ChunkedCollective) -> _Started:
        """Start the collective's transfers; each waits until it may go."""
        ranks = collective.ranks
        transfers = [
            transfer._replace(
                source=ranks[transfer.source], destination=ranks[transfer.destination]
            )
            for transfer in _transfers(collective)
        ]
        buffer_s = collective.num_bytes / self._link_bytes_per_s
        start_s, end_s = np.zeros(len(transfers)), np.zeros(len(transfers))
        links: dict[tuple[int, int, int], simpy.Resource] = {}
        arrivals: list[simpy.Event] = []

        def carry(index: int, transfer: Transfer) -> Process:
            if collective.start_s > self.env.now:
                yield self.env.timeout(collective.start_s - self.env.now)
            for earlier in transfer.after:
                yield arrivals[earlier]
            key = (transfer.channel, transfer.source, transfer.destination)
            link = links.setdefault(key, simpy.Resource(self.env))
            with link.request() as granted:
                yield granted
                start_s[index] = yield from self._pass(transfer, transfer.share * buffer_s)
            yield self.env.timeout(self._hop_latency_s)
            end_s[index] = self.env.now

        for index, transfer in enumerate(transfers):
            arrivals.append(self.env.process(carry(index, transfer)))
        return transfers, start_s, end_s

    def _pass(self, transfer: Transfer, seconds: float) -> Generator[simpy.Event, Any, float]:
        """Send a chunk through the NICs on its way; returns when its first byte left [s]."""
        ends = self._nics_between(transfer)
        if ends is None:
            began_s = self.env.now
            yield self.env.timeout(seconds)
            return began_s
        sender, receiver = ends
        with sender.request() as granted:
            yield granted
            began_s = self.env.now
            received = self.env.process(self._receive(receiver, seconds))
            yield self.env.timeout(seconds)
        yield received
        return began_s

    def _receive(self, receiver: simpy.Resource, seconds: float) -> Process:
        with receiver.request() as granted:
            yield granted
            yield self.env.timeout(seconds)

    def _nics_between(self, transfer: Transfer) -> tuple[simpy.Resource, simpy.Resource] | None:
        if self._nic_of is None:
            return None
        source, destination = self._nic_of(transfer.source), self._nic_of(transfer.destination)
        if source == destination:
            return None
        return self._nic(source, "out"), self._nic(destination, "in")

    def _nic(self, nic: int, direction: str) -> simpy.Resource:
        return self._nics.setdefault((nic, direction), simpy.Resource(self.env))


def _transfers(collective: ChunkedCollective) -> Sequence[Transfer]:
    ranks = len(collective.ranks)
    if ranks < 2:
        return []
    algorithm = CHUNK_ALGORITHMS[collective.algorithm]
    transfers = list(islice(algorithm.transfers(ranks, collective.chunks), _MOST_TRANSFERS + 1))
    if len(transfers) > _MOST_TRANSFERS:
        rule = f"makes more than {_MOST_TRANSFERS:,} transfers, too many to simulate one by one"
        raise InputError.single("ranks", rule, ranks, "use fewer ranks or chunks")
    return transfers


def _timeline(
    collective: ChunkedCollective,
    transfers: Sequence[Transfer],
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
) -> ChunkTimeline:
    columns = zip(*transfers, strict=True) if transfers else ((),) * len(Transfer._fields)
    step, source, destination, chunk, share, _, channel = columns
    return ChunkTimeline(
        step=np.array(step, dtype=np.int64),
        source=np.array(source, dtype=np.int64),
        destination=np.array(destination, dtype=np.int64),
        chunk=np.array(chunk, dtype=np.int64),
        channel=np.array(channel, dtype=np.int64),
        num_bytes=np.array(share, dtype=np.float64) * collective.num_bytes,
        start_s=start_s,
        end_s=end_s,
    )
