"""How often does diagnose find what a run hides, and does what it says is probable happen?

Three tables over runs of random jobs whose cause is known: one of the list, one that the list
lacks, or none. Probabilities that were said stand beside how often what they were said of was so;
each run counts as often as its cause is assumed to happen.

A fourth table takes real runs of one source that differ in one thing: the job is that of one of
them, the measured step is the other's, brought to the scale on which the first was predicted
right, as a calibrated profile does.

    python -m reports.make.planning.diagnosis_score 30 > reports/diagnosis.md
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from reports.make.planning.diagnosis_trials import (
    ERRORS,
    LEFT_OUT,
    NOISE,
    NOTHING,
    OTHER_JOB,
    SEEN,
    Verdict,
    verdicts,
)
from simulator.cells import Row, read_table
from simulator.described.load import job_from_document
from simulator.planning.observed_run import Observation
from simulator.planning.run_diagnosis import diagnose, suspects
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import read_rows

_DATA = Path(__file__).parents[2] / "data"
_TABLES = ("runs_open.csv", "runs_opened.csv")
_BINS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95, 0.99, 1.0)
_MOST_MISSED = 10


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


def main(num_jobs: int, seed: int = 1) -> None:
    """Print the page."""
    found: list[Verdict] = []
    for number, some in enumerate(verdicts(num_jobs, seed), 1):
        found += some
        print(f"{number} of {num_jobs} jobs", file=sys.stderr)
    print("# What diagnose finds\n")
    print(f"{len(found) // len(SEEN)} runs of {num_jobs} random jobs.")
    print(f"Everything measured has {NOISE:.0%} noise.")
    print("A cause is *visible* if it moves any measured quantity by more than the noise.\n")
    _print_listed(found)
    _print_unlisted(found)
    _print_calibration(found)
    _print_pairs()


def _print_listed(found: Sequence[Verdict]) -> None:
    listed = [each for each in found if each.cause not in (NOTHING, LEFT_OUT, OTHER_JOB)]
    print("## A change of the list\n")
    print("| what was measured | first | among the first three | of the visible ones |")
    print("|---|---:|---:|---:|")
    for seen in SEEN:
        some = [each for each in listed if each.seen == seen]
        visible = [each for each in some if each.is_visible]
        first = sum(each.rank == 1 for each in some) / len(some)
        third, clear = (sum(each.rank <= 3 for each in of) / len(of) for of in (some, visible))
        print(f"| {seen} | {first:.0%} | {third:.0%} | {clear:.0%} |")
    of_phases = [each for each in listed if each.seen == SEEN[-1] and each.is_visible]
    missed = [each for each in of_phases if each.rank > 3]
    counted = f"{len(missed)} of {len(of_phases)}"
    print(f"\nVisible with phases, and not among the first three, {counted}:\n")
    for each in sorted(missed, key=lambda each: -each.rank)[:_MOST_MISSED]:
        print(f"- {each.cause}: place {each.rank}, {each.job_title}")


def _print_unlisted(found: Sequence[Verdict]) -> None:
    print("\n## A cause that is not on the list\n")
    print("Of visible causes, how probable *something that is not on the list* is said to be, how")
    print("often that is the likeliest answer, and how often another one is said to be all but")
    print("certain (99 %).\n")
    print("| cause | what was measured | runs | probability | likeliest | wrong and certain |")
    print("|---|---|---:|---:|---:|---:|")
    for cause in (LEFT_OUT, OTHER_JOB):
        for seen in SEEN:
            some = [v for v in found if (v.cause, v.seen) == (cause, seen) and v.is_visible]
            shares = (
                math.fsum(each.right for each in some) / len(some),
                sum(each.is_first for each in some) / len(some),
                sum(max(each.wrong) > _BINS[-2] for each in some) / len(some),
            )
            words = " | ".join(f"{share:.0%}" for share in shares)
            print(f"| {cause} | {seen} | {len(some)} | {words} |")


def _print_calibration(found: Sequence[Verdict]) -> None:
    """Probabilities that were said, by size, beside how often what they were said of was so."""
    print("\n## Probabilities that were said, and what happened\n")
    print("Of all answers: each change, nothing, something unlisted. In brackets: the mean said.")
    print("Each run counts as often as its cause is assumed to happen, so the table holds the")
    print("likelihoods to account, not that assumption.\n")
    print("| said | " + " | ".join(f"happened, by {seen}" for seen in SEEN) + " |")
    print("|---|" + "---:|" * len(SEEN))
    for low, high in pairwise(_BINS):
        columns = [
            _said_and_happened([each for each in found if each.seen == seen], low, high)
            for seen in SEEN
        ]
        print(f"| {low:.0%} to {high:.0%} | " + " | ".join(columns) + " |")


def _said_and_happened(found: Sequence[Verdict], low: float, high: float) -> str:
    answers = [
        (said, so, each.weight)
        for each in found
        for said, so in ((each.right, 1.0), *((wrong, 0.0) for wrong in each.wrong))
        if low <= said < high or said == high == 1
    ]
    weight = math.fsum(weight for _, _, weight in answers)
    if not weight:
        return ""
    said, happened = (
        math.fsum(answer[place] * answer[2] for answer in answers) / weight for place in (0, 1)
    )
    return f"{happened:.1%} ({said:.1%})"


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
