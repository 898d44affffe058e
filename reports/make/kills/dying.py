"""A clustersim that kills itself between two writes: ``python -m …dying POINT WORDS``.

Random kills seldom meet the microseconds between a truncation and a write. This one does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from reports.make.kills.killed_commands import SWEEP_ALONE
from simulator.cli.app import main
from simulator.planning.sweep import Journal

_ROW = 3
"""Lines of a journal before the one at which a process dies."""


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _at_line(number: int, die: Callable[[Journal, Mapping[str, Any]], None]) -> None:
    write, lines = Journal._write, [0]

    def counted(self: Journal, line: Mapping[str, Any]) -> None:
        lines[0] += 1
        if lines[0] == number:
            die(self, line)
        write(self, line)

    setattr(Journal, "_write", counted)  # noqa: B010


def _half_a_line(self: Journal, line: Mapping[str, Any]) -> None:
    content = json.dumps(line).encode()
    file = self._file
    assert file is not None
    file.write(content[: len(content) // 2])
    file.flush()
    _die()


def _after_truncating() -> None:
    Path(f"{SWEEP_ALONE.out}.journal").write_bytes(b'{"job": "')
    _at_line(1, _die)


def _before_it_takes_its_place() -> None:
    setattr(Path, "replace", _die)  # noqa: B010


def _in_the_middle_of_its_draft() -> None:
    import pandas as pd

    def half(self: pd.DataFrame, path: Path, **options: Any) -> None:
        del options
        Path(path).write_text(",".join(self.columns), encoding="utf-8")
        _die()

    setattr(pd.DataFrame, "to_csv", half)  # noqa: B010


POINTS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {
        "before the journal's first line": lambda: _at_line(1, _die),
        "half of its first line": lambda: _at_line(1, _half_a_line),
        "after truncating half a line": _after_truncating,
        "before a row's line": lambda: _at_line(_ROW, _die),
        "half of a row's line": lambda: _at_line(_ROW, _half_a_line),
        "half of the table's draft": _in_the_middle_of_its_draft,
        "before the table takes its place": _before_it_takes_its_place,
    }
)
"""Where to die: what prepares it."""


if __name__ == "__main__":
    POINTS[sys.argv[1]]()
    main(sys.argv[2:])
