"""How do makers of reports write tables: in Markdown, and as CSV for other reports?"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path


def markdown_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], aligned: str = ""
) -> list[str]:
    """The lines of a table.

    Args:
        heads: What stands above the columns.
        rows: Their cells.
        aligned: ``l`` or ``r`` for each column; by default all but the first to the right.
    """
    rules = ["---:" if way == "r" else "---" for way in aligned or "l" + "r" * (len(heads) - 1)]
    return [f"| {' | '.join(heads)} |", f"|{'|'.join(rules)}|", *(table_row(row) for row in rows)]


def table_row(cells: Iterable[str]) -> str:
    """One line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows as CSV, with six digits of every float."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row])
