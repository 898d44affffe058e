"""How do measured collectives get onto the disk, row by row, in the columns of tables?

Published tables mix systems; one that was written here is of a single system, and says so.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """Take out what a killed run wrote of its last row, so that rows can follow.

    The file is cut, not written anew: whoever is killed here loses no row.
    """
    content = path.read_bytes()
    whole_bytes = content.rfind(b"\n") + 1
    if whole_bytes < len(content):
        os.truncate(path, whole_bytes)


def _whole(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


COLUMNS = (
    "id", "source", "collective", "gpu", "gpus", "nodes", "gpus_per_node", "intra", "inter",
    "nics_per_node", "nic_gbps", "algo", "proto", "bytes", "time_us", "algbw_GBs", "busbw_GBs",
    "nccl_version", "notes", "split", "spread_pct", "repetitions",
)  # fmt: skip
"""Those of published tables of collectives, then how well the time is known."""

_OWN = "own"
"""What ``split`` says in tables that were measured here."""

_SOURCE = "clustersim calibrate collectives, "


@dataclass(frozen=True, slots=True)
class OwnTable:
    """A table that was measured here.

    Attributes:
        rows: Its cells by column.
    """

    rows: Sequence[Mapping[str, str]]

    @property
    def libraries(self) -> tuple[str, ...]:
        """Names and versions of the libraries measured."""
        return tuple(dict.fromkeys(row["nccl_version"] for row in self.rows))

    @property
    def date(self) -> str:
        """Day of the last measurement."""
        return max((row["source"].removeprefix(_SOURCE) for row in self.rows), default="")


def own_table(path: Path) -> OwnTable | None:
    """The table, if it was measured here; half a line of a killed run is left out."""
    reader = whole_lines(path)
    rows = list(reader)
    is_own = tuple(reader.fieldnames or ()) == COLUMNS and all(row["split"] == _OWN for row in rows)
    return OwnTable(rows) if is_own else None


def new_table(path: Path) -> None:
    """Write the line of columns."""
    write_head(path, COLUMNS)


def append_row(path: Path, date: str, cells: Mapping[str, object]) -> None:
    """Write one measured row."""
    row = {**cells, "source": f"{_SOURCE}{date}", "split": _OWN}
    append_line(path, [str(row.get(name, "")) for name in COLUMNS])
