"""Collective costs against closed forms, physics and published rates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.collectives import (
    CollectiveKind,
    Group,
    all_to_all_s,
    chain_broadcast_s,
    collective_cost,
    ring_all_gather_s,
    ring_all_reduce_s,
    ring_reduce_scatter_s,
    send_recv_cost,
    send_recv_s,
    tree_all_reduce_s,
)
from simulator.cost.collectives.algorithms import in_switch_chunk_bytes
from simulator.cost.collectives.closed_forms import double_tree_parents, tree_depth
from simulator.cost.collectives.collective_time import pipeline_fill_s, reachable_link_share
from simulator.described.cluster.network import Network
from simulator.errors import InputError
from tests.networks import PLAIN_LINKS

KINDS = list(CollectiveKind)
GROUPS = [Group(8, 8), Group(16, 8), Group(4, 1), Group(64, 2), Group(2, 2), Group(3, 3)]


def round_network(**changes: Any) -> Network:
    """1 GB/s per port, no latency, no fill: transfer times can be computed by eye.

    Keywords are ``scale_up__field`` and ``fabric__field``, as files spell the fields.
    """
    document: dict[str, Any] = {
        "gpus_per_node": 8,
        "scale_up": {"kind": "nvswitch", "gpus": 8, "bandwidth": "1 GB/s", "launch": "0 s"},
        "fabric": {"kind": "ib", "nics_per_node": 8, "nic": "1 GB/s"},
    }
    document["scale_up"] |= PLAIN_LINKS
    document["fabric"] |= PLAIN_LINKS
    for path, value in changes.items():
        block, field = path.split("__")
        document[block][field] = value
    return Network.model_validate(document)


def real_like_network(scale_up_rate: float = 450.0, nic_rate: float = 50.0) -> Network:
    """A node of eight with latencies, two protocols and in-switch reduction."""
    return round_network(
        scale_up__bandwidth=f"{scale_up_rate} GB/s",
        scale_up__launch="5 us",
        scale_up__latency="0.7 us",
        scale_up__bulk_latency="2 us",
        scale_up__low_latency_share=0.5,
        scale_up__pipeline_fill=0.5,
        scale_up__in_switch_reduction=True,
        fabric__nic=f"{nic_rate} GB/s",
        fabric__latency="5 us",
        fabric__bulk_latency="18 us",
        fabric__low_latency_share=0.1,
        fabric__pipeline_fill=0.5,
    )


def test_ring_all_reduce_is_two_rounds_of_n_minus_one_steps() -> None:
    assert ring_all_reduce_s(4e9, 4, 1e9, 0.5) == 2 * 3 * (1.0 + 0.5)


def test_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    arguments = (3e9, 5, 1e9, 0.25)
    halves = ring_reduce_scatter_s(*arguments) + ring_all_gather_s(*arguments)
    assert ring_all_reduce_s(*arguments) == pytest.approx(halves)


def test_tree_all_reduce_has_logarithmic_latency() -> None:
    assert tree_all_reduce_s(0.0, 1024, 1e9, 1.0) == 2 * 10


def test_tree_all_reduce_of_many_chunks_takes_half_a_buffer_per_tree_link() -> None:
    assert tree_all_reduce_s(2e9, 8, 1e9, 0.0, chunks=100_000) == pytest.approx(1.0, rel=1e-4)


def test_chain_broadcast_of_many_chunks_takes_one_buffer() -> None:
    assert chain_broadcast_s(1e9, 8, 1e9, 0.0, chunks=100_000) == pytest.approx(1.0, rel=1e-4)


def test_all_to_all_sends_n_minus_one_nth_of_the_buffer() -> None:
    assert all_to_all_s(8e9, 8, 1e9, 0.0) == 7.0


def test_send_recv_is_one_hop_and_the_bytes() -> None:
    assert send_recv_s(2e9, 1e9, 0.5) == 2.5


@given(st.integers(2, 300))
def test_both_trees_reach_their_root_in_ceil_log2_hops(ranks: int) -> None:
    for parents in double_tree_parents(ranks):
        depths = []
        for start in range(ranks):
            rank, hops = start, 0
            while parents[rank] >= 0:
                rank, hops = parents[rank], hops + 1
            depths.append(hops)
        assert parents.count(-1) == 1
        assert max(depths) == tree_depth(ranks) == (ranks - 1).bit_length()


@given(st.integers(2, 150).map(lambda half: 2 * half))
def test_no_rank_has_two_children_in_both_trees(ranks: int) -> None:
    first, second = double_tree_parents(ranks)
    assert all(min(first.count(rank), second.count(rank)) <= 1 for rank in range(ranks))


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        (CollectiveKind.ALL_REDUCE, 2 * 7 / 8),
        (CollectiveKind.ALL_GATHER, 7 / 8),
        (CollectiveKind.REDUCE_SCATTER, 7 / 8),
        (CollectiveKind.BROADCAST, 1.0),
        (CollectiveKind.REDUCE, 1.0),
        (CollectiveKind.ALL_TO_ALL, 7 / 8),
    ],
)
def test_a_port_in_the_node_passes_the_published_volume(
    kind: CollectiveKind, passes: float
) -> None:
    cost = collective_cost(kind, 1e9, Group(8, 8), round_network())
    assert cost.seconds == pytest.approx(passes)
    assert cost.port_bytes == pytest.approx({"scale_up": passes * 1e9, "fabric": 0.0})


def test_a_ring_over_nodes_passes_one_link_in_r_over_the_fabric() -> None:
    cost = collective_cost(CollectiveKind.ALL_GATHER, 16e9, Group(16, 8), round_network())
    assert cost.port_bytes == pytest.approx({"scale_up": 15e9 * 7 / 8, "fabric": 15e9 / 8})


def test_what_a_gpu_sends_over_the_fabric_leaves_through_its_pcie_port_as_well() -> None:
    """A ring passes 15 GB out of every GPU, to a neighbour or to a NIC."""
    network = round_network(scale_up__kind="pcie", fabric__nic="100 GB/s")
    ring = collective_cost(CollectiveKind.ALL_GATHER, 16e9, Group(16, 8), network)
    assert ring.port_bytes == pytest.approx({"scale_up": 15e9, "fabric": 15e9 / 8})
    assert ring.seconds == pytest.approx(15.0)
    everyone = collective_cost(CollectiveKind.ALL_TO_ALL, 16e9, Group(16, 8), network)
    assert everyone.seconds == pytest.approx(15.0)
    assert send_recv_cost(3e9, Group(2, 1), network).seconds == pytest.approx(3.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [2, 5, 64])
def test_pcie_ports_are_no_faster_over_nodes_than_inside_one(
    kind: CollectiveKind, nodes: int
) -> None:
    """However fast the NICs; a buffer is passed (n-1)/n times, or twice that."""
    network = round_network(scale_up__kind="pcie", fabric__nic="100 GB/s")
    one, many = (collective_cost(kind, 1e9, Group(8 * n, 8), network) for n in (1, nodes))
    assert many.seconds >= one.seconds * (1 - 1e-9)


def test_ranks_of_a_node_pool_their_shares_of_the_nics() -> None:
    network = round_network(scale_up__bandwidth="1000 GB/s")
    alone = collective_cost(CollectiveKind.ALL_GATHER, 16e9, Group(16, 1), network)
    eight = collective_cost(CollectiveKind.ALL_GATHER, 16e9, Group(16, 8), network)
    assert alone.seconds == pytest.approx(8 * eight.seconds)


def test_tree_between_two_nodes_passes_the_buffer_once_where_a_ring_passes_it_almost_twice() -> (
    None
):
    network = round_network(scale_up__bandwidth="1000 GB/s")
    cost = collective_cost(CollectiveKind.ALL_REDUCE, 8e9, Group(16, 8), network)
    assert cost.algorithm == "tree"
    assert cost.port_bytes["fabric"] == pytest.approx(1e9)


@pytest.mark.parametrize(("nic", "seconds"), [("1 GB/s", 2.0), ("2 GB/s", 2.0), ("0.5 GB/s", 4.0)])
def test_a_tree_between_two_nodes_is_no_faster_than_half_of_its_channels(
    nic: str, seconds: float
) -> None:
    # Eight NICs, a channel of 2 GB/s each: 8 GB/s go through the tree, however fast the NICs are.
    network = round_network(
        scale_up__bandwidth="1000 GB/s", fabric__nic=nic, fabric__tree_channel="2 GB/s",
        fabric__tree_piece="1 B",
    )  # fmt: skip
    cost = collective_cost(CollectiveKind.ALL_REDUCE, 16e9, Group(16, 8), network, algorithm="tree")
    assert cost.seconds == pytest.approx(seconds, rel=1e-3)


def test_nccl_takes_a_ring_between_two_nodes_with_fast_nics_and_a_tree_with_slow_ones() -> None:
    # A100s: 23.6 GB/s per channel of a tree; a ring of 16 ranks passes 15/8 of the buffer.
    for nic, algorithm in (("25 GB/s", "ring"), ("12.5 GB/s", "tree")):
        network = round_network(
            scale_up__bandwidth="300 GB/s", fabric__nic=nic, fabric__tree_channel="23.6 GB/s"
        )
        best = collective_cost(CollectiveKind.ALL_REDUCE, 1e9, Group(16, 8), network)
        assert best.algorithm == algorithm


def test_in_switch_reduction_passes_one_plus_one_nth_of_the_buffer() -> None:
    network = round_network(
        scale_up__in_switch_reduction=True,
        scale_up__in_switch_efficiency=1.0,
        scale_up__in_switch_latency="0 s",
    )
    cost = collective_cost(CollectiveKind.ALL_REDUCE, 8e9, Group(8, 8), network)
    assert cost.algorithm == "in_switch"
    assert cost.seconds == pytest.approx(9.0)


def test_in_network_reduction_passes_the_buffer_once_however_many_nodes() -> None:
    network = round_network(scale_up__bandwidth="1000 GB/s", fabric__in_network_reduction=True)
    for nodes in (2, 16, 128):
        cost = collective_cost(
            CollectiveKind.ALL_REDUCE, 8e9, Group(8 * nodes, 8), network, algorithm="in_network"
        )
        assert cost.seconds == pytest.approx(1.0)
        assert cost.port_bytes["fabric"] == pytest.approx(1e9)


def test_pat_takes_log2_hops_where_a_ring_takes_one_per_rank() -> None:
    network = round_network(fabric__pat=True, fabric__latency="1 s", fabric__bulk_latency="1 s")
    ring, trees = (
        collective_cost(CollectiveKind.ALL_GATHER, 1e-6, Group(64, 1), network, algorithm=name)
        for name in ("ring", "pat")
    )
    assert ring.seconds == pytest.approx(63.0)
    assert trees.seconds == pytest.approx(6.0)
    assert trees.port_bytes == pytest.approx(ring.port_bytes)


def test_pat_needs_one_rank_per_node() -> None:
    with pytest.raises(InputError, match="cannot run all_gather here"):
        collective_cost(
            CollectiveKind.ALL_GATHER, 1e9, Group(16, 8), round_network(fabric__pat=True),
            algorithm="pat",
        )  # fmt: skip


def test_all_to_all_over_nodes_is_limited_by_the_share_of_the_nics() -> None:
    # Half of the buffer leaves the node, at 1 GB/s per GPU.
    cost = collective_cost(CollectiveKind.ALL_TO_ALL, 16e9, Group(16, 8), round_network())
    assert cost.seconds == pytest.approx(8.0)


def test_a_small_message_costs_launch_and_hops_of_the_low_latency_protocol() -> None:
    cost = collective_cost(CollectiveKind.ALL_GATHER, 1e-6, Group(8, 8), real_like_network())
    assert cost.protocol == "low_latency"
    assert cost.seconds == pytest.approx(5e-6 + 7 * 0.7e-6, rel=1e-3)


def test_a_large_message_uses_the_protocol_of_full_bandwidth() -> None:
    cost = collective_cost(CollectiveKind.ALL_GATHER, 1e10, Group(8, 8), real_like_network())
    assert cost.protocol == "simple"


def test_best_pipeline_of_two_equal_parts_adds_both_once_more() -> None:
    assert pipeline_fill_s(1.0, 1.0, fill=1.0) == 2.0


def test_a_pipeline_without_fill_adds_nothing() -> None:
    assert pipeline_fill_s(1.0, 4.0, fill=0.0) == 0.0


def test_a_ring_also_copies_the_part_of_each_rank_itself() -> None:
    # 7 GB over the port at 1 GB/s, and one eighth of the buffer copied at 0.5 GB/s.
    network = round_network(scale_up__local_copy="0.5 GB/s")
    cost = collective_cost(CollectiveKind.ALL_GATHER, 8e9, Group(8, 8), network)
    assert cost.seconds == pytest.approx(7.0 + 2.0)


def test_every_level_of_a_tree_between_nodes_waits_for_one_piece() -> None:
    # Four nodes: two hops up and two down, each of which holds up 1 GB at 1 GB/s; the
    # busiest of eight ranks sends an eighth of the buffer twice.
    network = round_network(
        scale_up__bandwidth="1000 GB/s", fabric__tree_piece="1 GB", fabric__low_latency_share=0.1
    )
    cost = collective_cost(CollectiveKind.ALL_REDUCE, 64e9, Group(32, 8), network, algorithm="tree")
    assert cost.seconds == pytest.approx(16.0 + 4 * 1.0)


def test_a_message_smaller_than_a_piece_is_passed_on_whole() -> None:
    network = round_network(
        scale_up__bandwidth="1000 GB/s", fabric__tree_piece="1 GB", fabric__low_latency_share=0.1
    )
    cost = collective_cost(CollectiveKind.ALL_REDUCE, 4e8, Group(32, 8), network, algorithm="tree")
    assert cost.seconds == pytest.approx(0.1 + 4 * 0.1)


@pytest.mark.parametrize(
    ("nodes", "mib", "chunk_kib"),
    [(2, 64, 128), (2, 63, 64), (2, 8, 64), (2, 7, 32), (4, 1024, 64), (4, 8, 64), (4, 7, 32)],
)
def test_trees_that_join_switches_pass_on_the_chunks_of_nccl(
    nodes: int, mib: int, chunk_kib: int
) -> None:
    # 128 chunks at once, 16 channels of 8 ranks, are 16, 8 or 4 MiB: calcCollChunking of NCCL.
    group = Group(8 * nodes, 8)
    assert in_switch_chunk_bytes(mib * 2.0**20, group) == chunk_kib * 1024
    costs = [
        collective_cost(
            CollectiveKind.ALL_REDUCE, mib * 2.0**20, group,
            round_network(
                scale_up__in_switch_reduction=True, scale_up__bandwidth="1000 GB/s",
                fabric__tree_piece=piece, fabric__low_latency_share=0.1,
            ),
            algorithm="in_switch",
        )
        for piece in ("0 B", "64 kB")
    ]  # fmt: skip
    level_s = 64e3 * chunk_kib / 64 / 1e9
    levels = 2 if nodes == 2 else 4
    assert costs[1].seconds - costs[0].seconds == pytest.approx(levels * level_s, rel=1e-3)


@pytest.mark.parametrize(("part_bytes", "hop_s"), [(4e9, 8.0), (2e9, 8.0), (1e9, 4.0), (1e8, 1.0)])
def test_a_hop_of_a_ring_over_the_fabric_takes_as_much_less_as_its_part_is_short_of_a_piece(
    part_bytes: float, hop_s: float
) -> None:
    network = round_network(
        fabric__nic="1000000 GB/s", fabric__latency="1 s", fabric__bulk_latency="8 s",
        fabric__ring_piece="2 GB", fabric__low_latency_share=1e-9,
    )  # fmt: skip
    cost = collective_cost(CollectiveKind.ALL_GATHER, 4 * part_bytes, Group(4, 1), network)
    assert cost.seconds == pytest.approx(3 * hop_s, rel=1e-3)


def test_two_of_eight_meshed_gpus_use_one_link_of_seven() -> None:
    mesh = round_network(scale_up__kind="full-mesh").scale_up
    assert reachable_link_share(mesh, 2) == pytest.approx(1 / 7)
    assert reachable_link_share(mesh, 8) == 1.0


def test_a_pair_on_a_full_mesh_is_seven_times_slower_than_on_a_switch() -> None:
    # MI300X: 47.7 GB/s between two, 313 GB/s among eight (stas00/ml-engineering).
    switch, mesh = round_network(), round_network(scale_up__kind="full-mesh")
    seconds = [send_recv_cost(1e9, Group(2, 2), network).seconds for network in (switch, mesh)]
    assert seconds == pytest.approx([1.0, 7.0])


def test_nodes_of_one_gpu_whose_kind_has_a_mesh_send_over_the_fabric_alone() -> None:
    switch, mesh = (
        round_network(scale_up__kind=kind, scale_up__gpus=1) for kind in ("nvswitch", "full-mesh")
    )
    seconds = [send_recv_cost(1e9, Group(2, 1), network).seconds for network in (switch, mesh)]
    assert seconds[0] == seconds[1] > 0


def test_a_pair_on_a_mesh_takes_the_channels_of_the_links_between_them_and_no_more() -> None:
    mesh = round_network(scale_up__kind="full-mesh", scale_up__sm_count=14)
    taken = [
        collective_cost(CollectiveKind.ALL_REDUCE, 8e9, Group(n, n), mesh).sm_count for n in (2, 8)
    ]
    assert taken == [2, 14]


def test_cards_on_a_crowded_bus_each_get_what_two_got_divided_by_how_many_more_there_are() -> None:
    bus = round_network(scale_up__kind="pcie", scale_up__crowding=1.0).scale_up
    assert [reachable_link_share(bus, ranks) for ranks in (2, 4, 8)] == [1.0, 0.5, 0.25]


def test_more_than_two_cards_pass_on_no_more_than_the_link_between_their_sockets_carries() -> None:
    bus = round_network(scale_up__kind="pcie", scale_up__socket_link="250 MB/s").scale_up
    assert [reachable_link_share(bus, ranks) for ranks in (2, 4, 8)] == [1.0, 0.25, 0.25]


def test_rings_through_hosts_of_a_rack_keep_a_share_and_exchanges_of_all_their_rate() -> None:
    one = round_network()
    rack = one.model_copy(
        update={
            "gpus_per_node": 4,
            "scale_up": one.scale_up.model_copy(update={"gpus": 72, "host_ring_share": 0.5}),
        }
    )

    def seconds(kind: CollectiveKind, ranks: int) -> float:
        return collective_cost(kind, 8e9, Group(ranks, ranks), rack).seconds

    assert seconds(CollectiveKind.ALL_GATHER, 4) == pytest.approx(6.0)
    assert seconds(CollectiveKind.ALL_GATHER, 8) == pytest.approx(14.0)
    assert seconds(CollectiveKind.ALL_TO_ALL, 8) == pytest.approx(7.0)


@pytest.mark.parametrize(("ranks", "hops"), [(2, 2), (4, 3), (8, 4)])
def test_a_small_all_to_all_takes_two_hops_and_one_for_each_doubling_of_partners(
    ranks: int, hops: int
) -> None:
    # B200, 512 B to 4 KiB: 9.3, 10.5 and 11.0 us (nccl-tests of NCCL 2.28), with hops of 1.3 us.
    network = round_network(scale_up__latency="1 us", scale_up__bulk_latency="50 us")
    cost = collective_cost(CollectiveKind.ALL_TO_ALL, 1e-6, Group(ranks, ranks), network)
    assert cost.seconds == pytest.approx(hops * 1e-6)


def test_a_large_all_to_all_does_not_wait_longer_for_more_partners() -> None:
    network = round_network(scale_up__latency="1 us", scale_up__bulk_latency="1 us")
    network = network.model_copy(
        update={"scale_up": network.scale_up.model_copy(update={"low_latency_share": 0.5})}
    )
    costs = [
        collective_cost(CollectiveKind.ALL_TO_ALL, 8e9, Group(n, n), network) for n in (2, 4, 8)
    ]
    assert [cost.latency_s for cost in costs] == pytest.approx([2e-6] * 3, rel=1e-3)


def test_two_gpus_of_a_dgx_1_share_one_link_of_six() -> None:
    cube = round_network(scale_up__kind="hybrid-cube-mesh").scale_up
    assert reachable_link_share(cube, 2) == pytest.approx(1 / 6)
    assert reachable_link_share(cube, 8) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_and_zero_bytes_cost_exactly_nothing(kind: CollectiveKind) -> None:
    assert collective_cost(kind, 1e9, Group(1, 1), round_network()).seconds == 0.0
    assert collective_cost(kind, 0.0, Group(8, 8), round_network()).seconds == 0.0
    assert send_recv_cost(0.0, Group(2, 1), round_network()).seconds == 0.0


def test_send_recv_over_the_fabric_uses_one_share_of_the_nics() -> None:
    cost = send_recv_cost(3e9, Group(2, 1), round_network(fabric__nics_per_node=4))
    assert cost.seconds == pytest.approx(6.0)
    assert cost.port_bytes == {"scale_up": 0.0, "fabric": 3e9}


def test_crossing_nodes_without_nics_is_refused() -> None:
    network = round_network(fabric__nics_per_node=0)
    with pytest.raises(InputError, match=r"cluster\.network\.fabric = 0: has no NICs"):
        collective_cost(CollectiveKind.ALL_REDUCE, 1e9, Group(16, 8), network)


def test_an_algorithm_that_the_links_cannot_run_is_refused() -> None:
    with pytest.raises(InputError, match="cannot run all_reduce here"):
        collective_cost(
            CollectiveKind.ALL_REDUCE, 1e9, Group(8, 8), round_network(), algorithm="in_switch"
        )


def test_the_fastest_algorithm_is_taken() -> None:
    network, group = real_like_network(), Group(64, 8)
    for num_bytes in (1e3, 1e6, 1e9):
        each = [
            collective_cost(
                CollectiveKind.ALL_REDUCE, num_bytes, group, network, algorithm=name
            ).seconds
            for name in ("ring", "tree", "in_switch")
        ]
        best = collective_cost(CollectiveKind.ALL_REDUCE, num_bytes, group, network)
        assert best.seconds == min(each)


messages = st.floats(1.0, 1e11)
kinds = st.sampled_from(KINDS)
groups = st.sampled_from(GROUPS)


@given(kinds, messages, messages, groups)
def test_more_bytes_never_take_less_time(
    kind: CollectiveKind, one: float, other: float, group: Group
) -> None:
    less, more = sorted((one, other))
    network = real_like_network()
    assert (
        collective_cost(kind, less, group, network).seconds
        <= collective_cost(kind, more, group, network).seconds
    )


@given(kinds, messages, groups, st.floats(1.0, 10.0), st.floats(1.0, 10.0))
def test_faster_links_are_never_slower(
    kind: CollectiveKind, num_bytes: float, group: Group, up: float, nic: float
) -> None:
    slow, fast = real_like_network(), real_like_network(450.0 * up, 50.0 * nic)
    assert (
        collective_cost(kind, num_bytes, group, fast).seconds
        <= collective_cost(kind, num_bytes, group, slow).seconds
    )


@given(kinds, messages, groups)
def test_no_port_exceeds_its_physical_rate(
    kind: CollectiveKind, num_bytes: float, group: Group
) -> None:
    network = real_like_network()
    cost = collective_cost(kind, num_bytes, group, network)
    assert cost.port_bytes["scale_up"] <= 450e9 * cost.seconds
    assert cost.port_bytes["fabric"] <= 50e9 * cost.seconds
    assert 0 < cost.latency_s <= cost.seconds
