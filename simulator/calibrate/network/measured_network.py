"""What do measured collectives say of their system's network?

Facts of the machine (links, NICs and their rates) are those of the profile that the fit
starts from; only how well they are used and how long hops take is fitted. What the rows
do not tell stays as that profile has it, and a note says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from simulator.calibrate.network.network_fit import (
    FEW_ROWS,
    Case,
    Fit,
    fit_links,
    hidden_by_launches,
    priors_around,
    with_values,
)
from simulator.calibrate.profile_text import SourcedValue
from simulator.described.base import file_name_of_field
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import Network
from simulator.described.load import profile_names
from simulator.errors import InputError
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.importers.nccl_tests.nccl_tests_output import read_nccl_tests
from simulator.importers.nccl_tests.nccl_tests_run import CollectiveFile, Excerpt, Excluded
from simulator.tables.collective_rows import (
    network_of,
    predicted_s,
    read_collective_rows,
    reason_to_skip,
)
from simulator.tables.collective_table import own_table
from simulator.tables.spellings import profile_name_of
from simulator.units import format_quantity

PARTS: Mapping[str, str] = {
    "scale_up": "no row stays inside a node",
    "fabric": "no row crosses nodes",
}
"""Parts of a network in the order they are fitted, and why one may not be."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row beside what is predicted for it.

    Attributes:
        row: What was measured.
        base_s: Prediction of the profile that the fit started from [s].
        fitted_s: Prediction after the fit [s].
    """

    row: CollectiveRow
    base_s: float
    fitted_s: float

    @property
    def base_error(self) -> float:
        """Signed relative error before the fit; positive where the prediction is too slow."""
        return self.base_s / self.row.seconds - 1

    @property
    def error(self) -> float:
        """Signed relative error after the fit."""
        return self.fitted_s / self.row.seconds - 1


@dataclass(frozen=True)
class Calibration:
    """A network fitted to measured rows.

    Attributes:
        base: The profile that the fit started from.
        files: What was read.
        fits: One per part of the network that the rows tell something about.
        points: Every row that was used.
        excluded: Rows that were not used, and why.
        notes: Sentences on what the rows cannot tell and what was taken for granted.
    """

    base: HardwareProfile
    files: Sequence[CollectiveFile]
    fits: Sequence[Fit]
    points: Sequence[Point]
    excluded: Sequence[Excluded]
    notes: Sequence[str] = field(default_factory=list)

    def sourced_values(self) -> dict[str, SourcedValue]:
        """What changes in the profile, by dotted path, with its source."""
        return {
            f"network.{fit.part}.{file_name_of_field(name)}": SourcedValue(
                value_text(name, value), "fitted", self._reference(fit, name)
            )
            for fit in self.fits
            for name, value in fit.values.items()
            if name not in fit.held
        }

    def _reference(self, fit: Fit, name: str) -> str:
        used = [file for file in self.files if file.rows]
        libraries = dict.fromkeys(library for file in used for library in file.libraries)
        stated = [*sorted({file.date for file in used}), *libraries]
        return (
            f"{', '.join(file.name for file in used)} ({', '.join(stated)}): {fit.rows} rows, "
            f"median error {fit.median_error:.1%}; this value to {fit.spreads[name]:.0%}"
        )


def read_measured(
    path: str | Path, *, partial: bool = False, excerpt: Excerpt | None = None
) -> CollectiveFile:
    """The rows of a file: a collected table (.csv), or output of nccl-tests or rccl-tests.

    Args:
        path: The file.
        partial: Take the rows of runs that were cut off.
        excerpt: What ran, for output without the lines that say so.

    Raises:
        InputError: The file is none of these, or was cut off.
    """
    file = Path(path)
    if file.suffix.lower() != ".csv":
        return read_nccl_tests(file, partial=partial, excerpt=excerpt)
    rows = tuple(read_collective_rows(file))
    own = own_table(file)
    if own is None:
        return CollectiveFile(file.name, rows, is_collection=True)
    return CollectiveFile(file.name, rows, libraries=own.libraries, date=own.date)


def calibrate_collectives(files: Sequence[CollectiveFile], base: HardwareProfile) -> Calibration:
    """The network of ``base`` with its parameters fitted to measured rows. Needs scipy.

    Raises:
        InputError: No row was measured on such a system.
    """
    cases, excluded = _cases(files, base)
    notes = [f"{file.name}: {sentence}" for file in files for sentence in file.assumed]
    notes += _notes_on_machines(cases, files, base)
    fits, fitted, notes_on_fits = _fitted(cases, base)
    points = [
        Point(
            before.row,
            predicted_s(before.row, before.network),
            predicted_s(after.row, after.network),
        )
        for before, after in zip(cases, fitted, strict=True)
    ]
    return Calibration(base, files, fits, points, excluded, [*notes, *notes_on_fits])


def _cases(
    files: Sequence[CollectiveFile], base: HardwareProfile
) -> tuple[list[Case], list[Excluded]]:
    """The rows that are fitted to, each on its machine's network, and the others."""
    excluded = [
        replace(lost, place=f"{file.name}: {lost.place}")
        for file in files
        for lost in file.excluded
    ]
    cases = []
    for file in files:
        for row in file.rows:
            stated = row if file.is_collection else _with_nics_of(base.network, row)
            reason = _reason_to_leave_out(stated, base, file)
            if reason:
                excluded.append(Excluded(row.id, reason))
            else:
                cases.append(Case(stated, base.name, network_of(stated, base.network)))
    if not cases:
        raise _nothing_to_fit(excluded, base)
    return cases, excluded


def _fitted(
    cases: Sequence[Case], base: HardwareProfile
) -> tuple[list[Fit], Sequence[Case], list[str]]:
    """One fit per part that the rows tell of, the rows on the fitted network, and what to say."""
    fits: list[Fit] = []
    notes: list[str] = []
    fitted = cases
    for part, why_not in PARTS.items():
        own = [case for case in fitted if case.crosses == (part == "fabric")]
        if len(own) < FEW_ROWS:
            few = f"only {len(own)} of the needed {FEW_ROWS} rows determine it"
            reason = few if own else why_not
            notes.append(f"{part} stays as in {base.name}: {reason}")
            continue
        held = hidden_by_launches(own) if part == "scale_up" else ()
        if held:
            notes.append(f"{part}: one process launched on all GPUs in turn, which hides latencies")
        fit = fit_links(own, part, priors_around(part, base), held, hold_undetermined=True)
        fit = replace(fit, values={k: v for k, v in fit.values.items() if k not in fit.held})
        fits.append(fit)
        fitted = [
            replace(case, network=with_values(case.network, part, fit.values)) for case in fitted
        ]
        notes += _notes_on_fit(fit, own, base)
    return fits, fitted, notes


def _with_nics_of(network: Network, row: CollectiveRow) -> CollectiveRow:
    """The row; where it says nothing of the fabric, with that of the profile."""
    fabric = network.fabric
    silent = row.fabric is None and row.nics_per_node is None
    if row.nodes == 1 or not silent or fabric.nics_per_node == 0:
        return row
    return replace(
        row,
        fabric=fabric.kind,
        nics_per_node=fabric.nics_per_node,
        nic_bytes_per_s=fabric.nic_bytes_per_s,
    )


def _reason_to_leave_out(row: CollectiveRow, base: HardwareProfile, file: CollectiveFile) -> str:
    """Why a row cannot tell of the system; empty if it can."""
    return next(_reasons_to_leave_out(row, base, file), "")


def _reasons_to_leave_out(
    row: CollectiveRow, base: HardwareProfile, file: CollectiveFile
) -> Iterator[str]:
    network = base.network
    is_of = _is_of(row.gpu, base.name)
    if is_of is False or (is_of is None and file.is_collection):
        yield f"measured on {row.gpu}, and {base.name} is another GPU"
    if reason := reason_to_skip(row):
        yield reason
    most = max(network.gpus_per_node, network.scale_up.gpus)
    if row.gpus_per_node > most:
        yield f"{row.gpus_per_node} GPUs per host, and {base.name} has {most}"
    if row.nodes > 1 and row.fabric not in (None, network.fabric.kind):
        yield f"crosses {row.fabric}, and {base.name} has {network.fabric.kind}"
    if row.nodes > 1 and row.gpus_per_node < network.gpus_per_node and not file.is_collection:
        yield (
            f"{row.gpus_per_node} of {network.gpus_per_node} GPUs per node: "
            "which NICs they used is not stated"
        )


def _is_of(gpu: str, base_name: str) -> bool | None:
    """Whether a profile describes a GPU; None if the names do not tell."""
    shipped = profile_names()
    found = profile_name_of(gpu, [*shipped, base_name])
    if found is None or found == base_name:
        return None if found is None else True
    if base_name in shipped:
        return False
    # Of a profile that a user named, only the family can be compared.
    families = {name.split("-")[0] for name in shipped}
    own = base_name.split("-", maxsplit=1)[0].lower()
    return own == found.split("-")[0] if own in families else None


def _nothing_to_fit(excluded: Sequence[Excluded], base: HardwareProfile) -> InputError:
    rule = f"hold no row that {base.name} can be fitted to"
    reasons = dict.fromkeys(lost.reason for lost in excluded)
    why = f"; {'; '.join(list(reasons)[:3])}" if reasons else ""
    return InputError.single("FILES", f"{rule}{why}", hint="name the system with --profile")


def _notes_on_machines(
    cases: Sequence[Case], files: Sequence[CollectiveFile], base: HardwareProfile
) -> Iterator[str]:
    unknown = sorted({case.row.gpu for case in cases if _is_of(case.row.gpu, base.name) is None})
    for gpu in unknown:
        yield f"whether {base.name} describes {gpu or 'the GPUs'} was not checked: unknown name"
    silent = {row.id for file in files for row in file.rows if row.nics_per_node is None}
    if any(case.crosses and case.row.id in silent for case in cases):
        fabric = base.network.fabric
        rate = format_quantity(fabric.nic_bytes_per_s, "bytes_per_s")
        yield (
            f"the files do not say which NICs there were: {fabric.nics_per_node} x {rate} "
            f"{fabric.kind} per node, as in {base.name}"
        )


def _notes_on_fit(fit: Fit, cases: Sequence[Case], base: HardwareProfile) -> Iterator[str]:
    if fit.held:
        names = ", ".join(file_name_of_field(name) for name in fit.held)
        yield f"{fit.part}: {names} as in {base.name}: the rows do not determine them"
    if fit.part == "fabric":
        nodes = sorted({case.row.nodes for case in cases})
        if len(nodes) == 1:
            yield (
                f"fabric: all rows have {nodes[0]} nodes, so the growth with the number of nodes "
                "was not measured; predictions for other numbers rest on the model alone"
            )
        else:
            nodes_text = f"{nodes[0]} to {nodes[-1]} nodes"
            yield f"fabric: measured on {nodes_text}; beyond that the model extrapolates"


def value_text(field: str, value: float) -> str:
    """The value as files spell it; times keep their three digits."""
    if field.endswith("_bytes_per_s"):
        return format_quantity(value, "bytes_per_s")
    if field.endswith("_bytes"):
        return format_quantity(value, "bytes")
    return format_quantity(value, "s") if field.endswith("_s") else f"{value:g}"


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
