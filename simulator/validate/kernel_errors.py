"""How close do predicted kernel times come to measured ones?

Kernel tables hold short, cool runs, so the profile's ``sustained_clock`` is taken out
before predicting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from simulator.cost.kernel_time import without_sustained_clock
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.load import load_profile
from simulator.tables.kernel_rows import (
    KernelRow,
    SkippedRowError,
    profile_name_of,
    read_kernel_rows,
)
from simulator.validate.accuracy import Accuracy, accuracy_by, error_pct
from simulator.validate.kernel_answers import compared, family_of


@dataclass(frozen=True, slots=True)
class KernelResult:
    """One row of the table, predicted or skipped.

    Attributes:
        id: Name of the row.
        gpu: GPU as the table spells it.
        op: Operation as the table spells it.
        dtype: Number format as the table spells it.
        family: Kernels that are judged together.
        measured_us: Measured time [us], None if skipped.
        predicted_us: Predicted time [us], None if skipped.
        skipped: Why the row has no prediction; empty if it has one.
    """

    id: str
    gpu: str
    op: str
    dtype: str
    family: str
    measured_us: float | None = None
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
class KernelReport:
    """All rows of a table and how well they were predicted."""

    rows: Sequence[KernelResult]

    @property
    def summary(self) -> Accuracy:
        """Accuracy over all rows."""
        return Accuracy.of(row.error_pct for row in self.rows)

    @property
    def groups(self) -> dict[tuple[str, str, str], Accuracy]:
        """Accuracy per (gpu, op, dtype), sorted."""
        return accuracy_by(((row.gpu, row.op, row.dtype), row.error_pct) for row in self.rows)

    @property
    def families(self) -> dict[tuple[str, str], Accuracy]:
        """Accuracy per (gpu, family), sorted."""
        return accuracy_by(((row.gpu, row.family), row.error_pct) for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON: ``rows``, ``summary``, ``groups`` and ``families``."""
        groups = [
            {"gpu": gpu, "op": op, "dtype": dtype, **asdict(accuracy)}
            for (gpu, op, dtype), accuracy in self.groups.items()
        ]
        return {
            "rows": [row.to_dict() for row in self.rows],
            "summary": asdict(self.summary),
            "groups": groups,
            "families": [
                {"gpu": gpu, "family": family, **asdict(accuracy)}
                for (gpu, family), accuracy in self.families.items()
            ],
        }


def validate_kernels(
    csv_path: str | Path,
    profile_of: Callable[[str], HardwareProfile] = load_profile,
    profile: HardwareProfile | None = None,
) -> KernelReport:
    """Predictions for every row of a kernel table beside what was measured.

    Args:
        csv_path: Table with the columns id, op, gpu, dtype, m, n, k, batch, seq, head_dim,
            causal, direction, tflops, gbps, time_us and notes.
        profile_of: Profile of a name; the shipped ones by default.
        profile: Answers every row, whichever GPU it names.

    Raises:
        InputError: The table cannot be read.
    """
    rows = read_kernel_rows(csv_path)
    if profile is not None:
        return kernel_report(rows, profile)
    profiles: dict[str, HardwareProfile] = {}

    def benchmark_profile(row: KernelRow) -> HardwareProfile:
        name = profile_name_of(row)
        if name not in profiles:
            profiles[name] = without_sustained_clock(profile_of(name))
        return profiles[name]

    return KernelReport([_result(row, benchmark_profile) for row in rows])


def kernel_report(rows: Sequence[KernelRow], profile: HardwareProfile) -> KernelReport:
    """Predictions of one profile for rows of its device, as short, cool benchmarks see it."""
    cool = without_sustained_clock(profile)
    return KernelReport([_result(row, lambda _: cool) for row in rows])


def _result(row: KernelRow, profile_of: Callable[[KernelRow], HardwareProfile]) -> KernelResult:
    gpu, dtype = row.text("gpu"), row.text("dtype")
    result = KernelResult(row.text("id"), gpu, row.text("op"), dtype, family_of(row))
    try:
        comparison = compared(row, profile_of(row))
    except SkippedRowError as reason:
        return replace(result, skipped=str(reason))
    return replace(
        result,
        measured_us=comparison.measured_s * 1e6,
        predicted_us=comparison.predicted_s * 1e6,
    )
