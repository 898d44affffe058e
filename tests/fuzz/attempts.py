"""What comes out when a reader is given a hostile text, within ten seconds and one gigabyte?

An attempt runs in this process. What it may take is limited here: a signal ends it after ten
seconds of processor time, the operating system refuses more memory, and a hook notices programs
that it would start. What a signal cannot end, such as a regular expression, the caller ends with
the process.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from simulator.errors import InputError
from tests.fuzz.hostile_texts import MARK
from tests.fuzz.readers import READERS, BugError, LateRefusalError
from tests.fuzz.samples import IMPORTED, Sample

MOST_SECONDS = 10.0
"""Of processor time, for one text."""
MOST_BYTES = 2**30
"""Of memory, beyond what the process has before the first text."""
_STARTS = frozenset({"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen",
                     "pickle.find_class", "pty.spawn"})  # fmt: skip


class Outcome(StrEnum):
    """What came out."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    EXCEPTION = "exception"
    EXIT_3 = "exit 3"
    LATE = "refused late"
    HANG = "hang"
    MEMORY = "memory"
    EXECUTED = "executed"


SOUND = frozenset({Outcome.ACCEPTED, Outcome.REFUSED})


class HangError(BaseException):
    """It took too long; no handler of exceptions may take it for one of its own."""


class ExecutedError(BaseException):
    """Something was about to be run."""


class Attempt(NamedTuple):
    """What came of one text.

    Attributes:
        outcome: In a word.
        cause: Type of the exception and where it was raised: findings of one cause are one.
        details: The traceback.
    """

    outcome: Outcome
    cause: str = ""
    details: str = ""


def attempt(reader: str, sample: Sample, seconds: float = MOST_SECONDS) -> Attempt:
    """Give a reader a text, as a file in the current folder, which must be of no other use."""
    path = Path(sample.name)
    path.write_bytes(sample.content)
    with _limited(seconds), contextlib.redirect_stderr(io.StringIO()):
        try:
            READERS[reader].read(path)
            found = Attempt(Outcome.ACCEPTED)
        except InputError as error:
            str(error)
            found = Attempt(Outcome.REFUSED)
        except LateRefusalError as error:
            found = Attempt(Outcome.LATE, re.sub(r"\d+|'.*?'", "N", str(error))[:200], str(error))
        except BugError as error:
            found = Attempt(Outcome.EXIT_3, _frame_said(str(error)), str(error))
        except HangError as error:
            found = _fault(Outcome.HANG, error)
        except ExecutedError as error:
            found = _fault(Outcome.EXECUTED, error)
        except MemoryError as error:
            found = _fault(Outcome.MEMORY, error)
        except Exception as error:
            found = _fault(Outcome.EXCEPTION, error)
    if Path(MARK).exists():
        Path(MARK).unlink()
        return Attempt(Outcome.EXECUTED, MARK)
    return found


def _fault(outcome: Outcome, error: BaseException) -> Attempt:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}simulator{os.sep}" in frame.filename]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
    text = "".join(traceback.format_exception(error, limit=-12))
    return Attempt(outcome, f"{type(error).__name__} in {place}", text)


def _frame_said(text: str) -> str:
    """The place that a printed traceback names last."""
    places = re.findall(r'/simulator/(\S+?)", line \d+, in (\S+)', text)
    error = re.search(r"internal error: (\w+)", text)
    return f"{error[1] if error else '?'} in {':'.join(places[-1]) if places else '?'}"


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    _WATCH.armed = True
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        _WATCH.armed = False
        signal.signal(signal.SIGPROF, before)


class _Watch:
    """A hook of the interpreter; it cannot be taken off, so it is put on once, where asked for."""

    armed = False

    def notice(self, event: str, arguments: object) -> None:
        if self.armed and event in _STARTS:
            self.armed = False
            raise ExecutedError(f"{event}: {arguments}")


_WATCH = _Watch()


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """No more memory for this process than one gigabyte beyond what it has now."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def guarded_process(folder: Path) -> Iterator[None]:
    """This process as one that only attempts: limits of memory, hooks, a folder of its own."""
    shutil.copytree(IMPORTED / "recipes", folder, dirs_exist_ok=True)
    os.chdir(folder)
    os.environ["COLUMNS"] = "80"
    os.environ["CLUSTERSIM_TRACEBACK"] = "1"
    sys.addaudithook(_WATCH.notice)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with little_memory():
            yield
    finally:
        os.chdir("/")


def minimised(reader: str, sample: Sample, found: Attempt, tries: int = 300) -> Sample:
    """A text from which nothing more can be left out without another outcome.

    Lines are left out first, then parts of half the rest, down to single bytes.
    """

    def same(content: bytes) -> bool:
        changed = attempt(reader, Sample(sample.name, content))
        return changed[:2] == found[:2]

    content = sample.content
    for split in (_by_lines, _by_bytes):
        content, tries = _reduced(content, split, same, tries)
    return Sample(sample.name, content)


def _by_lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def _by_bytes(content: bytes) -> list[bytes]:
    return [content[i : i + 1] for i in range(len(content))]


def _reduced(
    content: bytes,
    split: Callable[[bytes], list[bytes]],
    same: Callable[[bytes], bool],
    tries: int,
) -> tuple[bytes, int]:
    parts = split(content)
    size = max(1, len(parts) // 2)
    while tries and parts:
        for start in range(0, len(parts), size):
            shorter = parts[:start] + parts[start + size :]
            tries -= 1
            if same(b"".join(shorter)):
                parts = shorter
                break
            if not tries:
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return b"".join(parts), tries
