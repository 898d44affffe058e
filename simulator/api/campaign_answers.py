"""What does the whole training run take, on one cluster or on several?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.described.job import Job, job_yaml, plan_text
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Bar,
    Cell,
    Column,
    Meaning,
    Table,
    cells,
    columns,
)
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import (
    DAY_S,
    HOUR_S,
    J_PER_KWH,
    format_count,
    format_seconds,
    format_seconds_as,
    format_seconds_range,
    percent,
)

if TYPE_CHECKING:
    import pandas as pd

    from simulator.planning.campaign.capacity import Capacity, Refusal
    from simulator.planning.campaign.goodput import Goodput


@dataclass(frozen=True, repr=False)
class CapacityAnswer(Answer):
    """Days, GPU-hours, cost, energy and CO2 of a campaign; ``found`` holds all of it."""

    found: Capacity

    def to_dict(self) -> dict[str, Any]:
        """Every factor with where it comes from, and what an ensemble of campaigns says."""
        from simulator.planning.campaign.factors import factors
        from simulator.results.views.plain_data import fit_to_dict

        found = self.found
        return {
            "job": found.job.title,
            **fit_to_dict(found.step),
            "factors": [asdict(factor) for factor in factors(found)],
            "goodput": None if found.time.goodput is None else _goodput_dict(found.time.goodput),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per factor: name, amount, unit, origin."""
        return frame(self.to_dict()["factors"])

    def page(self) -> AnswerPage:
        """Every factor, and where the time goes."""
        from simulator.planning.campaign.factors import factor_text, factors

        job = self.found.job
        rows = [cells([each.name, each.origin, factor_text(each)]) for each in factors(self.found)]
        heads = columns(("factor", "from"), ("amount",))
        ensemble = self.found.time.goodput
        spent = [] if ensemble is None else list(goodput_tables(ensemble))
        return AnswerPage(
            title=f"The whole training run: {job.title}",
            sentences=list(self._sentences()),
            headline=list(_headline(self.found)),
            tables=[*spent, Table("Every factor", "In the order of the calculation", heads, rows)],
            job_yaml=job_yaml(job),
            command="clustersim capacity job.yaml --html capacity.html",
        )

    def _sentences(self) -> Iterator[str]:
        time = self.found.time
        taken = f"{format_seconds(time.wall_s)} and {time.gpu_s / HOUR_S:,.0f} GPU-hours"
        yield f"{format_count(time.tokens)} tokens take {taken} on {time.gpus:,} GPUs."
        interval = format_seconds_range(*time.ends.interval_s)
        causes = "the error of the step" + (" and failures" if time.goodput is not None else "")
        yield f"The 80 % prediction interval is {interval}, for {causes}."
        if time.goodput_share is None:
            yield "Goodput is unknown, so this assumes a cluster that never fails."
        cheapest = self.found.money.cheapest
        if cheapest is None:
            yield "No price is known, so the cost is unknown."
        else:
            yield f"The cheapest way to pay is {cheapest[0]}: {cheapest[1]:,.0f} USD."
        if not self.found.fits:
            yield "The job does not fit into memory; clustersim run shows what would."


def _goodput_dict(found: Goodput) -> dict[str, Any]:
    """What is known of an ensemble, without a number for each of its campaigns."""
    return {name: value for name, value in asdict(found).items() if name != "walls_s"}


def _headline(found: Capacity) -> Iterator[tuple[str, str]]:
    time, cheapest = found.time, found.money.cheapest
    yield "duration", format_seconds(time.wall_s)
    yield "GPU-hours", f"{time.gpu_s / HOUR_S:,.0f}"
    yield "cost", "unknown" if cheapest is None else f"{cheapest[1]:,.0f} USD"
    energy_j, co2_kg = found.energy.total_j, found.energy.co2_kg
    yield "energy", "unknown" if energy_j is None else f"{energy_j / J_PER_KWH / 1000:,.1f} MWh"
    yield "CO2", "unknown" if co2_kg is None else f"{co2_kg / 1000:,.1f} t"
    yield "goodput", "unknown" if time.goodput_share is None else percent(time.goodput_share)


def goodput_tables(found: Goodput) -> Iterator[Table]:
    """Where the days go, and the intervals of checkpoints that were tried, if any."""
    rows = [
        [*cells(texts), Cell(bars=(Bar(texts[0], Meaning.NUMBER, seconds / found.wall_s),))]
        for texts, seconds in zip(_spent_rows(found), found.spent_s.values(), strict=True)
    ]
    heads = [*columns(("where the time goes",), ("mean", "share")), Column("", "bars")]
    note = f"Mean failures: {failures_text(found)}."
    caption = f"Mean of {found.members} simulated campaigns"
    yield Table("Where the days go", caption, heads, rows, notes=(note,))
    if found.tried:
        longest_s = max(each.interval_s for each in found.tried)
        shares = [
            cells((format_seconds_as(each.interval_s, longest_s), percent(each.goodput, 2)))
            for each in found.tried
        ]
        heads = columns((), ("checkpoint every", "goodput"))
        guess = f"Daly's formula says {format_seconds(found.first_guess_s)}"
        yield Table("Checkpoint interval", guess, heads, shares)


def _spent_rows(found: Goodput) -> list[list[str]]:
    return [
        [spent.value, format_seconds(seconds), percent(seconds / found.wall_s, 2)]
        for spent, seconds in found.spent_s.items()
    ]


def failures_text(found: Goodput) -> str:
    """Mean failures by kind."""
    return ", ".join(f"{name} {count:.1f}" for name, count in found.failures.items()) or "none"


@dataclass(frozen=True, repr=False)
class ClustersAnswer(Answer):
    """The campaign on several clusters.

    Attributes:
        job: The job with the campaign.
        clusters: Time and cost of each cluster, or why it is refused.
        deadline_s: Deadline of the campaign [s]; None if not given.
        budget_usd: Largest cost [USD]; None if not given.
    """

    job: Job
    clusters: Sequence[Capacity | Refusal]
    deadline_s: float | None = None
    budget_usd: float | None = None

    @property
    def ran(self) -> list[Capacity]:
        """Clusters that can run the job."""
        from simulator.planning.campaign.capacity import Capacity

        return [each for each in self.clusters if isinstance(each, Capacity)]

    @cached_property
    def answers(self) -> dict[str, Capacity | None]:
        """What was asked, with the cluster that answers it; None where none does."""
        from simulator.planning.campaign.capacity import fastest_within_budget, smallest_in_time

        found: dict[str, Capacity | None] = {}
        if self.deadline_s is not None:
            name = f"fewest GPUs that finish in {format_seconds(self.deadline_s)}"
            found[name] = smallest_in_time(self.ran, self.deadline_s)
        if self.budget_usd is not None:
            name = f"fastest within {self.budget_usd:,.2f} USD"
            found[name] = fastest_within_budget(self.ran, self.budget_usd)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Every cluster, and the answers."""
        row = partial(_cluster_dict, deadline_s=self.deadline_s)
        chosen = {name: row(best) if best else None for name, best in self.answers.items()}
        return {"clusters": [*map(row, self.clusters)], "answers": chosen}

    def to_frame(self) -> pd.DataFrame:
        """One row per cluster: system, gpus, plan, step_time_s, wall_days, gpu_hours, usd."""
        rows = []
        for each in self.clusters:
            found = _cluster_dict(each, self.deadline_s)
            if "reason" not in found:
                cheapest = each.money.cheapest  # type: ignore[union-attr]
                found |= {
                    "wall_days": found["wall_s"] / DAY_S,
                    "usd": None if cheapest is None else cheapest[1],
                    "paid": "" if cheapest is None else cheapest[0],
                }
            inner = ("money", "breakdown_s", "wall_band_s")
            rows.append({name: value for name, value in found.items() if name not in inner})
        return frame(rows)

    def answer_texts(self) -> list[str]:
        """The answers as lines."""
        return [
            f"{name}: {'none of these' if best is None else _where(best, self.deadline_s)}"
            for name, best in self.answers.items()
        ]

    def said_of(self) -> str:
        """The model and the number of tokens."""
        tokens = self.job.campaign.tokens
        return (
            f"{self.job.model.name}, {f'{format_count(tokens)} tokens' if tokens else 'one step'}"
        )

    def page(self) -> AnswerPage:
        """Clusters side by side, with days and their band as bars."""
        return AnswerPage(
            title=f"On which cluster? {self.said_of()}",
            sentences=list(self._sentences()),
            tables=self._tables(),
            job_yaml=job_yaml(self.job),
            command=self._command(),
        )

    def _command(self) -> str:
        rows = self._rows()
        systems, gpus = (",".join(dict.fromkeys(row[number] for row in rows)) for number in (0, 1))
        return (
            f"clustersim capacity job.yaml --systems {systems} --gpus {gpus} --html capacity.html"
        )

    def _sentences(self) -> Iterator[str]:
        for text in self.answer_texts():
            yield text[0].upper() + text[1:]
        if not self.ran:
            yield "The job runs on none of these clusters."
            return
        fastest = min(self.ran, key=lambda each: each.time.wall_s)
        yield f"The fastest: {_where(fastest, self.deadline_s)}"
        priced = [each for each in self.ran if each.money.cheapest is not None]
        if priced:
            cheapest = min(priced, key=lambda each: each.money.cheapest[1])  # type: ignore[index]
            yield f"The cheapest: {_where(cheapest, self.deadline_s)}"
        if len(priced) < len(self.ran):
            yield "Without a price, the cost is unknown."

    def table(self) -> Table:
        """Each cluster with its figures, or why it cannot run the job."""
        numbers = (
            "step time", "MFU", "goodput", "duration", "80 % interval", "GPU-hours", "USD",
        )  # fmt: skip
        heads = [*columns(("system",), ("GPUs",)), *columns(("plan",), numbers), Column("paid")]
        rows = [cells(texts) for texts in self._rows()]
        return Table("Clusters", "Cost by the cheapest way of paying", heads, rows)

    def _rows(self) -> list[list[str]]:
        """Texts of each cluster; a column of times has one unit, that of its longest."""
        longest_step_s = max((each.time.step_time_s for each in self.ran), default=0.0)
        longest_s = max((each.time.ends.interval_s[1] for each in self.ran), default=0.0)
        return [_cluster_row(each, longest_step_s, longest_s) for each in self.clusters]

    def _tables(self) -> list[Table]:
        return [self.table(), self._days_table()] if self.ran else [self.table()]

    def _days_table(self) -> Table:
        ends_s = [each.time.ends.interval_s[1] for each in self.ran]
        most_s = max([*ends_s, self.deadline_s or 0.0])
        mark = None if self.deadline_s is None else self.deadline_s / most_s
        rows = [
            [
                Cell(f"{each.time.gpus:,} x {each.job.cluster.profile.name}"),
                Cell(format_seconds_as(each.time.wall_s, max(ends_s))),
                Cell(format_seconds_range(*each.time.ends.interval_s, max(ends_s))),
                Cell(bars=(Bar("duration", Meaning.NUMBER, each.time.wall_s / most_s),), mark=mark),
            ]
            for each in self.ran
        ]
        heads = [
            *columns(("cluster",), ("duration", "80 % prediction interval")),
            Column("", "bars"),
        ]
        deadline = "" if mark is None else "; the dashed line is the deadline"
        return Table("Duration", f"Time of the whole run{deadline}", heads, rows)


def _where(found: Capacity, deadline_s: float | None) -> str:
    time, cheapest = found.time, found.money.cheapest
    money = "" if cheapest is None else f", {cheapest[1]:,.0f} USD {cheapest[0]}"
    late = ""
    if deadline_s is not None:
        probability = percent(time.ends.late_probability(deadline_s))
        late = f", ends later with a probability of {probability}"
    return (
        f"{time.gpus} x {found.job.cluster.profile.name}, {format_seconds(time.wall_s)}, "
        f"{time.gpu_s / HOUR_S:,.0f} GPU-hours{money}{late}"
    )


def _cluster_dict(found: Capacity | Refusal, deadline_s: float | None) -> dict[str, Any]:
    """One cluster as plain data; with a deadline also how likely it is missed."""
    from simulator.planning.campaign.capacity import Refusal

    if isinstance(found, Refusal):
        return asdict(found)
    time = found.time
    late = {}
    if deadline_s is not None:
        late = {"late_probability": time.ends.late_probability(deadline_s)}
    return {
        "system": found.job.cluster.profile.name,
        "gpus": time.gpus,
        "dp": found.job.dp,
        "plan": plan_text(found.job),
        "step_time_s": time.step_time_s,
        "mfu": found.step.mfu,
        "fits_probability": found.step.fits_probability,
        "goodput": time.goodput_share,
        "wall_s": time.wall_s,
        "wall_band_s": time.ends.interval_s,
        "gpu_hours": time.gpu_s / HOUR_S,
        "money": asdict(found.money),
        "energy_kwh": None if found.energy.total_j is None else found.energy.total_j / J_PER_KWH,
        "co2_kg": found.energy.co2_kg,
        "breakdown_s": {kind.value: s for kind, s in found.step.breakdown_s.items()},
        **late,
    }


def _cluster_row(found: Capacity | Refusal, longest_step_s: float, longest_s: float) -> list[str]:
    from simulator.planning.campaign.capacity import Refusal

    if isinstance(found, Refusal):
        return [found.system, str(found.gpus), found.reason, *[""] * 8]
    time, cheapest = found.time, found.money.cheapest
    return [
        found.job.cluster.profile.name,
        str(time.gpus),
        plan_text(found.job),
        format_seconds_as(time.step_time_s, longest_step_s),
        percent(found.step.mfu),
        "unknown" if time.goodput_share is None else percent(time.goodput_share),
        format_seconds_as(time.wall_s, longest_s),
        format_seconds_range(*time.ends.interval_s, longest_s),
        f"{time.gpu_s / HOUR_S:,.0f}",
        "unknown" if cheapest is None else f"{cheapest[1]:,.0f}",
        "" if cheapest is None else cheapest[0],
    ]


def capacity(
    job: Job,
    *,
    systems: Sequence[str] = (),
    gpus: Sequence[int] = (),
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    keep_plan: bool = False,
    members: int = 200,
    seed: int = 0,
    risk: float = DEFAULT_RISK,
    workers: int | None = None,
    on_member: Callable[[], None] | None = None,
    on_cluster: Callable[[int], None] | None = None,
) -> CapacityAnswer | ClustersAnswer:
    """Predict days, GPU-hours, cost, energy and CO2 of the job's campaign.

    With ``systems``, ``gpus``, ``deadline_s`` or ``budget_usd`` several clusters are compared, each
    with its fastest plan that fits.

    Args:
        job: A job with ``campaign.tokens``.
        systems: Hardware profiles to compare; by default the job's own.
        gpus: Numbers of GPUs; by default that of the job, or with a deadline or a budget all over
            which the global batch can be divided.
        deadline_s: Find the fewest GPUs that finish in this time [s].
        budget_usd: Find the fastest cluster within this budget [USD].
        keep_plan: Whether all clusters use the job's plan.
        members: Number of campaigns with failures to simulate.
        seed: Random seed of the failures.
        risk: Largest accepted probability of running out of memory.
        workers: Number of processes that search for plans; by default one per core.
        on_member: Called after each simulated campaign of one cluster.
        on_cluster: Called after each of several clusters with their number.

    Raises:
        InputError: The plan cannot run, or the campaign lacks a field.
    """
    from simulator.planning.campaign.capacity import capacity as capacity_of
    from simulator.planning.campaign.capacity import (
        cluster_sizes,
        compare_clusters,
        need_a_price,
    )
    from simulator.processor import core_count

    searches = deadline_s is not None or budget_usd is not None
    if not (systems or gpus or searches):
        found = capacity_of(job, members=members, seed=seed, on_member=on_member)
        return CapacityAnswer(found)
    names = systems or [job.cluster.profile.name]
    if budget_usd is not None:
        need_a_price(job, names)
    sizes = gpus or (cluster_sizes(job) if searches else [job.cluster.gpus])
    count = len(names) * len(sizes)
    clusters = compare_clusters(
        job,
        names,
        sizes,
        members=members,
        seed=seed,
        risk=risk,
        keep_plan=keep_plan,
        workers=workers or core_count(),
        on_cluster=None if on_cluster is None else lambda: on_cluster(count),
    )
    return ClustersAnswer(job, clusters, deadline_s, budget_usd)
