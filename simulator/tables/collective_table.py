"""How do measured collectives get onto the disk, row by row, in the columns of tables?

Published tables mix systems; one that was written here is of a single system, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.tables.growing_table import append_line, whole_lines, write_head

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
    reader = whole_lines(path)
    rows = list(reader)
    is_own = tuple(reader.fieldnames or ()) == COLUMNS and all(row["split"] == OWN for row in rows)
    return OwnTable(rows) if is_own else None


def new_table(path: Path) -> None:
    """Write the line of columns."""
    write_head(path, COLUMNS)


def append_row(path: Path, date: str, cells: Mapping[str, object]) -> None:
    """Write one measured row."""
    row = {**cells, "source": f"{_SOURCE}{date}", "split": OWN}
    append_line(path, [str(row.get(name, "")) for name in COLUMNS])
