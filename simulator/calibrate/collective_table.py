"""How do measured collectives get onto the disk, row by row, in the columns of tables?

Published tables mix systems; one that was written here is of a single system, and says so.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COLUMNS = (
    "id", "source", "collective", "gpu", "gpus", "nodes", "gpus_per_node", "intra", "inter",
    "nics_per_node", "nic_gbps", "algo", "proto", "bytes", "time_us", "algbw_GBs", "busbw_GBs",
    "nccl_version", "notes", "split", "spread_pct", "repetitions",
)  # fmt: skip
"""Those of published tables of collectives, then how well the time is known."""

OWN = "own"
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
    text = path.read_text(encoding="utf-8")
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    rows = list(reader)
    is_own = tuple(reader.fieldnames or ()) == COLUMNS and all(row["split"] == OWN for row in rows)
    return OwnTable(rows) if is_own else None


def new_table(path: Path) -> None:
    """Write the line of columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_line(dict(zip(COLUMNS, COLUMNS, strict=True))), encoding="utf-8")


def append_row(path: Path, date: str, cells: Mapping[str, object]) -> None:
    """Write one measured row."""
    texts = {name: str(value) for name, value in cells.items()}
    with path.open("a", encoding="utf-8") as file:
        file.write(_line({**texts, "source": f"{_SOURCE}{date}", "split": OWN}))


def cut_half_line(path: Path) -> None:
    """Take out what a killed run wrote of its last row."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")


def _line(cells: Mapping[str, str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([cells.get(name, "") for name in COLUMNS])
    return text.getvalue()
