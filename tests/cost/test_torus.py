"""Tori against the closed forms of How to Scale Your Model, parts 2 and 3."""

import pytest

from simulator.cost.collectives import CollectiveKind, Group, collective_cost, send_recv_cost
from simulator.cost.collectives.torus import ring_hops, ring_link_share, sides_of
from simulator.described.cluster.network import Network, Torus
from simulator.described.load import load_profile
from simulator.described.rules.profile_rules import network_faults

POD = Torus(dimensions=2, ring=16)
CUBES = Torus(dimensions=3, ring=4)


def ideal(name: str) -> Network:
    """The network of a system at the full rate of its links, without latencies."""
    network = load_profile(name).network
    free = {"efficiency": 1.0, "latency_s": 0.0, "bulk_latency_s": 0.0, "launch_s": 0.0}
    return network.model_copy(update={"scale_up": network.scale_up.model_copy(update=free)})


def seconds(kind: CollectiveKind, num_bytes: float, ranks: int, name: str) -> float:
    return collective_cost(kind, num_bytes, Group(ranks, 8960), ideal(name)).seconds


@pytest.mark.parametrize(
    ("ranks", "torus", "sides"),
    [(8, POD, (2, 4)), (32, POD, (4, 8)), (128, POD, (8, 16)), (256, POD, (16, 16)),
     (8, CUBES, (2, 2, 2)), (64, CUBES, (4, 4, 4)), (512, CUBES, (8, 8, 8))],
)  # fmt: skip
def test_slices_have_the_shapes_that_google_offers(ranks, torus, sides):
    assert sides_of(ranks, torus) == sides


def test_only_full_rings_use_both_links_of_a_dimension():
    assert ring_link_share(256, POD) == 1
    assert ring_link_share(128, POD) == 3 / 4  # The book: an 8 x 16 wraps the longer axis.
    assert ring_link_share(16, POD) == 1 / 2
    assert ring_link_share(2, POD) == 1 / 4
    assert ring_link_share(64, CUBES) == 1


def test_an_all_gather_over_a_whole_pod_takes_its_bytes_over_all_links():
    num_bytes = 4e9
    expected = num_bytes * 255 / 256 / 400e9
    assert seconds(CollectiveKind.ALL_GATHER, num_bytes, 256, "tpu-v6e") == pytest.approx(expected)


def test_an_all_to_all_on_a_ring_of_four_costs_a_quarter_of_an_all_gather():
    # Of the same array: the rank's part of what all gather.
    gather = seconds(CollectiveKind.ALL_GATHER, 64e9, 64, "tpu-v5p")
    exchange = seconds(CollectiveKind.ALL_TO_ALL, 64e9 / 4, 64, "tpu-v5p")
    # Three rings of four at once: as the one dimension of the book, three times the links. What all
    # gather leaves out a chip's own part, which the book counts.
    assert exchange / gather == pytest.approx(3 / 4 * 64 / 63)


def test_two_neighbours_exchange_their_halves_over_the_one_link_between_them():
    assert seconds(CollectiveKind.ALL_TO_ALL, 1e9, 2, "tpu-v6e") == pytest.approx(0.5e9 / 100e9)


def test_single_chips_of_several_pods_exchange_over_the_fabric_alone():
    cost = collective_cost(CollectiveKind.ALL_TO_ALL, 1e9, Group(4, 1), ideal("tpu-v6e"))
    assert not cost.port_bytes.get("scale_up")
    assert cost.port_bytes["fabric"] == 0.75e9


def test_a_transfer_to_a_neighbour_has_one_link():
    cost = send_recv_cost(1e9, Group(2, 8), ideal("tpu-v6e"))
    assert cost.seconds == pytest.approx(1e9 / 100e9)


def test_hops_grow_with_the_sides_of_a_block_and_not_with_its_chips():
    assert ring_hops(256, POD) == 8 + 8
    assert ring_hops(16, POD) == 3 + 3
    assert ring_hops(64, CUBES) == 2 + 2 + 2


def test_a_torus_without_its_shape_is_refused():
    network = load_profile("tpu-v6e").network
    shapeless = network.scale_up.model_copy(update={"torus": None})
    broken = network.model_copy(update={"scale_up": shapeless})
    assert [fault.path for fault in network_faults(broken, "network")] == ["network.scale_up.torus"]
    assert not list(network_faults(network, "network"))
