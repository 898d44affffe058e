"""Which ranks of a stage run an operation as one?

Ranks of a stage are told apart by their *place* in it, counted from 0; the groups of
:mod:`simulator.program.ranks` are the same in every stage.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.program.ir import Scope
from simulator.program.ranks import (
    data_group,
    expert_data_group,
    expert_shard_group,
    shard_group,
)
from simulator.spec.job import Job

Labels = NDArray[np.int64]
"""A number per place, shape (places,); equal numbers belong together."""


def rank_grid(job: Job) -> Labels:
    """The rank at each place of each stage, shape (stages, places)."""
    return np.arange(job.cluster.gpus).reshape(job.plan.pp, -1)


def scope_labels(job: Job) -> Mapping[Scope, Labels]:
    """Per scope, which places of a stage belong together.

    What one operation does in several groups, one after another, joins all of them:
    dense parameters and experts, shards and their copies.
    """
    plan, count = job.plan, job.cluster.gpus // job.plan.pp
    replica = plan.tp * plan.cp
    passes = [_strided(count, replica, 1)]
    shards = [_strided(count, shard_group(job).ranks, plan.tp)]
    copies = [_strided(count, data_group(job).ranks, plan.tp)]
    if job.model.experts is not None:
        holders = plan.ep * plan.expert_tp
        passes.append(_strided(count, holders, 1))
        shards.append(_strided(count, expert_shard_group(job).ranks, holders))
        copies.append(_strided(count, expert_data_group(job).ranks, holders))
    return {
        Scope.RANK: np.arange(count),
        Scope.PASS: _joined(passes),
        Scope.SHARDS: _joined(shards),
        Scope.COPIES: _joined(copies),
        Scope.WORLD: np.zeros(count, dtype=np.int64),
    }


def _strided(count: int, ranks: int, stride: int) -> Labels:
    """Groups of ``ranks`` places that are ``stride`` apart, labelled by their first place."""
    places = np.arange(count)
    span = ranks * stride
    return places // span * span + places % stride


def _joined(partitions: list[Labels]) -> Labels:
    """Places that any of the partitions joins, directly or through others."""
    labels = np.arange(len(partitions[0]))
    while True:
        before = labels
        for partition in partitions:
            least = np.full(len(labels), len(labels))
            np.minimum.at(least, partition, labels)
            labels = least[partition]
        if np.array_equal(before, labels):
            return labels
