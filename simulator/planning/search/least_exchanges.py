"""How long does what a data-parallel rank exchanges of a run of layers take at least?

Buckets that are exchanged once a step beside passes are counted one by one. Others are taken as one
message, because several take no less time together. Left out are exchanges with parameter servers
and inside one process, and all but one reduction where ZeRO 2 runs several in a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.cost.interference import link_bytes_per_s, rate_beside, taken_share
from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Work
from simulator.program.states.data_parallel_collectives import Collectives
from simulator.program.states.gather_units import Units

_USES = 2
"""ZeRO 3 gathers for forward and again for backward what it frees in between."""


class LeastExchanges(NamedTuple):
    """What one rank exchanges of a run of layers, in every step and for every microbatch [s].

    The last two say how much slower it computes meanwhile at least, as a share of full speed.
    """

    step_reduced_s: float
    pass_reduced_s: float
    step_gathered_s: float
    pass_gathered_s: float
    reduction_share: float
    gather_share: float


def least_exchanges(job: Job, runs: Sequence[Slice], *, tied_copy: bool) -> list[LeastExchanges]:
    """Exchanges of one rank for each run of layers.

    ``tied_copy``: whether the last stage holds its own copy of the token embedding.
    """
    units = Units(job, tied_copy)
    collectives = Collectives(job, units)
    if not job.choices.data_parallelism.reduces_by_collectives or not collectives.is_needed:
        return [LeastExchanges(*[0.0] * len(LeastExchanges._fields))] * len(runs)
    return [_of_run(run, job, units, collectives) for run in runs]


def _of_run(run: Slice, job: Job, units: Units, collectives: Collectives) -> LeastExchanges:
    handed = _handed(run, job, units, collectives) if collectives.hands_out else []
    shards_weights = job.choices.shards_weights
    gathered = _gathered(run, units, collectives) if shards_weights else []
    is_every_pass = shards_weights or not job.plan.no_sync
    reduced = _reduced(run, job, units, collectives, in_one=is_every_pass)
    reduced_s = _seconds(reduced)
    return LeastExchanges(
        0.0 if is_every_pass else reduced_s,
        reduced_s if is_every_pass else 0.0,
        _seconds(handed),
        _seconds(gathered),
        _least_share(reduced, job),
        _least_share(handed + gathered, job),
    )


def _reduced(
    run: Slice, job: Job, units: Units, collectives: Collectives, *, in_one: bool
) -> list[Work]:
    """Gradients of a run: bucket by bucket where they are reduced once a step, beside backward."""
    if in_one or not job.choices.overlaps_reduction or job.choices.reduces_stages_once:
        return [collectives.reduction([units.whole(run)])]
    return [collectives.reduction(piece.closes) for piece in units.pieces(run) if piece.closes]


def _handed(run: Slice, job: Job, units: Units, collectives: Collectives) -> list[Work]:
    """Updated weights of a run on their way to all ranks: bucket by bucket beside forward."""
    if not (collectives.gathers_ahead and job.choices.overlaps_gather):
        return [collectives.hand_out(run)[1]]
    return [collectives.gather(piece.needs) for piece in units.pieces(run) if piece.needs]


def _gathered(run: Slice, units: Units, collectives: Collectives) -> list[Work]:
    """Weights of a run on their way to one microbatch."""
    needed = dict.fromkeys(unit for piece in units.pieces(run) for unit in piece.needs)
    return [
        collectives.gather([unit])
        for unit in needed
        for _ in range(1 if unit.stays or unit.separate else _USES)
    ]


def _seconds(works: Sequence[Work]) -> float:
    return math.fsum(work.seconds for work in works)


def _least_share(works: Sequence[Work], job: Job) -> float:
    """Share of full speed that each of them takes at least from what computes beside it."""
    device, common = job.cluster.profile.device, job.cluster.profile.common
    taken = [
        taken_share(
            traffic.sm_count, link_bytes_per_s(traffic.port_bytes, work.seconds), device, common
        )
        if (traffic := work.traffic)
        else 0.0
        for work in works
    ]
    return 1 - rate_beside(min(taken, default=0.0), common)
