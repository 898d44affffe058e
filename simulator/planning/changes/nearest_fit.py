"""Which change makes a job fit, and how long would its step take?

Nothing is guessed: whatever is reported was simulated and did fit. Changes are tried in
the order of what they ask of the user:

1. one change of the plan or the microbatch, on the GPUs there are;
2. two of them, then three;
3. more GPUs of the same kind, alone or with one change;
4. another device with more memory.

The first of these that yields anything ends the search; only where one change is enough, two are
tried all the same, and told of where their step is much shorter. Model, global batch, sequence
length and number formats stay as they are, because they decide what is learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice
from math import prod
from typing import NamedTuple

from simulator.described.job import Job
from simulator.described.load import load_profile, profile_names
from simulator.described.plan.plan import Recompute
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError
from simulator.planning.changes.recompute_change import recompute_change
from simulator.planning.search.feasible import (
    MIN_TOKENS_PER_CONTEXT_RANK,
    is_data_parallel_only,
    still_shards,
)
from simulator.planning.search.space import divisors
from simulator.results.simulation import Engine, run_step

Changes = Mapping[str, object]
"""New values by dotted field path, as :meth:`Job.replace` takes them."""

_MOST_SINGLES, _MOST_PAIRS, _MOST_TRIPLES, _MOST_WITH_MORE_GPUS, _MOST_DEVICES = 25, 12, 9, 15, 3
MOST_TRIED = _MOST_SINGLES + _MOST_PAIRS + _MOST_TRIPLES + _MOST_WITH_MORE_GPUS + _MOST_DEVICES
"""Jobs that one search simulates at most."""

_MOST_COMBINATIONS = 50
"""Pairs, or triples, that are looked at; some of them turn out to break a rule."""

_VALUES_PER_FIELD = 4
"""New values of one field that are tried, the nearest ones."""
_MORE_GPUS = (2, 4, 8)
_OFFLOADED = {
    "optimizer": ("optimizer",), "infinity": ("optimizer",), "shards": ("optimizer", "parameters"),
}  # fmt: skip
"""What leaves the GPU first, by what the stack can move."""
_MUCH_SHORTER = 0.95
"""Share of the step with one change that a second one must get below. Assumption."""
_RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class NearestFit:
    """A change that makes the job fit.

    Attributes:
        changes: New values by dotted path, ready for :meth:`Job.replace`.
        step_time_s: Step of the changed job [s].
        peak_device_bytes: What its fullest GPU holds [B].
    """

    changes: Changes
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


class Trial(NamedTuple):
    """A simulated change."""

    changes: Changes
    step_time_s: float
    peak_device_bytes: float
    capacity_bytes: float
    held_bytes: Mapping[str, float]
    """Who holds the peak; sums to ``peak_device_bytes``."""
    host_fits: bool = True
    """Whether the fullest node has room for what is offloaded."""

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU has room for it, and so has the node."""
        return self.peak_device_bytes <= self.capacity_bytes and self.host_fits


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
    return _Search(job).run()


def single_trials(job: Job) -> tuple[Trial, Iterator[Trial]]:
    """The job itself, simulated, and every change of one field on the GPUs there are.

    Raises:
        InputError: The job itself cannot run.
    """
    search = _Search(job)
    return search.base, islice(search.trials(_single_changes(job)), _MOST_SINGLES)


class _Search:
    """Tries changes of one job and counts them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tried = 0
        self.base = _simulate(job, {})

    def run(self) -> FitSearch:
        singles = list(islice(self.trials(_single_changes(self.job)), _MOST_SINGLES))
        one, two = self._fastest(singles), self._combined(singles, 2, _MOST_PAIRS)
        best = (
            one
            or two
            or self._combined(singles, 3, _MOST_TRIPLES)
            or self._on_more_gpus()
            or self._on_another_device()
        )
        is_faster = one and two and two.step_time_s < _MUCH_SHORTER * one.step_time_s
        return FitSearch(_found(best), self.tried, _found(two if is_faster else None))

    def _combined(self, singles: list[Trial], size: int, most: int) -> Trial | None:
        candidates = _combined_changes(self.job, self.base, singles, size)
        return self._fastest(islice(self.trials(candidates), most))

    def _on_more_gpus(self) -> Trial | None:
        """The fewest GPUs that help, and what is fastest on them."""
        for factor in _MORE_GPUS:
            trials = self.trials(_changes_with_more_gpus(self.job, factor))
            best = self._fastest(islice(trials, _MOST_WITH_MORE_GPUS // len(_MORE_GPUS)))
            if best is not None:
                return best
        return None

    def _on_another_device(self) -> Trial | None:
        """The device with the least memory that is enough."""
        trials = self.trials({"cluster.profile": name} for name in _larger_devices(self.base))
        return self._first_in_full(trial for trial in islice(trials, _MOST_DEVICES) if trial.fits)

    def _fastest(self, trials: Iterable[Trial]) -> Trial | None:
        fitting = (trial for trial in trials if trial.fits)
        return self._first_in_full(sorted(fitting, key=lambda trial: trial.step_time_s))

    def _first_in_full(self, trials: Iterable[Trial]) -> Trial | None:
        """The first that fits when it is simulated with contention, as the job will be."""
        full = (_simulate(self.job.replace(t.changes), t.changes, "des") for t in trials)
        return next((trial for trial in full if trial.fits), None)

    def trials(self, candidates: Iterable[Changes]) -> Iterator[Trial]:
        """The candidates simulated one by one; those that cannot run are left out."""
        for changes in candidates:
            try:
                changed = self.job.replace(changes)
                if not _can_shard(changed, changes, self.job):
                    continue
                trial = _simulate(changed, changes)
            except InputError:
                continue
            self.tried += 1
            yield trial


def _found(trial: Trial | None) -> NearestFit | None:
    if trial is None:
        return None
    return NearestFit(trial.changes, trial.step_time_s, trial.peak_device_bytes)


def _simulate(job: Job, changes: Changes, engine: Engine = "replay") -> Trial:
    step = run_step(job, engine)
    fullest = step.fullest
    peak = fullest.peak_device_bytes
    held = {owner.value: num_bytes for owner, num_bytes in fullest.by_owner.items()}
    held["allocator and context"] = peak - fullest.peak_allocated_bytes
    host_fits = step.host is None or step.host.fits
    return Trial(changes, step.step_time_s, peak, step.capacity_bytes, held, host_fits)


def _can_shard(changed: Job, changes: Changes, job: Job) -> bool:
    """Whether the stack shards as the plan says, and a new ZeRO stage has ranks to use."""
    if "plan.zero" in changes and changed.dp * changed.plan.cp == 1:
        return False
    return still_shards(changed, job)


def _single_changes(job: Job) -> Iterator[Changes]:
    """Every change of one field on the GPUs that there are."""
    yield from _kept_changes(job)
    yield from _degree_changes(job, divisors(job.dp)[1:])


def _changes_with_more_gpus(job: Job, factor: int) -> Iterator[Changes]:
    """The new GPUs spent on a model-parallel degree, or on data parallelism."""
    gpus = {"cluster.gpus": job.cluster.gpus * factor}
    for change in ({}, *_degree_changes(job, [factor]), *reversed(list(_kept_changes(job)))):
        yield {**gpus, **change}


def _kept_changes(job: Job) -> Iterator[Changes]:
    """Changes that leave every parallel degree as it is."""
    plan, micro = job.plan, job.batch.micro_batch
    for recompute in _RECOMPUTE[_RECOMPUTE.index(plan.recompute) + 1 :]:
        yield recompute_change(plan, recompute)
    for smaller in divisors(micro)[-2::-1][:_VALUES_PER_FIELD]:
        yield {"batch.micro": smaller}
    for stage in range(plan.zero + 1, 4):
        yield {"plan.zero": stage}
    offloads = job.choices.offloads
    if not plan.offload.is_used and offloads != "nothing":
        yield {f"plan.offload.{what}": "cpu" for what in _OFFLOADED[offloads]}


def _degree_changes(job: Job, factors: list[int]) -> Iterator[Changes]:
    """Model-parallel degrees multiplied by one of the factors, all but ep taken from dp."""
    plan, model, network = job.plan, job.model, job.cluster.profile.network
    if is_data_parallel_only(job):
        return
    most = {
        "tp": network.scale_up.gpus,
        "pp": model.layers // plan.vpp,
        "cp": job.batch.seq_len // MIN_TOKENS_PER_CONTEXT_RANK,
        "ep": model.experts.count if model.experts else 0,
    }
    for degree, limit in most.items():
        grown = [getattr(plan, degree) * factor for factor in factors]
        for value in [value for value in grown if value <= limit][:_VALUES_PER_FIELD]:
            yield {f"plan.{degree}": value}


def _combined_changes(job: Job, base: Trial, singles: list[Trial], size: int) -> list[Changes]:
    """Changes to several fields at once, the most promising first.

    Changes are expected to multiply their effects, on the step and on what each owner
    holds; that only orders the trials: what should fit comes first, fastest first, then the
    rest, smallest first.
    """

    def promise(group: tuple[Trial, ...]) -> tuple[bool, float]:
        peak = _expected_peak_bytes(base, group)
        misses = peak > base.capacity_bytes
        return misses, peak if misses else prod(trial.step_time_s for trial in group)

    helpful = [trial for trial in singles if trial.peak_device_bytes < base.peak_device_bytes]
    groups = [group for group in combinations(helpful, size) if _can_combine(job, group)]
    promising = sorted(groups, key=promise)[:_MOST_COMBINATIONS]
    return [_merged(group) for group in promising]


def _merged(group: tuple[Trial, ...]) -> Changes:
    return {path: value for trial in group for path, value in trial.changes.items()}


def _can_combine(job: Job, group: tuple[Trial, ...]) -> bool:
    """Whether the changes touch different fields and leave ranks for data parallelism."""
    changes = _merged(group)
    names = ("tp", "pp", "cp")
    degrees = (changes.get(f"plan.{name}", getattr(job.plan, name)) for name in names)
    width = prod(degree for degree in degrees if isinstance(degree, int))
    has_whole_ranks = job.cluster.gpus % width == 0
    return len(changes) == sum(len(trial.changes) for trial in group) and has_whole_ranks


def _expected_peak_bytes(base: Trial, group: tuple[Trial, ...]) -> float:
    """A guess at what is held after all changes of the group [B]."""
    peak = 0.0
    for owner in dict.fromkeys(owner for trial in (base, *group) for owner in trial.held_bytes):
        before = base.held_bytes.get(owner, 0.0)
        after = [trial.held_bytes.get(owner, 0.0) for trial in group]
        peak += before * prod(num_bytes / before for num_bytes in after) if before else max(after)
    return peak


def _larger_devices(base: Trial) -> list[str]:
    """Shipped profiles whose memory would hold the job, least memory first."""
    sizes = {name: load_profile(name).device.memory_bytes for name in profile_names()}
    large = [name for name in sizes if sizes[name] >= base.peak_device_bytes]
    return sorted(large, key=lambda name: (sizes[name], name))
