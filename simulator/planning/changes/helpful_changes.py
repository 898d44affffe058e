"""Which change makes a job fit, which saves most memory, and which makes it faster?

Nothing is guessed: whatever is reported was simulated. Gains are of one kind: the
changed job and the job itself are simulated by the same engine. To make a job fit, changes are
tried in the order of what they ask of the user:

1. one change of the plan or the microbatch, on the GPUs there are;
2. two of them, then three;
3. on one machine, what people do there (:mod:`simulator.planning.changes.small_machine`): nothing
   leaves the GPUs before that;
4. more GPUs of the same kind, alone or with one change;
5. another device with more memory.

The first of these that yields anything ends the search; only where one change is enough, two are
tried all the same, and reported where their step is much shorter. Model, global batch, sequence
length and number formats stay as they are, because they decide what is learned; on one machine
these are given up before more machines are asked for, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice
from math import prod

from simulator.described.job import Job
from simulator.described.load import load_profile, profile_names
from simulator.described.rules.pool_rules import refuse_pools
from simulator.planning.changes.single_changes import (
    Change,
    Question,
    changes_with_more_gpus,
    merged,
    single_changes,
)
from simulator.planning.changes.small_machine import (
    Ladder,
    is_small_machine,
    ladder,
    training_changes,
)
from simulator.planning.changes.trials import (
    MUCH_SHORTER,
    OnTrial,
    Trial,
    Trials,
    held_bytes,
)
from simulator.results.fit_probability import DEFAULT_RISK

_MOST_SINGLES, _MOST_PAIRS, _MOST_TRIPLES, _MOST_WITH_MORE_GPUS, _MOST_DEVICES = 50, 12, 9, 15, 3
MOST_TRIED = _MOST_SINGLES + _MOST_PAIRS + _MOST_TRIPLES + _MOST_WITH_MORE_GPUS + _MOST_DEVICES
"""Jobs that one search simulates at most."""

_MOST_COMBINATIONS = 50
"""Pairs, or triples, that are considered; some of them break a rule."""
_MORE_GPUS = (2, 4, 8)


@dataclass(frozen=True)
class FitSearch:
    """What a search found.

    Attributes:
        nearest: The nearest change that fits; None where nothing that was tried fits.
        tried: Changed jobs that were simulated.
        faster: Two changes whose step is much shorter than with the nearest, a single one;
            None where there are none.
        ladder: What was tried because the job runs on one machine; None where that was not needed.
    """

    nearest: Trial | None
    tried: int
    faster: Trial | None = None
    ladder: Ladder | None = None


def savings(job: Job, *, on_trial: OnTrial | None = None) -> tuple[Trial, ...]:
    """Every single change that saves memory, the largest saving first, simulated with contention.

    Those that train otherwise (8-bit states, adapters) are the same as what :func:`nearest_fit`
    tries on one machine.

    Raises:
        InputError: The job itself cannot run.
    """
    trials = Trials(job, "des", on_trial)
    otherwise = trials.of(training_changes(job))
    found = [each for each in (*_singles(trials), *otherwise) if each.saved_bytes > 0]
    return tuple(sorted(found, key=lambda each: -each.saved_bytes))


def nearest_fit(job: Job, risk: float = DEFAULT_RISK) -> FitSearch:
    """The change that asks least and makes the job fit, found by simulating candidates.

    Among changes that ask the same the one with the fastest step wins. Each candidate is
    replayed without contention, which no step can beat; at most :data:`MOST_TRIED` are, and those
    that may be the fastest are simulated in full. The same job always gives the same answer.
    Combinations are made of changes that help alone, and only the most promising of them are
    tried, so a remote one may be missed. What fits runs out of memory with a probability of no
    more than ``risk``.

    Raises:
        InputError: The job itself cannot run.
    """
    refuse_pools(job, "the nearest plan that fits")
    return _FitSearch(job, risk).run()


class _FitSearch:
    """Tries changes of one job: replayed, and what may be fastest and fits simulated in full."""

    def __init__(self, job: Job, risk: float) -> None:
        self.job, self._risk, self._trials = job, risk, Trials(job, risk=risk)

    @cached_property
    def _in_full(self) -> Trials:
        return Trials(self.job, "des", risk=self._risk)

    def run(self) -> FitSearch:
        is_small = is_small_machine(self.job)
        singles = list(_singles(self._trials))
        others = list(self._trials.of(_other_changes(self.job)))
        staying = [each for each in singles if not (is_small and _offloads(each))]
        one, two = self._fastest([*staying, *others]), self._combined(staying, 2, _MOST_PAIRS)
        best = one or two or self._combined(staying, 3, _MOST_TRIPLES)
        if best is None and is_small:
            found = ladder(self._in_full)
            if found.answer is not None:
                tried = self._trials.count + self._in_full.count
                return FitSearch(found.answer, tried, found.faster, found)
            best = self._fastest(singles) or self._combined(singles, 2, _MOST_PAIRS)
        best = best or self._on_more_gpus() or self._on_another_device()
        is_faster = one and two and two.step_time_s < MUCH_SHORTER * one.step_time_s
        return FitSearch(best, self._trials.count, two if is_faster else None)

    def _combined(self, singles: list[Trial], size: int, most: int) -> Trial | None:
        candidates = _combined_changes(self._trials, singles, size)
        return self._fastest(islice(self._trials.of(candidates), most))

    def _on_more_gpus(self) -> Trial | None:
        """The fewest GPUs that help, and what is fastest on them."""
        most = _MOST_WITH_MORE_GPUS // len(_MORE_GPUS)
        for factor in _MORE_GPUS:
            found = self._trials.of(changes_with_more_gpus(self.job, factor))
            best = self._fastest(islice(found, most))
            if best is not None:
                return best
        return None

    def _on_another_device(self) -> Trial | None:
        """The shipped device with the least memory that is enough."""
        sizes = {name: load_profile(name).device.memory_bytes for name in profile_names()}
        least_bytes = self._trials.before.peak_device_bytes
        large = [name for name in sizes if sizes[name] >= least_bytes]
        candidates = (
            Change(f"taking {name}", {"cluster.profile": name})
            for name in sorted(large, key=lambda name: (sizes[name], name))
        )
        found = islice(self._trials.of(candidates), _MOST_DEVICES)
        return self._first_in_full(trial for trial in found if trial.fits)

    def _fastest(self, found: Iterable[Trial]) -> Trial | None:
        """The fastest that fits with contention: no step is shorter than its replay without."""
        fitting = (trial for trial in found if trial.fits)
        best = None
        for replayed in sorted(fitting, key=lambda trial: trial.step_time_s):
            if best and best.step_time_s <= replayed.step_time_s:
                break
            in_full = self._first_in_full([replayed])
            if in_full and (best is None or in_full.step_time_s < best.step_time_s):
                best = in_full
        return best

    def _first_in_full(self, found: Iterable[Trial]) -> Trial | None:
        """The first that fits when it is simulated with contention, as the job will be."""
        in_full = self._in_full.of(trial.change for trial in found)
        return next((trial for trial in in_full if trial.fits), None)


def _offloads(trial: Trial) -> bool:
    return any(path.startswith("plan.offload") for path in trial.changes)


def _other_changes(job: Job) -> Iterator[Change]:
    """What is tried for speed: some of it fits, too, and may be the fastest that does."""
    for each in single_changes(job, Question.FASTER):
        if Question.SMALLER not in each.answers and each.keeps_learning:
            yield each


def _singles(trials: Trials) -> Iterable[Trial]:
    candidates = single_changes(trials.job, Question.SMALLER)
    return islice(trials.of(candidates), _MOST_SINGLES)


def _combined_changes(trials: Trials, singles: list[Trial], size: int) -> list[Change]:
    """Changes to several fields at once, the most promising first.

    Changes are expected to multiply their effects, on the step and on what each owner
    holds; that only orders the trials: what should fit comes first, fastest first, then the
    rest, smallest first.
    """
    held = held_bytes(trials.before)

    def promise(group: tuple[Trial, ...]) -> tuple[bool, float]:
        peak = _expected_peak_bytes(held, group)
        misses = peak > trials.allowed_bytes
        return misses, peak if misses else prod(trial.step_time_s for trial in group)

    helpful = [trial for trial in singles if trial.saved_bytes > 0]
    groups = [group for group in combinations(helpful, size) if _can_combine(trials.job, group)]
    if is_small_machine(trials.job):
        # There the ladder answers what is far from fitting.
        groups = [each for each in groups if not promise(each)[0]]
    promising = sorted(groups, key=promise)[:_MOST_COMBINATIONS]
    return [merged(trial.change for trial in group) for group in promising]


def _can_combine(job: Job, group: tuple[Trial, ...]) -> bool:
    """Whether the changes touch different fields and leave ranks for data parallelism."""
    fields = merged(trial.change for trial in group).fields
    names = ("tp", "pp", "cp")
    width = prod(fields.get(f"plan.{name}", getattr(job.plan, name)) for name in names)
    has_whole_ranks = job.cluster.gpus % width == 0
    return len(fields) == sum(len(trial.changes) for trial in group) and has_whole_ranks


def _expected_peak_bytes(before: Mapping[str, float], group: tuple[Trial, ...]) -> float:
    """A guess at what is held after all changes of the group [B]."""
    peak = 0.0
    owners = (before, *(trial.held_bytes for trial in group))
    for owner in dict.fromkeys(owner for held in owners for owner in held):
        held = before.get(owner, 0.0)
        after = [trial.held_bytes.get(owner, 0.0) for trial in group]
        peak += held * prod(num_bytes / held for num_bytes in after) if held else max(after)
    return peak


def what_ifs(job: Job, *, on_trial: OnTrial | None = None) -> tuple[Trial, ...]:
    """Changes on the GPUs there are, the largest gain first, simulated with contention.

    Doubling the microbatches also doubles the global batch, which decides what is learned; its
    gain says what the bubble and the reductions of a step cost.

    Raises:
        InputError: The job itself cannot run.
    """
    found = Trials(job, "des", on_trial).of(single_changes(job, Question.FASTER))
    return tuple(sorted(found, key=lambda each: -each.gain))
