"""Which plan is the fastest, and what would make it faster?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.api.plan_sentences import (
    faster_probabilities,
    how_it_shards,
    longer,
    no_valid_plan_text,
    nothing_fits_text,
    own_plan_text,
    rivals_text,
)
from simulator.described.job import Job, job_yaml, options_text
from simulator.errors import InputError
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Cell,
    Column,
    Table,
    cells,
    columns,
    legend_of,
    stacked_seconds,
)
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import chance, format_bytes, format_seconds, percent

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from simulator.planning.changes.helpful_changes import FitSearch
    from simulator.planning.changes.plan_reasons import Reasons
    from simulator.planning.changes.trials import Trial
    from simulator.planning.search.search import PlanChoice, PlanSearch, Progress
    from simulator.planning.search.space import Axes
    from simulator.program.ir import Category
    from simulator.results.step import StepResult

_OTHER_RISKS = (0.01, 0.2)
"""Risks whose price is told beside the plans of the one that is asked."""
_SMALLEST_LOSS, _SMALLEST_GAIN = 0.01, 0.001
"""Smaller shares of a step are not told."""
_SMALLEST_PART = 0.05
"""Of a difference, what is not named by its causes."""
_MOST_CHANGES, _MOST_LINKS = 4, 2
"""Changes outside the search, and links, that are named."""


def _either(numbers: Collection[int]) -> str:
    *others, last = map(str, sorted(numbers))
    return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True, repr=False)
class PlanAnswer(Answer):
    """The fastest plans that fit.

    Attributes:
        job: The job that was searched.
        risk: Largest accepted probability of running out of memory.
        search: The plans, and why others were excluded.
        other_risks: The fastest plan at other risks, by the risk.
        nearest: The nearest change that would fit, if no plan fits.
        reasons: What would make the fastest plan faster; None if not asked for.
        own: The step of the job with its own plan; None if that is not asked for.
        sizes: Numbers of GPUs that were searched, where there are several.
        vary: Values that were asked for in place of the default ones, by field.
    """

    job: Job
    risk: float
    search: PlanSearch
    other_risks: Mapping[float, PlanSearch]
    nearest: FitSearch | None
    reasons: Reasons | None
    own: StepResult | None = None
    sizes: Sequence[int] = ()
    vary: Axes | None = None

    @property
    def choices(self) -> tuple[PlanChoice, ...]:
        """The plans, fastest first; empty if none fits."""
        return self.search.choices

    @property
    def best(self) -> Job | None:
        """The job with the fastest plan; None if none fits."""
        return self.job.replace(self.choices[0].changes) if self.choices else None

    def tokens_per_s_per_gpu(self, choice: PlanChoice) -> float:
        """Throughput of a plan with its own global batch [tokens/s]."""
        batch = choice.changes.get("batch.global", self.job.batch.global_batch)
        gpus = choice.changes.get("cluster.gpus", self.job.cluster.gpus)
        return float(batch * self.job.batch.seq_len / choice.step_time_s / gpus)

    @cached_property
    def _odds(self) -> list[float | None]:
        return faster_probabilities(self.job, self.choices)

    @property
    def cluster_text(self) -> str:
        """The GPUs that plans were searched for: ``8, 16 or 32 x h100-sxm-80gb``."""
        own = self.job.cluster.gpus
        sizes = {each.changes.get("cluster.gpus", own) for each in self.choices} or {own}
        return f"{_either(sizes)} x {self.job.cluster.profile.name}"

    def to_dict(self) -> dict[str, Any]:
        """Plans, prices of other risks, what was pruned and why, and the way out."""
        way_out = self.nearest.nearest if self.nearest is not None else None
        smallest = self.search.smallest or {}
        return {
            "risk": self.risk,
            "job": self.job.title,
            "own": self.own
            and {
                "step_time_s": self.own.step_time_s,
                "peak_device_bytes": self.own.peak_device_bytes,
                "fits_probability": self.own.fits_probability,
            },
            "plans": self.search.plans,
            "replayed": self.search.replayed,
            "simulated": self.search.simulated,
            "gap_share": self.search.gap_share,
            "choices": [
                {**choice, "faster_probability": odds}
                for choice, odds in zip(self._choices(self.search), self._odds, strict=True)
            ],
            "other_risks": [
                {"risk": risk, "choices": self._choices(search)}
                for risk, search in self.other_risks.items()
            ],
            "pruned": asdict(self.search.pruned),
            "reasons": None
            if self.reasons is None
            else {
                "knobs": [*map(_knob, self.reasons.knobs)],
                "links": [*map(_knob, self.reasons.links)],
            },
            "nearest": None
            if way_out is None
            else {
                "changes": {**smallest, **way_out.changes},
                "step_time_s": way_out.step_time_s,
                "peak_device_bytes": way_out.peak_device_bytes,
                "fits_probability": way_out.fits_probability,
            },
        }

    def _choices(self, search: PlanSearch) -> list[dict[str, Any]]:
        return [
            {**asdict(choice), "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu(choice)}
            for choice in search.choices
        ]

    def to_frame(self) -> pd.DataFrame:
        """One row per plan: its fields by path, dp, step_time_s, and its other numbers."""
        return frame(
            [
                {
                    **choice.changes,
                    "dp": choice.dp,
                    "step_time_s": choice.step_time_s,
                    "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu(choice),
                    "peak_device_bytes": choice.peak_device_bytes,
                    "fits_probability": choice.fits_probability,
                    **{f"{name.value}_s": s for name, s in choice.breakdown_s.items()},
                }
                for choice in self.choices
            ]
        )

    def explanation(self) -> list[str]:
        """Why the first plan is first, what would make it faster, and what other risks cost."""
        if not self.choices:
            return [self.nothing_fits()]
        lines = [*self._second(), *self._own(), *self._further(), *self._prices()]
        if rivals := rivals_text(self._odds):
            lines.insert(1, rivals)
        if too_few := {*self.sizes} - {each.changes.get("cluster.gpus") for each in self.choices}:
            lines.append(f"No plan fits on {_either(too_few)} x {self.job.cluster.profile.name}.")
        changes = self.choices[0].changes
        return [
            *lines,
            *how_it_shards(self.job, changes),
            f"To use plan 1: {options_text(changes)}",
        ]

    def _second(self) -> Iterator[str]:
        from simulator.results.views.difference import difference_s

        if len(self.choices) < 2:
            return
        best, second = self.choices[:2]
        more_s = difference_s(second.breakdown_s, best.breakdown_s)
        named = sorted(more_s.items(), key=lambda item: -abs(item[1]))
        parts = ", ".join(f"{name.value} {_signed(seconds)}" for name, seconds in named[:3])
        behind_s, others_s = second.step_time_s - best.step_time_s, sum(s for _, s in named[3:])
        if abs(others_s) > _SMALLEST_PART * abs(behind_s):
            parts += f", all else {_signed(others_s)}"
        if abs(behind_s) < _SMALLEST_GAIN * best.step_time_s:
            yield "Plan 2 is as fast as plan 1, within 0.1 %."
        else:
            yield f"Plan 2 takes {longer(behind_s)} than plan 1: {parts}"

    def _own(self) -> Iterator[str]:
        """How the job's own plan compares with plan 1, on as many GPUs and the same batch."""
        own, best = self.own, self.choices[0]
        if own is None or not {"batch.global", "cluster.gpus"}.isdisjoint(best.changes):
            return
        planned = self.job.replace(best.changes)
        if (planned.plan, planned.batch) == (self.job.plan, self.job.batch):
            yield "Plan 1 is the job's own plan."
            return
        yield own_plan_text(own, best, self.risk, "plan 1")

    def _further(self) -> Iterator[str]:
        causes = self.reasons
        if causes is None:
            return
        for what, knobs, most in (
            ("change outside the search", causes.knobs, _MOST_CHANGES),
            ("faster link", causes.links, _MOST_LINKS),
        ):
            for knob in [knob for knob in knobs if _is_gain(knob)][:most]:
                saved = percent(knob.saved_share)
                yield f"Next {what}: {options_text(knob.changes)} saves {saved}"
        if not any(map(_is_gain, (*causes.knobs, *causes.links))):
            yield "No change outside the search, and no link of twice the bandwidth, saves 0.1 %."

    def _prices(self) -> Iterator[str]:
        for risk, search in self.other_risks.items():
            at = f"At a risk of {percent(risk, 0)}"
            if not search.choices:
                yield f"{at} no plan fits."
                continue
            best, first = search.choices[0], self.choices[0]
            gain = self.tokens_per_s_per_gpu(best) / self.tokens_per_s_per_gpu(first) - 1
            if best.changes == first.changes:
                yield f"{at} plan 1 is still the fastest."
            else:
                speed = f"{percent(abs(gain))} {'faster' if gain >= 0 else 'slower'}"
                yield f"{at} the fastest plan is {speed}: {options_text(best.changes)}"

    def nothing_fits(self) -> str:
        """Why there is no plan, and what would fit."""
        if self.search.smallest is None:
            return no_valid_plan_text(self.job, self.vary or {})
        return nothing_fits_text(self.job, self.search.smallest, self.nearest, self.risk)

    def pruned_text(self) -> str:
        """How many plans were searched, and why the others are not listed."""
        excluded = (f"  {reason}: {count:,}" for reason, count in self._excluded().items())
        return "\n".join((self._searched_text(), *excluded, *self._search_notes()))

    def _searched_text(self) -> str:
        found = self.search
        return (
            f"{found.plans:,} valid plans, {found.replayed:,} replayed without contention, "
            f"{found.simulated:,} simulated."
        )

    def _excluded(self) -> dict[str, int]:
        """Plans that are not listed, by the reason; no reason without a plan."""
        pruned = self.search.pruned
        over = "above the accepted risk of running out of memory"
        reasons = {
            f"{over}, by a lower bound": pruned.too_large,
            f"{over}, simulated": pruned.too_large_simulated,
            "slower, by a lower bound": pruned.slower_bound,
            "slower, replayed": pruned.slower_replay,
            "slower, simulated": pruned.slower_simulation,
        }
        return {reason: count for reason, count in reasons.items() if count}

    def _search_notes(self) -> Iterator[str]:
        if self.search.gap_share:
            yield self._gap_text()
        if refused := self.search.pruned.refused:
            texts = ", ".join(f"{field} {count:,}" for field, count in refused.items())
            yield f"Combinations that break a rule, by field: {texts}."

    def _gap_text(self) -> str:
        """What lower bounds prove of all plans that are not listed."""
        gap_share = self.search.gap_share
        if not gap_share:
            return "Lower bounds prove that no other plan of the search is faster."
        return f"Lower bounds prove that no step is more than {percent(gap_share)} shorter."

    def page(self) -> AnswerPage:
        """The plans side by side, where their time goes, and why the others are left out."""
        job = self.job
        headline, tables = [], []
        if self.choices:
            best = self.choices[0]
            rate = f"{self.tokens_per_s_per_gpu(best):,.0f}"
            headline = [
                ("step time", format_seconds(best.step_time_s)),
                ("tokens/s per GPU", rate),
                ("fullest GPU", format_bytes(best.peak_device_bytes)),
                ("likely to fit", chance(best.fits_probability)),
                ("valid plans", f"{self.search.plans:,}"),
            ]
            times = [
                (str(number), choice.step_time_s, choice.breakdown_s)
                for number, choice in enumerate(self.choices, start=1)
            ]
            tables = [self.table(), times_table("plan", times)]
        return AnswerPage(
            title=f"Fastest plans of {job.model.name} on {self.cluster_text}",
            sentences=[self._verdict(), *self.explanation()],
            headline=headline,
            tables=[*tables, self._pruned_table()],
            job_yaml=job_yaml(job),
            command="clustersim plan job.yaml --html plan.html",
        )

    def _verdict(self) -> str:
        if not self.choices:
            return f"None of {self.search.plans:,} valid plans fits into memory."
        best = self.choices[0]
        return (
            f"The fastest of {self.search.plans:,} valid plans takes "
            f"{format_seconds(best.step_time_s)} a step and fits with a probability of "
            f"{percent(best.fits_probability, 0)}. {self._gap_text()}"
        )

    def table(self) -> Table:
        """The plans that were found, the fastest first."""
        varied = list(self.choices[0].changes) if self.choices else []
        rows = [
            cells(
                [
                    number,
                    *(choice.changes[path] for path in varied),
                    choice.dp,
                    format_seconds(choice.step_time_s),
                    f"{self.tokens_per_s_per_gpu(choice):,.1f}",
                    format_bytes(choice.peak_device_bytes),
                    chance(choice.fits_probability),
                    losses_text(choice.breakdown_s),
                ]
            )
            for number, choice in enumerate(self.choices, start=1)
        ]
        fields = (*(path.partition(".")[2] for path in varied), "dp")
        numbers = ("step time", "tokens/s per GPU", "fullest GPU", "fits")
        heads = [Column("#", "number"), *columns(fields, numbers), Column("lost to")]
        return Table("Plans", "Each is fully simulated; fastest first", heads, rows)

    def _pruned_table(self) -> Table:
        rows = [cells([reason, f"{count:,}"]) for reason, count in self._excluded().items()]
        heads, caption = columns(("plans that are",), ("count",)), self._searched_text()
        notes = tuple(self._search_notes())
        return Table("Excluded plans, and why", caption, heads, rows, notes=notes)


def _is_gain(knob: Trial) -> bool:
    return knob.fits and knob.saved_share >= _SMALLEST_GAIN


def _knob(trial: Trial) -> dict[str, Any]:
    return {"changes": trial.changes, "gain": trial.saved_share, "fits": trial.fits}


def times_table(head: str, steps: Sequence[tuple[str, float, Mapping[Category, float]]]) -> Table:
    """Where the time of several steps goes.

    Args:
        head: What each step belongs to.
        steps: Its name, its length [s], and that of the mean GPU by category [s].
    """
    longest_s = max((step_s for _, step_s, _ in steps), default=1.0)
    rows = [
        [
            Cell(name),
            Cell(format_seconds(step_s)),
            stacked_seconds(breakdown_s, longest_s),
            Cell(losses_text(breakdown_s).replace("_", " ")),
        ]
        for name, step_s, breakdown_s in steps
    ]
    bars = Column("the mean GPU", "bars")
    heads = [Column(head), Column("step time", "number"), bars, Column("lost to")]
    caption = "Of the mean GPU in a step; all bars have the same scale"
    return Table("Where the time goes", caption, heads, rows, legend_of(rows))


def losses_text(breakdown_s: Mapping[Category, float]) -> str:
    """The two largest shares of a step that are no work of the model."""
    from simulator.results.views.difference import losses

    largest = [(name, share) for name, share in losses(breakdown_s)[:2] if share >= _SMALLEST_LOSS]
    return ", ".join(f"{name.value} {percent(share, 0)}" for name, share in largest) or "nothing"


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "-") + format_seconds(abs(seconds))


def plan(
    job: Job,
    *,
    vary: Axes | None = None,
    top: int = 10,
    risk: float = DEFAULT_RISK,
    within: float = 0.0,
    global_batches: Sequence[int] = (),
    why: bool = True,
    own: bool = True,
    workers: int | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_trial: Callable[[], None] | None = None,
) -> PlanAnswer:
    """Search for the fastest plans that fit; proven to equal simulating all plans.

    The search varies tp, pp, vpp, cp, ep, ZeRO, recomputation and the microbatch; everything
    else stays as in the job.

    Args:
        job: Model, cluster, batch, and the fields of the plan that are not varied.
        vary: Values to search by dotted path, instead of the default ones: ``{"plan.zero": [1]}``.
        top: How many plans to find; with several numbers of GPUs (``{"cluster.gpus": [64, 128]}``)
            of each.
        risk: Largest accepted probability of running out of memory.
        within: How much shorter, as a share, the step of a plan may be that is not found. Above 0
            the answer comes earlier, with what is proven.
        global_batches: Global batch sizes to search; plans are ranked by time per token.
        why: Whether to also simulate what would make the fastest plan faster, and other risks.
        own: Whether to also simulate the job's own plan.
        workers: Number of processes; by default one per core.
        executor: Simulates in their place, so many plans at a time as there are ``workers``.
        on_progress: Called after each simulated plan.
        on_trial: Called after each simulated what-if; where other processes simulate them, once,
            while they are waited for.

    Raises:
        InputError: A field cannot be varied, or a value of it is wrong.

    Example:
        >>> sim.plan(job, vary={"plan.vpp": [1]}).best.plan.tp
    """
    from simulator.planning.changes.helpful_changes import nearest_fit
    from simulator.planning.changes.plan_reasons import begin_reasons
    from simulator.planning.executors import worker_pool
    from simulator.planning.search.best_plans import GPUS
    from simulator.planning.search.sized_jobs import SizedSearches, variants_of
    from simulator.planning.search.space import checked_values
    from simulator.processor import core_count
    from simulator.results.simulation import run_step

    if top < 1:
        raise InputError.single("top", "must be 1 or more", top)
    axes = dict(vary or {})
    sizes = checked_values(GPUS, axes.pop(GPUS)) if GPUS in axes else []
    if not 0 <= within < 1:
        raise InputError.single("within", "must be a share of 0 or more and below 1", within)
    pool = nullcontext((executor, workers or core_count())) if executor else worker_pool(workers)
    with pool as (simulator, processes):
        settings: dict[str, Any] = {
            "vary": axes,
            "executor": simulator,
            "at_a_time": processes,
            "within": within,
            "on_progress": on_progress,
        }
        risks = [risk, *(other for other in _OTHER_RISKS if why and other != risk)]
        searches = SizedSearches(variants_of(job, global_batches, sizes), risks, **settings)
        found = searches.fastest(risk, top)
        best = next(iter(found.choices), None) if why else None
        # Its reasons take as long as what follows, so processes find them meanwhile.
        begun = best and begin_reasons(job, best, risk, simulator, processes, on_trial)
        own_step = run_step(job) if own else None
        prices = {other: searches.fastest(other) for other in risks[1:]} if best else {}
        causes = begun() if begun else None
    nearest = nearest_fit(job.replace(found.smallest), risk) if found.smallest else None
    return PlanAnswer(job, risk, found, prices, nearest, causes, own_step, sizes, vary)
