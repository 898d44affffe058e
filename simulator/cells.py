"""How is a table of measurements read that somebody keeps, and what does one cell of it say?

Tables come from people and from spreadsheets: ``12.0`` is twelve, ``1,024`` and ``yes`` are what
they look like, and a dash is an empty cell. What cannot be read is refused with the name of its
column and what it holds; nothing is guessed.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import InputError
from simulator.files import read_text
from simulator.units import UNITS, parse_quantity

Row = Mapping[str, str]

_BLANK = {
    "", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "?", "n/a", "na", "null", "unknown", "unstated",
    "not stated", "not given", "unspecified", "default", "auto",
}  # fmt: skip
_TRUE = {"true", "yes", "y", "t", "on", "1", "1.0", "enabled"}
_FALSE = {"false", "no", "n", "f", "off", "0", "0.0", "none", "disabled"}


def text(row: Row, key: str) -> str:
    """What a column says, without blanks around it; empty where it says that it does not know."""
    said = (row.get(key) or "").strip()
    return "" if said.lower() in _BLANK else said


def number(row: Row, key: str) -> float | None:
    """A number of at least 0; None where the cell is empty.

    Raises:
        InputError: The cell holds something else.
    """
    said = _stated(row, key)
    value = None if said is None else _number(said)
    if value is None or 0 <= value < math.inf:
        return value
    raise InputError.single(key, f"must be a number, not {said!r}")


def measured(row: Row, key: str) -> float | None:
    """A number above 0; None where the cell is empty.

    Raises:
        InputError: The cell holds something else.
    """
    said = _stated(row, key)
    value = None if said is None else _number(said)
    if value is None or 0 < value < math.inf:
        return value
    raise InputError.single(key, f"must be a positive number, not {said!r}")


def measured_si(row: Row, key: str, unit: str, dimension: str) -> float | None:
    """SI value of a number above 0; None where the cell is empty.

    Args:
        row: Of the table.
        key: The column.
        unit: Of a number that has none behind it.
        dimension: A key of :data:`simulator.units.UNITS`.

    Raises:
        InputError: The cell holds something else.
    """
    said = text(row, key)
    if not said[-1:].isalpha() or said.lower() == "none":
        value = measured(row, key)
        return None if value is None else value * float(UNITS[dimension][unit])
    try:
        value = parse_quantity(said, dimension, unit)
    except ValueError as error:
        raise InputError.single(key, str(error)) from error
    if value > 0:
        return value
    raise InputError.single(key, f"must be above zero, not {said!r}")


def whole(row: Row, key: str) -> int:
    """A whole number of at least 0; ``12.0`` and ``1,024`` are some.

    Raises:
        InputError: The cell is empty or holds something else.
    """
    value = _number(text(row, key))
    if not value.is_integer():
        raise InputError.single(key, f"must be a whole number, not {row.get(key) or ''!r}")
    if value < 0:
        raise InputError.single(key, f"must be at least 0, not {row[key]!r}")
    return int(value)


def tokens(row: Row, key: str) -> int:
    """A length in tokens, where ``128k`` is 128 times 1024.

    Raises:
        InputError: The cell is empty or holds no length.
    """
    thousands = re.fullmatch(r"(\d+)\s*[kK]", text(row, key))
    return 1024 * int(thousands.group(1)) if thousands else whole(row, key)


def size_bytes(row: Row, key: str) -> float:
    """A size in bytes; ``16M`` and ``16 MiB`` are those of nccl-tests, 16 times 1024 squared.

    Raises:
        InputError: The cell is empty or holds no size.
    """
    said = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(?:i?B)?", text(row, key), flags=re.IGNORECASE)
    value = _number(said.group(1)) if said else _number(text(row, key))
    if not 0 <= value < math.inf:
        raise InputError.single(key, f"must be a size in bytes, not {row.get(key) or ''!r}")
    return value * (1024.0 ** " KMGT".index(said.group(2).upper() or " ") if said else 1.0)


def whole_if_stated(row: Row, key: str) -> int | None:
    """A whole number of at least 0; None where the cell is empty.

    Raises:
        InputError: The cell holds something else.
    """
    return None if _stated(row, key) is None else whole(row, key)


def flag(row: Row, key: str) -> bool | None:
    """Yes or no; None where the cell is empty.

    Raises:
        InputError: The cell says neither.
    """
    said = text(row, key).lower()
    if not said:
        return None
    if said in _TRUE or said in _FALSE:
        return said in _TRUE
    raise InputError.single(key, f"must be true or false, not {row[key]!r}")


def word(row: Row, key: str) -> str:
    """A name in small letters, its words joined by dashes; empty where the cell is empty."""
    return re.sub(r"[\s_]+", "-", text(row, key).lower())


def _stated(row: Row, key: str) -> str | None:
    said = text(row, key)
    return None if said.lower() in ("", "none") else said


def _number(said: str) -> float:
    digits = re.sub(r"(?<=\d)[,_ ](?=\d{3}\b)", "", said.strip())
    try:
        return float(digits)
    except ValueError:
        return math.nan


_MAX_TABLE_BYTES = 2**26
"""64 MiB, some hundred thousand rows."""


class OptionalColumns(NamedTuple):
    """Columns that a table may lack where all its rows say the same by other means.

    Attributes:
        names: The columns.
        is_said: Whether a row says it.
        hint: How a row can say it, as the way out of an error.
    """

    names: Sequence[str]
    is_said: Callable[[Row], bool]
    hint: str


def read_table(
    path: str | Path, columns: Sequence[str], optional: OptionalColumns | None = None
) -> list[Row]:
    """The rows of a table as they are written, in order; a cell that a row lacks is empty.

    Args:
        path: The file.
        columns: Those that it needs; others may stand between them.
        optional: Which of them it need not have, and when.

    Raises:
        InputError: The file cannot be read, lacks a column, or has no rows.
    """
    text = read_text(Path(path), _wanted(columns), max_bytes=_MAX_TABLE_BYTES)
    return rows_of(text, columns, str(path), optional)


def _wanted(columns: Sequence[str]) -> str:
    return f"give a CSV with the columns {', '.join(columns)}"


def rows_of(
    text: str, columns: Sequence[str], file: str, optional: OptionalColumns | None = None
) -> list[Row]:
    """The same of a text that was read from ``file``.

    Raises:
        InputError: It is no table, lacks a column, or has no rows.
    """
    wanted = _wanted(columns)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [_row(row, reader.line_num, file) for row in reader]
    except csv.Error as error:
        rule = f"is not CSV: {error} (line {reader.line_num})"
        raise InputError.single("", rule, hint=wanted, file=file) from error
    names = list(reader.fieldnames or ())
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        rule = f"has the column {twice[0]} twice"
        raise InputError.single("", rule, hint="remove one of them", file=file)
    missing = [name for name in columns if name not in names]
    if optional and set(missing) & set(optional.names):
        if rows and all(map(optional.is_said, rows)):
            missing = [name for name in missing if name not in optional.names]
        else:
            wanted = f"{wanted}; {optional.hint}"
    if missing:
        has_none = len(missing) == len(columns)
        rule = (
            "is a table of another kind" if has_none else f"lacks the columns {', '.join(missing)}"
        )
        raise InputError.single("", rule, hint=wanted, file=file)
    if not rows:
        raise InputError.single("", "has no rows", hint=wanted, file=file)
    return rows


def _row(cells: Mapping[str | None, Any], line: int, file: str) -> Row:
    """One row; what stands beyond the last column, or over several lines, is refused.

    A quote that is not closed swallows the lines after it, and would lose their rows in silence.
    """
    beyond = [cell for cell in cells.get(None) or () if cell.strip()]
    if beyond:
        rule = f"has more cells than columns in line {line}: {beyond[0]!r}"
        raise InputError.single("", rule, hint="put cells with commas in quotes", file=file)
    row = {key: cell or "" for key, cell in cells.items() if key}
    broken = next((key for key, cell in row.items() if "\n" in cell), None)
    if broken is not None:
        rule = f"has a line break in the cell {broken} of the row that ends in line {line}"
        raise InputError.single("", rule, hint="check for an unclosed quote", file=file)
    return row
