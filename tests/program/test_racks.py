"""Where racks of several nodes cut groups in different places, which one does the job wait for?"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.api import simulate
from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.described.job import Job
from simulator.described.load import load_profile
from simulator.program.grid.placement import groups_along
from simulator.program.grid.rank_groups import group_along, pipeline_pair
from tests.jobs import free_latency_profile, network_profile, small_job

GB = 1e9
ORDERS = ["-".join(words) for words in permutations(("tp", "cp", "ep", "dp", "pp"))]


def on_racks(of: int, **changes: Any) -> Job:
    """A job on racks of so many GPUs, in nodes of four with slow NICs."""
    profile = network_profile({"gpus": of}, {"nic": "10 MB/s"})
    return small_job(profile=profile, global_batch=24, **changes)


@pytest.mark.parametrize(
    ("gpus", "of_a_rack"),
    [(8, 72), (64, 64), (72, 72), (128, 64), (144, 72), (256, 64), (1024, 64), (96, 48), (152, 72)],
)
def test_a_job_takes_as_many_whole_nodes_of_every_rack_as_segments_of_it_fit(gpus, of_a_rack):
    """18 nodes a rack: 256 GPUs are segments of 16 nodes, 152 of 2 and so nine to a rack."""
    assert load_profile("gb200-nvl72").network.taken_by(gpus).scale_up.gpus == of_a_rack


def test_leafs_hold_as_many_racks_where_a_job_takes_a_part_of_each():
    taken = network_profile({"gpus": 12}, {"leaf": {"gpus": 24}}).network.taken_by(32)
    assert (taken.scale_up.gpus, taken.fabric.leaf.gpus) == (8, 16)


def test_a_node_is_taken_whole():
    network = load_profile("h100-sxm-80gb").network
    assert network.taken_by(24) is network


def test_of_three_groups_on_two_racks_the_one_in_both_is_waited_for():
    """Racks of 12: ranks 0 to 7, 8 to 15 and 16 to 23; the second has four in each rack."""
    job = on_racks(12, gpus=24, tp=8)
    assert group_along(job, "tp") == Group(8, 4)
    # Ranks 0, 8 and 16 are on racks 0, 0 and 1; no group does better.
    assert group_along(job, "dp") == Group(3, 1, unequal_nodes=2)


def test_a_group_that_straddles_sends_through_the_nics_of_its_smaller_part():
    """One rank of nine alone in its rack: all that leaves its ring's part passes one NIC."""
    network = free_latency_profile().network
    cost = collective_cost(CollectiveKind.ALL_GATHER, 9 * GB, Group(9, 1, unequal_nodes=2), network)
    assert cost.port_bytes["fabric"] == pytest.approx(8 * GB)
    even = collective_cost(CollectiveKind.ALL_GATHER, 8 * GB, Group(8, 4), network)
    assert even.port_bytes["fabric"] == pytest.approx(7 / 4 * GB)


def test_a_stage_is_as_far_from_the_next_as_its_farthest_ranks():
    """Racks of 12, stages of 8: ranks 0 to 3 find theirs in the same rack, 4 to 7 do not."""
    job = on_racks(12, gpus=24, pp=3)
    assert [pipeline_pair(job, stage, stage + 1).nodes for stage in (0, 1)] == [2, 2]
    near = on_racks(12, gpus=24, pp=4)
    assert [pipeline_pair(near, stage, stage + 1).nodes for stage in range(3)] == [1, 2, 1]


def test_the_step_waits_for_the_group_that_straddles():
    """Tensor groups of which one is on two racks take as long as where all are on two nodes."""
    tensor_s = [
        simulate(on_racks(of, gpus=24, tp=8)).breakdown_s["tensor_parallel"] for of in (24, 12, 4)
    ]
    assert tensor_s[0] < tensor_s[1] == tensor_s[2]


@given(
    st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 3]), st.sampled_from(ORDERS), st.sampled_from([2, 4, 8, 12, 16]),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_a_kind_of_group_is_its_most_scattered_one(tp, cp, dp, pp, order, domain):
    model = {"tp": tp if 8 % tp == 0 else 1, "cp": cp, "pp": pp}
    gpus = model["tp"] * cp * dp * pp
    profile = network_profile({"gpus": domain})
    job = small_job(
        gpus=gpus, profile=profile, global_batch=12, seq_len=72, rank_order=order, **model
    )
    taken = job.cluster.network.scale_up.gpus
    for words in (("tp",), ("cp",), ("cp", "dp")):
        counted = []
        for members in groups_along(job, *words):
            counts = np.unique(members // taken, return_counts=True)[1]
            counted.append((int(counts.min()), -len(counts)))
        fewest, spanned = min(counted)
        group = group_along(job, *words)
        assert (group.local_ranks, group.nodes) == (fewest, -spanned)
