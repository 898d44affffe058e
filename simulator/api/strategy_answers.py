"""Which strategy suits the model, and what does each way of data parallelism cost?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from simulator.api.answer import Answer, frame
from simulator.api.plan_answers import times_table
from simulator.api.plan_sentences import how_it_shards, own_plan_text
from simulator.described.job import Job, job_yaml, options_text
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Cell,
    Column,
    Table,
    cells,
    columns,
    legend_of,
    stacked_bytes,
    stacked_seconds,
)
from simulator.results.fit_probability import DEFAULT_RISK
from simulator.units import chance, counted, format_bytes, format_seconds, percent

if TYPE_CHECKING:
    import pandas as pd

    from simulator.planning.changes.helpful_changes import FitSearch
    from simulator.planning.compared_strategies import Comparison, FamilyResult, Outcome
    from simulator.planning.search.search import PlanChoice, Progress
    from simulator.planning.search.space import Axes
    from simulator.results.step import StepResult
    from simulator.results.views.verdict import WhatIf

_BIGGEST = 2
"""Owners of memory that a table names."""
_SMALLEST_GAIN = 0.001
"""Smaller shares of a step are not told."""
_SCHEMA_VERSION = 1


@dataclass(frozen=True, repr=False)
class AdviseAnswer(Answer):
    """The best plan of every strategy.

    Attributes:
        job: The job.
        strategies: Fastest first; strategies without a plan that fits come last. Empty on one
            machine on which no plan trains the whole model.
        way_out: The usual remedies in that case; None otherwise.
        risk: Largest accepted probability of running out of memory.
        own: The step of the job with its own plan; None if that is not asked for.
    """

    job: Job
    strategies: Sequence[FamilyResult]
    way_out: FitSearch | None = None
    risk: float = DEFAULT_RISK
    own: StepResult | None = None

    @property
    def best(self) -> Job | None:
        """The job with the best strategy's plan, or the nearest remedy; None if nothing fits."""
        return self.job.replace(self.best_step.changes) if self.best_step else None

    @property
    def best_step(self) -> PlanChoice | WhatIf | None:
        """What the best job changes, and its step; None if nothing fits."""
        if self.way_out is not None:
            return self.way_out.nearest
        return self.strategies[0].choice if self.strategies else None

    def to_dict(self) -> dict[str, Any]:
        """Every strategy with its best plan, or the rungs of the way out."""
        if self.way_out is None:
            found = [asdict(each) for each in self.strategies]
            return {"job": self.job.title, "strategies": found}
        answers = {
            name: asdict(trial) if trial else None
            for name, trial in (("nearest", self.way_out.nearest), ("faster", self.way_out.faster))
        }
        return {"job": self.job.title, "rungs": self._rungs(), **answers}

    def _rungs(self) -> list[dict[str, Any]]:
        assert self.way_out is not None
        assert self.way_out.ladder is not None
        ladder = self.way_out.ladder
        return [
            {"name": name, **asdict(trial)}
            for name, trial in zip(ladder.rungs, ladder.trials, strict=True)
        ]

    def to_frame(self) -> pd.DataFrame:
        """One row per strategy (or remedy): its plan, step_time_s, peak_device_bytes."""
        if self.way_out is not None:
            names = ("name", "words", "step_time_s", "peak_device_bytes", "fits_probability")
            return frame([{name: rung[name] for name in names} for rung in self._rungs()])
        return frame(
            [
                {
                    "strategy": each.family.name,
                    "plan": each.plan_text,
                    "step_time_s": each.choice.step_time_s if each.choice else None,
                    "peak_device_bytes": each.choice.peak_device_bytes if each.choice else None,
                    "fits_probability": each.choice.fits_probability if each.choice else None,
                    "obstacle": each.obstacle,
                }
                for each in self.strategies
            ]
        )

    def page(self) -> AnswerPage:
        """Strategies side by side, with where their time goes."""
        cluster = self.job.cluster
        return AnswerPage(
            title=f"Which strategy suits {self.job.model.name} on {cluster.gpus} x "
            f"{cluster.profile.name}?",
            sentences=self._sentences(),
            tables=self._tables(),
            job_yaml=job_yaml(self.job),
            command="clustersim advise job.yaml --html advise.html",
        )

    def _sentences(self) -> list[str]:
        if self.way_out is not None:
            from simulator.planning.changes.advice import way_out

            return list(way_out(self.way_out))
        ran = [each for each in self.strategies if each.choice]
        if not ran:
            return ["No strategy has a plan that fits into memory."]
        best = ran[0]
        assert best.choice is not None
        step = format_seconds(best.choice.step_time_s)
        first = f"Use {best.family.name}: {best.plan_text} takes {step} a step."
        sentences = [first]
        if len(ran) > 1 and ran[1].choice is not None:
            slower = ran[1].choice.step_time_s / best.choice.step_time_s - 1
            second = "is as fast, within 0.1 %" if slower < _SMALLEST_GAIN else ""
            text = second or f"takes {percent(slower)} longer"
            sentences.append(f"{ran[1].family.name}, the next best strategy, {text}.")
        sentences += [*self.faster_own_plan(), *how_it_shards(self.job, best.choice.changes)]
        return [*sentences, f"To use it: {options_text(best.choice.changes)}"]

    def faster_own_plan(self) -> list[str]:
        """A sentence on the job's own plan if its step is shorter than that of strategy 1."""
        best = self.strategies[0].choice if self.strategies else None
        if self.own is None or best is None or "batch.global" in best.changes:
            return []
        if self.own.step_time_s >= best.step_time_s * (1 - _SMALLEST_GAIN):
            return []
        return [own_plan_text(self.own, best, self.risk, "strategy 1")]

    def _tables(self) -> list[Table]:
        if self.way_out is not None:
            return [self._rungs_table()]
        times = [
            (each.family.name, each.choice.step_time_s, each.choice.breakdown_s)
            for each in self.strategies
            if each.choice is not None
        ]
        return [self.table(), times_table("strategy", times)]

    def _rungs_table(self) -> Table:
        rows = [
            cells(
                [
                    rung["name"],
                    format_seconds(rung["step_time_s"]),
                    format_bytes(rung["peak_device_bytes"]),
                    chance(rung["fits_probability"]),
                ]
            )
            for rung in self._rungs()
        ]
        heads = columns(("with",), ("step time", "fullest GPU", "likely to fit"))
        caption = "Each includes those above it"
        return Table("Usual remedies on one machine", caption, heads, rows)

    def table(self) -> Table:
        """Each strategy with its fastest plan that fits, the best first."""
        best = self.strategies[0]
        numbers = ("step time", "relative to the best", "fullest GPU", "fits")
        plan = "its best plan, or why there is none"
        heads = [*columns(("strategy",), numbers), *columns((plan, "what it does"))]
        rows = [cells(_strategy_row(each, best)) for each in self.strategies]
        return Table("Strategies", "Each with its fastest plan that fits", heads, rows)


def _strategy_row(result: FamilyResult, best: FamilyResult) -> tuple[str, ...]:
    name, choice = result.family.name, result.choice
    if choice is None or best.choice is None:
        return name, "", "", "", "", result.obstacle, result.family.idea
    ratio = choice.step_time_s / best.choice.step_time_s
    step, held = format_seconds(choice.step_time_s), format_bytes(choice.peak_device_bytes)
    fits = chance(choice.fits_probability)
    return name, step, f"{ratio:.2f} x", held, fits, result.plan_text, result.family.idea


def advise(
    job: Job,
    *,
    vary: Axes | None = None,
    risk: float = DEFAULT_RISK,
    own: bool = False,
    workers: int | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> AdviseAnswer:
    """Compare DDP, ZeRO, TP, PP and their combinations, each with its best plan.

    If no plan trains the whole model on one machine, the answer has the usual remedies instead.

    Args:
        job: The job.
        vary: Values by dotted path, instead of those that :func:`plan` searches.
        risk: Largest accepted probability of running out of memory.
        own: Whether to also simulate the job's own plan, which must keep all rules.
        workers: Number of processes; by default one per core.
        on_progress: Called with the strategy's name after each simulated plan.

    Raises:
        InputError: A field cannot be varied, or a value of it is wrong.
    """
    from simulator.planning.compared_strategies import compare_families
    from simulator.planning.executors import worker_pool
    from simulator.results.simulation import run_step

    found = _on_small_machine(job, risk)
    if found is not None:
        return AdviseAnswer(job, (), found, risk)
    with worker_pool(workers) as (executor, processes):
        strategies = compare_families(
            job,
            vary or {},
            risk=risk,
            executor=executor,
            at_a_time=processes,
            on_progress=on_progress,
        )
    return AdviseAnswer(job, strategies, None, risk, run_step(job) if own else None)


def _on_small_machine(job: Job, risk: float) -> FitSearch | None:
    """What people with one machine do; None where a plan on it trains all of the model."""
    from simulator.planning.changes.helpful_changes import nearest_fit
    from simulator.planning.changes.small_machine import is_small_machine
    from simulator.results.simulation import run_step

    if not is_small_machine(job) or run_step(job, "replay").fits:
        return None
    found = nearest_fit(job, risk)
    return found if found.ladder is not None else None


@dataclass(frozen=True, repr=False)
class StrategiesAnswer(Answer):
    """Ways of data parallelism, from DDP to ZeRO-Infinity, on one or more numbers of nodes."""

    comparisons: Sequence[Comparison]

    def to_dict(self) -> dict[str, Any]:
        """Every strategy on every number of nodes."""
        return {
            "schema_version": _SCHEMA_VERSION,
            "comparisons": [
                {
                    "nodes": each.nodes,
                    "title": each.job.title,
                    "gpus": each.job.cluster.gpus,
                    "global_batch": each.job.batch.global_batch,
                    "strategies": [_outcome_dict(found, each.job) for found in each.outcomes],
                }
                for each in self.comparisons
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per strategy and number of nodes: step_time_s, peak_device_bytes, and more."""
        names = (
            "name",
            "fits",
            "refused",
            "step_time_s",
            "tokens_per_s_per_gpu",
            "exposed_comm_s",
            "moved_bytes_per_gpu",
            "peak_device_bytes",
        )
        return frame(
            [
                {
                    "nodes": each["nodes"],
                    "gpus": each["gpus"],
                    **{name: found.get(name) for name in names},
                }
                for each in self.to_dict()["comparisons"]
                for found in each["strategies"]
            ]
        )

    def page(self) -> AnswerPage:
        """Time and memory of every strategy, and when to use which."""
        from simulator.planning.compared_strategies import known_strategies

        job = self.comparisons[0].job
        advice = Table(
            "When to use which",
            "",
            columns(("strategy", "what it does, and when to use it")),
            [cells([each.name, each.advice]) for each in known_strategies()],
        )
        tables = [table for each in self.comparisons for table in _comparison_tables(each)]
        return AnswerPage(
            title=f"Ways of data parallelism: {job.model.name} on {job.cluster.profile.name}",
            sentences=[*map(_fastest_sentence, self.comparisons), _SAME_SHARE],
            tables=[*tables, advice],
            job_yaml=job_yaml(job),
            command="clustersim strategies job.yaml --html strategies.html",
        )


_SAME_SHARE = "The batch per GPU is the same on any number of nodes."


def _on_nodes(found: Comparison) -> str:
    return f"{counted(found.nodes, 'node')} ({found.job.cluster.gpus:,} GPUs)"


def _fastest_sentence(found: Comparison) -> str:
    where = f"On {_on_nodes(found)}"
    fitting = [(each, each.step) for each in found.outcomes if each.fits and each.step]
    if not fitting:
        return f"{where} none of them fits into memory."
    fitting.sort(key=lambda each: each[1].step_time_s)
    best, step = fitting[0]
    text = f"{where} {best.strategy.name} is fastest: {format_seconds(step.step_time_s)} a step"
    least, _ = min(fitting, key=lambda each: each[0].fullest.peak_device_bytes)
    held = format_bytes(least.fullest.peak_device_bytes)
    return f"{text}; {least.strategy.name} needs the least memory: {held}."


def comparison_table(found: Comparison) -> Table:
    """Time, traffic and memory of every strategy on one number of nodes."""
    numbers = ("step time", "tokens/s per GPU", "exposed", "traffic per GPU", "memory")
    return Table(
        f"On {_on_nodes(found)}",
        "Exposed: communication that delays the mean GPU, as a share of the step. Traffic: "
        "through the links of the busiest GPU in a step, one direction. Memory: device memory of "
        "the fullest GPU.",
        [*columns(("strategy", "shards"), numbers), *columns(("fits", "largest owner"))],
        [_figures(each) for each in found.outcomes],
    )


def _comparison_tables(found: Comparison) -> list[Table]:
    figures = comparison_table(found)
    ran = [(each, each.step) for each in found.outcomes if each.step is not None]
    if not ran:
        return [figures]
    longest_s = max(step.step_time_s for _, step in ran)
    capacity = ran[0][1].capacity_bytes
    most = max(capacity, *(each.fullest.peak_device_bytes for each, _ in ran))
    times: list[list[Cell]] = [
        [
            Cell(each.strategy.name),
            Cell(format_seconds(step.step_time_s)),
            stacked_seconds(step.breakdown_s, longest_s),
        ]
        for each, step in ran
    ]
    held: list[list[Cell]] = [
        [
            Cell(each.strategy.name),
            Cell(format_bytes(each.fullest.peak_device_bytes), "" if each.fits else "loss"),
            stacked_bytes(each.fullest.by_owner, most, capacity),
        ]
        for each, _ in ran
    ]
    where = f"on {_on_nodes(found)}"
    heads = [Column("strategy"), Column("step time", "number"), Column("the mean GPU", "bars")]
    owners = [Column("strategy"), Column("memory", "number"), Column("tensors, by owner", "bars")]
    mark = f"The dashed line is the capacity, {format_bytes(capacity)}"
    scale = "Of the mean GPU in a step"
    return [
        figures,
        Table(f"Where the time goes {where}", scale, heads, times, legend_of(times)),
        Table(f"Memory by owner {where}", mark, owners, held, legend_of(held)),
    ]


def _figures(found: Outcome) -> list[Cell]:
    strategy, step = found.strategy, found.step
    if step is None:
        names = (strategy.name, strategy.shards, *[""] * 5)
        return [*cells(names), Cell("no", "loss"), Cell(found.refusal, "pale")]
    fullest = found.fullest
    owners = sorted(fullest.by_owner.items(), key=lambda item: -item[1])[:_BIGGEST]
    most = ", ".join(f"{owner.value} {format_bytes(size)}" for owner, size in owners)
    figures = (
        strategy.name,
        strategy.shards,
        format_seconds(step.step_time_s),
        f"{step.tokens_per_s_per_gpu:,.0f}",
        percent(found.exposed_s / step.step_time_s),
        format_bytes(found.moved_bytes),
        format_bytes(fullest.peak_device_bytes),
    )
    fits = Cell(chance(step.fits_probability), "" if found.fits else "loss")
    return [*cells(figures), fits, Cell(f"{fullest.role}: {most}" if fullest.role else most)]


def _outcome_dict(outcome: Outcome, job: Job) -> dict[str, Any]:
    strategy, step = outcome.strategy, outcome.step
    document: dict[str, Any] = {
        "name": strategy.name,
        "shards": strategy.shards,
        "advice": strategy.advice,
        "changes": strategy.changes_of(job),
        "fits": outcome.fits,
        "refused": outcome.refusal or None,
    }
    if step is None:
        return document
    fullest = outcome.fullest
    return document | {
        "step_time_s": step.step_time_s,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "breakdown_s": {category.value: s for category, s in step.breakdown_s.items()},
        "exposed_comm_s": outcome.exposed_s,
        "moved_bytes_per_gpu": outcome.moved_bytes,
        "peak_device_bytes": fullest.peak_device_bytes,
        "capacity_bytes": step.capacity_bytes,
        "by_owner": {owner.value: size for owner, size in fullest.by_owner.items()},
        "fullest": fullest.role or "every GPU",
    }


def strategies(
    job: Job, nodes: Sequence[int] = (1, 8), *, on_trial: Callable[[], None] | None = None
) -> StrategiesAnswer:
    """Compare ways of data parallelism, from DDP to ZeRO-Infinity.

    Args:
        job: The job; its other parallelism and its batch per GPU stay the same.
        nodes: Numbers of whole nodes to compare on.
        on_trial: Called after each simulation.

    Raises:
        InputError: No strategy can run the job on that many nodes.
    """
    from simulator.planning.compared_strategies import compare_strategies

    return StrategiesAnswer(compare_strategies(job, nodes, on_trial=on_trial))
