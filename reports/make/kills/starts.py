"""What do two sweeps do that start at the same moment with one ``--out``?

Both are forks of a process that has loaded everything, and leave a barrier together, so that
they meet in the microseconds in which a journal is opened, locked, read, cut and written.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random

from reports.make.kills.killed_commands import write_inputs
from reports.make.kills.trials import fresh
from simulator.cli.app import main

_WORDS = (
    "sweep", "job.yaml", "--grid", "plan.tp=1,2,4", "--workers", "1", "--out", "out.csv",
)  # fmt: skip
_REFUSED = "is being written by another sweep"


def two_starts(folder: Path, random: Random, *, is_fresh: bool = False) -> str:
    """Start two sweeps at once, where an earlier one may have left part of a journal.

    Args:
        folder: For their files.
        random: How much of a journal there is.
        is_fresh: Whether both are told to drop it.

    Returns:
        ``one refused`` or ``both ended``; anything else is a fault.
    """
    fresh(folder)
    write_inputs(folder)
    alone = _sweep(folder)
    wanted, whole = (folder / "out.csv").read_bytes(), (folder / "out.csv.journal").read_bytes()
    if alone[0]:
        return f"cannot run: {alone[1]}"
    (folder / "out.csv").unlink()
    (folder / "out.csv.journal").write_bytes(whole[: random.randrange(len(whole) + 1)])
    ends = _both(folder, ["--fresh"] if is_fresh else [])
    refused = sum(code == 2 and _REFUSED in said for code, said in ends)
    if any(code and _REFUSED not in said for code, said in ends) or refused == len(ends):
        return f"ended otherwise: {ends}"
    code, said = _sweep(folder)
    if code or (folder / "out.csv").read_bytes() != wanted:
        return f"not resumed: {said}"
    lines = (folder / "out.csv.journal").read_bytes().splitlines()
    numbers = sorted(json.loads(line)["number"] for line in lines[1:])
    if numbers != [0, 1, 2]:
        return f"rows {numbers}"
    return "one refused" if refused else "both ended"


def _both(folder: Path, more: list[str]) -> list[tuple[int, str]]:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    ends, processes = [], []
    for _ in range(2):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(folder, more, barrier, theirs))
        process.start()
        ends.append(ours)
        processes.append(process)
    outcomes: list[tuple[int, str]] = [end.recv() for end in ends]
    for process in processes:
        process.join()
    return outcomes


def _child(folder: Path, more: list[str], barrier: Barrier, answer: Connection) -> None:
    barrier.wait()
    answer.send(_sweep(folder, more))


def _sweep(folder: Path, more: list[str] | None = None) -> tuple[int, str]:
    """Exit code of a sweep and what it said."""
    said = io.StringIO()
    with chdir(folder), redirect_stdout(said), redirect_stderr(said):
        try:
            main([*_WORDS, *(more or [])])
        except SystemExit as ended:
            return int(ended.code or 0), said.getvalue()
    return 0, said.getvalue()


if __name__ == "__main__":
    dice = Random(int(sys.argv[3]))
    for number in range(int(sys.argv[2])):
        print(two_starts(Path(sys.argv[1]), dice, is_fresh=number % 4 == 3), flush=True)
