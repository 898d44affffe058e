"""Which ranks form which group, and what does each group cross?

``plan.rank_order`` numbers the ranks, its first word fastest; scale-up domains (nodes, or
racks for NVL72) hold consecutive ranks, and so do leafs and pods. In Megatron's order,
tp-cp-ep-dp-pp, tensor-parallel ranks are neighbours. Where domains cut the groups of a kind in
different places, the most scattered one stands for all: a step waits for it.

Routed experts are laid over the same ranks of a stage in another grid: etp in place of tp,
then ep, and dp for what is left (Megatron-Core's parallel folding, arXiv 2504.14960,
section 3.1; its ``RankGenerator`` orders both grids by the same words).

Ranks of a stage are known by their *place* in it, counted from 0 in order of their numbers;
groups are the same in every stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost.collectives import Group
from simulator.described.job import Job
from simulator.program.ir import Scope

Ranks = NDArray[np.int64]


class Axis(NamedTuple):
    """One word of the rank order.

    Attributes:
        ranks: How many ranks it counts.
        stride: Distance between two neighbours.
    """

    ranks: int
    stride: int


def rank_axes(job: Job, *, experts: bool = False) -> Mapping[str, Axis]:
    """The grid of all ranks by word of ``plan.rank_order``, the fastest first.

    Args:
        job: The job.
        experts: Whether to give the grid of the routed experts, in which tp stands for
            etp and dp for the ranks that hold the same experts.
    """
    plan = job.plan
    sizes = {"tp": job.choices.tensor_ranks, "cp": plan.cp, "ep": 1, "dp": job.dp, "pp": plan.pp}
    if experts:
        holders = plan.ep * plan.expert_tp
        copies = max(1, sizes["tp"] * plan.cp * job.dp // holders)
        sizes |= {"tp": plan.expert_tp, "cp": 1, "ep": plan.ep, "dp": copies}
    axes, stride = {}, 1
    for word in plan.rank_order.split("-"):
        axes[word] = Axis(sizes[word], stride)
        stride *= sizes[word]
    return axes


def group_along(job: Job, *words: str, experts: bool = False) -> Group:
    """The ranks that differ only in their coordinates of these words."""
    axes = rank_axes(job, experts=experts)
    return _group(job, [axes[word] for word in words])


def tensor_group(job: Job) -> Group:
    """Ranks that share each weight matrix."""
    return group_along(job, "tp")


def grid_groups(job: Job) -> tuple[Group, Group, Group]:
    """Ranks along each line of a tensor-parallel grid, the line of neighbours first.

    In 2D and 2.5D these are rows, columns and depth, in 3D weight, input and output, as
    Colossal-AI's ``Initializer_2D``, ``Initializer_2p5D`` and ``Initializer_3D`` number them.
    """
    grid = job.plan.tensor_grid
    assert grid is not None
    stride, q = rank_axes(job)["tp"].stride, grid.side
    lines = Axis(q, stride), Axis(q, stride * q), Axis(grid.depth, stride * q * q)
    row, column, depth = (_group(job, [line]) for line in lines)
    return row, column, depth


def context_group(job: Job) -> Group:
    """Ranks that share each sequence."""
    return group_along(job, "cp")


def context_lines(job: Job) -> tuple[Group, Group]:
    """Neighbours that trade heads of a sequence, and the ring that joins them with others.

    Source: as Megatron-Core lays out ``hierarchical_context_parallel_sizes``.
    """
    axis, heads = rank_axes(job)["cp"], job.plan.cp_heads
    ring = Axis(axis.ranks // heads, axis.stride * heads)
    return _group(job, [Axis(heads, axis.stride)]), _group(job, [ring])


def data_group(job: Job) -> Group:
    """Ranks that hold the same weights: data-parallel and context-parallel together."""
    return group_along(job, "cp", "dp")


def shard_group(job: Job) -> Group:
    """Ranks that optimizer states (and what higher ZeRO stages add) are sharded over."""
    return _group(job, shard_axes(job))


def model_group(job: Job, *, with_shards: bool) -> Group:
    """Ranks that hold one copy of the model between them, or one copy of its sharded states."""
    axes = rank_axes(job)
    shards = shard_axes(job) if with_shards else ()
    return _group(job, [axes["tp"], axes["pp"], *shards])


def replica_group(job: Job) -> Group:
    """Ranks that hold copies of the same shard, where sharding spans only part of dp."""
    return _group(job, replica_axes(job))


def expert_group(job: Job) -> Group:
    """Ranks that the routed experts of a layer are spread over."""
    return group_along(job, "ep", experts=True)


def expert_tensor_group(job: Job) -> Group:
    """Ranks that share each routed expert."""
    return group_along(job, "tp", experts=True)


def expert_data_group(job: Job) -> Group:
    """Ranks that hold the same routed experts."""
    return group_along(job, "dp", experts=True)


def expert_shard_group(job: Job) -> Group:
    """Ranks that the states of routed experts are sharded over.

    Where sharding spans only part of the data-parallel ranks, it spans the same part here.
    """
    return _group(job, shard_axes(job, experts=True))


def expert_replica_group(job: Job) -> Group:
    """Ranks that hold copies of the same shard of routed experts."""
    return _group(job, replica_axes(job, experts=True))


def pipeline_pair(job: Job, stage: int, other: int) -> Group:
    """Two ranks of two pipeline stages that send to each other, the farthest from each other.

    Where the first ranks are below different leafs, so are all pairs of a leaf, at the worst.
    """
    network = job.cluster.network
    first, last = first_rank(job, stage), first_rank(job, other)

    def differ(gpus: int) -> bool:
        return gpus > 0 and first // gpus != last // gpus

    domain = network.scale_up
    is_near = not differ(domain.gpus)
    if is_near and not _are_cut_equally([rank_axes(job)["pp"]], domain.gpus):
        ranks = _ranks_of_stage(job, stage)
        is_near = bool(np.all(ranks // domain.gpus == (ranks + last - first) // domain.gpus))
    return Group(
        2,
        2 if is_near else 1,
        nodes_per_leaf=int(differ(network.fabric.leaf.gpus)),
        nodes_per_pod=int(differ(network.fabric.pod.gpus)),
        peers=(first ^ last,) if is_near and domain.kind == "full-mesh" else (),
    )


def _ranks_of_stage(job: Job, stage: int) -> Ranks:
    axis = rank_axes(job)["pp"]
    ranks: Ranks = np.arange(job.cluster.gpus)
    found: Ranks = ranks[ranks // axis.stride % axis.ranks == stage]
    return found


def first_rank(job: Job, stage: int) -> int:
    """The lowest rank of a pipeline stage."""
    return stage * rank_axes(job)["pp"].stride


def copy_axes(job: Job, *, experts: bool = False) -> Sequence[Axis]:
    """Along which ranks hold copies of the same parameters: dense ones or routed experts."""
    axes = rank_axes(job, experts=experts)
    return [axes["cp"], axes["dp"]]


def shard_axes(job: Job, *, experts: bool = False) -> Sequence[Axis]:
    """Along which ranks the states of those parameters are sharded."""
    copies = copy_axes(job, experts=experts)
    if not experts:
        return _split(copies, job.plan.zero_group or job.dp * job.plan.cp)[0]
    if not job.plan.shards_experts:
        return ()
    ranks = max(1, prod(axis.ranks for axis in copies) // replica_group(job).ranks)
    return _split(copies, ranks)[0]


def replica_axes(job: Job, *, experts: bool = False) -> Sequence[Axis]:
    """Along which ranks hold copies of the same shard of those parameters."""
    shards = (expert_shard_group if experts else shard_group)(job)
    return _split(copy_axes(job, experts=experts), shards.ranks)[1]


def ranks_along(rank: int, axes: Sequence[Axis]) -> tuple[int, ...]:
    """The ranks that differ from one only along these axes, itself included, ascending."""
    origin = rank - sum(rank // axis.stride % axis.ranks * axis.stride for axis in axes)
    found = [origin]
    for axis in axes:
        found = [start + i * axis.stride for start in found for i in range(axis.ranks)]
    return tuple(sorted(found))


def _group(job: Job, axes: Sequence[Axis]) -> Group:
    """The group that counts along ``axes``.

    Where domains cut groups of the kind in different places it is the one with the fewest
    ranks in a domain, for which the others wait; leafs and pods are taken as rank 0's.
    """
    network, joined = job.cluster.network, _joined(axes)
    fabric, up = network.fabric, network.scale_up
    ranks, local = prod(a.ranks for a in joined), _within(joined, up.gpus)

    def nodes_below(gpus: int) -> int:
        below = _within(joined, gpus) if gpus else ranks
        return -(-below // local) if below < ranks else 0

    fewest, unequal_nodes = local, 0
    if not _are_cut_equally(joined, up.gpus):
        fewest, unequal_nodes = _most_scattered(joined, job.cluster.gpus, up.gpus)
    return Group(
        ranks,
        fewest,
        nodes_below(fabric.leaf.gpus),
        nodes_below(fabric.pod.gpus),
        ranks_along(0, _near(joined, up.gpus))[1:] if up.kind == "full-mesh" else (),
        unequal_nodes,
    )


def _are_cut_equally(axes: Sequence[Axis], gpus: int) -> bool:
    """Whether domains of so many GPUs cut all groups along these axes as they cut rank 0's."""
    return all(
        gpus % (axis.stride * axis.ranks) == 0
        or axis.stride % gpus == 0
        or (gpus % axis.stride == 0 and axis.stride * axis.ranks % gpus == 0)
        for axis in axes
    )


def _most_scattered(axes: Sequence[Axis], gpus: int, domain: int) -> tuple[int, int]:
    """What :func:`spread_over` says of all groups along these axes."""
    ranks = np.arange(gpus)
    is_first = np.ones(gpus, dtype=bool)
    for axis in axes:
        is_first &= ranks // axis.stride % axis.ranks == 0
    # Groups that begin at the same place of a domain are cut in the same places.
    starts = np.unique(ranks[is_first] % domain)
    return spread_over(np.asarray(ranks_along(0, axes)), domain, starts)


def spread_over(ranks: Ranks, domain: int, starts: Iterable[int] = (0,)) -> tuple[int, int]:
    """How the most scattered of some groups lies over domains of so many GPUs.

    Args:
        ranks: Ranks of each group, counted from where it begins.
        domain: GPUs of a domain.
        starts: Where the groups begin.

    Returns:
        The fewest of its ranks in one domain, and, if domains hold unequal parts of it, how many
        it spans, else 0.
    """
    parts = (np.bincount((start + ranks) // domain) for start in starts)
    held = (counts[counts > 0] for counts in parts)
    fewest, spanned = min((int(c.min()), -len(c)) for c in held)
    return fewest, 0 if fewest * -spanned == len(ranks) else -spanned


def _within(axes: Sequence[Axis], gpus: int) -> int:
    return prod(axis.ranks for axis in _near(axes, gpus))


def _near(axes: Sequence[Axis], gpus: int) -> Sequence[Axis]:
    """The part of the axes that stays among so many consecutive ranks."""
    return [Axis(min(a.ranks, max(1, gpus // a.stride)), a.stride) for a in axes]


def _joined(axes: Sequence[Axis]) -> Sequence[Axis]:
    """The axes, the fastest first, where one that goes on where another ends is one with it."""
    joined: list[Axis] = []
    for axis in sorted(axes, key=lambda axis: axis.stride):
        last = joined[-1] if joined else None
        if axis.ranks == 1:
            continue
        if last and last.ranks * last.stride == axis.stride:
            joined[-1] = Axis(last.ranks * axis.ranks, last.stride)
        else:
            joined.append(axis)
    return joined


def _split(axes: Sequence[Axis], ranks: int) -> tuple[Sequence[Axis], Sequence[Axis]]:
    """The fastest ``ranks`` ranks along the axes, and the axes over what is left."""
    inner, outer = [], []
    *faster, slowest = _joined(axes) or [Axis(1, 1)]
    for axis in faster:
        part = gcd(axis.ranks, ranks)
        ranks //= part
        inner.append(Axis(part, axis.stride))
        outer.append(Axis(axis.ranks // part, axis.stride * part))
    inner.append(Axis(ranks, slowest.stride))
    outer.append(Axis(slowest.ranks // ranks, slowest.stride * ranks))
    return inner, outer


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
        scope: _merged_groups([_labels(ranks, each) for each in axes])
        for scope, axes in joined.items()
    }
    places = np.arange(len(ranks))
    return {Scope.RANK: places, **labels, Scope.WORLD: np.zeros_like(places)}


def _pass_axes(job: Job, *, experts: bool) -> Sequence[Axis]:
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


def _merged_groups(partitions: list[Labels]) -> Labels:
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
