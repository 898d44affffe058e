"""Who sits where, and which links does each group of ranks cross?

:mod:`simulator.program.grid.rank_groups` answers this for one group by arithmetic; here every rank
is listed, for tables and pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from simulator.cost.collectives import CollectiveKind, Group
from simulator.cost.collectives.collective_time import reachable_link_share
from simulator.cost.collectives.tiers import climb_of, network_above
from simulator.described.cluster.network import Network
from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.program.grid.rank_groups import group_along, pipeline_pair, rank_axes

Ranks = NDArray[np.int64]


class Level(IntEnum):
    """What the traffic between two ranks crosses at the widest."""

    SCALE_UP = 0
    LEAF = 1
    SPINE = 2
    CORE = 3


LEVEL_NAMES: Mapping[Level, str] = {
    Level.SCALE_UP: "scale-up links",
    Level.LEAF: "leaf switches",
    Level.SPINE: "spine",
    Level.CORE: "core",
}


@dataclass(frozen=True)
class PlacedGroups:
    """All groups of one kind.

    Attributes:
        name: Short name: ``tp``, ``dp x cp``, ``ep``, ...
        purpose: What its ranks do together.
        members: Ranks, shape (groups, ranks of a group); neighbours stand side by side.
        hop_share: Part of the hops between neighbours that crosses each level; of ``ep``, whose
            ranks send to all others alike, of the hops between all pairs.
        bytes_per_s: Rate of one rank of the slowest group where its traffic goes widest,
            nothing else under way, one direction [B/s].
    """

    name: str
    purpose: str
    members: Ranks
    hop_share: Mapping[Level, float]
    bytes_per_s: float

    @property
    def widest(self) -> Level:
        """The widest level that any of its hops crosses."""
        return max(self.hop_share)


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a job are.

    Attributes:
        title: The job in one line.
        rank_order: Words of the grid, the fastest first.
        gpus: How many ranks there are.
        domain_gpus: GPUs of the job that the scale-up links join: of a node or a rack.
        leaf_gpus, pod_gpus: GPUs below one leaf and pod; 0 where all are.
        coordinates: tp, cp, dp and pp of every rank, shape (gpus,) each.
        groups: Every kind of group that has more than one rank.
    """

    title: str
    rank_order: str
    gpus: int
    domain_gpus: int
    leaf_gpus: int
    pod_gpus: int
    coordinates: Mapping[str, Ranks]
    groups: tuple[PlacedGroups, ...]


def placement(job: Job) -> Placement:
    """Where every rank of a job is, and what each kind of group crosses."""
    refuse_pools(job, "placement")
    network = job.cluster.network
    return Placement(
        title=job.title,
        rank_order=job.plan.rank_order,
        gpus=job.cluster.gpus,
        domain_gpus=network.scale_up.gpus,
        leaf_gpus=network.fabric.leaf.gpus,
        pod_gpus=network.fabric.pod.gpus,
        coordinates=rank_coordinates(job),
        groups=tuple(_all_groups(job)),
    )


def rank_coordinates(job: Job) -> Mapping[str, Ranks]:
    """Position of every rank along each word of the rank order, shape (gpus,) each."""
    ranks = np.arange(job.cluster.gpus)
    axes = rank_axes(job)
    return {word: ranks // axis.stride % axis.ranks for word, axis in axes.items()}


def groups_along(job: Job, *words: str, experts: bool = False) -> Ranks:
    """Every group of ranks that differ only in these words, shape (groups, ranks)."""
    axes = rank_axes(job, experts=experts)
    slowest_first = list(axes)[::-1]
    grid = np.arange(job.cluster.gpus).reshape([axes[word].ranks for word in slowest_first])
    inner = [index for index, word in enumerate(slowest_first) if word in words]
    outer = [index for index, word in enumerate(slowest_first) if word not in words]
    width = int(np.prod([grid.shape[index] for index in inner], dtype=np.int64))
    return grid.transpose(*outer, *inner).reshape(-1, width)


def level_between(network: Network, ranks: Ranks, others: Ranks) -> Ranks:
    """The :class:`Level` that traffic crosses between ranks, pair by pair."""
    fabric = network.fabric
    level = np.zeros(np.broadcast(ranks, others).shape, dtype=np.int64)
    for gpus in (network.scale_up.gpus, fabric.leaf.gpus, fabric.pod.gpus):
        if gpus:
            level += ranks // gpus != others // gpus
    return level


def _all_groups(job: Job) -> list[PlacedGroups]:
    plan = job.plan
    copies = ("dp", "cp") if plan.cp > 1 else ("dp",)
    kinds = [
        ("tp", "share each weight matrix", ("tp",), False),
        ("cp", "share each sequence", ("cp",), False),
        (" x ".join(copies), "hold the same weights", copies, False),
    ]
    if job.model.experts is not None:
        kinds += [
            ("etp", "share each routed expert", ("tp",), True),
            ("ep", "hold the routed experts of a layer", ("ep",), True),
            ("edp", "hold the same routed experts", ("dp",), True),
        ]
    placed = [
        _placed(job, name, purpose, words, experts=experts)
        for name, purpose, words, experts in kinds
    ]
    stages = _placed(job, "pp", "pass microbatches to the next stage", ("pp",), experts=False)
    return [groups for groups in (*placed, stages) if groups.members.shape[1] > 1]


def _placed(
    job: Job, name: str, purpose: str, words: tuple[str, ...], *, experts: bool
) -> PlacedGroups:
    network = job.cluster.network
    members = groups_along(job, *words, experts=experts)
    return PlacedGroups(
        name=name,
        purpose=purpose,
        members=members,
        hop_share=_hop_share(members, network, is_all_to_all=words == ("ep",)),
        bytes_per_s=_bytes_per_s(job, words, experts=experts),
    )


def _hop_share(members: Ranks, network: Network, *, is_all_to_all: bool) -> Mapping[Level, float]:
    """Part of the hops of all groups that crosses each level, > 0 each; they sum to 1."""
    width = members.shape[1]
    counts = np.zeros(len(Level), dtype=np.int64)
    for distance in range(1, width if is_all_to_all else min(width, 2)):
        levels = level_between(network, members[:, :-distance], members[:, distance:])
        counts += np.bincount(levels.ravel(), minlength=len(Level))
    return {level: counts[level] / counts.sum() for level in Level if counts[level]}


def _bytes_per_s(job: Job, words: tuple[str, ...], *, experts: bool) -> float:
    network = job.cluster.network
    if words == ("pp",):
        hops = [pipeline_pair(job, stage, stage + 1) for stage in range(job.plan.pp - 1)]
        return min((_group_bytes_per_s(hop, None, network) for hop in hops), default=0.0)
    kind = CollectiveKind.ALL_TO_ALL if words == ("ep",) else None
    return _group_bytes_per_s(group_along(job, *words, experts=experts), kind, network)


def _group_bytes_per_s(group: Group, kind: CollectiveKind | None, network: Network) -> float:
    if group.nodes == 1:
        share = reachable_link_share(network.scale_up, group.ranks)
        return network.scale_up_bytes_per_s * share
    return network_above(climb_of(kind, group, network), network).fabric_bytes_per_s
