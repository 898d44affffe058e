"""An all_to_all over nodes, against closed forms and measured ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.validate.collective_errors import validate_collectives
from tests.networks import flat_network

GATHERED = Path(__file__).parents[2] / "reports/data/collectives_gathered.csv"


@pytest.mark.parametrize(("nodes", "hops"), [(2, 1.0), (3, 1.226), (32, 7.78)])
def test_it_waits_part_of_a_hop_for_each_node_beyond_the_first_partner(
    nodes: int, hops: float
) -> None:
    network = flat_network(latency="1 s", bulk_latency="1 s", late_node_hop=0.226)
    cost = collective_cost(CollectiveKind.ALL_TO_ALL, 1e-6, Group(nodes, 1), network)
    assert cost.seconds == pytest.approx(hops)


def test_where_nothing_is_known_of_further_nodes_it_waits_for_one_hop() -> None:
    network = flat_network(latency="1 s", bulk_latency="1 s")
    cost = collective_cost(CollectiveKind.ALL_TO_ALL, 1e-6, Group(32, 1), network)
    assert cost.seconds == pytest.approx(1.0)


def test_it_sends_what_leaves_a_node_at_the_rate_of_its_nic_however_many_nodes_there_are() -> None:
    costs = [
        collective_cost(CollectiveKind.ALL_TO_ALL, 8e9, Group(nodes, 1), flat_network())
        for nodes in (2, 4, 8)
    ]
    assert [cost.seconds for cost in costs] == pytest.approx([4.0, 6.0, 7.0])


def test_measured_ones_of_2_to_32_nodes_are_neither_quicker_nor_slower_than_predicted() -> None:
    rows = [row for row in validate_collectives(GATHERED).rows if row.id.startswith("efabench-")]
    errors = [row.error_pct for row in rows if row.error_pct is not None]
    assert len(errors) == 35
    assert abs(sum(errors) / len(errors)) < 5
    assert max(map(abs, errors)) < 20
