"""Which change makes a job fit, and which saves most memory?

Nothing is guessed: whatever is reported was simulated and did fit. Changes are tried in
the order of what they ask of the user:

1. one change of the plan or the microbatch, on the GPUs there are;
2. two of them, then three;
3. more GPUs of the same kind, alone or with one change;
4. another device with more memory.

The first of these that yields anything ends the search; only where one change is enough, two are
tried all the same, and reported where their step is much shorter. Model, global batch, sequence
length and number formats stay as they are, because they decide what is learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, islice
from math import prod

from simulator.described.job import Job
from simulator.described.load import load_profile, profile_names
from simulator.described.rules.pool_rules import refuse_pools
from simulator.planning.changes.single_changes import (
    Change,
    Fields,
    Question,
    changes_with_more_gpus,
    merged,
    single_changes,
)
from simulator.planning.changes.trials import OnTrial, Trial, Trials

_MOST_SINGLES, _MOST_PAIRS, _MOST_TRIPLES, _MOST_WITH_MORE_GPUS, _MOST_DEVICES = 25, 12, 9, 15, 3
MOST_TRIED = _MOST_SINGLES + _MOST_PAIRS + _MOST_TRIPLES + _MOST_WITH_MORE_GPUS + _MOST_DEVICES
"""Jobs that one search simulates at most."""

_MOST_COMBINATIONS = 50
"""Pairs, or triples, that are looked at; some of them turn out to break a rule."""
_MORE_GPUS = (2, 4, 8)
_MUCH_SHORTER = 0.95
"""Share of the step with one change that a second one must get below. Assumption."""


@dataclass(frozen=True)
class Saving:
    """A change that lowers the peak of the fullest GPU.

    Attributes:
        changes: New values by dotted path, ready for :meth:`Job.replace`.
        saved_bytes: Device memory that the fullest GPU no longer needs [B].
        step_time_s: Step of the changed job, without contention [s].
        slower_share: How much longer that is than before; negative where it is shorter.
    """

    changes: Fields
    saved_bytes: float
    step_time_s: float
    slower_share: float


@dataclass(frozen=True)
class NearestFit:
    """A change that makes the job fit.

    Attributes:
        changes: New values by dotted path, ready for :meth:`Job.replace`.
        step_time_s: Step of the changed job [s].
        peak_device_bytes: What its fullest GPU holds [B].
    """

    changes: Fields
    step_time_s: float
    peak_device_bytes: float


@dataclass(frozen=True)
class FitSearch:
    """What a search found.

    Attributes:
        nearest: The nearest change that fits; None where nothing that was tried fits.
        tried: Changed jobs that were simulated.
        faster: Two changes whose step is much shorter than with the nearest, a single one;
            None where there are none.
    """

    nearest: NearestFit | None
    tried: int
    faster: NearestFit | None = None


def savings(job: Job, *, on_trial: OnTrial | None = None) -> tuple[Saving, ...]:
    """Every single change that saves memory, the largest saving first.

    Args:
        job: Where to start from.
        on_trial: Called after each simulated change, for progress.

    Raises:
        InputError: The job itself cannot run.
    """
    trials = Trials(job, "replay", on_trial)
    before = trials.base
    found = [
        Saving(
            changes=each.fields,
            saved_bytes=before.peak_device_bytes - each.peak_device_bytes,
            step_time_s=each.step_time_s,
            slower_share=each.step_time_s / before.step_time_s - 1,
        )
        for each in _singles(trials)
        if each.peak_device_bytes < before.peak_device_bytes
    ]
    return tuple(sorted(found, key=lambda saving: -saving.saved_bytes))


def nearest_fit(job: Job) -> FitSearch:
    """The change that asks least and makes the job fit, found by simulating candidates.

    Among changes that ask the same the one with the fastest step wins. Each candidate is
    replayed without contention; at most :data:`MOST_TRIED` are, and the winner is simulated
    in full. The same job always gives the same answer. Combinations are made of changes that
    help alone, and only the most promising of them are tried, so a remote one may be missed.

    Args:
        job: A job that does not fit.

    Raises:
        InputError: The job itself cannot run.
    """
    refuse_pools(job, "the nearest plan that fits")
    trials = Trials(job)
    singles = list(_singles(trials))
    one, two = _fastest(trials, singles), _combined(trials, singles, 2, _MOST_PAIRS)
    best = (
        one
        or two
        or _combined(trials, singles, 3, _MOST_TRIPLES)
        or _on_more_gpus(trials)
        or _on_another_device(trials)
    )
    is_faster = one and two and two.step_time_s < _MUCH_SHORTER * one.step_time_s
    return FitSearch(_found(best), trials.count, _found(two if is_faster else None))


def _singles(trials: Trials) -> Iterable[Trial]:
    candidates = single_changes(trials.job, Question.SMALLER)
    return islice(trials.of(candidates), _MOST_SINGLES)


def _combined(trials: Trials, singles: list[Trial], size: int, most: int) -> Trial | None:
    candidates = _combined_changes(trials, singles, size)
    return _fastest(trials, islice(trials.of(candidates), most))


def _on_more_gpus(trials: Trials) -> Trial | None:
    """The fewest GPUs that help, and what is fastest on them."""
    most = _MOST_WITH_MORE_GPUS // len(_MORE_GPUS)
    for factor in _MORE_GPUS:
        candidates = changes_with_more_gpus(trials.job, factor)
        best = _fastest(trials, islice(trials.of(candidates), most))
        if best is not None:
            return best
    return None


def _on_another_device(trials: Trials) -> Trial | None:
    """The shipped device with the least memory that is enough."""
    sizes = {name: load_profile(name).device.memory_bytes for name in profile_names()}
    large = [name for name in sizes if sizes[name] >= trials.base.peak_device_bytes]
    candidates = (
        Change(f"taking {name}", {"cluster.profile": name}, Question(0))
        for name in sorted(large, key=lambda name: (sizes[name], name))
    )
    found = islice(trials.of(candidates), _MOST_DEVICES)
    return _first_in_full(trials, (trial for trial in found if trial.fits))


def _fastest(trials: Trials, found: Iterable[Trial]) -> Trial | None:
    fitting = (trial for trial in found if trial.fits)
    return _first_in_full(trials, sorted(fitting, key=lambda trial: trial.step_time_s))


def _first_in_full(trials: Trials, found: Iterable[Trial]) -> Trial | None:
    """The first that fits when it is simulated with contention, as the job will be."""
    return next((trial for trial in map(trials.in_full, found) if trial.fits), None)


def _found(trial: Trial | None) -> NearestFit | None:
    if trial is None:
        return None
    return NearestFit(trial.fields, trial.step_time_s, trial.peak_device_bytes)


def _combined_changes(trials: Trials, singles: list[Trial], size: int) -> list[Change]:
    """Changes to several fields at once, the most promising first.

    Changes are expected to multiply their effects, on the step and on what each owner
    holds; that only orders the trials: what should fit comes first, fastest first, then the
    rest, smallest first.
    """
    base = trials.base

    def promise(group: tuple[Trial, ...]) -> tuple[bool, float]:
        peak = _expected_peak_bytes(base, group)
        misses = peak > base.capacity_bytes
        return misses, peak if misses else prod(trial.step_time_s for trial in group)

    helpful = [trial for trial in singles if trial.peak_device_bytes < base.peak_device_bytes]
    groups = [group for group in combinations(helpful, size) if _can_combine(trials.job, group)]
    promising = sorted(groups, key=promise)[:_MOST_COMBINATIONS]
    return [merged(trial.change for trial in group) for group in promising]


def _can_combine(job: Job, group: tuple[Trial, ...]) -> bool:
    """Whether the changes touch different fields and leave ranks for data parallelism."""
    fields = merged(trial.change for trial in group).fields
    names = ("tp", "pp", "cp")
    width = prod(fields.get(f"plan.{name}", getattr(job.plan, name)) for name in names)
    has_whole_ranks = job.cluster.gpus % width == 0
    return len(fields) == sum(len(trial.fields) for trial in group) and has_whole_ranks


def _expected_peak_bytes(base: Trial, group: tuple[Trial, ...]) -> float:
    """A guess at what is held after all changes of the group [B]."""
    peak = 0.0
    for owner in dict.fromkeys(owner for trial in (base, *group) for owner in trial.held_bytes):
        before = base.held_bytes.get(owner, 0.0)
        after = [trial.held_bytes.get(owner, 0.0) for trial in group]
        peak += before * prod(num_bytes / before for num_bytes in after) if before else max(after)
    return peak
