"""Which ranks form which group; tp fastest, then cp, dp and pp, four GPUs per node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from simulator.cost.collectives import Group
from simulator.program.grid.rank_groups import (
    context_group,
    data_group,
    pipeline_pair,
    replica_group,
    shard_group,
    tensor_group,
)
from tests.jobs import jobs, small_job


@pytest.mark.parametrize(
    ("plan", "tensor", "context", "data"),
    [
        ({"tp": 1}, Group(1, 1), Group(1, 1), Group(8, 4)),
        ({"tp": 2}, Group(2, 2), Group(1, 1), Group(4, 2)),
        ({"tp": 4}, Group(4, 4), Group(1, 1), Group(2, 1)),
        ({"tp": 8}, Group(8, 4), Group(1, 1), Group(1, 1)),
        ({"tp": 2, "cp": 2}, Group(2, 2), Group(2, 2), Group(4, 2)),
        ({"tp": 2, "cp": 4}, Group(2, 2), Group(4, 2), Group(4, 2)),
        ({"cp": 8}, Group(1, 1), Group(8, 4), Group(8, 4)),
    ],
)
def test_groups_of_eight_ranks_on_two_nodes(plan, tensor, context, data):
    job = small_job(gpus=8, **plan)
    assert (tensor_group(job), context_group(job), data_group(job)) == (tensor, context, data)


def test_tensor_context_and_data_ranks_cover_a_stage():
    job = small_job(gpus=32, tp=2, cp=2, pp=2)
    assert data_group(job).ranks * tensor_group(job).ranks * job.plan.pp == 32


def test_states_shard_over_all_copies_unless_a_group_is_given():
    assert shard_group(small_job(gpus=8)) == Group(8, 4)
    job = small_job(gpus=8, zero_group=4)
    assert shard_group(job) == Group(4, 4)
    assert replica_group(job) == Group(2, 1)


@given(jobs())
@settings(deadline=None, max_examples=50)
def test_shards_times_replicas_are_the_copies(job):
    assert shard_group(job).ranks * replica_group(job).ranks == data_group(job).ranks


def test_a_pipeline_hop_crosses_the_fabric_only_between_nodes():
    """Eight ranks, two per stage: stages 0 and 1 share a node, 1 and 2 do not."""
    job = small_job(gpus=8, pp=4, tp=2)
    crossings = [pipeline_pair(job, stage, stage + 1).nodes > 1 for stage in range(3)]
    assert crossings == [False, True, False]
