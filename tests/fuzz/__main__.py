"""``make fuzz``: does any of a million hostile texts break a reader?

Every text follows from the seed, the reader and its number, so a finding can be repeated with
``python -m tests.fuzz --seed S --only READER --input NUMBER``. A run that is broken off goes on
where it stopped. Findings lie in ``build/fuzz/findings``, the smallest text of each cause with its
traceback.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.fuzz.attempts import SOUND, Attempt, Outcome, attempt, guarded_process
from tests.fuzz.readers import READERS
from tests.fuzz.samples import ROOT, Sample
from tests.fuzz.worker import COLUMNS, Block, Worker, text_of

BUILD = ROOT / "build" / "fuzz"
REPORT = ROOT / "reports" / "fuzz.md"
_BLOCK = 200


def blocks_of(count: int, seed: int, only: Sequence[str]) -> list[Block]:
    """All blocks of a run, readers mixed, so that one that is broken off has tried all of them."""
    readers = {
        name: reader.share
        for name, reader in READERS.items()
        if (not only or name in only) and find_spec(reader.needs or "sys") is not None
    }
    whole = sum(readers.values())
    blocks = []
    for name, share in readers.items():
        texts = max(1, round(count * share / whole))
        ends = [*range(_BLOCK, texts, _BLOCK), texts]
        blocks += [Block(name, end - (end - 1) % _BLOCK - 1, end) for end in ends]
    random.Random(seed).shuffle(blocks)
    return blocks


class Run:
    """A run with what it has found so far, kept in a file."""

    def __init__(self, count: int, seed: int, only: Sequence[str]) -> None:
        self.count, self.seed = count, seed
        self._state = BUILD / f"state-{seed}-{count}{'-only' if only else ''}.json"
        self.blocks = blocks_of(count, seed, only)
        self.tallies: dict[str, Counter[str]] = {}
        self.done: set[str] = set()
        self.causes: Counter[str] = Counter()
        if self._state.exists():
            kept = json.loads(self._state.read_text())
            self.tallies = {name: Counter(counts) for name, counts in kept["tallies"].items()}
            self.done, self.causes = set(kept["done"]), Counter(kept["causes"])

    def left(self) -> Iterator[Block]:
        """Blocks that are not done."""
        for block in self.blocks:
            if _key(block) not in self.done:
                yield block

    def finish(self, block: Block, tally: Counter[str]) -> None:
        """Count a block whose last text is done."""
        self.tallies.setdefault(block.reader, Counter()).update(tally)
        self.done.add(_key(block))

    def forget(self, reader: str) -> None:
        """Attempt the texts of a reader again: what broke it is mended."""
        self.tallies.pop(reader, None)
        self.done = {key for key in self.done if key.rpartition("/")[0] != reader}
        for cause in [cause for cause in self.causes if cause.startswith(f"{reader}: ")]:
            del self.causes[cause]

    def add(self, block: Block, number: int, found: Attempt, small: Sample) -> None:
        """Keep the text of a finding, unless there is a smaller one of the same cause."""
        name = f"{found.outcome}: {found.cause}"
        self.causes[f"{block.reader}: {name}"] += 1
        folder = BUILD / "findings" / block.reader
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        path = folder / f"{digest}-{small.name}"
        if path.exists() and path.stat().st_size <= len(small.content):
            return
        path.write_bytes(small.content)
        again = f"--seed {self.seed} --only {block.reader!r} --input {number}"
        (folder / f"{digest}.txt").write_text(
            f"{name}\n{again}\n{found.details}\n", errors="replace"
        )
        print(f"{block.reader} {number}: {name}", file=sys.stderr)

    def keep(self) -> None:
        """Write what is known, so that a run goes on from here."""
        kept = {"tallies": self.tallies, "done": sorted(self.done), "causes": self.causes}
        BUILD.mkdir(parents=True, exist_ok=True)
        draft = self._state.with_suffix(".draft")
        draft.write_text(json.dumps(kept))
        draft.replace(self._state)

    def table(self) -> str:
        """Counts by reader."""
        rows = [("reader", "inputs", *COLUMNS)]
        whole: Counter[str] = Counter()
        for name in sorted(self.tallies):
            tally = self.tallies[name]
            rows.append((name, f"{tally.total():,}", *(f"{tally[c]:,}" for c in COLUMNS)))
            whole.update(tally)
        rows.append(("all", f"{whole.total():,}", *(f"{whole[c]:,}" for c in COLUMNS)))
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|---" + "|---:" * (len(rows[0]) - 1) + "|", *lines[1:]])


def _key(block: Block) -> str:
    return f"{block.reader}/{block.first}"


def go_on(run: Run, workers: int, until: float) -> bool:
    """Attempt what is left with so many processes; True if all is done."""
    left = run.left()
    crew = [Worker(run.seed) for _ in range(workers)]
    for worker in crew:
        worker.give(next(left, None))
    kept = time.monotonic()
    while any(worker.block for worker in crew) and time.time() < until:
        ready = wait([w.connection for w in crew if w.block], timeout=1.0)
        for at, worker in enumerate(crew):
            if worker.block is not None and worker.connection in ready:
                crew[at] = _heard(run, worker, left)
            elif worker.block is not None and worker.hangs():
                worker.process.kill()
        if time.monotonic() - kept > 10.0:
            run.keep()
            kept = time.monotonic()
    for worker in crew:
        worker.process.kill()
    run.keep()
    return not any(run.left())


def _heard(run: Run, worker: Worker, left: Iterator[Block]) -> Worker:
    """What a process has said: a finding, or that its block is done, or nothing any more."""
    block = worker.block
    assert block is not None
    try:
        said: Any = worker.connection.recv()
    except (EOFError, OSError):
        return _buried(run, worker, block)
    if said is None:
        run.finish(block, worker.tally())
        worker.give(next(left, None))
    else:
        of, number, found, small = said
        run.add(of, number, found, small)
    return worker


def _buried(run: Run, worker: Worker, block: Block) -> Worker:
    """Another process for the rest of a block whose process was killed, by us or by the system."""
    number = worker.counts[-1]
    tally = worker.tally() + Counter({Outcome.HANG: 1})
    run.tallies.setdefault(block.reader, Counter()).update(tally)
    killed = Attempt(Outcome.HANG, "the process was killed")
    run.add(block, number, killed, text_of(run.seed, block.reader, number))
    fresh = Worker(run.seed)
    fresh.give(block._replace(first=number + 1))
    return fresh


def report(run: Run, *, is_whole: bool) -> str:
    """The page ``reports/fuzz.md``."""
    attempted = sum(tally.total() for tally in run.tallies.values())
    state = "" if is_whole else f" The run was stopped there, of {run.count:,}."
    return (
        "# Hostile inputs\n\n"
        "Written by `make fuzz`. Each input is a file or text that the project reads, changed at\n"
        "random in bytes, words, lines or values, and read in a process that is given ten seconds\n"
        "and one gigabyte. It is accepted, or refused with a reason; nothing else may happen.\n"
        "*Refused late* is a job that was accepted and then refused where it was simulated;\n"
        "*executed* is a program that an input asked to start.\n\n"
        f"{attempted:,} inputs, seed {run.seed}, Python {platform.python_version()}.{state}\n\n"
        f"{run.table()}\n"
    )


def main() -> None:
    """Run, or repeat one input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--only", action="append", default=[], metavar="READER")
    parser.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="READER",
        help="attempt what was done of it once more",
    )
    parser.add_argument("--input", type=int, help="repeat one input of --only, in this process")
    parser.add_argument("--report", type=Path, default=None, help="write the page here")
    asked = parser.parse_args()
    if asked.input is not None:
        _repeat(asked.seed, asked.only[0], asked.input)
        return
    print(f"seed {asked.seed}", file=sys.stderr)
    run = Run(asked.count, asked.seed, asked.only)
    for reader in asked.again:
        run.forget(reader)
    is_whole = go_on(run, asked.workers, time.time() + 60 * asked.minutes)
    print(run.table())
    if asked.report is not None:
        asked.report.write_text(report(run, is_whole=is_whole), encoding="utf-8")
    sys.exit(any(set(tally) - SOUND for tally in run.tallies.values()))


def _repeat(seed: int, reader: str, number: int) -> None:
    sample = text_of(seed, reader, number)
    print(sample.content.decode(errors="replace"))
    with tempfile.TemporaryDirectory() as folder, guarded_process(Path(folder)):
        print(*attempt(reader, sample), sep="\n")


if __name__ == "__main__":
    main()
