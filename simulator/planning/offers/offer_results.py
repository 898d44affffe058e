"""What does every workload take on every offer, each under its own fastest plan?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from simulator.described.job import Job, plan_text
from simulator.errors import InputError
from simulator.planning.campaign.training_run import campaign_time, energy
from simulator.planning.offers.offers_file import Case, Offer, Offers, cases
from simulator.planning.search.best_plans import Replanned, replanned
from simulator.planning.sweep import Journal, fingerprint, journal_path
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.results.simulation import run_step
from simulator.units import HOUR_S, J_PER_KWH
from simulator.version import __version__


@dataclass(frozen=True)
class OfferResult:
    """One workload on one offer with one number of GPUs.

    Times count from today where their name says ``done``; all are for runs that have enough memory.

    Attributes:
        reason: Why it cannot run there; empty where it can, and then all others are known.
        plan: The fastest plan that fits, in short.
        changes: Fields of the workload's job that give it this plan.
        fits_probability: That it does not run out of memory, 0 to 1.
        goodput: Share of the time that goes into steps that count; None where nothing was said of
            failures, and the time is that of a cluster on which nothing fails.
        start_s: Until the GPUs can be used [s].
        wall_s: Training, with what failures cost [s].
        done_s: Until it is done, as predicted [s].
        done_interval_s: Between which times eight of ten such runs are done [s].
        late_probability: That it is done after the deadline; None without one.
        gpu_usd_per_h: Price of a GPU; None where it is open.
        usd: What is paid, the shortest rental included; None where the price is open.
        usd_interval: The same at the ends of ``done_interval_s``.
        energy_kwh, co2_kg: None where power or the grid leaves them open.
        breakdown_s: Where the step of the mean GPU goes, by cause [s].
    """

    workload: str
    offer: str
    gpus: int
    reason: str = ""
    system: str = ""
    plan: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    fits_probability: float = 0.0
    step_time_s: float = 0.0
    mfu: float = 0.0
    tokens_per_s_per_gpu: float = 0.0
    goodput: float | None = None
    start_s: float = 0.0
    wall_s: float = 0.0
    done_s: float = 0.0
    done_interval_s: tuple[float, float] = (0.0, 0.0)
    deadline_s: float | None = None
    late_probability: float | None = None
    gpu_usd_per_h: float | None = None
    usd: float | None = None
    usd_interval: tuple[float, float] | None = None
    energy_kwh: float | None = None
    co2_kg: float | None = None
    breakdown_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether it can run there."""
        return not self.reason

    @property
    def paid_s(self) -> float | None:
        """How long every GPU is paid for; None where the price is open [s]."""
        if self.usd is None or not self.gpu_usd_per_h:
            return None
        return self.usd / self.gpu_usd_per_h / self.gpus * HOUR_S


def evaluate(
    asked: Offers,
    file: Path | None = None,
    *,
    risk: float = DEFAULT_RISK,
    members: int = 200,
    seed: int = 0,
    workers: int = 1,
    table: Path | None = None,
    on_row: Callable[[OfferResult, int], None] | None = None,
) -> list[OfferResult]:
    """Every workload on every offer with every number of GPUs, in the order of the file.

    Args:
        asked: Offers and workloads.
        file: Where they were read.
        risk: Largest accepted probability of running out of memory.
        members: Number of campaigns with failures to simulate.
        seed: Random seed of the failures.
        workers: Processes that search for plans.
        table: Where the caller will write the table; finished rows are kept in a journal beside it.
        on_row: Called with each row as it becomes known, and how many there will be.

    Raises:
        InputError: The file is wrong, or the journal belongs to other offers.
    """
    wanted = cases(asked, file)
    rows: dict[int, OfferResult] = {}
    with (
        nullcontext() if table is None else _journal(table, wanted, asked, risk, members, seed) as (
            journal
        )
    ):
        kept = {} if journal is None else journal.rows
        rows |= {number: _from_plain(plain) for number, plain in kept.items()}
        left = [(number, case) for number, case in enumerate(wanted) if number not in rows]
        settings = _Members(members, seed)
        for number, row in _new_rows(asked, left, settings, risk, workers):
            rows[number] = row
            if journal is not None:
                journal.add(number, asdict(row))
            if on_row is not None:
                on_row(row, len(wanted))
    return [rows[number] for number in range(len(wanted))]


class _Members(NamedTuple):
    """Campaigns with failures to simulate, and the seed of their failures."""

    members: int
    seed: int


def _new_rows(
    asked: Offers,
    left: Sequence[tuple[int, Case]],
    settings: _Members,
    risk: float,
    workers: int,
) -> Iterator[tuple[int, OfferResult]]:
    plannable = [(number, case, case.job) for number, case in left if case.job is not None]
    for number, case in left:
        if case.job is None:
            yield number, OfferResult(case.workload, case.offer, case.gpus, case.reason)
    plans = replanned([job for _, _, job in plannable], risk=risk, workers=workers)
    for position, plan in plans:
        number, case, _ = plannable[position]
        yield number, _result(asked, case, plan, settings)


def _journal(
    table: Path, wanted: Sequence[Case], asked: Offers, risk: float, members: int, seed: int
) -> Journal:
    jobs = [None if case.job is None else case.job.model_dump(mode="json") for case in wanted]
    identity = {
        "version": __version__,
        "offers": fingerprint(asked.model_dump(mode="json")),
        "jobs": fingerprint(jobs),
        "settings": fingerprint([risk, members, seed]),
    }
    return Journal(journal_path(table), identity)


def _from_plain(row: Mapping[str, Any]) -> OfferResult:
    pairs = {
        name: tuple(row[name])
        for name in ("done_interval_s", "usd_interval")
        if row[name] is not None
    }
    return OfferResult(**{**row, **pairs})


def _result(asked: Offers, case: Case, plan: Replanned, settings: _Members) -> OfferResult:
    if plan.job is None:
        return OfferResult(case.workload, case.offer, case.gpus, plan.reason)
    try:
        return _row(asked, case, plan.job, plan.changes, settings)
    except InputError as error:
        fault = error.faults[0]
        return OfferResult(case.workload, case.offer, case.gpus, f"{fault.path} {fault.rule}")


def _row(
    asked: Offers, case: Case, job: Job, changes: Mapping[str, Any], settings: _Members
) -> OfferResult:
    offer, deadline_s = asked.offers[case.offer], asked.workloads[case.workload].deadline_s
    step = run_step(job)
    time = campaign_time(job, step, members=settings.members, seed=settings.seed)
    drawn = energy(job, time)
    first_s, last_s = time.ends.interval_s
    rate = gpu_usd_per_s(offer, job)
    late = None if deadline_s is None else time.ends.late_probability(deadline_s - offer.start_s)

    def usd(wall_s: float) -> float | None:
        return None if rate is None else rate * time.gpus * max(wall_s, offer.term_s)

    return OfferResult(
        workload=case.workload,
        offer=case.offer,
        gpus=case.gpus,
        system=" + ".join(dict.fromkeys(kind.profile.name for kind in job.cluster.kinds)),
        plan=plan_text(job),
        changes=changes,
        fits_probability=step.fits_probability,
        step_time_s=step.step_time_s,
        mfu=step.mfu,
        tokens_per_s_per_gpu=step.tokens_per_s_per_gpu,
        goodput=time.goodput_share,
        start_s=offer.start_s,
        wall_s=time.wall_s,
        done_s=offer.start_s + time.wall_s,
        done_interval_s=(offer.start_s + first_s, offer.start_s + last_s),
        deadline_s=deadline_s,
        late_probability=late,
        gpu_usd_per_h=None if rate is None else rate * HOUR_S,
        usd=usd(time.wall_s),
        usd_interval=None if rate is None else (usd(first_s) or 0.0, usd(last_s) or 0.0),
        energy_kwh=None if drawn.total_j is None else drawn.total_j / J_PER_KWH,
        co2_kg=drawn.co2_kg,
        breakdown_s={cause.value: seconds for cause, seconds in step.breakdown_s.items()},
    )


def gpu_usd_per_s(offer: Offer, job: Job) -> float | None:
    """Price of the mean GPU; a node's is shared by the job's GPUs in it [USD/s]."""
    price = offer.price
    if price is None:
        return None
    if price.pools:
        paid = (kind.gpus * price.pools[kind.profile.name] for kind in job.cluster.kinds)
        return math.fsum(paid) / job.cluster.gpus
    if price.gpu_usd_per_s is not None:
        return price.gpu_usd_per_s
    assert price.node_usd_per_s is not None
    return price.node_usd_per_s * job.cluster.nodes / job.cluster.gpus
