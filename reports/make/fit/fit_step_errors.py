"""How far are predicted steps off where nothing was tuned, and with what do their errors weigh?

Fits the model of :mod:`simulator.results.step_error` by maximum likelihood to the runs of grade A
and A-, and writes its numbers (``simulator/facts/step_errors.yaml``). A run is held against what
was predicted of it before anybody here had seen it (``reports/first_sight.csv``), or else with its
source left out of every fit (``reports/data/cross_validation.csv``). What the simulator knows was
looked for with those sources in view, so such runs are nearer: by one factor, which is fitted, too,
and which no run of a user has. That factor and the tails are those of single runs, sources counting
the same, because a band is of a single run. What regimes weigh in a step is predicted without the
facts that the errors of these runs told (``residuals``), which nobody has beforehand.

Each source is then taken away once, the rest is fitted, and its runs are held against the bands
that follow (``reports/data/step_bands.csv``), as are its later runs once the first ones are known
(``reports/data/learnt_runs.csv``) and which of two of them is faster
(``reports/data/what_if_odds.csv``). Steps follow a number of a profile as those of one run of each
source do.

Run as ``python -m reports.make.fit.fit_step_errors TABLE.csv… [--write]``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from reports.make.accuracy.band_coverage import Banded, coverage_section, write_bands
from reports.make.accuracy.own_runs_section import own_runs_section, write_learnt_runs
from reports.make.accuracy.what_if_odds import ODDS_FILE, write_odds
from reports.make.fit.first_sight_facts import first_sight_errors
from reports.make.fit.fit_training import CROSS_VALIDATION_FILE, read_left_out
from reports.make.fit.learnt_runs import learnt_runs
from reports.make.fit.pair_odds import pair_odds
from simulator.cells import Row
from simulator.described.load import job_from_document
from simulator.errors import ClustersimError
from simulator.facts import FOLDER, shipped_facts
from simulator.planning.changes.profile_numbers import sensitivities
from simulator.results.simulation import run_step
from simulator.results.step_error import (
    ASPECTS,
    EXPERTS,
    REGIMES,
    ErrorModel,
    Floats,
    FrameworkError,
    OpenNumber,
    StepError,
    computed_share,
    framework_of,
    job_exposure,
    job_teaching_exposure,
    open_variance,
    shipped_errors,
    traits_of,
)
from simulator.units import three_digits
from simulator.validate.first_sight import read_first_sight
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import read_rows, row_source

BANDS_FILE = "step_bands.csv"
"""Beside the tables of runs: each run, and the band that all other sources give."""
LEARNT_FILE = "learnt_runs.csv"
"""Beside it: runs at first sight, before and after the first ones of their source are known."""

_FACTS = FOLDER / "step_errors.yaml"
_GRADES = ("A", "A-")
_SIZED = (*REGIMES, EXPERTS)
"""What has a size of its own."""
_ENDS = np.cumsum([len(_SIZED), len(_SIZED), len(ASPECTS)])
"""Where spread, noise and what is alike end among all sizes."""
_USUAL, _USUAL_ALIKE, _USUAL_FREEDOM, _DOUBT = 0.1, 0.05, 3.0, 1.5
"""A size before any run was seen, that of what runs that are alike share, the tails, and how little
that is trusted, as the standard deviation of the logarithm: what no run tells stays near it."""

_KNOWN_BESIDES = 4
"""Sources as all frameworks are that each framework is taken to have besides. With fewer, sources
left out are predicted worse; with more, up to so many that frameworks do not differ, as well (the
mean logarithm of their density is 0.040 with a half, 0.050 with four, 0.055 with all), but bands of
frameworks that were far off, or near, hold what they promise less."""

_MOVED = 0.1
"""By what share a number is moved to see what follows it."""

_LEAST_WEIGHT = 0.05
"""Share of a step that a regime must have for its numbers to be seen at all."""


@dataclass(frozen=True)
class SeenRun:
    """A run, what was predicted of it, and what its error can come from.

    Attributes:
        id: The run.
        profile: Its system.
        framework: Its framework.
        measured_s: The step [s].
        predicted_s: The same, predicted without knowledge of its source [s].
        exposed: How much each regime weighs, shape (regimes,).
        teaching: The same in what its measured time tells.
        numbers: Of its system, those that steps follow.
        in_view: Whether its source was in view when the simulator was built.
        has_experts: Whether its model has experts.
        traits: What runs of its source share with it if they are alike.
        computed: Share of the step that computes, 0 to 1.
        tokens_per_gpu: Of a step.
    """

    id: str
    profile: str
    framework: str
    measured_s: float
    predicted_s: float
    exposed: Floats
    teaching: Floats
    numbers: tuple[OpenNumber, ...]
    in_view: bool = False
    has_experts: bool = False
    traits: tuple[Hashable, ...] = ()
    computed: float = 0.0
    tokens_per_gpu: float = 1.0

    @property
    def log_ratio(self) -> float:
        """Logarithm of the measured over the predicted time."""
        return math.log(self.measured_s / self.predicted_s)

    @property
    def source(self) -> str:
        """Where it is published."""
        return row_source(self.id)

    @property
    def weights(self) -> Floats:
        """How much each part of its error weighs, no more than the whole, shape (sized,)."""
        return np.append(np.minimum(1.0, self.exposed), float(self.has_experts))

    def error(self, model: ErrorModel) -> StepError:
        """What a model says of its error."""
        return model.error_of(self.numbers, self.framework, has_experts=self.has_experts)


def as_first_seen(run: SeenRun, in_view: float) -> SeenRun:
    """The run as far off as it would be if nobody had looked at its source."""
    if not run.in_view:
        return run
    return replace(run, predicted_s=run.measured_s * math.exp(-run.log_ratio / in_view))


def seen_run(row: Row, predicted_s: float | None, in_view: bool) -> SeenRun | None:
    """A row of a table as a run; None where it cannot be simulated.

    ``predicted_s`` is what was predicted without knowledge of its source; as now if None [s].
    """
    try:
        job = job_from_document(job_document(row))
        step = run_step(job)
    except ClustersimError:
        return None
    plan, profile = job.plan, job.cluster.profile
    predicted_s = predicted_s or step.step_time_s
    return SeenRun(
        row["id"],
        profile.name,
        framework_of(job),
        float(row["measured_step_s"]),
        predicted_s,
        job_exposure(job, step.step_time_s, step.breakdown_s),
        job_teaching_exposure(job, step.step_time_s, step.breakdown_s),
        tuple(shipped_errors().open_numbers(profile, plan.precision)),
        in_view,
        job.model.experts is not None,
        traits_of(job),
        computed_share(step.step_time_s, step.breakdown_s),
        job.batch.global_batch * job.batch.seq_len / job.cluster.gpus,
    )


class Likelihood:
    """How likely the runs of one source are, as a function of the sizes of errors.

    What its runs have in common makes a covariance of low rank, beside what is of each run.

    Source: the multivariate t density; Woodbury's identity and the determinant lemma.
    """

    def __init__(self, runs: Sequence[SeenRun], number_spread: Mapping[str, float]) -> None:
        self.log_ratio = np.array([run.log_ratio for run in runs])
        self.in_view = np.array([run.in_view for run in runs])
        self.weights = np.array([run.weights for run in runs])
        profiles = sorted({run.profile for run in runs})
        of_profile = [np.array([run.profile == name for run in runs]) for name in profiles]
        first = [next(run for run in runs if run.profile == name) for name in profiles]
        exposed = self.weights[:, : len(REGIMES)]
        by_profile = [exposed * mask[:, None] for mask in of_profile]
        shared = [_alike([run.traits for run in runs], aspect) for aspect in range(len(ASPECTS))]
        self._alone = np.column_stack([1.0 - groups.sum(axis=1) for groups in shared])
        self._groups = [groups.shape[1] for groups in shared]
        self._common = np.hstack([self.weights, *by_profile, *shared])
        self._numbers = np.array([open_variance(run.numbers, number_spread) for run in first])

    def distance(self, sizes: Sizes) -> tuple[float, float]:
        """Squared distance of the runs from what was predicted, and the covariance's log det."""
        shared = np.repeat(sizes.alike**2, self._groups)
        common = np.concatenate([sizes.spread**2, self._numbers.ravel(), shared])
        noise = self.weights**2 @ sizes.noise**2 + self._alone @ sizes.alike**2
        factor = self._common * np.sqrt(common)
        scaled = factor / noise[:, None]
        inner = np.eye(len(common)) + factor.T @ scaled
        nearer = np.where(self.in_view, sizes.in_view, 1.0)
        apart = self.log_ratio / nearer
        projected = scaled.T @ apart
        square = apart**2 @ (1 / noise) - projected @ np.linalg.solve(inner, projected)
        log_det = np.linalg.slogdet(inner)[1] + np.log(noise * nearer**2).sum()
        return float(square), float(log_det)

    def negative_log(self, sizes: Sizes) -> float:
        """Negative logarithm of the likelihood, but for a constant."""
        square, log_det = self.distance(sizes)
        runs, freedom = len(self.log_ratio), sizes.freedom
        tail = (freedom + runs) / 2 * math.log1p(square / freedom)
        normal = math.lgamma(freedom / 2) - math.lgamma((freedom + runs) / 2)
        return 0.5 * log_det + tail + normal + runs / 2 * math.log(freedom)


def _alike(traits: Sequence[tuple[Hashable, ...]], aspect: int) -> Floats:
    """Which runs are alike in an aspect, shape (runs, groups); groups of one are left out."""
    keys = [of[aspect] if of else None for of in traits]
    groups = [key for key, count in Counter(keys).items() if key is not None and count > 1]
    found = [[key == group for group in groups] for key in keys]
    return np.array(found, dtype=np.float64).reshape(len(keys), len(groups))


@dataclass(frozen=True)
class Sizes:
    """What is fitted: standard deviations, tails, and how near runs in view are."""

    spread: Floats
    noise: Floats
    alike: Floats
    freedom: float
    in_view: float = 1.0

    @classmethod
    def of(cls, logarithms: Floats) -> Sizes:
        """The sizes of their logarithms, shape (2 sized + aspects + 2,)."""
        spread, noise, alike, rest = np.split(np.exp(logarithms), _ENDS)
        return cls(spread, noise, alike, 1.0 + rest[0], rest[1])

    @classmethod
    def of_model(cls, model: ErrorModel) -> Sizes:
        """The sizes of a model."""
        spread, noise = (np.array([s[of] for of in _SIZED]) for s in (model.spread, model.noise))
        alike = np.array([model.alike[aspect] for aspect in ASPECTS])
        return cls(spread, noise, alike, model.freedom, model.in_view)

    @classmethod
    def usual(cls) -> Sizes:
        """The sizes before any run was seen."""
        size = np.full(len(_SIZED), _USUAL)
        return cls(size, size, np.full(len(ASPECTS), _USUAL_ALIKE), _USUAL_FREEDOM)

    def logarithms(self) -> Floats:
        """Their logarithms; tails have a variance only from 2 degrees of freedom on."""
        sizes = (*self.spread, *self.noise, *self.alike)
        return np.log([*sizes, self.freedom - 1.0, self.in_view])


def by_source(runs: Sequence[SeenRun]) -> Mapping[str, list[SeenRun]]:
    """The runs of each source."""
    found: dict[str, list[SeenRun]] = defaultdict(list)
    for run in runs:
        found[run.source].append(run)
    return dict(sorted(found.items()))


def fit(runs: Sequence[SeenRun], model: ErrorModel) -> ErrorModel:
    """The model whose sizes make the runs likeliest; what is not fitted stays as it was.

    The search begins with the sizes of ``model``, which does not move where it ends.
    """
    from scipy.optimize import minimize  # heavy; only fits need it

    groups = [Likelihood(own, model.number_spread) for own in by_source(runs).values()]
    usual, start = Sizes.usual().logarithms(), Sizes.of_model(model).logarithms()

    def loss(logarithms: Floats) -> float:
        sizes = Sizes.of(logarithms)
        away = float(((logarithms - usual) ** 2).sum()) / (2 * _DOUBT**2)
        return away + math.fsum(group.negative_log(sizes) for group in groups)

    sizes = Sizes.of(minimize(loss, start, method="L-BFGS-B").x)
    fitted = replace(
        model,
        spread=dict(zip(_SIZED, sizes.spread.tolist(), strict=True)),
        noise=dict(zip(_SIZED, sizes.noise.tolist(), strict=True)),
        alike=dict(zip(ASPECTS, sizes.alike.tolist(), strict=True)),
        freedom=sizes.freedom,
        in_view=sizes.in_view,
        frameworks={},
    )
    fitted = as_single_runs_are(runs, fitted)
    return replace(fitted, frameworks=framework_errors(runs, fitted))


def as_single_runs_are(runs: Sequence[SeenRun], model: ErrorModel) -> ErrorModel:
    """The model with tails, a skew and a factor of sources in view that make single runs likeliest.

    Sources count the same, however many runs they have.

    Source: the density of a skewed t (Fernandez and Steel, 1998, equation 1).
    """
    from scipy.optimize import minimize  # heavy; only fits need it
    from scipy.stats import t as students_t

    sources = [len(own) for own in by_source(runs).values() for _ in own]
    ordered = [run for own in by_source(runs).values() for run in own]
    apart = np.array([run.log_ratio / run.error(model).scale(run.exposed) for run in ordered])
    in_view, counts = np.array([run.in_view for run in ordered]), np.array(sources)
    usual = np.log([_USUAL_FREEDOM - 1.0, 1.0, 1.0])

    def loss(logarithms: Floats) -> float:
        beyond, factor, skew = np.exp(logarithms)
        nearer = np.where(in_view, factor, 1.0)
        stretched = np.where(apart < 0.0, apart * skew, apart / skew) / nearer
        densities = students_t.logpdf(stretched, 1.0 + beyond) - np.log(nearer * (skew + 1 / skew))
        away = float(((logarithms - usual) ** 2).sum()) / (2 * _DOUBT**2)
        return away - float((densities / counts).sum())

    beyond, factor, skew = np.exp(minimize(loss, usual, method="Nelder-Mead").x).tolist()
    return replace(model, freedom=1.0 + beyond, in_view=factor, skew=skew)


def framework_errors(runs: Sequence[SeenRun], model: ErrorModel) -> Mapping[str, FrameworkError]:
    """How far the runs of each framework are off, in units of what the model expects of all."""
    squares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in (as_first_seen(run, model.in_view) for run in runs):
        expected = run.error(model).variance(run.exposed)
        squares[run.framework][run.source].append(run.log_ratio**2 / expected)
    return {
        name: FrameworkError(len(of), common_variance([*map(np.mean, of.values())], model.freedom))
        for name, of in sorted(squares.items())
    }


def common_variance(squares: Sequence[Any], freedom: float) -> float:
    """Variance that sources share, from the mean square of each, with heavy tails.

    Some as all frameworks are are taken to be known besides, so that one that is near or far does
    not decide alone.

    Source: Student's t as a mixture of normal distributions, by reweighting (Lange, Little and
    Taylor, 1989, section 3).
    """
    observed, variance = np.array(squares), 1.0
    for _ in range(100):
        weights = (freedom + 1) / (freedom + observed / variance)
        total = _KNOWN_BESIDES + float((weights * observed).sum())
        variance = total / (_KNOWN_BESIDES + len(observed))
    return variance


def without_each_source(
    runs: Sequence[SeenRun], model: ErrorModel
) -> list[tuple[list[SeenRun], ErrorModel]]:
    """The runs of each source, and the model fitted to all other sources."""
    sources = by_source(runs)
    others = ([run for run in runs if run.source != source] for source in sources)
    with ProcessPoolExecutor() as executor:
        return list(zip(sources.values(), executor.map(fit, others, repeat(model)), strict=True))


def left_out_bands(left_out: Iterable[tuple[Sequence[SeenRun], ErrorModel]]) -> list[Banded]:
    """The band of every run, from a fit to all sources but its own."""
    found = []
    for own, others in left_out:
        for run in own:
            error = run.error(others)
            nearer = others.in_view if run.in_view else 1.0
            ends = (end**nearer for end in error.band(run.exposed, run.computed))
            found.append(Banded(run.id, run.framework, run.measured_s, run.predicted_s, *ends))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits from tables of runs, prints the sizes and may write them and the bands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, nargs="+", help="published training runs (CSV)")
    parser.add_argument("--first-sight", type=Path, default=Path("reports/first_sight.csv"))
    parser.add_argument("--write", action="store_true", help="write sizes and bands")
    options = parser.parse_args(arguments)
    runs = seen_runs(options.tables, options.first_sight)
    shipped = replace(shipped_errors(), numbers=responses(options.tables))
    found = fit(runs, shipped)
    left_out = without_each_source(runs, found)
    bands = left_out_bands(left_out)
    learnt = [
        run
        for own, others in left_out
        for run in learnt_runs([each for each in own if not each.in_view], others)
    ]
    sys.stdout.write(_facts_text(found, runs))
    seen = [row["id"] for row in read_first_sight(options.first_sight)]
    sys.stdout.write(coverage_section(bands, seen))
    sys.stdout.write(own_runs_section(learnt))
    if options.write:
        _FACTS.write_text(_facts_text(found, runs), encoding="utf-8")
        write_bands(bands, options.tables[0].with_name(BANDS_FILE))
        write_odds(pair_odds(left_out), options.tables[0].with_name(ODDS_FILE))
        write_learnt_runs(learnt, options.tables[0].with_name(LEARNT_FILE))
    return 0


def responses(tables: Sequence[Path]) -> Mapping[str, Mapping[str, float]]:
    """Share of each regime's time that follows each number: the mean of one run per source."""
    rows = {row_source(row["id"]): row for table in tables for row in _stated_rows(table)}
    with ProcessPoolExecutor() as executor:
        found = list(executor.map(_row_responses, rows.values()))
    return {
        regime: {
            name: float(np.mean([own[name] for own in found if name in own])) for name in numbers
        }
        for regime, numbers in shipped_errors().numbers.items()
    }


def _row_responses(row: Row) -> Mapping[str, float]:
    """By number, of those whose regime weighs in the step."""
    try:
        job = job_from_document(job_document(row))
        step = run_step(job, "replay")
    except ClustersimError:
        return {}
    weights = job_exposure(job, step.step_time_s, step.breakdown_s)
    weight = dict(zip(REGIMES, weights.tolist(), strict=True))
    names = {
        name.format(precision=job.plan.precision): (name, weight[regime])
        for regime, numbers in shipped_errors().numbers.items()
        for name in numbers
        if weight[regime] >= _LEAST_WEIGHT
    }
    found = sensitivities(job, share=_MOVED, engine="replay", fields=names)
    return {names[s.field][0]: s.effect / _MOVED / names[s.field][1] for s in found}


def seen_runs(tables: Sequence[Path], first_sight: Path) -> list[SeenRun]:
    """Every run of grade A and A- that states a step time and can be simulated."""
    unseen = {
        row["id"]: float(row["predicted_step_s"])
        for row in read_first_sight(first_sight)
        if row["predicted_step_s"]
    }
    left_out = read_left_out(tables[0].with_name(CROSS_VALIDATION_FILE))
    honest = {run.id: run.predicted_step_s for run in left_out} | unseen
    rows = [row for table in tables for row in _stated_rows(table)]
    with ProcessPoolExecutor() as executor:
        predicted = [honest.get(row["id"]) for row in rows]
        in_view = [row["id"] not in unseen for row in rows]
        found = executor.map(seen_run, rows, predicted, in_view, chunksize=8)
        return [run for run in found if run is not None]


def _stated_rows(table: Path) -> list[Row]:
    rows = read_rows(table, residuals=False)
    return [row for row in rows if row["grade"] in _GRADES and row["measured_step_s"]]


def _facts_text(model: ErrorModel, runs: Sequence[SeenRun]) -> str:
    """The file of facts, with what a person wrote in it as it was."""
    sources = len(by_source(runs))
    reference = (
        f"{len(runs)} runs of {sources} sources, each predicted before it was seen or with its "
        "source left out; make bands"
    )
    found = {**asdict(model), "first_sight": first_sight_errors(runs)}
    facts = {**shipped_facts("step_errors"), **_rounded(found), "reference": reference}
    return str(yaml.safe_dump(facts, sort_keys=False, width=120))


def _rounded(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _rounded(value) for key, value in node.items()}
    return three_digits(node) if isinstance(node, float) else node


if __name__ == "__main__":
    raise SystemExit(main())
