"""What do people with one to eight GPUs do where a model does not fit, and what does it cost?

They go down a ladder: each rung asks more than the one above, and keeps what those above changed.
First whatever leaves training as it is: recompute, smaller microbatches, shards over the cards.
Then fewer bits of optimizer states, then adapters in place of all weights, on 16-bit and on 4-bit
ones, then the host's memory, and last of all shorter sequences. Once a rung fits, rungs above it
that it does not need are taken back, those that cost most first. Nobody is told to buy another
machine before the ladder ends.

The order is an assumption, taken from guides of Hugging Face, torchtune, axolotl and Unsloth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from simulator.described.job import Job
from simulator.planning.changes.single_changes import Change, merged
from simulator.planning.changes.trials import MUCH_SHORTER, Trial, Trials

_MOST_GPUS = 8
"""GPUs of what people call one machine."""
_RANK = 16
"""Rank of the adapters that are tried, as in the recipes of most frameworks."""
ADAPTER_RUNGS = ("LoRA", "QLoRA")
"""Rungs that train adapters in place of the model's weights."""
_MAY_BE_FASTER = ("QLoRA",)
"""Rungs that may make one above them needless, which costs more."""
_NOT_WORTH = 0.01
"""Share of the speed for which no rung is kept. Assumption."""
_LEAST_TOKENS = 512
"""Sequences are not cut below this. Assumption."""


@dataclass(frozen=True)
class Rung:
    """One step down.

    Attributes:
        name: What people call it.
        change: What it changes beside the rungs above.
    """

    name: str
    change: Change


@dataclass(frozen=True)
class Ladder:
    """What was tried on a small machine.

    Attributes:
        rungs: Their names, in order.
        trials: The job with each rung and all above it.
        answer: The first that fits, without rungs that it does not need; None where none does.
        faster: The same of a later rung, where its step is much shorter; None where none is.
    """

    rungs: tuple[str, ...]
    trials: tuple[Trial, ...]
    answer: Trial | None
    faster: Trial | None = None


def is_small_machine(job: Job) -> bool:
    """Whether a job runs on one node with a few GPUs of one kind."""
    cluster = job.cluster
    return cluster.nodes == 1 and cluster.gpus <= _MOST_GPUS and not cluster.pools


def ladder(trials: Trials) -> Ladder:
    """The rungs of a job on a small machine, simulated, down to the first that fits.

    Raises:
        InputError: The job itself cannot run.
    """
    names: list[str] = []
    tried: list[Trial] = []
    answer: Trial | None = None
    rungs = list(_rungs(trials.job))
    for rung, change in zip(rungs, _with_those_above(rungs), strict=True):
        if answer is not None and rung.name not in _MAY_BE_FASTER:
            continue
        found = next(iter(trials.of([change])), None)
        if found is None:
            continue  # not a choice that this job has
        names.append(rung.name)
        tried.append(found)
        if not found.fits:
            continue
        needed = _without_the_needless(trials, rungs, found)
        if answer is not None:
            is_faster = needed.step_time_s < MUCH_SHORTER * answer.step_time_s
            return Ladder(tuple(names), tuple(tried), answer, needed if is_faster else None)
        answer = needed
    return Ladder(tuple(names), tuple(tried), answer)


def _with_those_above(rungs: Sequence[Rung]) -> Iterator[Change]:
    return accumulate((rung.change for rung in rungs), lambda above, one: merged([above, one]))


def _without_the_needless(trials: Trials, rungs: Sequence[Rung], found: Trial) -> Trial:
    """The change without rungs that it fits without, and is no slower for it."""
    taken = [rung.change for rung in rungs if _is_part(rung.change, found)]
    best, again = found, True
    while again and len(taken) > 1:
        fewer = [[each for each in taken if each is not one] for one in taken[:-1]]
        others = [
            (trial, left)
            for left in fewer
            for trial in trials.of([merged(left)])
            if trial.fits and trial.gain >= best.gain - _NOT_WORTH
        ]
        again = bool(others)
        if others:
            best, taken = max(others, key=lambda pair: pair[0].gain)
    return best


def _is_part(change: Change, found: Trial) -> bool:
    """Whether a rung, or what a later one made of it, is among the changes of a trial."""
    return all(found.changes.get(path) == value for path, value in change.fields.items())


def training_changes(job: Job) -> Iterator[Change]:
    """The rungs that change how a model is trained, each alone; 4-bit weights need adapters."""
    adapters: list[Change] = []
    for rung in _training_rungs(job):
        if rung.name in ADAPTER_RUNGS:
            adapters.append(rung.change)
            yield merged(adapters)
        else:
            yield rung.change


def _training_rungs(job: Job) -> Iterator[Rung]:
    """Fewer bits of states, then adapters."""
    plan = job.plan
    if plan.optimizer == "adam":
        yield Rung("8-bit states", Change("8-bit Adam", {"plan.optimizer": "adam-8bit"}))
    if plan.lora is None:
        adapters = {"plan.lora.rank": _RANK}
        yield Rung("LoRA", Change(f"adapters of rank {_RANK} (LoRA)", adapters))
    if plan.lora is None or not plan.lora.is_quantised:
        quantised = {"plan.lora.base_precision": "nf4"}
        yield Rung("QLoRA", Change("4-bit frozen weights (QLoRA)", quantised))


def _rungs(job: Job) -> Iterator[Rung]:
    """What can be changed of a job, in the order of what it asks."""
    plan, batch = job.plan, job.batch
    if plan.recompute != "full":
        # Modules that only another kind has go with it.
        left: dict[str, object] = {"plan.recompute_modules": []} if plan.recompute_modules else {}
        fields = {"plan.recompute": "full", **left}
        yield Rung("recompute", Change("recomputing every layer", fields))
    if batch.micro_batch > 1:
        words = "one sequence at a time, with as many more microbatches"
        yield Rung("accumulation", Change(words, {"batch.micro": 1}))
    if job.dp > 1 and not job.choices.shards_weights:
        yield Rung("shards", Change("sharding over the GPUs (FSDP)", {"plan.zero": 3}))
    yield from _training_rungs(job)
    if not plan.offload.is_used:
        fields = {"plan.offload.activations": "cpu", "plan.recompute": "none"}
        yield Rung("offload", Change("activations in host memory", fields))
    length = batch.seq_len // 2
    while length >= _LEAST_TOKENS:
        yield Rung(
            f"{length} tokens", Change(f"sequences of {length} tokens", {"batch.seq_len": length})
        )
        length //= 2
