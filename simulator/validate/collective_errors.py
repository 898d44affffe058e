"""How close are predicted collectives to measured nccl-tests and rccl-tests rows?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simulator.cells import Row
from simulator.described.cluster.network import Network
from simulator.described.load import load_profile, profile_names
from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import CollectiveRow, bus_share
from simulator.plots.bus_bandwidth import BusBandwidth, build_bus_bandwidth_figure
from simulator.plots.style import save
from simulator.tables.collective_rows import (
    collective_row,
    network_of,
    predicted_s,
    read_collective_cells,
    readable_collective_rows,
    reason_to_skip,
)
from simulator.tables.spellings import profile_name_of
from simulator.validate.accuracy import Accuracy, accuracy_by, error_pct

_WITHIN_PCT = 25.0
"""Errors up to this one count as close [%]."""

_CURVE_POINTS = 60
"""Sizes at which a curve is computed between its smallest and largest measurement."""


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


def draw_bus_bandwidths(csv_path: str | Path, folder: Path) -> Iterator[Path]:
    """Draw a picture per system of a table of collectives; yields each file when it is there.

    Raises:
        InputError: The table cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for gpu, rows in bus_bandwidths(csv_path).items():
        path = folder / f"{gpu.lower().replace(' ', '-')}.png"
        save(build_bus_bandwidth_figure(rows, f"{gpu}: bus bandwidth of collectives"), path)
        yield path


def bus_bandwidths(csv_path: str | Path) -> Mapping[str, Sequence[BusBandwidth]]:
    """Points and curves of every system that has a profile, by its name in the table.

    One panel per collective, scale, and what else the prediction depends on: fabric, NICs,
    a forced algorithm, one process that drives all GPUs, one call that is timed by itself.
    """
    names = profile_names()
    systems: dict[str, list[CollectiveRow]] = {}
    for row in readable_collective_rows(csv_path):
        if not reason_to_skip(row) and profile_name_of(row.gpu, names):
            systems.setdefault(row.gpu, []).append(row)
    return {gpu: _system(rows, names) for gpu, rows in sorted(systems.items())}


def _system(rows: Sequence[CollectiveRow], names: Sequence[str]) -> Sequence[BusBandwidth]:
    name = profile_name_of(rows[0].gpu, names)
    assert name is not None
    network = load_profile(name).network
    panels: dict[tuple[str, ...], list[CollectiveRow]] = {}
    for row in sorted(rows, key=lambda row: (row.kind, row.nodes, row.ranks)):
        panels.setdefault(_panel(row), []).append(row)
    drawn: list[BusBandwidth] = []
    for panel, members in panels.items():
        label = "\n".join(line for line in panel if line)
        seen = network_of(members[0], network)
        drawn += [_bus_bandwidth(label, row, seen, row.seconds) for row in members]
        drawn += [_bus_bandwidth(label, row, seen, None) for row in _between(members)]
    return drawn


def _panel(row: CollectiveRow) -> tuple[str, ...]:
    facts = [
        row.algorithm.replace("_", " "),
        "one process" if row.one_process else "",
        "one call" if row.one_call else "",
    ]
    if row.nodes > 1:
        nics = f"{row.nics_per_node} NICs" if row.nics_per_node else ""
        facts = [f"{row.nodes} nodes", row.fabric or "", nics, *facts]
    scale = f"{row.kind.replace('_', ' ')}, {row.ranks} GPUs"
    return scale, ", ".join(fact for fact in facts if fact)


def _between(rows: Sequence[CollectiveRow]) -> Iterator[CollectiveRow]:
    """The first row at sizes from the smallest to the largest."""
    sizes = [row.num_bytes for row in rows]
    if max(sizes) > min(sizes) > 0:
        for size in np.geomspace(min(sizes), max(sizes), _CURVE_POINTS):
            yield replace(rows[0], num_bytes=float(size))


def _bus_bandwidth(
    label: str, row: CollectiveRow, network: Network, measured_s: float | None
) -> BusBandwidth:
    moved_bytes = row.num_bytes * (bus_share(row.kind, row.ranks) or 1.0)
    return BusBandwidth(
        label,
        row.num_bytes,
        moved_bytes / measured_s if measured_s else None,
        moved_bytes / predicted_s(row, network) if moved_bytes else None,
    )
