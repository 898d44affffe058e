"""Gloo's collectives in round numbers: 1 GB/s, no latency."""

from __future__ import annotations

import pytest

from simulator.cost.collectives import CollectiveKind, Group, collective_cost, send_recv_cost
from simulator.cost.collectives.algorithms import gloo_broadcast
from simulator.described.cluster.network import Network
from simulator.errors import InputError
from tests.jobs import free_latency_profile

SIZE = 12e9
"""Divides by 2, 3 and 4."""


def network(*, nodes: bool = False) -> Network:
    given = free_latency_profile().network
    up = given.scale_up.model_copy(update={"pipeline_fill": 0.0, "low_latency_share": 1.0})
    up = up.model_copy(update={"gpus": 1}) if nodes else up
    fabric = given.fabric.model_copy(
        update={"pipeline_fill": 0.0, "low_latency_share": 1.0, "nics_per_node": 1}
    )
    gpus = 1 if nodes else given.gpus_per_node
    return given.model_copy(
        update={"library": "gloo", "scale_up": up, "fabric": fabric, "gpus_per_node": gpus}
    )


@pytest.mark.parametrize("nodes", [False, True])
@pytest.mark.parametrize(
    ("kind", "ranks", "seconds"),
    [
        (CollectiveKind.ALL_REDUCE, 2, 12.0),
        (CollectiveKind.ALL_REDUCE, 4, 18.0),
        (CollectiveKind.ALL_GATHER, 2, 9.0),
        (CollectiveKind.ALL_GATHER, 4, 9.0),
        (CollectiveKind.REDUCE_SCATTER, 4, 18.0),
        (CollectiveKind.ALL_TO_ALL, 2, 12.0),
        (CollectiveKind.ALL_TO_ALL, 3, 12.0),
        (CollectiveKind.ALL_TO_ALL, 4, 14.85),
        (CollectiveKind.BROADCAST, 2, 12.0),
        (CollectiveKind.BROADCAST, 3, 24.0),
        (CollectiveKind.BROADCAST, 4, 36.0),
    ],
)
def test_a_collective_moves_what_gloo_moves(kind, ranks, seconds, nodes):
    group = Group(ranks, 1 if nodes else ranks)
    cost = collective_cost(kind, SIZE, group, network(nodes=nodes))
    assert cost.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("nodes", [False, True])
def test_a_broadcast_hops_over_the_links_that_it_crosses_alone(nodes):
    demand = gloo_broadcast(SIZE, Group(4, 1 if nodes else 4), network(nodes=nodes))
    assert (demand.scale_up_hops, demand.fabric_hops) == ((0, 2) if nodes else (2, 0))


def test_gloo_has_no_trees_for_all_reduce():
    with pytest.raises(InputError, match="one of ring"):
        collective_cost(CollectiveKind.ALL_REDUCE, SIZE, Group(4, 4), network(), algorithm="tree")


def test_a_send_loads_the_connection_of_its_pair_once():
    cost = send_recv_cost(SIZE, Group(2, 1), network(nodes=True))
    assert cost.port_bytes["pair"] == SIZE
    assert network(nodes=True).ports_bytes_per_s["pair"] == 1e9
    nccl = network().model_copy(update={"library": "nccl"})
    assert "pair" not in send_recv_cost(SIZE, Group(2, 1), nccl).port_bytes
    assert "pair" not in nccl.ports_bytes_per_s
