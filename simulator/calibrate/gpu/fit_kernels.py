"""Which kernel parameters make one profile fit all measured kernels of its device?

Run as ``python -m simulator.calibrate.gpu.fit_kernels TABLE.csv [--profile NAME] [--write]``.
One parameter set per block (a number format, an attention family, the streaming kernels),
fitted over all its rows at once by a robust loss on the logarithm of predicted over
measured, with a weak prior that keeps parameters plausible which the rows cannot see.
Devices without rows take the block of their nearest relative. Needs the ``calibrate``
extra (scipy).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simulator.calibrate.gpu.kernel_blocks import BLOCKS, Block
from simulator.calibrate.profile_text import with_value
from simulator.described.base import file_name_of_field
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import KernelModel
from simulator.described.documents import data_folder
from simulator.described.load import load_profile, profile_names
from simulator.tables.kernel_rows import (
    KernelRow,
    SkippedRowError,
    profile_name_of,
    read_kernel_rows,
)
from simulator.units import format_quantity
from simulator.validate.kernel_answers import compared
from simulator.validate.kernel_errors import without_sustained_clock

_ROBUST_SCALE = 0.1
"""Relative error beyond which a row counts as an outlier (soft-L1 loss)."""

_PRIOR_WEIGHT = 0.002
"""Weight of the prior: a parameter off by a factor of two costs as much as 6 % error."""

_PRIOR_SPREAD = 0.7
"""Natural-log spread of the prior: a factor of two either way is ordinary."""

_AT_MOST_ONE = ("efficiency", "share", "tail")
"""Ends of names of shares of a peak, and of what list scheduling may leave of the longest tile
(Graham, SIAM J. Appl. Math. 17(2), 1969)."""

_FEWEST_ROWS = 6
"""A block needs at least so many rows."""

RELATIVES: Mapping[str, str] = MappingProxyType(
    {
        "a100-pcie-80gb": "a100-sxm-80gb",
        "a100-sxm-40gb": "a100-sxm-80gb",
        "a800-sxm-80gb": "a100-sxm-80gb",
        "b200-sxm-180gb": "h100-sxm-80gb",
        "b300-sxm": "b200-sxm-180gb",
        "gb200-nvl72": "b200-sxm-180gb",
        "gb300-nvl72": "gb200-nvl72",
        "gh200-96gb": "h100-sxm-80gb",
        "h100-hbm2e-96gb-500w": "h100-sxm-80gb",
        "h100-pcie-80gb": "h100-sxm-80gb",
        "h200-sxm-141gb": "h100-sxm-80gb",
        "h20": "h100-sxm-80gb",
        "h800": "h100-sxm-80gb",
        "l40s": "a100-sxm-80gb",
        "rtx-4090": "l40s",
    }
)
"""Device of the same or the nearest generation that stands in where rows are missing."""

OTHER_BOARDS: Mapping[str, str] = MappingProxyType({"a100-sxm-80gb": "a100-pcie-80gb"})
"""Board with the same chip, whose rows tell how long tiles take to start: clock cycles, which no
power limit changes. Where calls are repeated until the limit is felt, the same rows tell of both,
and the fit has several valleys (263 and 106 steps of the inner dimension on the A100)."""

_OF_THE_CHIP = "k_ramp"


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters of one block and how far its rows are off.

    Attributes:
        profile: Name of the profile whose rows were fitted.
        block: What was fitted.
        values: Parameters by their Python names.
        errors: Relative error of every row.
        board: Name of the board with the same chip that told one of them; "" where none did.
    """

    profile: str
    block: Block
    values: Mapping[str, float]
    errors: Sequence[float]
    board: str = ""

    @property
    def residual(self) -> str:
        """Rows and errors in words."""
        size = [abs(error) for error in self.errors]
        mape, median = statistics.fmean(size), statistics.median(size)
        told = f"; {_OF_THE_CHIP} as {self.board}, the same chip" if self.board else ""
        return f"{len(size)} rows, mean error {mape:.1%}, median {median:.1%}{told}"

    def __str__(self) -> str:
        values = "  ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return f"{self.profile} {'.'.join(self.block.path) or 'memory'}: {self.residual}; {values}"


def fit_profile(
    profile: HardwareProfile,
    rows: Sequence[KernelRow],
    inherited: Sequence[Fit] = (),
    other_board: Sequence[Fit] = (),
) -> list[Fit]:
    """One fit per block: the rows' own, else the relative's, else none.

    Args:
        profile: Profile whose other numbers (peaks, bandwidth) stay as they are.
        rows: Rows of this device only.
        inherited: Fits of the nearest relative.
        other_board: Fits of the board that tells of the chip, see :data:`OTHER_BOARDS`.
    """
    fits = []
    current = without_sustained_clock(profile)
    for block in BLOCKS:
        relative = _of_block(block, inherited)
        fit = fit_block(current, block, rows, _of_block(block, other_board)) or relative
        if fit is not None and _has(current.kernels, block.path):
            fits.append(fit)
            current = with_values(current, block, fit.values)
    return fits


def _of_block(block: Block, fits: Sequence[Fit]) -> Fit | None:
    return next((fit for fit in fits if fit.block is block), None)


def fit_block(
    profile: HardwareProfile,
    block: Block,
    rows: Sequence[KernelRow],
    other_board: Fit | None = None,
) -> Fit | None:
    """Best parameters of one block, or None where too few rows can be answered.

    What only the chip decides is taken from the ``other_board`` where it has been fitted.
    """
    from scipy.optimize import minimize  # heavy; only calibration needs it

    answerable = [row for row in rows if block.rows(row) and _is_answerable(row, profile)]
    if len(answerable) < _FEWEST_ROWS or not _has(profile.kernels, block.path):
        return None
    prior = block.prior_told_by(answerable)
    told = other_board if other_board is not None and _OF_THE_CHIP in prior else None
    of_chip = {_OF_THE_CHIP: told.values[_OF_THE_CHIP]} if told else {}
    profile = with_values(profile, block, of_chip)
    prior = {name: typical for name, typical in prior.items() if name not in of_chip}

    def values_of(point: Sequence[float]) -> dict[str, float]:
        pairs = zip(prior.items(), point, strict=True)
        return {name: typical * abs(factor) for (name, typical), factor in pairs}

    def errors_of(values: Mapping[str, float]) -> list[float]:
        candidate = with_values(profile, block, values)
        pairs = (compared(row, candidate) for row in answerable)
        return [pair.predicted_s / pair.measured_s - 1.0 for pair in pairs]

    def loss(point: Sequence[float]) -> float:
        values = values_of(point)
        excess = sum(max(0.0, v - 1.0) for n, v in values.items() if n.endswith(_AT_MOST_ONE))
        if excess > 0:
            return 1e3 * (1.0 + excess)
        data = statistics.fmean(_soft_l1(math.log1p(error)) for error in errors_of(values))
        unlikely = sum((math.log(max(abs(f), 1e-9)) / _PRIOR_SPREAD) ** 2 for f in point)
        return data + _PRIOR_WEIGHT * unlikely

    options = {"maxfev": 120 * (1 + len(prior)), "xatol": 1e-3, "fatol": 1e-6}

    def best_of(starts: Sequence[Sequence[float]]) -> Any:
        found = [minimize(loss, start, method="Nelder-Mead", options=options) for start in starts]
        return min(found, key=lambda result: result.fun)

    best = best_of([[1.0] * len(prior), [0.7] * len(prior)])
    if "boost_s" in prior:
        best = min(best, best_of(_other_valleys(best.x, prior)), key=lambda result: result.fun)
    values = of_chip | _rounded(values_of(best.x))
    return Fit(profile.name, block, values, errors_of(values), told.profile if told else "")


def _other_valleys(point: Sequence[float], prior: Mapping[str, float]) -> Sequence[Sequence[float]]:
    """The point with a power limit that is felt soon, and late.

    Of ``boost_s`` the loss has several valleys.
    """
    limits = ({"held_share": 1.0, "boost_s": factor} for factor in (0.3, 5.0))
    return [
        [limit.get(name, value) for name, value in zip(prior, point, strict=True)]
        for limit in limits
    ]


def with_values(
    profile: HardwareProfile, block: Block, values: Mapping[str, float]
) -> HardwareProfile:
    """The profile with one block's parameters replaced."""
    kernels = profile.kernels
    match block.path:
        case ():
            update: dict[str, Any] = dict(values)
        case ("gemm", precision):
            model = kernels.gemm[precision].model_copy(update=dict(values))  # type: ignore[index]
            update = {"gemm": {**kernels.gemm, precision: model}}
        case (family,):
            update = {family: getattr(kernels, family).model_copy(update=dict(values))}
        case _:
            raise ValueError(block.path)
    return profile.model_copy(update={"kernels": kernels.model_copy(update=update)})


def written(text: str, path: Sequence[str], fit: Fit, kind: str, reference: str) -> str:
    """Text of a profile file with the fit's numbers, and their source, at ``path``."""
    source = f'{{kind: {kind}, reference: "{reference}"}}'
    alone = fit.block.has_sources_per_number
    for name, value in fit.values.items():
        number = format_quantity(value, "s") if name.endswith("_s") else f"{value:.12g}"
        shown = f"{{value: {number}, source: {source}}}" if alone else number
        text = with_value(text, ["kernels", *path, file_name_of_field(name)], shown)
    return text if alone else with_value(text, ["kernels", *path, "source"], source)


def _soft_l1(error: float) -> float:
    return math.sqrt(1.0 + (error / _ROBUST_SCALE) ** 2) - 1.0


def _is_answerable(row: KernelRow, profile: HardwareProfile) -> bool:
    try:
        compared(row, profile)
    except SkippedRowError:
        return False
    return True


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def _rows_by_profile(rows: Sequence[KernelRow]) -> dict[str, list[KernelRow]]:
    grouped: dict[str, list[KernelRow]] = {}
    for row in rows:
        try:
            grouped.setdefault(profile_name_of(row), []).append(row)
        except SkippedRowError:
            continue
    return grouped


def with_fits(text: str, profile: HardwareProfile, fits: Sequence[Fit], table: str) -> str:
    """Text of a profile's file with all fits, each with ``table`` and residual as source."""
    for fit in fits:
        own = fit.profile == profile.name
        reference = f"{table}: {fit.residual}" if own else f"as {fit.profile}"
        text = written(text, fit.block.path, fit, "fitted" if own else "assumed", reference)
        for target in fit.block.also:
            if _has(profile.kernels, target):
                shared = f"as {fit.block.path[-1]}, whose kernels it shares"
                text = written(text, target, fit, "assumed", shared)
    return text


def _write(name: str, fits: Sequence[Fit], table: str) -> None:
    path = data_folder("hardware_profiles") / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(with_fits(text, load_profile(name), fits, table), encoding="utf-8")


def _has(kernels: KernelModel, path: Sequence[str]) -> bool:
    match path:
        case ("gemm", precision):
            return precision in kernels.gemm
        case (family,):
            return getattr(kernels, family) is not None
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits profiles from a kernel table, shows the residuals and may write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("table", type=Path, help="kernel table (CSV)")
    parser.add_argument("--profile", help="only this profile; by default every one")
    parser.add_argument("--write", action="store_true", help="write the numbers into the files")
    options = parser.parse_args(arguments)
    grouped = _rows_by_profile(read_kernel_rows(options.table))
    fits: dict[str, list[Fit]] = {}
    for name in [options.profile] if options.profile else profile_names():
        for fit in _fit_lineage(name, grouped, fits):
            sys.stdout.write(f"{name} <- {fit}\n" if fit.profile != name else f"{fit}\n")
        if options.write:
            _write(name, fits[name], options.table.name)
    return 0


def _fit_lineage(
    name: str, rows: Mapping[str, Sequence[KernelRow]], fits: dict[str, list[Fit]]
) -> list[Fit]:
    """Fits of a profile, its relatives first; ``fits`` keeps what is already known."""
    if name not in fits:
        relative = RELATIVES.get(name)
        inherited = _fit_lineage(relative, rows, fits) if relative else []
        board = OTHER_BOARDS.get(name)
        of_board = fit_profile(load_profile(board), rows.get(board, ())) if board else []
        fits[name] = fit_profile(load_profile(name), rows.get(name, ()), inherited, of_board)
    return fits[name]


if __name__ == "__main__":
    raise SystemExit(main())
