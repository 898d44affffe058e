"""Chunk-by-chunk simulation against the closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.collectives import chain_broadcast_s, tree_all_reduce_s
from simulator.engine.chunk_algorithms import CHUNK_ALGORITHMS
from simulator.engine.chunked import (
    ChunkedCollective,
    ChunkTimeline,
    simulate_collectives,
)
from simulator.errors import InputError

sizes = st.integers(2, 17)
pieces = st.integers(1, 6)
names = st.sampled_from(sorted(CHUNK_ALGORITHMS))
times = st.floats(0.0, 1e-3)
few = settings(max_examples=40)
"""Of whole collectives, chunk by chunk."""


def simulate_collective(
    algorithm: str, num_bytes: float, ranks: int, rate: float, latency_s: float, chunks: int = 1
) -> ChunkTimeline:
    """One collective, alone on equal links."""
    collective = ChunkedCollective(algorithm, num_bytes, range(ranks), chunks)
    return simulate_collectives([collective], rate, latency_s)[0]


def link_bytes(timeline: ChunkTimeline) -> dict[tuple[int, int], float]:
    """Bytes on every directed pair of ranks [B]."""
    total: dict[tuple[int, int], float] = {}
    for source, destination, num_bytes in zip(
        timeline.source, timeline.destination, timeline.num_bytes, strict=True
    ):
        key = (int(source), int(destination))
        total[key] = total.get(key, 0.0) + num_bytes
    return total


@pytest.mark.parametrize("name", CHUNK_ALGORITHMS)
def test_one_rank_takes_no_time_by_the_closed_form_either(name: str) -> None:
    assert CHUNK_ALGORITHMS[name].closed_form_s(1e9, 1, 1e9, 1.0) == 0.0


@given(names, st.floats(1.0, 1e9), sizes, st.floats(1e6, 1e12), times)
def test_simulated_time_is_the_closed_form(
    name: str, num_bytes: float, ranks: int, rate: float, latency_s: float
) -> None:
    simulated = simulate_collective(name, num_bytes, ranks, rate, latency_s)
    assert simulated.seconds == pytest.approx(
        CHUNK_ALGORITHMS[name].closed_form_s(num_bytes, ranks, rate, latency_s), rel=1e-9
    )


def test_ring_of_four_takes_six_steps_of_a_quarter_and_a_hop() -> None:
    timeline = simulate_collective("ring_all_reduce", 4e9, 4, 1e9, 0.5)
    assert timeline.seconds == pytest.approx(2 * 3 * (1.0 + 0.5), rel=1e-9)
    first = timeline.step == 0
    assert list(timeline.start_s[first]) == [0.0] * 4
    assert list(timeline.end_s[first]) == [1.5] * 4


@given(sizes, pieces, times)
def test_pipelined_tree_takes_its_closed_form(ranks: int, chunks: int, latency_s: float) -> None:
    timeline = simulate_collective("tree_all_reduce", 1e6, ranks, 1e9, latency_s, chunks)
    expected_s = tree_all_reduce_s(1e6, ranks, 1e9, latency_s, chunks)
    assert timeline.seconds == pytest.approx(expected_s, rel=1e-9)


@given(sizes, pieces, times)
def test_pipelined_chain_takes_its_closed_form(ranks: int, chunks: int, latency_s: float) -> None:
    timeline = simulate_collective("chain_broadcast", 1e6, ranks, 1e9, latency_s, chunks)
    expected_s = chain_broadcast_s(1e6, ranks, 1e9, latency_s, chunks)
    assert timeline.seconds == pytest.approx(expected_s, rel=1e-9)


@few
@given(sizes, pieces)
def test_every_ring_link_carries_two_n_minus_one_over_n_of_the_buffer(
    ranks: int, chunks: int
) -> None:
    timeline = simulate_collective("ring_all_reduce", 1e6, ranks, 1e9, 1e-6, chunks)
    volumes = link_bytes(timeline)
    assert set(volumes) == {(rank, (rank + 1) % ranks) for rank in range(ranks)}
    assert list(volumes.values()) == pytest.approx([2e6 * (ranks - 1) / ranks] * ranks)


@few
@given(sizes, pieces)
def test_every_pair_exchanges_one_nth_of_the_buffer_in_an_all_to_all(
    ranks: int, chunks: int
) -> None:
    timeline = simulate_collective("pairwise_all_to_all", 1e6, ranks, 1e9, 1e-6, chunks)
    volumes = link_bytes(timeline)
    assert len(volumes) == ranks * (ranks - 1)
    assert list(volumes.values()) == pytest.approx([1e6 / ranks] * len(volumes))


@few
@given(sizes, pieces)
def test_no_rank_passes_more_than_two_buffers_in_a_double_tree(ranks: int, chunks: int) -> None:
    timeline = simulate_collective("tree_all_reduce", 1e6, ranks, 1e9, 1e-6, chunks)
    assert timeline.sent_bytes(ranks).max() <= 2e6 * (1 + 1e-9)
    assert timeline.sent_bytes(ranks).sum() == pytest.approx(2e6 * (ranks - 1))


@few
@given(names, sizes, pieces)
def test_a_link_carries_one_chunk_at_a_time(name: str, ranks: int, chunks: int) -> None:
    rate = 1e9
    timeline = simulate_collective(name, 1e6, ranks, rate, 1e-6, chunks)
    links = np.stack([timeline.channel, timeline.source, timeline.destination], axis=1)
    for link in np.unique(links, axis=0):
        rows = (links == link).all(axis=1)
        order = np.argsort(timeline.start_s[rows])
        starts = timeline.start_s[rows][order]
        ends = starts + timeline.num_bytes[rows][order] / rate
        assert (starts[1:] >= ends[:-1] - 1e-15).all()


@few
@given(names, sizes, pieces, st.floats(1.0, 100.0))
def test_faster_links_never_take_longer(name: str, ranks: int, chunks: int, faster: float) -> None:
    slow = simulate_collective(name, 1e6, ranks, 1e9, 1e-6, chunks)
    fast = simulate_collective(name, 1e6, ranks, faster * 1e9, 1e-6, chunks)
    assert fast.seconds <= slow.seconds * (1 + 1e-12)


@few
@given(names, sizes, pieces, st.floats(1.0, 100.0))
def test_more_bytes_never_take_less_time(name: str, ranks: int, chunks: int, more: float) -> None:
    small = simulate_collective(name, 1e6, ranks, 1e9, 1e-6, chunks)
    large = simulate_collective(name, more * 1e6, ranks, 1e9, 1e-6, chunks)
    assert small.seconds <= large.seconds * (1 + 1e-12)


def test_one_rank_transfers_nothing() -> None:
    timeline = simulate_collective("ring_all_reduce", 1e6, 1, 1e9, 1e-6)
    assert timeline.seconds == 0.0
    assert len(timeline.to_frame()) == 0


@pytest.mark.parametrize(
    ("name", "ranks", "rate", "chunks", "path"),
    [
        ("star", 4, 1e9, 1, "algorithm"),
        ("ring_all_reduce", 0, 1e9, 1, "ranks"),
        ("ring_all_reduce", 4, 0.0, 1, "link_bytes_per_s"),
        ("ring_all_reduce", 4, 1e9, 0, "chunks"),
        ("ring_all_reduce", 10_000, 1e9, 1, "ranks"),
    ],
)
def test_impossible_inputs_are_refused_by_name(
    name: str, ranks: int, rate: float, chunks: int, path: str
) -> None:
    with pytest.raises(InputError) as caught:
        simulate_collective(name, 1e6, ranks, rate, 1e-6, chunks)
    assert caught.value.faults[0].path == path


@pytest.mark.parametrize("name", CHUNK_ALGORITHMS)
def test_a_message_is_one_chunk_unless_more_are_asked_for(name: str) -> None:
    whole, said = (simulate_collective(name, 1e6, 4, 1e9, 1e-6, *chunks) for chunks in ((), (1,)))
    assert whole.end_s.tolist() == said.end_s.tolist()
    together = simulate_collectives([ChunkedCollective(name, 1e6, range(4))], 1e9, 1e-6)
    assert together[0].end_s.tolist() == whole.end_s.tolist()
