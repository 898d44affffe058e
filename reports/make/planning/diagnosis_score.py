"""How often does diagnose find what a run hides? Jobs drawn at random, one change hidden in each.

The hidden change is one of the list, in one of its sizes. What is measured is the changed job's
simulation times noise of its own for every quantity. A change that moves nothing by more than the
noise cannot be seen by anybody; such draws are counted apart.

A second table takes real runs of one source that differ in one thing: the job is that of one of
them, the measured step is the other's, brought to the scale on which the first was predicted
right, as a calibrated profile does.

    python -m reports.make.planning.diagnosis_score 200 > reports/diagnosis.md
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import simulator as sim
from simulator.cells import Row, read_table
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.observed_run import (
    Observation,
    PhaseTimes,
    PredictionErrors,
    StepNumbers,
)
from simulator.planning.run_diagnosis import HiddenChange, Suspect, diagnose, suspects
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import read_rows

NOISE = 0.03
ERRORS = PredictionErrors(common=NOISE / 2, each=NOISE, memory=NOISE)
SEEN = ("step", "step and memory", "step, memory and phases")
_CHANGES_PER_JOB = 4
"""Runs of one job, each hiding another change: simulating what might be hidden costs most."""
_DATA = Path(__file__).parents[2] / "data"
_TABLES = ("runs_open.csv", "runs_opened.csv")
_MODELS = ("opt-1.3b", "llama3.2-1b", "llama3.1-8b", "gpt2-xl", "mixtral-8x7b", "qwen1.5-moe-a2.7b")
_PROFILES = ("a100-sxm-80gb", "h100-sxm-80gb")
_PLANS: dict[str, tuple[object, ...]] = {
    "tp": (1, 2, 4, 8), "pp": (1, 2, 4), "ep": (1, 4, 8), "zero": (1, 1, 2, 3),
    "recompute": ("none", "selective", "full"),
    "stack": ("megatron-core", "megatron-core", "torchtitan", "deepspeed"),
}  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """A job, and what its run hides.

    Attributes:
        job: As the user describes it.
        hidden: What it does without saying.
        rank: Place of that among the hypotheses, from 1, by what was seen; 0 if it is not one.
        is_visible: Whether it moves anything by more than the noise.
    """

    job: Job
    hidden: HiddenChange
    rank: dict[str, int]
    is_visible: bool


def draws(seed: int) -> Iterator[Draw]:
    """Jobs that fit, each several times with one hidden change that it can have, without end."""
    chance = random.Random(seed)
    while True:
        job = _random_job(chance)
        if job is None:
            continue
        before = run_step(job)
        if not before.fits:
            continue
        tried = suspects(job, before)
        for suspect in chance.sample(tried, min(_CHANGES_PER_JOB, len(tried))):
            _, _, after = chance.choice(suspect.sizes)
            rank = {
                seen: _rank(job, before, tried, suspect.hidden, _observed(after, seen, chance))
                for seen in SEEN
            }
            yield Draw(job, suspect.hidden, rank, _largest_move(before, after) > NOISE)


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


def _rank(
    job: Job,
    before: StepResult,
    tried: Sequence[Suspect],
    hidden: HiddenChange,
    observation: Observation,
) -> int:
    found = diagnose(job, before, tried, observation, ERRORS).hypotheses
    places = [place for place, each in enumerate(found, 1) if each.words.startswith(hidden.words)]
    return places[0] if places else 0


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


@dataclass(frozen=True)
class Pair:
    """Two real runs of one source that differ in one thing.

    Attributes:
        described, ran: Their rows.
        change: What the second does otherwise.
        rank: Place of that among the hypotheses, from 1; 0 if it is not one.
        first: The likeliest hypothesis.
    """

    described: str
    ran: str
    change: str
    rank: int
    first: str


def real_pairs(rows: Mapping[str, Row], pairs: Sequence[Row]) -> Iterator[Pair]:
    """Every pair, diagnosed from the step, and from the memory where both say it."""
    for pair in pairs:
        described, ran = rows[pair["described"]], rows[pair["ran"]]
        job = job_from_document(job_document(described))
        before = run_step(job)
        memory = _memory_bytes(described, ran, before)
        step_s = before.step_time_s * _ratio(described, ran, "measured_step_s")
        observation = Observation(step_s, memory)
        found = diagnose(job, before, suspects(job, before), observation, ERRORS).hypotheses
        change = pair["change"]
        places = [place for place, each in enumerate(found, 1) if each.words.startswith(change)]
        rank = places[0] if places else 0
        yield Pair(described["id"], ran["id"], change, rank, found[0].words)


def _ratio(described: Row, ran: Row, column: str) -> float:
    return float(ran[column]) / float(described[column])


def _memory_bytes(described: Row, ran: Row, before: StepResult) -> float | None:
    if not described["measured_mem_gib"] or not ran["measured_mem_gib"]:
        return None
    return before.peak_reserved_bytes * _ratio(described, ran, "measured_mem_gib")


def main(count: int, seed: int = 1) -> None:
    """Print the page."""
    found: list[Draw] = []
    for draw in draws(seed):
        found.append(draw)
        print(f"{len(found)} of {count}", file=sys.stderr)
        if len(found) == count:
            break
    print("# What diagnose finds\n")
    jobs = len({id(draw.job) for draw in found})
    print(f"{count} runs of {jobs} random jobs. Each hides one change,")
    print(f"and everything measured has {NOISE:.0%} noise.")
    print("A change is *visible* if it moves any measured quantity by more than the noise.\n")
    print("| what was measured | first | among the first three | of the visible ones |")
    print("|---|---:|---:|---:|")
    visible = [draw for draw in found if draw.is_visible]
    for seen in SEEN:
        first = sum(draw.rank[seen] == 1 for draw in found) / len(found)
        third = sum(1 <= draw.rank[seen] <= 3 for draw in found) / len(found)
        clear = sum(1 <= draw.rank[seen] <= 3 for draw in visible) / max(1, len(visible))
        print(f"| {seen} | {first:.0%} | {third:.0%} | {clear:.0%} |")
    missed = [draw for draw in visible if not 1 <= draw.rank[SEEN[-1]] <= 3]
    seldom = "Not among the first three, of these" if missed else (
        "All of them are among the first three where phases were measured."
    )  # fmt: skip
    print(f"\nVisible: {len(visible)} of {count}. {seldom}\n")
    for draw in missed:
        print(f"- {draw.hidden.words}: place {draw.rank[SEEN[-1]]}, {draw.job.title}")
    _print_pairs()


def _print_pairs() -> None:
    rows = {row["id"]: row for name in _TABLES for row in read_rows(_DATA / name)}
    pairs = list(real_pairs(rows, read_table(_DATA / "hidden_change_pairs.csv", ())))
    told = sum(1 <= pair.rank <= 3 for pair in pairs)
    print(f"\n## Real pairs\n\nAmong the first three: {told} of {len(pairs)}.\n")
    print("| described | ran | what it does otherwise | place | likeliest |")
    print("|---|---|---|---:|---|")
    for pair in pairs:
        print(f"| {pair.described} | {pair.ran} | {pair.change} | {pair.rank} | {pair.first} |")


if __name__ == "__main__":
    main(int(sys.argv[1]))
