"""Which share of a campaign's time goes into steps that count, and how often to save?

The classical answers are closed forms for synchronous checkpoints and exponential failures;
here they give the first guess of the interval and the test of the simulation. The answer
itself is an ensemble of simulated campaigns (:mod:`simulator.planning.campaign.failures`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from simulator.described.campaign import Failures
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.planning.campaign.checkpoints import (
    NS,
    CheckpointCost,
    Spent,
    checkpoint_cost,
    checkpoint_cycle,
)
from simulator.planning.campaign.failures import (
    Conditions,
    Fleet,
    Hazard,
    Recovery,
    SimulatedRun,
    simulated_run,
)
from simulator.units import percent

_PERCENTILES = (5, 25, 50, 75, 95)
"""Of the wall time, that are reported."""

_STEPS_AROUND_GUESS = range(-4, 5)
"""Intervals that are tried: the first guess times these powers of the square root of 2."""
SEARCH_MEMBERS = 40
"""Campaigns per interval that is tried."""
_MOST_FAILURES = 20_000
"""A campaign with more is given up."""
_MOSTLY = 0.5
"""Share of the time above which something is the reason."""


@dataclass(frozen=True)
class TriedInterval:
    """An interval between checkpoints and what it gives.

    Attributes:
        interval_s: Training between two snapshots [s].
        goodput: Work over the mean wall time; 0 where a campaign came to no end.
    """

    interval_s: float
    goodput: float


@dataclass(frozen=True)
class Goodput:
    """What an ensemble of campaigns says.

    Attributes:
        share: Steps that count over the mean wall time.
        wall_s: Mean wall time [s].
        wall_error_s: Standard error of that mean [s].
        wall_percentiles_s: Wall time by percentile [s].
        walls_s: Wall time of each campaign, ascending [s].
        spent_s: Mean time by what it went into; adds up to ``wall_s`` [s].
        failures: Mean number by what failed.
        interval_s: Training between two snapshots [s].
        first_guess_s: Daly's interval [s].
        mtbf_s: Mean time between failures of the whole job [s].
        tried: Intervals that were compared; empty where it was given.
    """

    share: float
    wall_s: float
    wall_error_s: float
    wall_percentiles_s: Mapping[int, float]
    walls_s: tuple[float, ...]
    spent_s: Mapping[Spent, float]
    failures: Mapping[str, float]
    members: int
    seed: int
    interval_s: float
    first_guess_s: float
    mtbf_s: float
    checkpoint: CheckpointCost
    tried: tuple[TriedInterval, ...]


def goodput(
    job: Job,
    work_s: float,
    *,
    pauses_s: float = 0.0,
    members: int = 200,
    seed: int = 0,
    on_member: Callable[[], None] | None = None,
) -> Goodput:
    """The goodput of a job's campaign, from its failures and checkpoint.

    Pauses are taken as spread evenly over the steps, so that a failure undoes some of them, too.

    Args:
        job: The job.
        work_s: All steps without any failure or checkpoint [s].
        pauses_s: All that training stands for at regular steps [s].
        members: Campaigns to simulate.
        seed: Decides the failures.
        on_member: Called after each campaign.

    Raises:
        InputError: Failures or checkpoint are missing, or no campaign comes to an end.
    """
    campaign = job.campaign
    failures, checkpoint = campaign.failures, campaign.checkpoint
    if failures is None or checkpoint is None:
        missing = "failures" if failures is None else "checkpoint"
        rule = "is missing, but is needed to simulate goodput"
        raise InputError.single(f"campaign.{missing}", rule, hint="add it, or give goodput")
    cost = checkpoint_cost(job, checkpoint)
    ensemble = _Ensemble(job, failures, cost, work_s + pauses_s, seed, on_member)
    guess_s = daly_interval_s(ensemble.stop_s, ensemble.mtbf_s)
    interval_s = checkpoint.interval_s
    tried = tuple(ensemble.tried(guess_s)) if interval_s is None else ()
    if interval_s is None:
        interval_s = max(tried, key=lambda each: each.goodput).interval_s
    runs = ensemble.runs(interval_s, members)
    if not runs[-1].has_ended:
        raise _never_ends(runs[-1], failures, ensemble.mtbf_s)
    walls_s = np.asarray([run.wall_ns / NS for run in runs])
    wall_s = float(walls_s.mean())
    trained = work_s / (work_s + pauses_s)
    return Goodput(
        share=work_s / wall_s,
        wall_s=wall_s,
        wall_error_s=float(walls_s.std(ddof=1) / sqrt(members)) if members > 1 else inf,
        walls_s=tuple(np.sort(walls_s).tolist()),
        wall_percentiles_s={p: float(np.percentile(walls_s, p)) for p in _PERCENTILES},
        spent_s=_without_pauses(_mean_spent_s(runs), pauses_s),
        failures=_mean_failures(runs),
        members=members,
        seed=seed,
        interval_s=interval_s,
        first_guess_s=guess_s,
        mtbf_s=ensemble.mtbf_s,
        checkpoint=cost,
        tried=tuple(replace(each, goodput=each.goodput * trained) for each in tried),
    )


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Training between checkpoints that loses least, to first order [s].

    Source: Young, A First Order Approximation to the Optimum Checkpoint Interval, CACM 17(9),
    1974.
    """
    return sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The same to higher order [s].

    Source: Daly, A higher order estimate of the optimum checkpoint interval for restart
    dumps, FGCS 22(3), 2006, equation 37.
    """
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = sqrt(checkpoint_s / (2 * mtbf_s))
    correction = 1 + ratio / 3 + ratio**2 / 9
    return young_interval_s(checkpoint_s, mtbf_s) * correction - checkpoint_s


def _never_ends(run: SimulatedRun, failures: Failures, mtbf_s: float) -> InputError:
    """Why a campaign was given up: it waits for nodes, or fails before it can save."""
    often = f"something fails every {mtbf_s:.0f} s"
    waiting = run.spent_ns.get(Spent.WAITING, 0) / run.wall_ns
    if waiting > _MOSTLY:
        rule = (
            f"prevents the campaign from ending: {often}, and {percent(waiting, 0)} of the time it "
            "waits for repairs"
        )
        hint = (
            f"give more than {failures.spare_nodes} spare_nodes, a shorter repair, or elastic: true"
        )
    else:
        rule = f"prevents the campaign from ending: {often}, before work is saved"
        hint = "restart or save faster, or use fewer nodes"
    return InputError.single("campaign.failures", rule, hint=hint)


class _Ensemble:
    """Campaigns of one job that differ in their failures only."""

    def __init__(
        self,
        job: Job,
        failures: Failures,
        cost: CheckpointCost,
        work_s: float,
        seed: int,
        on_member: Callable[[], None] | None,
    ) -> None:
        self._cost, self._work_ns, self._seed = cost, max(1, round(work_s * NS)), seed
        self._on_member = on_member
        self._hazards = hazards(job, failures)
        self._recovery = Recovery(
            detection_ns=round(failures.detection_s * NS),
            restart_ns=round(failures.restart_s * NS),
            loading_ns=round(cost.load_s * NS),
            warm_up_ns=round(failures.warm_up_s * NS),
        )
        self._fleet = Fleet(job.cluster.nodes, failures.spare_nodes, job.dp, failures.elastic)
        self.mtbf_s = 1 / math.fsum(hazard.rate_per_s for hazard in self._hazards)
        slowed = cost.interference / (1 + cost.interference)
        self.stop_s = cost.stall_s + cost.write_s * slowed
        """What one checkpoint costs in time."""

    def runs(self, interval_s: float, members: int) -> list[SimulatedRun]:
        """The campaigns with that interval; one that comes to no end is the last."""
        cost = self._cost
        cycle = checkpoint_cycle(interval_s, cost.stall_s, cost.write_s, cost.interference)
        conditions = Conditions(cycle, self._hazards, self._recovery, self._fleet)
        runs: list[SimulatedRun] = []
        for member in range(members):
            runs.append(
                simulated_run(self._work_ns, conditions, (self._seed, member), _MOST_FAILURES)
            )
            if not runs[-1].has_ended:
                break
            if self._on_member:
                self._on_member()
        return runs

    def tried(self, guess_s: float) -> list[TriedInterval]:
        """Intervals around a first guess; all meet the same failures."""
        return [self._try(guess_s * 2 ** (step / 2)) for step in _STEPS_AROUND_GUESS]

    def _try(self, interval_s: float) -> TriedInterval:
        runs = self.runs(interval_s, SEARCH_MEMBERS)
        if not runs[-1].has_ended:
            return TriedInterval(interval_s, 0.0)
        wall_ns = sum(run.wall_ns for run in runs)
        return TriedInterval(interval_s, self._work_ns * len(runs) / wall_ns)


def hazards(job: Job, failures: Failures) -> tuple[Hazard, ...]:
    """Every kind of failure with the rate of all its parts."""
    nodes = job.cluster.nodes
    counts = {
        "node": nodes,
        "gpu": job.cluster.gpus,
        "link": sum(
            kind.nodes * kind.profile.network.fabric.nics_per_node for kind in job.cluster.kinds
        ),
    }
    given = {"node": failures.node, "gpu": failures.gpu, "link": failures.link}
    found = [
        Hazard(name, counts[name] / kind.mtbf_s, round(kind.repair_s * NS))
        for name, kind in given.items()
        if kind is not None and counts[name]
    ]
    taken = failures.preemption
    if taken is not None:
        away_ns, notice_ns = round(taken.away_s * NS), round(taken.notice_s * NS)
        found.append(Hazard("preemption", nodes / taken.mtbf_s, away_ns, notice_ns))
    if not found:
        rule = "never fails: the system has no network cards"
        raise InputError.single("campaign.failures.link", rule, hint="give node or gpu")
    return tuple(found)


def _mean_spent_s(runs: Sequence[SimulatedRun]) -> dict[Spent, float]:
    total: Counter[Spent] = Counter()
    for run in runs:
        total.update(run.spent_ns)
    return {spent: total[spent] / len(runs) / NS for spent in Spent if total[spent]}


def _without_pauses(spent_s: Mapping[Spent, float], pauses_s: float) -> dict[Spent, float]:
    """Pauses beside the productive time that holds them."""
    if not pauses_s:
        return dict(spent_s)
    productive_s = spent_s[Spent.PRODUCTIVE] - pauses_s
    return {Spent.PRODUCTIVE: productive_s, Spent.PAUSES: pauses_s} | {
        spent: seconds for spent, seconds in spent_s.items() if spent is not Spent.PRODUCTIVE
    }


def _mean_failures(runs: Sequence[SimulatedRun]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run.failures)
    return {name: total[name] / len(runs) for name in sorted(total)}
