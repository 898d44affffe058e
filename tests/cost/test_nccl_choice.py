"""Does the model take the algorithm and protocol that NCCL takes?

Sizes of a change are by hand from the constants of NCCL's src/graph/tuning.cc. In tables of
nccl-tests the measured time jumps at the same powers of two.
"""

from __future__ import annotations

import pytest

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.cost.collectives.nccl_choice import chosen
from simulator.described.load import load_profile

MIB = 1 << 20


def taken(profile: str, kind: CollectiveKind, num_bytes: float, ranks: int) -> tuple[str, str]:
    cost = collective_cost(kind, num_bytes, Group(ranks, ranks), load_profile(profile).network)
    return cost.algorithm, cost.protocol


@pytest.mark.parametrize(
    ("profile", "ranks", "last_of_low_latency"),
    [
        # (18.6 - 8.4) us / (1 / 117 - 1 / 320 GB/s) = 1.88 MB; so with the others
        ("a100-sxm-80gb", 4, 1 * MIB),
        ("a100-sxm-80gb", 2, 1 * MIB),
        ("b200-sxm-180gb", 4, 4 * MIB),
        ("gb200-nvl72", 4, 4 * MIB),
    ],
)
def test_few_ranks_gather_by_ll_and_then_by_simple(
    profile: str, ranks: int, last_of_low_latency: int
) -> None:
    gather = CollectiveKind.ALL_GATHER
    assert taken(profile, gather, last_of_low_latency, ranks) == ("ring", "low_latency")
    assert taken(profile, gather, 2 * last_of_low_latency, ranks) == ("ring", "simple")


@pytest.mark.parametrize(
    ("profile", "first_of_lines", "first_of_simple"),
    [
        # (27.3 - 10.8) us / (1 / 100 - 1 / 252 GB/s) = 2.7 MB, (32.2 - 27.3) us /
        # (1 / 252 - 1 / 274 GB/s) = 15 MB; so with the others
        ("a100-sxm-80gb", 4 * MIB, 16 * MIB),
        ("h100-sxm-80gb", 8 * MIB, 32 * MIB),
        ("b200-sxm-180gb", 16 * MIB, 64 * MIB),
    ],
)
def test_eight_ranks_gather_by_ll_then_ll128_then_simple(
    profile: str, first_of_lines: int, first_of_simple: int
) -> None:
    gather = CollectiveKind.ALL_GATHER
    protocols = [
        taken(profile, gather, size, 8)[1]
        for size in (first_of_lines / 2, first_of_lines, first_of_simple / 2, first_of_simple)
    ]
    assert protocols == ["low_latency", "lines", "lines", "simple"]


@pytest.mark.parametrize(
    ("profile", "first_of_switch"),
    [
        # (25 - 15) us / (1 / 80.6 - 1 / 300 GB/s) = 1.1 MB; 2.4 MB with Blackwell's
        ("h100-sxm-80gb", 2 * MIB),
        ("b200-sxm-180gb", 4 * MIB),
    ],
)
def test_eight_ranks_add_by_ll_rings_and_then_in_the_switch(
    profile: str, first_of_switch: int
) -> None:
    add = CollectiveKind.ALL_REDUCE
    assert taken(profile, add, first_of_switch / 2, 8) == ("ring", "low_latency")
    assert taken(profile, add, first_of_switch, 8) == ("in_switch", "simple")


def test_four_ranks_of_a_switch_that_adds_take_rings_for_large_messages() -> None:
    # Four heads of 60 GB/s each are slower than a ring of 360.
    assert taken("h100-sxm-80gb", CollectiveKind.ALL_REDUCE, 512 * MIB, 4)[0] == "ring"


def test_bytes_of_an_ll_ring_take_time_beside_its_hops_once_every_thread_has_passed_a_word() -> (
    None
):
    # Eight hops of 24 channels, each of 512 threads with words of 8 bytes.
    network, first = load_profile("h100-sxm-80gb").network, 8 * 24 * 512 * 8

    def gather_s(num_bytes: float) -> float:
        return collective_cost(CollectiveKind.ALL_GATHER, num_bytes, Group(8, 8), network).seconds

    assert gather_s(first) == pytest.approx(gather_s(first / 12))
    up = network.scale_up
    rate = up.bandwidth_bytes_per_s * up.efficiency * up.low_latency_share
    more_s = gather_s(2 * first) - gather_s(first)
    assert more_s == pytest.approx(first * 7 / 8 / rate, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_starts_later_once_each_hop_fills_two_channels_however_many_hops_there_are(
    ranks: int,
) -> None:
    network = load_profile("a100-sxm-80gb").network
    up = network.scale_up.model_copy(update={"wide_launch_s": 3e-6, "loaded_latency_s": 0.0})
    network = network.model_copy(update={"scale_up": up})
    narrow_s, half_s, wide_s, wider_s = (
        collective_cost(
            CollectiveKind.ALL_GATHER, ranks * hop_bytes, Group(ranks, ranks), network
        ).latency_s
        for hop_bytes in (1, 4096, 8192, 16384)
    )
    assert half_s - narrow_s == pytest.approx(1.5e-6, rel=1e-3)
    assert wide_s - narrow_s == pytest.approx(3e-6, rel=1e-3)
    assert wider_s == wide_s


def test_pcie_has_no_ll128() -> None:
    sizes = [2.0**power for power in range(9, 30)]
    protocols = {taken("l40s", CollectiveKind.ALL_GATHER, size, 8)[1] for size in sizes}
    assert protocols == {"low_latency", "simple"}


def test_a_wrong_choice_costs_time() -> None:
    # B200, all_gather of four: 25 us for 4 MiB, 50 us for 8 MiB (nccl-tests of NCCL 2.28).
    network, group = load_profile("b200-sxm-180gb").network, Group(4, 4)
    times = [
        collective_cost(CollectiveKind.ALL_GATHER, size, group, network).seconds
        for size in (4 * MIB, 8 * MIB, 16 * MIB)
    ]
    assert times[1] / times[0] > 1.6
    assert times[2] / times[1] < 1.4


def test_without_a_table_of_the_architecture_the_fastest_is_taken() -> None:
    network = load_profile("a100-sxm-80gb").network.model_copy(update={"tuning": None})
    cost = collective_cost(CollectiveKind.ALL_GATHER, 8 * MIB, Group(8, 8), network)
    assert cost.protocol in {"low_latency", "simple"}


def test_of_algorithms_that_nccl_does_not_have_it_chooses_none() -> None:
    up = load_profile("h100-sxm-80gb").network.scale_up
    for kind, name in ((CollectiveKind.ALL_REDUCE, "own"), (CollectiveKind.ALL_TO_ALL, "pairwise")):
        assert chosen(kind, MIB, Group(8, 8), up, "hopper", {name}) is None
