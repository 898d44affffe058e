"""What was predicted for a run of serving before anybody here had seen how fast it is?

As :mod:`simulator.validate.first_sight` keeps it for training: a run that is in the file already
keeps what it says.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from simulator.cells import Row
from simulator.validate.first_sight import Kept, keep_lines, read_first_sight, seen
from simulator.validate.serving import ServingResult

COLUMNS = (
    "id", "source", "grade", "engine", "model", "gpu", "seen_by", "seen_on",
    "measured_tokens_per_s", "predicted_tokens_per_s", "throughput_error_pct", "tpot_error_pct",
    "ttft_error_pct", "skipped",
)  # fmt: skip


def keep_serving_first_sight(
    results: Sequence[ServingResult], path: Path, *, seen_on: datetime.date | None = None
) -> Kept:
    """Append the runs that a file does not have, with what is predicted for them now.

    Args:
        results: The predictions.
        path: CSV with the columns :data:`COLUMNS`; made if it is not there.
        seen_on: Day of the predictions; today if None.

    Raises:
        InputError: The file is none of first sights of serving.
    """
    facts = seen(seen_on)
    return keep_lines([{**_line(each), **facts} for each in results], path, COLUMNS)


def read_serving_first_sight(path: Path) -> list[Row]:
    """The rows of a file of first sights of serving.

    Raises:
        InputError: It cannot be read, lacks a column, or names a run twice.
    """
    return read_first_sight(path, COLUMNS)


def _line(result: ServingResult) -> Row:
    return {name: _cell(getattr(result, name, None)) for name in COLUMNS}


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.3f}"
