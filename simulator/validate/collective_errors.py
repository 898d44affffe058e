"""How close are predicted collectives to measured nccl-tests and rccl-tests rows?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.cells import Row
from simulator.described.load import load_profile, profile_names
from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.tables.collective_rows import (
    collective_row,
    network_of,
    predicted_s,
    read_collective_cells,
    reason_to_skip,
)
from simulator.tables.spellings import profile_name_of
from simulator.validate.accuracy import Accuracy, accuracy_by, error_pct

_WITHIN_PCT = 25.0
"""Errors up to this one count as close [%]."""


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """One row of the table, predicted or skipped.

    Attributes:
        id: Name of the row.
        gpu: GPU as the table spells it.
        collective: Collective as this project spells it.
        measured_us: Measured time [us], None if it cannot be read.
        predicted_us: Predicted time [us], None if skipped.
        skipped: Why the row has no prediction; empty if it has one.
    """

    id: str
    gpu: str
    collective: str
    measured_us: float | None
    predicted_us: float | None = None
    skipped: str = ""

    @property
    def error_pct(self) -> float | None:
        """Signed error [%]: positive where the prediction is too slow."""
        return error_pct(self.predicted_us, self.measured_us)

    def to_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return asdict(self) | {"error_pct": self.error_pct, "skipped": self.skipped or None}


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """All rows of a table and how well they were predicted."""

    rows: Sequence[CollectiveResult]

    @property
    def summary(self) -> Accuracy:
        """Accuracy over all rows."""
        return Accuracy.of((row.error_pct for row in self.rows), _WITHIN_PCT)

    @property
    def groups(self) -> dict[tuple[str, str], Accuracy]:
        """Accuracy per (gpu, collective), sorted."""
        errors_pct = (((row.gpu, row.collective), row.error_pct) for row in self.rows)
        return accuracy_by(errors_pct, _WITHIN_PCT)

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON: ``rows``, ``summary`` and ``groups``."""
        return {
            "rows": [row.to_dict() for row in self.rows],
            "summary": asdict(self.summary),
            "groups": [
                {"gpu": gpu, "collective": collective, **asdict(accuracy)}
                for (gpu, collective), accuracy in self.groups.items()
            ],
        }


def validate_collectives(csv_path: str | Path) -> CollectiveReport:
    """Predictions for every row of a table of collectives beside what was measured.

    Args:
        csv_path: Table with the columns id, collective, gpu, gpus, nodes, gpus_per_node,
            bytes (as nccl-tests counts them) and time_us; where there are nics_per_node,
            nic_gbps, inter, source and notes, they are used.

    Raises:
        InputError: The table cannot be read.
    """
    names = profile_names()
    profile_of = cache(load_profile)

    def result(cells_of_row: Row) -> CollectiveResult:
        try:
            return predicted(collective_row(cells_of_row))
        except InputError as error:
            reason = "; ".join(f"{fault.path}: {fault.rule}" for fault in error.faults)
            row_id, gpu, kind = (cells_of_row[key] for key in ("id", "gpu", "collective"))
            return CollectiveResult(row_id, gpu, kind, None, skipped=reason)

    def predicted(row: CollectiveRow) -> CollectiveResult:
        measured = CollectiveResult(row.id, row.gpu, row.kind, row.seconds * 1e6)
        name = profile_name_of(row.gpu, names)
        skipped = reason_to_skip(row) or ("" if name else "no hardware profile describes the GPU")
        if skipped or name is None:
            return replace(measured, skipped=skipped)
        network = network_of(row, profile_of(name).network)
        return replace(measured, predicted_us=predicted_s(row, network) * 1e6)

    return CollectiveReport([result(row) for row in read_collective_cells(csv_path)])
