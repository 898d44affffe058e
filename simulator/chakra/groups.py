"""Which ranks exchange with one, and how do so many ranks sit on a network?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simulator.cost.collectives import Group
from simulator.described.cluster.network import Network
from simulator.described.job import Job
from simulator.errors import UnsupportedError
from simulator.program.grid.rank_groups import (
    Axis,
    copy_axes,
    rank_axes,
    ranks_along,
    replica_axes,
    shard_axes,
    spread_over,
)


def group_ranks(job: Job, rank: int, axis: str, ranks: int) -> tuple[int, ...]:
    """The ranks of the group that a collective of one rank runs in, ascending.

    Args:
        job: Its plan.
        rank: One of them.
        axis: The collective's ``axis``.
        ranks: How many they are.

    Raises:
        UnsupportedError: The group does not follow from the grid of ranks alone.
    """
    for axes in _candidates(job, axis):
        found = ranks_along(rank, axes)
        if len(found) == ranks:
            return found
    rule = f"has exchanges ({axis}) in groups that a trace cannot name"
    raise UnsupportedError.single("plan", rule, hint="leave out what it does otherwise")


def _candidates(job: Job, axis: str) -> Sequence[Sequence[Axis]]:
    """Axes that a name may stand for; the number of ranks tells which."""
    dense, expert = rank_axes(job), rank_axes(job, experts=True)
    cp, heads = dense["cp"], job.plan.cp_heads
    shards = shard_axes(job)
    known: Mapping[str, Sequence[Sequence[Axis]]] = {
        "tp": [[dense["tp"]]],
        "cp": [[cp], [Axis(cp.ranks // heads, cp.stride * heads)]],
        "cp-heads": [[Axis(heads, cp.stride)]],
        "ep": [[expert["ep"]]],
        "etp": [[expert["tp"]]],
        "all": [[dense["tp"], dense["pp"], *shards], [dense["tp"], dense["pp"]]],
    }
    for name, experts in (("dp", False), ("edp", True)):
        copies = [copy_axes(job, experts=experts), shard_axes(job, experts=experts)]
        replicas = [replica_axes(job, experts=experts)]
        known = {**known, name: copies, f"{name}_shard": copies[1:], f"{name}_replicate": replicas}
    return known.get(axis, [])


def group_on(ranks: Sequence[int], network: Network) -> Group:
    """How some ranks, ascending, sit on a network that is as the job takes it.

    Domains and leafs hold consecutive ranks, as in :mod:`simulator.program.grid.rank_groups`; leafs
    and pods are those of the first rank.
    """
    first = ranks[0]

    def near(gpus: int) -> int:
        return sum(rank // gpus == first // gpus for rank in ranks) if gpus else len(ranks)

    up, fabric = network.scale_up, network.fabric
    local = near(up.gpus)

    def nodes_below(gpus: int) -> int:
        below = near(gpus)
        return -(-below // local) if below < len(ranks) else 0

    fewest, unequal_nodes = spread_over(np.asarray(ranks), up.gpus)
    return Group(
        len(ranks),
        fewest,
        nodes_below(fabric.leaf.gpus),
        nodes_below(fabric.pod.gpus),
        tuple(rank ^ first for rank in ranks[1:local]) if up.kind == "full-mesh" else (),
        unequal_nodes,
    )
