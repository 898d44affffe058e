"""How many small mistakes in the core would the tests notice?

``make mutants`` draws lines of the rooms at random, changes each in one place in a copy of the
repository, and runs the tests that reach it, the quickest first, until one fails. Tests with an
answer from elsewhere come first; what they all pass over is held against the golden results. A
run that is broken off goes on where it stopped, and one that is repeated judges survivors anew.

Why not mutmut or cosmic-ray: neither draws a sample with a seed, and both run one command for all
mutations. Here a draw can be repeated, and most of it is decided in seconds.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.covering import CoveringTests, covering_tests
from tests.mutants.judging import Outcome, copied, outcome
from tests.mutants.mutations import Mutation, mutated, mutations
from tests.mutants.report import report

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
ROOMS = ("cost", "program", "engine", "schedule", "results")

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
    chosen: Sequence[Drawn], tests: CoveringTests, copies: Sequence[Path], journal: Path
) -> Iterator[Outcome]:
    """The outcome of each mutation, those that the journal knows first.

    What survived is judged anew: there may be a new test for it.
    """
    left = {(path, each.line, each.after.strip()): (path, each) for path, each in chosen}
    for known in _noticed(journal):
        if left.pop((known.path, known.line, known.after), None):
            yield known
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def judged(each: Drawn) -> Outcome:
        copy = free.get()
        try:
            return outcome(copy, *each, tests)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool, journal.open("a", encoding="utf-8") as file:
        for found in pool.map(judged, left.values()):
            file.write(json.dumps(asdict(found)) + "\n")
            file.flush()
            yield found


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
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "mutants.md")
    given = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    copies = [copied(ROOT, BUILD / f"copy-{number}") for number in range(given.workers)]
    tests = covering_tests(copies[0], BUILD, ROOMS, given.workers)
    chosen = drawn(copies[0], ROOMS, given.count, given.seed)
    journal = BUILD / f"outcomes-{given.seed}.jsonl"
    found = []
    for each in outcomes(chosen, tests, copies, journal):
        found.append(each)
        noticed = each.noticed_by or "SURVIVED"
        print(f"{len(found)}/{len(chosen)} {each.path}:{each.line} {noticed}", flush=True)
        given.out.write_text(report(found, given.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
