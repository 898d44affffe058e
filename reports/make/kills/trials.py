"""What does one kill leave behind, and does the same command go on from there?

Every process of a trial carries a word of its own in its environment, by which those that outlive
the command are found, whoever their parent is by then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from reports.make.kills.killed_commands import ROOT, KilledCommand, write_inputs

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)

_MARK = "CLUSTERSIM_TRIAL"
_END_S = 60.0
"""A command that still runs so long after its signal, and a process so long after its parent, does
not end by itself. Workers notice at once; a loaded machine needs a moment."""


@dataclass(frozen=True)
class Undisturbed:
    """What a command does when nobody kills it.

    Attributes:
        code: Its exit code.
        answer: Bytes of its file, or of stdout where it writes none.
        duration_s: How long it takes.
    """

    code: int
    answer: bytes
    duration_s: float


@dataclass
class Outcome:
    """What a kill did.

    Attributes:
        hit: Whether the command was still running.
        kept: Rows in the journal when it was dead.
        faults: What was wrong, one name each; see :data:`FAULTS`.
    """

    hit: bool = True
    kept: int = 0
    faults: list[str] = field(default_factory=list)


FAULTS = {
    "did not end": "ran on after its signal",
    "orphans": "processes that outlived it",
    "half a file": "its file was there, and not whole",
    "traceback": "showed a traceback",
    "not resumed": "the same command did not end as if undisturbed",
    "rows lost": "rows of the journal that were gone after it went on",
    "rows twice": "rows that the journal held twice",
}


def environment(mark: str = "") -> dict[str, str]:
    """Environment of a trial's processes."""
    return {**os.environ, "PYTHONPATH": str(ROOT), _MARK: mark, "NO_COLOR": "1"}


def undisturbed(command: KilledCommand, folder: Path) -> Undisturbed:
    """Run a command to its end."""
    write_inputs(folder)
    began_s = time.monotonic()
    done = _run(command, folder)
    return Undisturbed(done.returncode, _answer(command, folder, done), time.monotonic() - began_s)


def kill(
    command: KilledCommand, wanted: Undisturbed, number: int, after_s: float, folder: Path
) -> Outcome:
    """Send a signal to the command's own process after some time, and run it again."""

    def send(process: subprocess.Popen[bytes]) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
            return False
        process.send_signal(number)
        return True

    words = [sys.executable, "-m", "simulator", *command.words]
    return disturbed(command, wanted, words, send, folder)


def kill_itself(command: KilledCommand, wanted: Undisturbed, point: str, folder: Path) -> Outcome:
    """Run the command so that it dies at a point of :mod:`reports.make.kills.dying`."""

    def wait(process: subprocess.Popen[bytes]) -> bool:
        return process.wait() == -signal.SIGKILL

    words = [sys.executable, "-m", "reports.make.kills.dying", point, *command.words]
    return disturbed(command, wanted, words, wait, folder)


def disturbed(
    command: KilledCommand,
    wanted: Undisturbed,
    words: list[str],
    disturb: Callable[[subprocess.Popen[bytes]], bool],
    folder: Path,
) -> Outcome:
    """Start, disturb, look at what is left, run again, and compare."""
    outcome, mark = Outcome(), uuid.uuid4().hex
    write_inputs(folder)
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(mark),
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        outcome.hit = disturb(process)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            outcome.faults.append("did not end")
            process.kill()
            process.wait()
    outcome.faults += ["orphans"] * _end_orphans(mark)
    if b"Traceback" in (folder / "said").read_bytes():
        outcome.faults.append("traceback")
    if command.out and (folder / command.out).exists():
        outcome.faults += ["half a file"] * (_content(command, folder) != wanted.answer)
    if outcome.hit:
        before = _rows(command, folder)
        outcome.kept = len(before)
        outcome.faults += _faults_of_the_second_run(command, wanted, before, folder)
    return outcome


def _faults_of_the_second_run(
    command: KilledCommand, wanted: Undisturbed, before: Mapping[int, str], folder: Path
) -> list[str]:
    done = _run(command, folder)
    found = []
    if (done.returncode, _answer(command, folder, done)) != (wanted.code, wanted.answer):
        found.append("not resumed")
    numbers = [number for number, _ in _entries(command, folder)]
    after = _rows(command, folder)
    found += ["rows lost"] * sum(after.get(number) != row for number, row in before.items())
    found += ["rows twice"] * (len(numbers) - len(after))
    return found


def _run(command: KilledCommand, folder: Path) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "simulator", *command.words]
    return subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, check=False, timeout=600
    )


def _answer(
    command: KilledCommand, folder: Path, done: subprocess.CompletedProcess[bytes]
) -> bytes:
    if not command.out:
        return done.stdout
    return _content(command, folder) if (folder / command.out).exists() else done.stderr


def _content(command: KilledCommand, folder: Path) -> bytes:
    return (folder / command.out).read_bytes()


def _entries(command: KilledCommand, folder: Path) -> list[tuple[int, str]]:
    """Number and row of every whole line of the journal but the first."""
    path = folder / command.journal
    if not command.keeps_rows or not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1].splitlines()
    entries = map(json.loads, lines[1:])
    return [(entry["number"], json.dumps(entry["row"])) for entry in entries]


def _rows(command: KilledCommand, folder: Path) -> dict[int, str]:
    return dict(_entries(command, folder))


def _end_orphans(mark: str) -> int:
    """How many processes of a trial do not end by themselves; they are ended."""
    patience_s = time.monotonic() + _END_S
    while (left := _marked(mark)) and time.monotonic() < patience_s:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return len(left)


def _marked(mark: str) -> list[int]:
    """Processes whose environment carries the word of a trial."""
    word, found = f"{_MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and word in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def fresh(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def moment_s(wanted: Undisturbed, random: Random) -> float:
    """A random moment of a command's run, but for the last fifth, which may be over before [s]."""
    return random.uniform(0.0, 0.8 * wanted.duration_s)
