"""Several collectives at once on shared NICs: chunk by chunk against fluid sharing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.engine.chunked import ChunkedCollective, ChunkTimeline, simulate_collectives
from simulator.engine.fluid_network import FluidNetwork
from simulator.engine.instant import Clock
from simulator.program.ir import Traffic
from tests.networks import flat_network

GB = 1e9
PIECE_BYTES = 2.5e6
"""Every collective is cut into pieces of this size, as NCCL's buffers cut them."""

VOLUME = {
    "ring_all_reduce": lambda n: 2 * (n - 1) / n,
    "ring_all_gather": lambda n: (n - 1) / n,
    "ring_reduce_scatter": lambda n: (n - 1) / n,
    "pairwise_all_to_all": lambda n: (n - 1) / n,
}
"""Bytes that one rank sends, and receives, per byte of the buffer.
Source: Patarasuk and Yuan (2009), section 3, for rings."""


def collective(
    algorithm: str, gigabytes: float, ranks: Sequence[int], start_s: float = 0.0
) -> ChunkedCollective:
    chunks = max(1, round(gigabytes * GB / (len(ranks) * PIECE_BYTES)))
    return ChunkedCollective(algorithm, gigabytes * GB, ranks, chunks, start_s)


def own_nic(rank: int) -> int:
    return rank


def nic_per_pair(rank: int) -> int:
    return rank // 2


def chunk_ends_s(
    collectives: Sequence[ChunkedCollective], nic_of: Callable[[int], int] = own_nic
) -> list[float]:
    timelines = simulate_collectives(collectives, GB, 0.0, nic_of)
    return [timeline.seconds for timeline in timelines]


def fluid_ends_s(
    collectives: Sequence[ChunkedCollective], nic_of: Callable[[int], int] = own_nic
) -> list[float]:
    """The same with the network that programs run on: one class of ranks per NIC."""
    env = Clock()
    network = FluidNetwork(env, {"fabric": GB})
    ends_s = [0.0] * len(collectives)

    def run(index: int, which: ChunkedCollective):
        yield env.timeout(which.start_s)
        volume_bytes = VOLUME[which.algorithm](len(which.ranks)) * which.num_bytes
        nics = sorted({nic_of(rank) for rank in which.ranks})
        traffic = Traffic({"fabric": volume_bytes})
        through = env.event()
        route = network.route(volume_bytes / GB, traffic, nics, nics)
        network.transfer(route, through.succeed)
        yield through
        ends_s[index] = env.now

    for index, which in enumerate(collectives):
        env.process(run(index, which))
    env.run()
    return ends_s


FOUR = (0, 1, 2, 3)
TOGETHER = {
    "the same ranks and size": [
        collective("ring_all_reduce", 0.1, FOUR), collective("ring_all_reduce", 0.1, FOUR),
    ],
    "one twice as large": [
        collective("ring_all_reduce", 0.1, FOUR), collective("ring_all_reduce", 0.2, FOUR),
    ],
    "one that begins later": [
        collective("ring_all_reduce", 0.2, FOUR), collective("ring_all_gather", 0.2, FOUR, 0.1),
    ],
    "two of six ranks in common": [
        collective("ring_all_reduce", 0.2, FOUR),
        collective("ring_reduce_scatter", 0.2, (2, 3, 4, 5)),
    ],
    "three at once": [
        collective("ring_all_reduce", 0.1, FOUR), collective("ring_all_gather", 0.2, FOUR),
        collective("ring_reduce_scatter", 0.1, (1, 2), 0.05),
    ],
}  # fmt: skip


@pytest.mark.parametrize("collectives", TOGETHER.values(), ids=TOGETHER)
def test_fluid_and_chunk_agree_within_three_percent_on_shared_nics(collectives):
    assert fluid_ends_s(collectives) == pytest.approx(chunk_ends_s(collectives), rel=0.03)


def test_fluid_and_chunk_agree_where_two_gpus_of_a_node_share_a_nic():
    """Two rings, each over the same four nodes, from the two GPUs beside each NIC."""
    pair = [
        collective("ring_all_reduce", 0.1, (0, 2, 4, 6)),
        collective("ring_all_reduce", 0.2, (1, 3, 5, 7)),
    ]
    chunked = chunk_ends_s(pair, nic_per_pair)
    assert fluid_ends_s(pair, nic_per_pair) == pytest.approx(chunked, rel=0.03)
    alone = chunk_ends_s(pair, own_nic)
    assert chunked[0] == pytest.approx(2 * alone[0], rel=0.03)


@pytest.mark.parametrize(
    ("algorithm", "name"), [("ring_all_reduce", "ring"), ("tree_all_reduce", "tree")]
)
def test_a_large_ring_or_tree_on_nics_takes_what_its_cost_says(algorithm, name):
    """Within 1 %: eight nodes of one GPU and one NIC, a gigabyte in small chunks."""
    one = ChunkedCollective(algorithm, GB, range(8), 256 if name == "tree" else 32)
    chunked = simulate_collectives([one], GB, 1e-6, own_nic)[0]
    cost = collective_cost(
        CollectiveKind.ALL_REDUCE, GB, Group(8, 1), flat_network(), algorithm=name
    )
    assert cost.seconds == pytest.approx(chunked.seconds, rel=0.01)
    assert cost.port_bytes["fabric"] == pytest.approx(chunked.sent_bytes(8).max(), rel=1e-9)


def test_two_equal_rings_on_the_same_nics_take_twice_as_long_as_one():
    ring = collective("ring_all_reduce", 0.1, FOUR)
    alone_s = chunk_ends_s([ring])[0]
    assert alone_s == pytest.approx(0.15)
    assert chunk_ends_s([ring, ring]) == pytest.approx([2 * alone_s] * 2, rel=0.01)


def test_collectives_that_share_no_nic_do_not_feel_each_other():
    rings = [collective("ring_all_reduce", 0.1, (0, 1)), collective("ring_all_gather", 0.1, (2, 3))]
    assert chunk_ends_s(rings) == pytest.approx([chunk_ends_s([ring])[0] for ring in rings])


collectives = st.builds(
    collective,
    st.sampled_from(sorted(VOLUME)),
    st.sampled_from([0.02, 0.04, 0.08]),
    st.permutations(range(6)).flatmap(lambda r: st.integers(2, 6).map(lambda n: tuple(r[:n]))),
    st.sampled_from([0.0, 0.01, 0.03]),
)


def nic_bytes(
    timelines: Sequence[ChunkTimeline], nic_of: Callable[[int], int]
) -> dict[tuple[str, int], float]:
    """Bytes through each side of each NIC [B]."""
    total: dict[tuple[str, int], float] = defaultdict(float)
    for timeline in timelines:
        rows = zip(timeline.source, timeline.destination, timeline.num_bytes, strict=True)
        for source, destination, num_bytes in rows:
            if nic_of(source) != nic_of(destination):
                total["out", nic_of(source)] += num_bytes
                total["in", nic_of(destination)] += num_bytes
    return total


@given(st.lists(collectives, min_size=1, max_size=3))
@settings(deadline=None, max_examples=25)
def test_every_port_passes_the_published_volume_whatever_runs_beside_it(together):
    moved = nic_bytes(simulate_collectives(together, GB, 1e-6, own_nic), own_nic)
    expected: dict[tuple[str, int], float] = defaultdict(float)
    for one in together:
        for rank in one.ranks:
            for side in ("out", "in"):
                expected[side, rank] += VOLUME[one.algorithm](len(one.ranks)) * one.num_bytes
    assert moved == pytest.approx(expected)


@given(st.lists(collectives, min_size=1, max_size=3), st.sampled_from([own_nic, nic_per_pair]))
@settings(deadline=None, max_examples=25)
def test_no_port_passes_more_than_its_rate_in_the_time(together, nic_of):
    timelines = simulate_collectives(together, GB, 1e-6, nic_of)
    seconds = max(timeline.seconds for timeline in timelines)
    begun_s = min(one.start_s for one in together)
    busiest = max(nic_bytes(timelines, nic_of).values(), default=0.0)
    assert busiest <= GB * (seconds - begun_s) * (1 + 1e-9)


@given(collectives, st.lists(collectives, min_size=1, max_size=2))
@settings(deadline=None, max_examples=40)
def test_contention_never_makes_a_collective_faster(one, others):
    """Neither in chunks nor as fluid."""
    for ends_s in (chunk_ends_s, fluid_ends_s):
        assert ends_s([one, *others])[0] >= ends_s([one])[0] * (1 - 1e-9)
