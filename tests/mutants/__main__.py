"""How many small mistakes in the core would the tests notice?

``make mutants`` draws lines of the rooms at random, changes each in one place in a copy of the
repository, and runs tests until one fails: the golden results, then the tests of the nearest files,
by imports, then those of files further away. With ``--oracles`` golden results do not count, which
notice that a number moved and not which one is right. A run that is broken off goes on where it
stopped, and one that is repeated judges survivors anew.

Why not mutmut or cosmic-ray: neither draws a sample with a seed, and both run one command for all
mutations. Here a draw can be repeated, and most of it is decided in seconds. Why not by coverage:
to know which tests reach a line takes a run of all of them, traced, after every change.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from tests.mutants.judging import Judge, Outcome, copied
from tests.mutants.mutations import Mutation, mutated, mutations
from tests.mutants.nearest import importers, nearest_tests
from tests.mutants.report import report

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
ROOMS = ("cost", "program", "engine", "schedule", "results")

_own: dict[str, Judge] = {}
"""What a process has for itself."""

Drawn = tuple[str, Mutation]
"""Path of a file from the root of the repository, and one of its mutations."""


def drawn(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[Drawn]:
    """So many lines of the rooms at random, each with one of its mutations."""
    sources = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for room in rooms
        for path in sorted((root / "simulator" / room).rglob("*.py"))
    }
    choices: defaultdict[tuple[str, int], list[Mutation]] = defaultdict(list)
    for path, source in sources.items():
        for mutation in mutations(source):
            choices[path, mutation.line].append(mutation)
    generator = random.Random(seed)
    lines = generator.sample(list(choices), min(count, len(choices)))
    found = [(path, generator.choice(choices[path, line])) for path, line in lines]
    return [(path, mutation) for path, mutation in found if _parses(sources[path], mutation)]


def _parses(source: str, mutation: Mutation) -> bool:
    try:
        ast.parse(mutated(source, mutation))
    except SyntaxError:
        return False
    return True


def outcomes(
    chosen: Sequence[Drawn], copies: Sequence[Path], journal: Path, *, asks_golden: bool
) -> Iterator[Outcome]:
    """The outcome of each mutation, those that the journal knows first.

    What survived is judged anew: there may be a new test for it.
    """
    left = {(path, each.line, each.after.strip()): (path, each) for path, each in chosen}
    for known in _noticed(journal):
        if left.pop((known.path, known.line, known.after), None):
            yield known
    imported_by = importers(copies[0])
    context = get_context("fork")
    free = context.SimpleQueue()
    for copy in copies:
        free.put(copy)
    with (
        ProcessPoolExecutor(len(copies), context, _begin, (free,)) as pool,
        journal.open("a", encoding="utf-8") as file,
    ):
        judged = [
            pool.submit(_judged, path, each, nearest_tests(path, imported_by), asks_golden)
            for path, each in left.values()
        ]
        for done in as_completed(judged):
            file.write(json.dumps(asdict(done.result())) + "\n")
            file.flush()
            yield done.result()


def _begin(free: SimpleQueue[Path]) -> None:
    """Each process works in a copy of its own, which is sound before anything is changed.

    Raises:
        RuntimeError: Golden results of the copy are not those that were kept.
    """
    _own["judge"] = judge = Judge(free.get())
    if failed := judge.golden_failure(lambda: None):
        raise RuntimeError(f"{failed} fails without any mistake")


def _judged(path: str, mutation: Mutation, tests: Sequence[str], asks_golden: bool) -> Outcome:
    return _own["judge"].outcome(path, mutation, tests, asks_golden=asks_golden)


def _noticed(journal: Path) -> list[Outcome]:
    if not journal.exists():
        return []
    lines = journal.read_text(encoding="utf-8").splitlines()
    known = [Outcome(**json.loads(line)) for line in lines]
    return [each for each in known if not each.survived]


def main() -> None:
    """Draw, judge and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=200, help="lines to draw")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--workers", type=int, default=2, help="mutations at a time")
    parser.add_argument("--oracles", action="store_true", help="without golden results")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "mutants.md")
    given = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    copies = [copied(ROOT, BUILD / f"copy-{number}") for number in range(given.workers)]
    chosen = drawn(copies[0], ROOMS, given.count, given.seed)
    journal = BUILD / f"outcomes-{given.seed}{'-oracles' if given.oracles else ''}.jsonl"
    found = []
    for each in outcomes(chosen, copies, journal, asks_golden=not given.oracles):
        found.append(each)
        noticed = each.noticed_by or "SURVIVED"
        print(f"{len(found)}/{len(chosen)} {each.path}:{each.line} {noticed}", flush=True)
        given.out.write_text(report(found, given.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
