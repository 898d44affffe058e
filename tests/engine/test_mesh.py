"""Who shares a link where every GPU of a node has one of its own to every other?

A node of eight GPUs whose seven links carry 1 GB/s each: an all_gather of 1 GB per rank
passes 1 GB over each link between its ranks, one second alone.
"""

from __future__ import annotations

from functools import partial

import pytest

from simulator.chakra.rank_parts import group_on
from simulator.cost.collectives import CollectiveKind, Group
from simulator.described.cluster.network import Network
from simulator.engine.fluid_network import FluidNetwork
from simulator.engine.instant import Clock
from simulator.program.communication import Call, collectives_work
from simulator.program.grid.rank_groups import group_along, pipeline_pair
from simulator.program.ir import Category
from simulator.program.unlike.conditions import Condition
from tests.jobs import network_profile, small_job
from tests.networks import flat_network

GB = 1e9

PAIR = Group(2, 2, peers=(1,))
FIRST_HALF = Group(4, 4, peers=(1, 2, 3))
EVERY_SECOND = Group(4, 4, peers=(2, 4, 6))
ACROSS = Group(2, 2, peers=(4,))
ALL = Group(8, 8, peers=(1, 2, 3, 4, 5, 6, 7))


def mesh(share: float = 1.0) -> Network:
    """Eight GPUs of seven links, no latency, with a share of the links' rate left."""
    flat = flat_network("full-mesh")
    up = flat.scale_up.model_copy(update={"gpus": 8, "bandwidth_bytes_per_s": share * 7 * GB})
    return flat.model_copy(update={"scale_up": up, "gpus_per_node": 8})


def ends(*groups: Group, share: float = 1.0) -> list[float]:
    """When each of some all_gathers is through that a GPU begins at the same moment."""
    env, network = Clock(), mesh(share)
    shares = {0: Condition(scale_up_share=share).port_shares}
    fluid = FluidNetwork(env, mesh().ports_bytes_per_s, shares)
    ended = [0.0] * len(groups)

    def through(index: int) -> None:
        ended[index] = env.now

    for index, group in enumerate(groups):
        call = Call("weights", CollectiveKind.ALL_GATHER, "dp", group, group.ranks * GB)
        work = collectives_work([call], network, Category.DATA_PARALLEL)
        assert work.traffic is not None
        route = fluid.route(work.seconds, work.traffic, [0], [0])
        fluid.transfer(route, partial(through, index))
    env.run()
    return ended


@pytest.mark.parametrize("group", [PAIR, FIRST_HALF, EVERY_SECOND, ALL])
def test_two_collectives_of_one_group_share_its_links_however_few_they_are(group):
    assert ends(group) == [pytest.approx(1.0)]
    assert ends(group, group) == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize("other", [ACROSS, Group(2, 2, peers=(7,))])
def test_groups_that_have_no_pair_in_common_use_different_links(other):
    assert ends(FIRST_HALF, other) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("whole", [FIRST_HALF, ALL])
def test_a_group_shares_the_links_of_a_group_that_is_part_of_it(whole):
    assert ends(whole, PAIR) == pytest.approx([2.0, 2.0])


def test_groups_share_only_the_links_of_pairs_that_are_in_both():
    """Both halves have the pair of 0 and 2, where each gets half a link."""
    assert ends(FIRST_HALF, EVERY_SECOND) == pytest.approx([2.0, 2.0])


def test_scale_up_links_that_lost_half_their_rate_lost_it_one_by_one():
    assert ends(PAIR, share=0.5) == pytest.approx([2.0])
    assert ends(PAIR, PAIR, share=0.5) == pytest.approx([4.0, 4.0])


def test_tensor_data_and_pipeline_neighbours_of_a_rank_are_behind_different_links():
    profile = network_profile({"kind": "full-mesh", "gpus": 8})
    job = small_job(gpus=16, profile=profile, tp=2, pp=4)
    assert group_along(job, "tp").peers == (1,)
    assert group_along(job, "cp", "dp").peers == (2,)
    assert pipeline_pair(job, 0, 1).peers == (4,)
    assert pipeline_pair(job, 1, 0).peers == (4,)
    assert pipeline_pair(job, 1, 2).peers == ()
    inside = small_job(gpus=16, profile=profile, pp=4, rank_order="pp-tp-cp-ep-dp")
    # From 1 back to 0, and on to 2: two links.
    assert [pipeline_pair(inside, 1, stage).peers for stage in (0, 2)] == [(1,), (3,)]
    spread = small_job(gpus=16, profile=profile, tp=2)
    assert group_along(spread, "dp").peers == (2, 4, 6)


def test_ranks_that_a_trace_names_are_behind_the_links_of_the_grid():
    assert group_on([4, 5, 6, 7], mesh()).peers == FIRST_HALF.peers
    assert group_on([1, 3, 5, 7, 9], mesh()).peers == EVERY_SECOND.peers
    # Rank 5 reaches 3 and 7 over two links.
    assert [group_on(pair, mesh()).peers for pair in ([3, 5], [5, 7])] == [(6,), (2,)]


def test_behind_a_switch_no_link_belongs_to_a_pair():
    job = small_job(gpus=8, tp=2)
    assert group_along(job, "tp").peers == ()
    assert pipeline_pair(small_job(gpus=4, pp=2), 0, 1).peers == ()
