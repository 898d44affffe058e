"""Which ranks of a stage run an operation as one?

Ranks of a stage are told apart by their *place* in it, counted from 0 in order of their
numbers; the groups of :mod:`simulator.program.grid.rank_groups` are the same in every stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.program.grid.rank_groups import Axis, copy_axes, rank_axes, shard_axes
from simulator.program.ir import Scope

Labels = NDArray[np.int64]
"""A number per place, shape (places,); equal numbers belong together."""


def rank_grid(job: Job) -> Labels:
    """The rank at each place of each stage, shape (stages, places)."""
    ranks = np.arange(job.cluster.gpus)
    stages = rank_axes(job)["pp"]
    order = np.argsort(ranks // stages.stride % stages.ranks, kind="stable")
    return order.reshape(stages.ranks, -1)


def scope_labels(job: Job) -> Mapping[Scope, Labels]:
    """Per scope, which places of a stage belong together.

    What one operation does in several groups, one after another, joins all of them:
    dense parameters and experts, shards and their copies.
    """
    ranks = rank_grid(job)[0]
    grids = [False, True] if job.model.experts is not None else [False]
    joined = {
        Scope.PASS: [_pass_axes(job, experts=experts) for experts in grids],
        Scope.SHARDS: [shard_axes(job, experts=experts) for experts in grids],
        Scope.COPIES: [copy_axes(job, experts=experts) for experts in grids],
    }
    labels = {
        scope: _joined([_labels(ranks, each) for each in axes]) for scope, axes in joined.items()
    }
    places = np.arange(len(ranks))
    return {Scope.RANK: places, **labels, Scope.WORLD: np.zeros_like(places)}


def _pass_axes(job: Job, *, experts: bool) -> Sequence[Axis]:
    """Along which ranks exchange activations inside a pass."""
    axes = rank_axes(job, experts=experts)
    return [axes["tp"], axes["ep"] if experts else axes["cp"]]


def _labels(ranks: Labels, axes: Sequence[Axis]) -> Labels:
    """Ranks that differ only along the axes get the place of the first of them."""
    origins = ranks.copy()
    for axis in axes:
        origins -= ranks // axis.stride % axis.ranks * axis.stride
    _, first, group = np.unique(origins, return_index=True, return_inverse=True)
    labels: Labels = first[group.reshape(-1)]
    return labels


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
