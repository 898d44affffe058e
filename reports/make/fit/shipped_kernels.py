"""Fits the kernels of the shipped profiles to a table of measured kernels.

Run as ``python -m reports.make.fit.shipped_kernels TABLE.csv [--profile NAME] [--write]``.
Devices without rows take the block of their nearest relative.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from simulator.calibrate.gpu.fit_kernels import Fit, fit_profile, with_fits
from simulator.described.documents import data_folder
from simulator.described.load import load_profile, profile_names
from simulator.tables.kernel_rows import (
    KernelRow,
    SkippedRowError,
    profile_name_of,
    read_kernel_rows,
)

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


def _rows_by_profile(rows: Sequence[KernelRow]) -> dict[str, list[KernelRow]]:
    grouped: dict[str, list[KernelRow]] = {}
    for row in rows:
        try:
            grouped.setdefault(profile_name_of(row), []).append(row)
        except SkippedRowError:
            continue
    return grouped


def _write(name: str, fits: Sequence[Fit], table: str) -> None:
    path = data_folder("hardware_profiles") / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(with_fits(text, load_profile(name), fits, table), encoding="utf-8")


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
