"""How far is a fitted network from each collective, group and size it was fitted to?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from simulator.calibrate.network.measured_network import Calibration, Point
from simulator.described.base import file_name_of_field

SIZE_BANDS: Sequence[tuple[str, float]] = (
    ("to 64 KiB", 2.0**16),
    ("to 1 MiB", 2.0**20),
    ("to 32 MiB", 2.0**25),
    ("above 32 MiB", float("inf")),
)
"""Name and largest message [B]: latency alone, pipeline fill, and bandwidth."""


class Scope(NamedTuple):
    """Rows that are judged together, in the order of a table."""

    collective: str
    ranks: int
    nodes: int
    band: int


@dataclass(frozen=True, slots=True)
class Residual:
    """Relative errors of the rows of one scope; positive where predictions are too slow.

    Attributes:
        collective: Collective as this project spells it.
        ranks, nodes: GPUs that take part, and the hosts they are in.
        sizes: Band of message sizes.
        rows: How many.
        base_median, median: Median error before and after the fit.
        least, most: Smallest and largest error after it.
    """

    collective: str
    ranks: int
    nodes: int
    sizes: str
    rows: int
    base_median: float
    median: float
    least: float
    most: float


def residuals(points: Sequence[Point]) -> list[Residual]:
    """Errors by collective, group and size band, in this order."""
    scopes: dict[Scope, list[Point]] = {}
    for point in points:
        row = point.row
        band = next(i for i, (_, most) in enumerate(SIZE_BANDS) if row.num_bytes <= most)
        scopes.setdefault(Scope(row.kind, row.ranks, row.nodes, band), []).append(point)
    return [_residual(scope, scopes[scope]) for scope in sorted(scopes)]


def _residual(scope: Scope, points: Sequence[Point]) -> Residual:
    errors = [point.error for point in points]
    return Residual(
        scope.collective,
        scope.ranks,
        scope.nodes,
        SIZE_BANDS[scope.band][0],
        len(points),
        statistics.median(point.base_error for point in points),
        statistics.median(errors),
        min(errors),
        max(errors),
    )


def median_error(points: Sequence[Point]) -> tuple[float, float]:
    """Median absolute relative error before and after the fit."""
    before = statistics.median(abs(point.base_error) for point in points)
    return before, statistics.median(abs(point.error) for point in points)


def to_dict(calibration: Calibration) -> Mapping[str, Any]:
    """The calibration for JSON."""
    before, after = median_error(calibration.points)
    return {
        "profile": calibration.base.name,
        "files": [
            {
                "name": file.name,
                "date": file.date,
                "libraries": list(file.libraries),
                "rows": len(file.rows),
            }
            for file in calibration.files
        ],
        "parameters": parameters(calibration),
        "residuals": [asdict(residual) for residual in residuals(calibration.points)],
        "rows": [
            {
                "id": point.row.id,
                "collective": point.row.kind,
                "ranks": point.row.ranks,
                "nodes": point.row.nodes,
                "bytes": point.row.num_bytes,
                "measured_us": point.row.seconds * 1e6,
                "base_us": point.base_s * 1e6,
                "fitted_us": point.fitted_s * 1e6,
                "error_pct": 100 * point.error,
            }
            for point in calibration.points
        ],
        "excluded": [asdict(lost) for lost in calibration.excluded],
        "notes": list(calibration.notes),
        "summary": {
            "n": len(calibration.points),
            "base_median_ape": 100 * before,
            "median_ape": 100 * after,
            "excluded": sum(lost.rows for lost in calibration.excluded),
        },
    }


def parameters(calibration: Calibration) -> list[dict[str, Any]]:
    """Every parameter of the fitted parts: its value before and after, in SI units.

    ``spread`` is the standard deviation relative to the value; None for those that the
    rows do not tell, whose value is the old one.
    """
    table = []
    for fit in calibration.fits:
        block = getattr(calibration.base.network, fit.part)
        for name in [*fit.values, *fit.held]:
            old = getattr(block, name)
            table.append(
                {
                    "field": f"network.{fit.part}.{file_name_of_field(name)}",
                    "name": name,
                    "base": old,
                    "fitted": fit.values.get(name, old),
                    "spread": fit.spreads.get(name),
                }
            )
    return table
