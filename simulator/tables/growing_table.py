"""How does a table of measurements grow on the disk, if its run may be killed at any line?"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from simulator.files import read_text

_WANTED = "give a table that clustersim calibrate wrote"


def write_head(path: Path, columns: Sequence[str]) -> None:
    """Begin a table with the line of its columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_line(columns), encoding="utf-8")


def append_line(path: Path, cells: Sequence[str]) -> None:
    """Write one row."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(cells))


def whole_lines(path: Path) -> csv.DictReader[str]:
    """Its rows by column; half a line of a killed run is left out.

    Raises:
        InputError: The file cannot be read.
    """
    return csv.DictReader(io.StringIO(_whole(read_text(path, _WANTED)), newline=""))


def cut_half_line(path: Path) -> None:
    """Take out what a killed run wrote of its last row, so that rows can follow."""
    text = path.read_text(encoding="utf-8")
    if _whole(text) != text:
        path.write_text(_whole(text), encoding="utf-8")


def _whole(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
