"""Which process attempts a block of hostile texts, so that none of them ends the run?"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.attempts import MOST_SECONDS, SOUND, Outcome, attempt, guarded_process, minimised
from tests.fuzz.hostile_texts import hostile_text
from tests.fuzz.readers import READERS, samples_of
from tests.fuzz.samples import Sample

COLUMNS = tuple(Outcome)
_WALL_LIMIT_S = 600.0
_CPU_LIMIT_S = 60 * MOST_SECONDS
"""A process that is at one text for so long is ended; to make a finding small takes hundreds of
attempts, and a new process loads modules first."""
_IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A disk takes ten times as long to write a text as a reader to read it."""
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Block(NamedTuple):
    """Texts of one reader, by number."""

    reader: str
    first: int
    end: int


def text_of(seed: int, reader: str, number: int) -> Sample:
    """The text of a reader with that number."""
    return hostile_text(samples_of(reader), f"{seed}/{reader}/{number}")


def _work(connection: Connection, counts: SynchronizedArray[int], seed: int) -> None:
    """Attempt blocks until there is no more; ``counts`` ends with the number of the text."""
    for name, reader in READERS.items():
        if find_spec(reader.needs or "sys") is not None:
            samples_of(name)
    known: set[str] = set()
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY) as folder, guarded_process(Path(folder)):
        while (block := connection.recv()) is not None:
            for number in range(block.first, block.end):
                counts[-1] = number
                sample = text_of(seed, block.reader, number)
                found = attempt(block.reader, sample)
                counts[COLUMNS.index(found.outcome)] += 1
                cause = f"{block.reader}: {found.outcome}: {found.cause}"
                if found.outcome not in SOUND and cause not in known:
                    known.add(cause)
                    small = sample
                    if found.outcome is not Outcome.HANG:
                        small = minimised(block.reader, sample, found)
                    connection.send((block, number, found, small))
            connection.send(None)


@dataclass
class Worker:
    """A process that attempts, and what it is at."""

    seed: int
    block: Block | None = None
    process: SpawnProcess = field(init=False)
    connection: Connection = field(init=False)
    counts: SynchronizedArray[int] = field(init=False)
    seen: tuple[int, float, float] = (-1, 0.0, 0.0)

    def __post_init__(self) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.counts = context.Array("q", len(COLUMNS) + 1)
        arguments = (theirs, self.counts, self.seed)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, block: Block | None) -> None:
        self.block = block
        self.counts[:] = [0] * len(COLUMNS) + [block.first if block else 0]
        self.connection.send(block)

    def tally(self) -> Counter[str]:
        return Counter({c: n for c, n in zip(COLUMNS, self.counts[:], strict=False) if n})

    def hangs(self) -> bool:
        """Whether it has been at one text for longer than a signal would let it."""
        at, now, cpu = self.counts[-1], time.monotonic(), self._cpu_s()
        if at != self.seen[0]:
            self.seen = (at, now, cpu)
        return now - self.seen[1] > _WALL_LIMIT_S or cpu - self.seen[2] > _CPU_LIMIT_S

    def _cpu_s(self) -> float:
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS
