"""The page on kills: ``python -m reports.make.kills.kills_page KILLS STARTS KEPT.json``.

Random moments come from a seed, so that what is found can be looked for again; when a process is
hit still depends on the machine. Finished parts are kept in a file, so that a run of half an
hour that was itself killed goes on there.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from reports.make.kills import dask_trials
from reports.make.kills.dying import POINTS
from reports.make.kills.killed_commands import COMMANDS, SWEEP_ALONE, KilledCommand
from reports.make.kills.starts import two_starts
from reports.make.kills.trials import (
    FAULTS,
    SIGNALS,
    Outcome,
    Undisturbed,
    fresh,
    kill,
    kill_itself,
    moment_s,
    undisturbed,
)
from simulator.files import write_whole

_SEED = 33
_AT_ONCE = 10
_MOST_MISSES = 3
_DASK_KILLS = 4

_Row = list[str]
"""Cells of a line of the table."""

_POINTS, _DASK, _TWO = "between two writes", "Dask", "two at once"
"""Parts of the page beside the commands."""

_HEAD = """# Kills

A signal goes to the process of a command alone, at a random moment of its run (seed {seed}). Then
its workers must end by themselves, its file must be whole or absent, and the same command must end
as if nobody had killed it: the same bytes. Made by `make kills` with Python {python}.
"""


def _until_hit(
    command: KilledCommand, wanted: Undisturbed, number: int, random: Random, folder: Path
) -> Outcome:
    """A kill that met the command while it ran."""
    outcome = Outcome(hit=False)
    for _ in range(_MOST_MISSES):
        outcome = kill(command, wanted, number, moment_s(wanted, random), fresh(folder))
        if outcome.hit or outcome.faults:
            break
    return outcome


def _row(name: str, how: str, outcomes: Iterable[Outcome]) -> _Row:
    found = [outcome for outcome in outcomes if outcome.hit or outcome.faults]
    faults = Counter(fault for outcome in found for fault in outcome.faults)
    kept = sum(outcome.kept for outcome in found)
    cells = [name, how, str(len(found)), str(kept), *(str(faults[fault]) for fault in FAULTS)]
    print(" ".join(cells), file=sys.stderr, flush=True)
    return cells


def _kills_of(command: KilledCommand, kills: int, folder: Path) -> list[_Row]:
    wanted = undisturbed(command, fresh(folder / "undisturbed"))
    again = undisturbed(command, fresh(folder / "undisturbed"))
    if wanted.answer != again.answer:
        raise SystemExit(f"{command.name} does not give the same bytes twice")
    random = Random(f"{_SEED} {command.name}")
    tasks = [
        partial(
            _until_hit,
            command,
            wanted,
            number,
            Random(random.random()),
            folder / f"{number}-{trial}",
        )
        for number in SIGNALS
        for trial in range(kills)
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(_call, tasks))
    return [
        _row(command.name, signal.Signals(number).name, outcomes[place * kills :][:kills])
        for place, number in enumerate(SIGNALS)
    ]


def _call(task: Callable[[], Outcome]) -> Outcome:
    return task()


def _points(folder: Path) -> list[_Row]:
    wanted = undisturbed(SWEEP_ALONE, fresh(folder / "undisturbed"))
    rows = []
    for point in POINTS:
        place = fresh(folder / "point")
        outcomes = [kill_itself(SWEEP_ALONE, wanted, point, place)]
        rows.append(_row(SWEEP_ALONE.name, f"SIGKILL {point}", outcomes))
    return rows


def _dask(folder: Path) -> tuple[list[_Row], str]:
    if find_spec("distributed") is None:
        return [], "Dask was not installed, so none of its processes was killed."
    wanted = undisturbed(SWEEP_ALONE, fresh(folder / "undisturbed"))
    rows, sentences, random = [], [], Random(_SEED)
    for part in dask_trials.PARTS:
        for number in (signal.SIGTERM, signal.SIGKILL):
            trials = [
                dask_trials.kill_part(part, wanted, number, random, fresh(folder / "dask"))
                for _ in range(_DASK_KILLS)
            ]
            outcomes = [outcome for outcome, _ in trials]
            rows.append(_row(f"sweep --dask: {part}", signal.Signals(number).name, outcomes))
            if part != dask_trials.PARTS[0]:
                well = sum(ended for _, ended in trials)
                sentences.append(
                    f"With {signal.Signals(number).name} to {part}, {well} of {_DASK_KILLS} sweeps "
                    "ended as if undisturbed; the others said what was lost."
                )
    return rows, " ".join(sentences)


def _starts(count: int, folder: Path) -> str:
    random = Random(_SEED)
    found = Counter(two_starts(folder, random, is_fresh=number % 4 == 3) for number in range(count))
    sound = found["one refused"] + found["both ended"]
    lines = [
        "## Two at once\n",
        f"Two sweeps with one `--out` left a barrier together {count} times, beside a journal that",
        "was cut at a random byte; every fourth time both had `--fresh`. A third run of the same",
        "command then ended as if undisturbed, with every row once:",
        f"**{sound} of {count} sound**. {found['one refused']} times the second was refused by",
        f"name, {found['both ended']} times it came when the first had ended.",
    ]
    bad = {end: times for end, times in found.items() if end not in {"one refused", "both ended"}}
    lines += [f"- {times} times: {end}" for end, times in bad.items()]
    return "\n".join(lines)


Parts = dict[str, Any]
"""Rows of the table, or a text, by the name of the part that made them."""


def make_parts(kills: int, starts: int, folder: Path, kept: Path) -> Parts:
    """Everything on the page, part by part; what an earlier run has kept is not made again.

    Args:
        kills: Of each command with each signal.
        starts: Of two sweeps at once.
        folder: For everything that is written meanwhile.
        kept: File of finished parts.
    """
    parts: Parts = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    todo: dict[str, Callable[[], Any]] = {_TWO: partial(_starts, starts, folder / "two")}
    todo |= {each.name: partial(_kills_of, each, kills, folder) for each in COMMANDS}
    todo |= {_POINTS: partial(_points, folder), _DASK: partial(_dask, folder / "dask")}
    for name, make in todo.items():
        if name not in parts:
            parts[name] = make()
            write_whole(kept, json.dumps(parts))
    return parts


def page(parts: Parts) -> str:
    """The page in Markdown."""
    dask_rows, dask_text = parts.get(_DASK, ([], "No process of a Dask cluster was killed."))
    groups = [parts.get(name, []) for name in (*(each.name for each in COMMANDS), _POINTS)]
    rows = [row for group in [*groups, dask_rows] for row in group]
    heads = ["command", "signal", "kills", "rows kept", *FAULTS]
    sums = [sum(int(row[column]) for row in rows) for column in range(2, len(heads))]
    meanings = "; ".join(f"*{name}*: {meaning}" for name, meaning in FAULTS.items())
    lines = [
        _HEAD.format(seed=_SEED, python=".".join(map(str, sys.version_info[:3]))),
        f"| {' | '.join(heads)} |",
        "|---|---|" + "---:|" * (len(heads) - 2),
        *(f"| {' | '.join(row)} |" for row in rows),
        f"| **all** | | {' | '.join(map(str, sums))} |",
    ]
    return "\n".join([*lines, "", f"Counted are {meanings}.", "", dask_text, "", parts[_TWO], ""])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="clustersim-kills-") as name:
        made = make_parts(int(sys.argv[1]), int(sys.argv[2]), Path(name), Path(sys.argv[3]))
        print(page(made), end="")
