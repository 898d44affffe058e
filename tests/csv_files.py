"""How do tests read tables, and write them?"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def read_rows(file: Path) -> list[dict[str, str]]:
    """Every row by its columns."""
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def write_rows(rows: Iterable[Mapping[str, str]], file: Path, columns: Sequence[str] = ()) -> Path:
    """Write a table, by default with all columns of its first row; returns its path."""
    rows = list(rows)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(
            opened, columns or list(rows[0]), extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    return file
