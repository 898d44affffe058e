"""Which hidden change would explain what was measured?

The list of changes is data: ``simulator/facts/hidden_changes.yaml``. Each is simulated and weighed
by Bayes' rule: how common it is, times how well the changed job explains step, memory and phases.
Two more explanations are that nothing is hidden, and the prediction is off as predictions are; and
that something is the matter that is not on the list (:mod:`simulator.planning.unlisted_cause`).
Changes are tried one at a time; ignores that two may have happened together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simulator.described.job import Job
from simulator.engine.timeline import Timeline
from simulator.errors import InputError
from simulator.facts import shipped_facts
from simulator.planning.changes.single_changes import Change
from simulator.planning.observed_run import Observation, PredictionErrors, StepNumbers, TraceTimes
from simulator.planning.unlisted_cause import unlisted_log_likelihood
from simulator.program.build import steps_around
from simulator.results.fit_probability import job_spread
from simulator.results.simulation import KeptSteps, run_step
from simulator.results.step import StepResult
from simulator.results.step_error import job_error, job_exposure

_PERTURBATIONS = "perturbations"
_HOST_FACTORS = (1.5, 2, 4)
"""How many times as long a launch takes, in which all work of the host is counted."""
_WAITING_SHARES = (0.05, 0.1, 0.2, 0.4, 0.6)
"""How long the host waits in every step, as a share of it."""


@dataclass(frozen=True)
class HiddenChange:
    """Something that a run may do without saying.

    Attributes:
        words: What is otherwise, as a clause: ``sequence parallelism is off``.
        how_often: How often a run that surprises has it: often, sometimes or seldom (assumption).
        odds: The same as a number, relative to the other entries.
        check: What settles it.
        variants: The change of the job, in each size that is tried.
    """

    words: str
    how_often: str
    odds: float
    check: str
    variants: tuple[Change, ...]


def hidden_changes(job: Job, step_s: float) -> Iterator[HiddenChange]:
    """Everything on the list, written for one job.

    Args:
        job: What is said to have run.
        step_s: Its predicted step [s], of which waits of the host are a share.
    """
    facts = shipped_facts("hidden_changes")
    values = _values_by_name(job, step_s)
    for entry in facts["changes"]:
        yield HiddenChange(
            words=entry["change"],
            how_often=entry["odds"],
            odds=float(facts["odds"][entry["odds"]]),
            check=entry["check"],
            variants=tuple(
                _variant(job, entry["change"], each, values) for each in entry["variants"]
            ),
        )


def _variant(job: Job, words: str, entry: Mapping[str, Any], values: Mapping[str, Any]) -> Change:
    fields: dict[str, Any] = _filled_in(entry["fields"], values)
    if _PERTURBATIONS in fields:
        fields[_PERTURBATIONS] = [*job.document.get(_PERTURBATIONS, ()), *fields[_PERTURBATIONS]]
    size = entry.get("size")
    return Change(f"{words} ({size})" if size else words, fields)


def _values_by_name(job: Job, step_s: float) -> dict[str, Any]:
    """What stands in the list in braces."""
    launch_s, begin_s = job.cluster.profile.kernels.launch_s, job.choices.forward_host_s
    return {
        "{all_gpus}": f"0-{job.cluster.gpus - 1}" if job.cluster.gpus > 1 else 0,
        "{gpus_per_node}": job.cluster.profile.network.scale_up.gpus,
        **{f"{{launch_times_{n:g}}}": f"{n * launch_s!r} s" for n in _HOST_FACTORS},
        **{f"{{forward_host_times_{n:g}}}": f"{n * begin_s!r} s" for n in _HOST_FACTORS},
        **{f"{{step_times_{share:g}}}": f"{share * step_s!r} s" for share in _WAITING_SHARES},
    }


def _filled_in(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled_in(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled_in(each, values) for each in value]
    return values.get(value, value) if isinstance(value, str) else value


OnTrial = Callable[[], None]

_ODDS_OF_NOTHING = 20.0
"""How often a run hides nothing, in the unit of the list's odds (assumption)."""
_MOST_SURPRISE = 9.0
"""Squares of three standard deviations: errors are seldom larger."""
AGREES = (
    "The run is in its prediction interval, and no single cause is likelier than an error of the "
    "prediction."
)
"""What is said of a run that does."""
_SAME = 1e-4
"""A change that moves step and memory by less is none."""


@dataclass(frozen=True)
class Hypothesis:
    """A change that may explain a run.

    Attributes:
        words: What is otherwise, with its likeliest size.
        check: What settles it.
        change: The new fields, ready for :meth:`Job.replace`.
        probability: Given what was measured, among all that was tried.
        result: What the step of the changed job says.
        surprise: What is left unexplained: the sum of squares of what remains of each measured
            quantity, in its standard deviations.
    """

    words: str
    check: str
    change: Change
    probability: float
    result: StepNumbers
    surprise: float


@dataclass(frozen=True)
class Diagnosis:
    """What may be behind a run that is not as predicted.

    Attributes:
        job: What is said to have run.
        observation: What was measured of it.
        result: The step as predicted.
        errors: How far predictions are off where nothing is hidden.
        nothing_probability: That the prediction is off, and nothing is hidden.
        nothing_surprise: What that leaves unexplained, as of a hypothesis.
        unlisted_probability: That something is the matter that is not on the list.
        hypotheses: What may be hidden, the likeliest first.
    """

    job: Job
    observation: Observation
    result: StepResult
    errors: PredictionErrors
    nothing_probability: float
    nothing_surprise: float
    unlisted_probability: float
    hypotheses: tuple[Hypothesis, ...]

    @property
    def better_than_nothing(self) -> tuple[Hypothesis, ...]:
        """Hypotheses that leave less unexplained than that nothing is hidden, likeliest first."""
        return tuple(each for each in self.hypotheses if each.surprise < self.nothing_surprise)

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured step lies in the interval of the predicted one, if that has one."""
        band_s = self.result.step_time_band_s
        return None if band_s is None else band_s[0] <= self.observation.step_s <= band_s[1]

    @property
    def agrees(self) -> bool:
        """Whether the step lies in its interval, and nothing explains the run better than that."""
        likeliest = max([self.unlisted_probability, *(h.probability for h in self.hypotheses)])
        return bool(self.is_inside) and self.nothing_probability >= likeliest

    @property
    def is_explained(self) -> bool:
        """Whether some hypothesis leaves no more than errors of predictions usually do."""
        least = min([self.nothing_surprise, *(each.surprise for each in self.hypotheses)])
        return least <= _MOST_SURPRISE * self.observation.num_quantities


class Suspect(NamedTuple):
    """A hidden change, simulated in each of its sizes that makes a difference to a job."""

    hidden: HiddenChange
    sizes: tuple[tuple[Change, Job, StepNumbers], ...]


_Variant = tuple[int, Change]
"""A size of a hidden change, with its place among those of all."""


def suspects(
    job: Job,
    before: StepResult,
    *,
    trace: TraceTimes | None = None,
    executor: Executor | None = None,
    processes: int = 1,
    on_trial: OnTrial | None = None,
) -> tuple[Suspect, ...]:
    """Every change on the list that a job could have, simulated.

    Args:
        job: What is said to have run.
        before: Its prediction.
        trace: Account of a rank that will be compared.
        executor: Where all but one share of the changes are simulated; None if it is all here.
        processes: How many shares there are.
        on_trial: Called after every simulated change; of other shares when this one is done.
    """
    listed = [*hidden_changes(job, before.step_time_s)]
    owners = [number for number, hidden in enumerate(listed) for _ in hidden.variants]
    variants = [*enumerate(each for hidden in listed for each in hidden.variants)]
    shares = [variants[first::processes] for first in range(processes)]
    begun = [executor.submit(_simulated, job, share, trace) for share in shares[1:] if executor]
    # Of steps that overlap each other the timeline is one of several.
    first = before.timeline if steps_around(job).total == 1 else None
    found = _simulated(job, shares[0], trace, first, on_trial)
    for share in begun:
        for trial in share.result():
            found.append(trial)
            if on_trial:
                on_trial()
    sizes: dict[int, list[tuple[Change, Job, StepNumbers]]] = {}
    for (place, change), changed, numbers in sorted(found, key=lambda trial: trial[0][0]):
        if _differs(numbers, before):
            sizes.setdefault(owners[place], []).append((change, changed, numbers))
    return tuple(Suspect(listed[number], tuple(some)) for number, some in sizes.items())


def diagnose(
    job: Job,
    result: StepResult,
    tried: Sequence[Suspect],
    observation: Observation,
    errors: PredictionErrors,
) -> Diagnosis:
    """Weigh every hidden change by how well it explains a run.

    Args:
        job: What is said to have run.
        result: Its prediction.
        tried: What may have been hidden, simulated.
        observation: What was measured of the run.
        errors: How far predictions are off where nothing is hidden.
    """
    surprise = observation.surprise(job, result, errors)
    weighed = [_weighed(suspect, observation, errors) for suspect in tried]
    nothing = math.log(_ODDS_OF_NOTHING) - surprise / 2
    unlisted = math.log(_unlisted_odds(tried)) + unlisted_log_likelihood(
        observation, job, result, errors
    )
    total = _log_sum([nothing, unlisted, *(log_weight for log_weight, _ in weighed)])
    found = [
        replace(hypothesis, probability=math.exp(log_weight - total))
        for log_weight, hypothesis in weighed
    ]
    ranked = tuple(sorted(found, key=lambda each: -each.probability))
    return Diagnosis(
        job,
        observation,
        result,
        errors,
        nothing_probability=math.exp(nothing - total),
        nothing_surprise=surprise,
        unlisted_probability=math.exp(unlisted - total),
        hypotheses=ranked,
    )


def _unlisted_odds(tried: Sequence[Suspect]) -> float:
    """How often a run does something that is not on the list, in the unit of the list's odds."""
    share = float(shipped_facts("hidden_changes")["unlisted"]["share"])
    listed = math.fsum(suspect.hidden.odds for suspect in tried)
    return share / (1 - share) * max(listed, 1.0)  # at least as if one thing could happen


def _simulated(
    job: Job,
    variants: Sequence[_Variant],
    trace: TraceTimes | None,
    first: Timeline | None = None,
    on_trial: OnTrial | None = None,
) -> list[tuple[_Variant, Job, StepNumbers]]:
    """Those sizes of changes that the job can have, the changed job, and its step.

    ``first`` is the timeline of the job itself; None where it is not there.
    """
    kept, found = KeptSteps(first), []
    if first is None:
        run_step(job, kept=kept)
    for variant in variants:
        try:
            changed = job.replace(variant[1].fields)
            if changed != job:
                result = run_step(changed, kept=kept)
                found.append((variant, changed, StepNumbers.of(changed, result, trace)))
        except InputError:
            continue  # nothing that this job could do
        if on_trial:
            on_trial()
    return found


def _weighed(
    suspect: Suspect, observation: Observation, errors: PredictionErrors
) -> tuple[float, Hypothesis]:
    """Logarithm of the odds of a change times its likelihood; its sizes are equally common."""
    hidden, sizes = suspect
    surprises = [observation.surprise(job, result, errors) for _, job, result in sizes]
    log_weight = math.log(hidden.odds / len(sizes)) + _log_sum([-each / 2 for each in surprises])
    surprise, (change, _, result) = min(
        zip(surprises, sizes, strict=True), key=lambda each: each[0]
    )
    return log_weight, Hypothesis(change.words, hidden.check, change, 0.0, result, surprise)


def _differs(result: StepNumbers, before: StepResult) -> bool:
    pairs = (
        (result.step_time_s, before.step_time_s),
        (result.peak_device_bytes, before.peak_device_bytes),
        (result.peak_allocated_bytes, before.peak_allocated_bytes),
    )
    return any(abs(now / then - 1) > _SAME for now, then in pairs)


def errors_of(job: Job, result: StepResult, share: float | None = None) -> PredictionErrors:
    """How far predictions are off where nothing is hidden.

    Of clusters of several kinds of GPUs, of which no runs are published, the first kind stands
    for all (assumption). A part of a step is off by half as much beside what all parts share
    (assumption).

    Args:
        job: What was predicted; the models of errors behind its band and its probability to fit
            say how far, ...
        result: Its prediction.
        share: ... unless this does, for step and memory: one standard deviation of the ratio.
    """
    if share is None:
        exposed = job_exposure(job, result.step_time_s, result.breakdown_s)
        common = job_error(job).scale(exposed)
        memory = job_spread(job)
        return PredictionErrors(common, common / 2, memory.scale, memory_centre=memory.centre)
    return PredictionErrors(common=share, each=share / 2, memory=share)


def _log_sum(logarithms: Sequence[float]) -> float:
    """Logarithm of the sum of numbers that are given by their logarithms."""
    most = max(logarithms)
    return most + math.log(math.fsum(math.exp(each - most) for each in logarithms))
