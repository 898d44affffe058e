"""Runs whose cause is known: what does diagnose say of each?

Of a random job, every change of the list is hidden in turn, in one of its sizes. What is measured
is the changed job's simulation times noise of its own for every quantity. Each of these runs is
diagnosed twice: with the list, and with a list that lacks what happened. Jobs that differ in what
no list holds (another batch, another layout) and runs that hide nothing are diagnosed too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import simulator as sim
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.planning.observed_run import (
    Observation,
    PhaseTimes,
    PredictionErrors,
    StepNumbers,
)
from simulator.planning.run_diagnosis import Diagnosis, Suspect, diagnose, suspects
from simulator.results.simulation import run_step
from simulator.results.step import StepResult

NOISE = 0.03
ERRORS = PredictionErrors(common=NOISE / 2, each=NOISE, memory=NOISE)
SEEN = ("step", "step and memory", "step, memory and phases")
NOTHING, LEFT_OUT, OTHER_JOB = "nothing", "a listed change, left out of the list", "another job"
_MODELS = ("opt-1.3b", "llama3.2-1b", "llama3.1-8b", "gpt2-xl", "mixtral-8x7b", "qwen1.5-moe-a2.7b")
_PROFILES = ("a100-sxm-80gb", "h100-sxm-80gb")
_PLANS: dict[str, tuple[object, ...]] = {
    "tp": (1, 2, 4, 8), "pp": (1, 2, 4), "ep": (1, 4, 8), "zero": (1, 1, 2, 3),
    "recompute": ("none", "selective", "full"),
    "stack": ("megatron-core", "megatron-core", "torchtitan", "deepspeed"),
}  # fmt: skip
_OTHER_JOBS: tuple[Mapping[str, int], ...] = (
    {"batch.micro": 2}, {"batch.seq_len": 8192}, {"batch.seq_len": 1024}, {"batch.global": 64},
    {"plan.tp": 1}, {"plan.tp": 4}, {"plan.pp": 1}, {"plan.pp": 2},
)  # fmt: skip
"""Wrong descriptions of a job, of which the list has none."""
_NOTHING_ODDS, _UNLISTED_SHARE, _RUNS_THAT_HIDE_NOTHING = 20.0, 0.25, 5


@dataclass(frozen=True)
class Verdict:
    """What was said of one run.

    Attributes:
        cause: What happened, in words of the list, or a kind of cause that is not on it.
        job_title: Of which job.
        seen: What was measured.
        is_visible: Whether the cause moves anything by more than the noise.
        rank: Place of the cause among the hypotheses, from 1; 0 if it is not one.
        right: The probability of what happened: a change, nothing, or something unlisted.
        wrong: Those of everything else.
        weight: How often this happens, beside other runs of the job.
    """

    cause: str
    job_title: str
    seen: str
    is_visible: bool
    rank: int
    right: float
    wrong: tuple[float, ...]
    weight: float

    @property
    def is_first(self) -> bool:
        """Whether what happened is said to be the likeliest."""
        return self.right > max(self.wrong)


def verdicts(num_jobs: int, seed: int) -> Iterator[list[Verdict]]:
    """All runs of one random job after another."""
    chance = random.Random(seed)
    made = 0
    while made < num_jobs:
        job = _random_job(chance)
        if job is not None and (before := run_step(job)).fits:
            yield list(_of_job(job, before, chance))
            made += 1


def _of_job(job: Job, before: StepResult, chance: random.Random) -> Iterator[Verdict]:
    tried = suspects(job, before)
    odds = math.fsum(suspect.hidden.odds for suspect in tried)
    unlisted = odds * _UNLISTED_SHARE / (1 - _UNLISTED_SHARE) / 2

    def said(after: StepNumbers, cause: str, weight: float, of: Sequence[Suspect]) -> None:
        is_visible = _largest_move(before, after) > NOISE
        for seen in SEEN:
            found = diagnose(job, before, of, _observed(after, seen, chance), ERRORS)
            made.append(_verdict(found, cause, seen, is_visible, weight))

    made: list[Verdict] = []
    for suspect in tried:
        _, _, after = chance.choice(suspect.sizes)
        said(after, suspect.hidden.words, suspect.hidden.odds, tried)
        others = [each for each in tried if each is not suspect]
        said(after, LEFT_OUT, unlisted / len(tried), others)
    others_ran = list(_other_jobs(job))
    for after in others_ran:
        said(after, OTHER_JOB, unlisted / len(others_ran), tried)
    same = StepNumbers.of(job, before)
    for _ in range(_RUNS_THAT_HIDE_NOTHING):
        said(same, NOTHING, _NOTHING_ODDS / _RUNS_THAT_HIDE_NOTHING, tried)
    yield from made


def _other_jobs(job: Job) -> Iterator[StepNumbers]:
    for fields in _OTHER_JOBS:
        try:
            changed = job.replace(fields)
        except InputError:
            continue  # nothing that this cluster could run
        if changed != job:
            yield StepNumbers.of(changed, run_step(changed))


def _verdict(found: Diagnosis, cause: str, seen: str, is_visible: bool, weight: float) -> Verdict:
    said = [found.nothing_probability, found.unlisted_probability]
    said += [each.probability for each in found.hypotheses]
    names = [NOTHING, "", *(each.words for each in found.hypotheses)]
    if cause in (LEFT_OUT, OTHER_JOB):
        place = 1
    else:
        place = next(number for number, name in enumerate(names) if name.startswith(cause))
    right = said.pop(place)
    rank = max(0, place - 1)
    return Verdict(cause, found.job.title, seen, is_visible, rank, right, tuple(said), weight)


def _random_job(chance: random.Random) -> Job | None:
    gpus = chance.choice((8, 16))
    document = {
        "model": chance.choice(_MODELS),
        "cluster": {"profile": chance.choice(_PROFILES), "gpus": gpus},
        "batch": {
            "global": chance.choice((1, 2)) * gpus,
            "micro": 1,
            "seq_len": chance.choice((2048, 4096)),
        },
    }  # fmt: skip
    plan = {f"plan.{name}": chance.choice(values) for name, values in _PLANS.items()}
    try:
        return sim.load_job(document, plan)
    except InputError:
        return None


def _observed(after: StepNumbers, seen: str, chance: random.Random) -> Observation:
    """What is measured of a run, with noise."""

    def noisy(value: float) -> float:
        return value * chance.lognormvariate(0, NOISE)

    memory = noisy(after.peak_reserved_bytes) if seen != SEEN[0] else None
    if seen != SEEN[-1]:
        return Observation(noisy(after.step_time_s), memory)
    phases = {category.value: noisy(s) for category, s in after.breakdown_s.items()}
    return Observation(math.fsum(phases.values()), memory, times=PhaseTimes(phases))


def _largest_move(before: StepResult, after: StepNumbers) -> float:
    """The largest change of anything that is measured, as a share of the step or of memory."""
    step_s = before.step_time_s
    categories = before.breakdown_s.keys() | after.breakdown_s.keys()
    moves = [
        abs(after.breakdown_s.get(each, 0.0) - before.breakdown_s.get(each, 0.0)) / step_s
        for each in categories
    ]
    return max(*moves, abs(after.peak_reserved_bytes / before.peak_reserved_bytes - 1))
