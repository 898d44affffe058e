"""How long do data-parallel ranks exchange gradients and weights at least?

Buckets are taken as one message: several take no less time together, because every protocol has a
latency. Exchanges with parameter servers and inside one process are left out, and so are all but
one reduction where ZeRO 2 runs several in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.states.data_parallel_collectives import Collectives
from simulator.program.states.gather_units import Units

_USES = 2
"""ZeRO 3 gathers for forward and again for backward what it frees in between."""


class LeastExchanges(NamedTuple):
    """What one rank exchanges of a run of layers, in every step and for every microbatch [s]."""

    step_reduced_s: float
    pass_reduced_s: float
    step_gathered_s: float
    pass_gathered_s: float


_NONE = LeastExchanges(0.0, 0.0, 0.0, 0.0)


def least_exchanges(job: Job, runs: Sequence[Slice], *, tied_copy: bool) -> list[LeastExchanges]:
    """Exchanges of one rank for each run of layers.

    Args:
        job: The job.
        runs: What virtual stages run.
        tied_copy: Whether the last stage holds its own copy of the token embedding.
    """
    units = Units(job, tied_copy)
    collectives = Collectives(job, units)
    if not job.choices.data_parallelism.reduces_by_collectives or not collectives.is_needed:
        return [_NONE] * len(runs)
    return [_of_run(run, job, units, collectives) for run in runs]


def _of_run(run: Slice, job: Job, units: Units, collectives: Collectives) -> LeastExchanges:
    reduced_s = collectives.reduction([units.whole(run)]).seconds
    handed_s = collectives.hand_out(run)[1].seconds if collectives.hands_out else 0.0
    shards_weights = job.choices.shards_weights
    gathered_s = _gathered_s(run, units, collectives) if shards_weights else 0.0
    if shards_weights or not job.plan.no_sync:
        return LeastExchanges(0.0, reduced_s, handed_s, gathered_s)
    return LeastExchanges(reduced_s, 0.0, handed_s, gathered_s)


def _gathered_s(run: Slice, units: Units, collectives: Collectives) -> float:
    """Weights of a run on their way to one microbatch [s]."""
    needed = dict.fromkeys(unit for piece in units.pieces(run) for unit in piece.needs)
    return sum(
        collectives.gather([unit]).seconds * (1 if unit.stays or unit.separate else _USES)
        for unit in needed
    )
