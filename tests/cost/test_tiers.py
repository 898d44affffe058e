"""Switch tiers above the leafs: what climbs, and what that costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.collectives import (
    CollectiveKind,
    Group,
    collective_cost,
    send_recv_cost,
)
from simulator.cost.collectives.tiers import climb_of, network_above
from simulator.described.cluster.network import Network
from tests.networks import flat_network

KINDS = list(CollectiveKind)
TWO_LEAFS = Group(16, 1, nodes_per_leaf=8)
"""Sixteen nodes of one rank each, eight below each leaf."""


def seconds(kind: CollectiveKind, group: Group, network: Network) -> float:
    return collective_cost(kind, 1e9, group, network).seconds


def test_a_group_below_one_leaf_does_not_feel_its_uplinks():
    narrow = flat_network(leaf={"gpus": 8, "oversubscription": 8.0})
    for kind in KINDS:
        assert seconds(kind, Group(8, 1), narrow) == seconds(kind, Group(8, 1), flat_network())


@pytest.mark.parametrize("below", [8, 16])
def test_a_group_that_one_leaf_holds_whole_does_not_climb(below):
    network = flat_network(leaf={"gpus": 16, "oversubscription": 8.0})
    for kind in KINDS:
        group = Group(8, 1, nodes_per_leaf=below)
        assert seconds(kind, group, network) == seconds(kind, Group(8, 1), flat_network())


def test_a_ring_whose_every_hop_climbs_is_slower_by_the_oversubscription():
    network = flat_network(leaf={"gpus": 1, "oversubscription": 2.0})
    group = Group(16, 1, nodes_per_leaf=1)
    plain_s = seconds(CollectiveKind.ALL_GATHER, group, flat_network())
    assert seconds(CollectiveKind.ALL_GATHER, group, network) == pytest.approx(2 * plain_s)


def test_a_ring_that_leaves_each_leaf_once_fits_through_narrow_uplinks():
    """One of eight nodes sends upwards; with a fourth of the up-links that is still enough."""
    network = flat_network(leaf={"gpus": 8, "oversubscription": 4.0})
    cost = collective_cost(CollectiveKind.ALL_GATHER, 1e9, TWO_LEAFS, network)
    assert cost.seconds == pytest.approx(15 / 16)
    assert cost.port_bytes["leaf_uplink"] == pytest.approx(15 / 16 / 8 * 1e9)


def test_an_all_to_all_sends_what_is_not_below_its_leaf_through_the_uplinks():
    """8 of 15 peers are elsewhere: half a gigabyte each over a quarter of the rate."""
    network = flat_network(leaf={"gpus": 8, "oversubscription": 4.0})
    cost = collective_cost(CollectiveKind.ALL_TO_ALL, 16e9, TWO_LEAFS, network)
    assert cost.seconds == pytest.approx(8 / 0.25)
    assert cost.port_bytes["leaf_uplink"] == pytest.approx(8e9)


def test_oversubscription_of_pods_comes_on_top_of_that_of_leafs():
    tiers = {
        "leaf": {"gpus": 1, "oversubscription": 2.0},
        "pod": {"gpus": 1, "oversubscription": 3.0},
    }
    group = Group(4, 1, nodes_per_leaf=1, nodes_per_pod=1)
    ratio = seconds(CollectiveKind.ALL_GATHER, group, flat_network(**tiers)) / seconds(
        CollectiveKind.ALL_GATHER, group, flat_network()
    )
    assert ratio == pytest.approx(6)


def test_only_hops_that_climb_take_the_longer_way():
    """16 nodes below two leafs: two hops of a ring climb, on average an eighth of each."""
    network = flat_network(leaf={"gpus": 8, "latency": "8 us"})
    seen = network_above(climb_of(CollectiveKind.ALL_GATHER, TWO_LEAFS, network), network)
    assert seen.fabric.latency_s == pytest.approx(1e-6)
    everyone = network_above(climb_of(CollectiveKind.ALL_TO_ALL, TWO_LEAFS, network), network)
    assert everyone.fabric.latency_s == pytest.approx(8e-6)


def test_a_pair_below_different_leafs_sees_the_narrow_uplink_and_the_longer_hop():
    network = flat_network(leaf={"gpus": 8, "oversubscription": 2.0, "latency": "3 us"})
    near = send_recv_cost(1e9, Group(2, 1), network)
    far = send_recv_cost(1e9, Group(2, 1, nodes_per_leaf=1), network)
    assert (near.seconds, far.seconds) == pytest.approx((1.0, 2.0 + 3e-6))


def test_background_load_takes_its_share_of_every_link():
    half = flat_network(background_load=0.5)
    assert half.fabric_bytes_per_s == pytest.approx(0.5e9)
    busy = flat_network(leaf={"gpus": 1, "background_load": 0.75})
    group = Group(4, 1, nodes_per_leaf=1)
    ratio = seconds(CollectiveKind.ALL_GATHER, group, busy) / seconds(
        CollectiveKind.ALL_GATHER, group, flat_network()
    )
    assert ratio == pytest.approx(4)


@pytest.mark.parametrize(("kind", "slower"), [("pcie", True), ("nvswitch", False)])
def test_without_nvlink_an_all_to_all_changes_rails_in_the_spine(kind: str, slower: bool):
    """Four rails: three quarters of what stays below the leafs must climb all the same."""
    leaf = {"gpus": 16, "oversubscription": 2.0}
    rails = flat_network(kind, nics_per_node=4, wiring="rail-optimised", leaf=leaf)
    tree = flat_network(kind, nics_per_node=4, wiring="fat-tree", leaf=leaf)
    on_rails, on_tree = (
        seconds(CollectiveKind.ALL_TO_ALL, Group(8, 1), network) for network in (rails, tree)
    )
    assert on_rails / on_tree == pytest.approx(1.5 if slower else 1.0)


@pytest.mark.parametrize(("nodes", "climbs"), [(1, 0.0), (2, 0.75), (8, 0.75)])
def test_three_of_four_rails_are_reached_in_the_spine_from_two_nodes_on(nodes: int, climbs: float):
    leaf = {"gpus": 16, "oversubscription": 2.0}
    rails = flat_network("pcie", nics_per_node=4, wiring="rail-optimised", leaf=leaf)
    found = climb_of(CollectiveKind.ALL_TO_ALL, Group(nodes, 1), rails)
    assert (found.leaf_share, found.leaf_hops) == (climbs, float(climbs > 0))
    assert climb_of(CollectiveKind.ALL_GATHER, Group(nodes, 1), rails).leaf_share == 0.0


@given(
    st.sampled_from(KINDS), st.integers(2, 64), st.integers(1, 8), st.integers(1, 4),
    st.floats(1, 8), st.floats(1, 8), st.floats(0, 0.9), st.integers(0, 100),
)  # fmt: skip
def test_narrower_farther_and_busier_tiers_never_make_anything_faster(
    kind, nodes, below, pods, leaf, pod, load, latency_us
):
    group = Group(nodes, 1, nodes_per_leaf=below, nodes_per_pod=below * pods)
    network = flat_network(
        leaf={"gpus": below, "oversubscription": leaf, "background_load": load},
        pod={"gpus": below * pods, "oversubscription": pod, "latency": f"{latency_us} us"},
    )
    assert seconds(kind, group, network) >= seconds(kind, group, flat_network()) * (1 - 1e-12)


@given(st.sampled_from(KINDS), st.integers(2, 64), st.integers(1, 8), st.floats(1, 8))
def test_uplinks_carry_no_more_than_they_can_in_the_time(kind, nodes, below, oversubscription):
    network = flat_network(leaf={"gpus": below, "oversubscription": oversubscription})
    cost = collective_cost(kind, 1e9, Group(nodes, 1, nodes_per_leaf=below), network)
    climbed = cost.port_bytes.get("leaf_uplink", 0.0)
    assert climbed <= cost.seconds * network.leaf_uplink_bytes_per_s * (1 + 1e-12)
    assert climbed <= cost.port_bytes["fabric"]
