"""How is a table of measurements read that somebody kept in a CSV file?"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from simulator.errors import InputError
from simulator.files import read_text
from simulator.tables.cells import Row

_MAX_TABLE_BYTES = 2**26
"""64 MiB, some hundred thousand rows."""


def read_table(path: str | Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a table as they are written, in order; a cell that a row lacks is empty.

    Args:
        path: The file.
        columns: Those that it needs; others may stand between them.

    Raises:
        InputError: The file cannot be read, lacks a column, or holds no rows.
    """
    wanted = f"give a CSV with the columns {', '.join(columns)}"
    text = read_text(Path(path), wanted, max_bytes=_MAX_TABLE_BYTES)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows: list[Row] = [{key: cell or "" for key, cell in row.items() if key} for row in reader]
    except csv.Error as error:
        raise InputError.single("", f"is no CSV: {error}", hint=wanted, file=str(path)) from error
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        rule = f"lacks the columns {', '.join(missing)}"
        raise InputError.single("", rule, hint=wanted, file=str(path))
    if not rows:
        raise InputError.single("", "holds no rows", hint=wanted, file=str(path))
    return rows
