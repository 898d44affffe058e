"""Does the model take the algorithm and protocol that NCCL takes?

Sizes of a change are by hand from the constants of NCCL's src/graph/tuning.cc. In tables of
nccl-tests the measured time jumps at the same powers of two.
"""

from __future__ import annotations

import pytest

from simulator.cost.collectives import CollectiveKind, Group, collective_cost, demands_of
from simulator.cost.collectives.collective_time import demand_timing, links_of
from simulator.cost.collectives.nccl_choice import chosen
from simulator.cost.collectives.types import Protocol
from simulator.described.cluster.network import FabricKind, Network, library_fabric
from simulator.described.load import load_profile

KIB, MIB = 1 << 10, 1 << 20


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
    network = load_profile("h100-sxm-80gb").network
    for kind, name in ((CollectiveKind.ALL_REDUCE, "own"), (CollectiveKind.ALL_TO_ALL, "pairwise")):
        assert chosen(kind, MIB, Group(8, 8), network, {name}) is None
    # Between nodes one that can run, and that NCCL's model is not known of, leaves it open.
    adds = {"ring", "tree", "in_network"}
    assert chosen(CollectiveKind.ALL_REDUCE, MIB, Group(16, 8), network, adds) is None


def on_fabric(kind: FabricKind, **changes: object) -> Network:
    """H100 with eight NICs of 400 Gbit/s on a fabric."""
    network = load_profile("h100-sxm-80gb").network
    fabric = library_fabric(kind, 8, 50e9).model_copy(update=changes)
    return network.model_copy(update={"fabric": fabric})


def taken_by_two_nodes(kind: CollectiveKind, num_bytes: float, network: Network) -> tuple[str, str]:
    cost = collective_cost(kind, num_bytes, Group(16, 8), network)
    return cost.algorithm, cost.protocol


@pytest.mark.parametrize(
    ("num_bytes", "pair"),
    [
        # LL 25.2 us and 19.5 GB/s, LL128 48.5 us and 147 GB/s, less by NCCL's factors of trees:
        # 128 KiB take 38.6 and 50.0 us, 256 KiB 58.8 and 51.5 us.
        (128 * KIB, ("tree", "low_latency")),
        (256 * KIB, ("tree", "lines")),
        # The switches' trees 66.8 us and 246 GB/s: 2 MiB take 75.3 and 72.3 us, 4 MiB 83.8 and
        # 84.2 us.
        (2 * MIB, ("tree", "lines")),
        (4 * MIB, ("in_switch", "simple")),
    ],
)
def test_two_nodes_add_by_trees_of_ll_then_of_ll128_and_then_in_their_switches(
    num_bytes: float, pair: tuple[str, str]
) -> None:
    assert taken_by_two_nodes(CollectiveKind.ALL_REDUCE, num_bytes, on_fabric("ib")) == pair


def test_two_nodes_gather_by_ll_then_ll128_then_simple() -> None:
    # LL 23.3 us and 41.6 GB/s, LL128 44.6 us and 313 GB/s, Simple 70.0 us and 410 GB/s.
    protocols = [
        taken_by_two_nodes(CollectiveKind.ALL_GATHER, size, on_fabric("roce"))[1]
        for size in (512 * KIB, 1 * MIB, 32 * MIB, 64 * MIB)
    ]
    assert protocols == ["low_latency", "lines", "lines", "simple"]


def test_a_fabric_that_tells_of_long_hops_keeps_two_nodes_from_their_switches_for_longer() -> None:
    # EFA tells of 75 us, which Simple waits for twice: 366.8 us and 246 GB/s, against 198.5 us and
    # 132 GB/s of LL128. The plugin's own tuner changes at 30 MiB.
    add, network = CollectiveKind.ALL_REDUCE, on_fabric("efa")
    assert taken_by_two_nodes(add, 16 * MIB, network) == ("tree", "lines")
    assert taken_by_two_nodes(add, 64 * MIB, network) == ("in_switch", "simple")


@pytest.mark.parametrize(
    "network", [on_fabric("tcpxo"), on_fabric("ib", nccl_chooses=False)], ids=["plugin", "told"]
)
def test_where_something_else_chooses_between_nodes_the_fastest_is_taken(network: Network) -> None:
    group, links = Group(16, 8), links_of(network, 8)
    for size in (KIB, MIB, 64 * MIB):
        demands = demands_of(CollectiveKind.ALL_REDUCE, size, group, network)
        assert {each.protocol for each in demands.values()} == {Protocol.FASTEST}
        cost = collective_cost(CollectiveKind.ALL_REDUCE, size, group, network)
        fastest_s = min(demand_timing(each, links).seconds for each in demands.values())
        assert cost.seconds == pytest.approx(fastest_s)


def test_hops_of_a_tree_in_ll_take_longer_once_each_passes_a_word_of_every_thread() -> None:
    network = on_fabric("ib", pipeline_fill=0.0)
    up = network.scale_up
    add, group = CollectiveKind.ALL_REDUCE, Group(16, 8)
    small, full = (collective_cost(add, size, group, network).latency_s for size in (8, 4096))
    assert full - small == pytest.approx(14 * up.loaded_latency_s, rel=0.05)


def test_an_algorithm_that_the_user_names_is_the_only_one_of_collectives_that_have_it() -> None:
    """NCCL_ALGO=Ring: of two nodes NCCL would take a tree; an all-to-all is no ring."""
    network = load_profile("h200-nvl-141gb").network
    ring = network.model_copy(update={"algorithm": "ring"})
    group, reduce, exchange = Group(16, 8), CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL
    assert set(demands_of(reduce, 64 * MIB, group, network)) == {"tree"}
    assert set(demands_of(reduce, 64 * MIB, group, ring)) == {"ring"}
    assert demands_of(exchange, 64 * MIB, group, ring) == demands_of(
        exchange, 64 * MIB, group, network
    )
