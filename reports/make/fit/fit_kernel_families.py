"""Fits the kernels of all architectures and GPUs to tables of measured kernels.

Run as ``python -m reports.make.fit.fit_kernel_families TABLE.csv... [--write] [--only FAMILY...]``.
The numbers of families go to ``hardware_profiles/architectures``, those of GPUs with rows to their
profiles, unless some families are named, which are then written alone.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from reports.make.fit.kernel_families import (
    FamilyFit,
    Measured,
    architecture_of,
    cool_profile,
    error_of,
    families_with_a_prior,
    fit_families,
    has_block,
    measured_kernels,
    profile_with,
    sampled,
)
from simulator.calibrate.gpu.fit_kernels import Fit, written
from simulator.described.base import file_name_of_field
from simulator.described.documents import data_folder, names_in, parse_yaml
from simulator.tables.kernel_rows import SkippedRowError

_SIXTEEN_BIT_PRODUCTS = {("gemm", "fp16"), ("gemm", "bf16")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits all families, shows the residuals and may write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, nargs="+", help="kernel tables (CSV)")
    parser.add_argument("--write", action="store_true", help="write the numbers into the files")
    parser.add_argument("--only", nargs="+", metavar="FAMILY", help="families to write alone")
    options = parser.parse_args(arguments)
    rows = sampled(measured_kernels(options.tables))
    fits = fit_families(rows)
    tables = ", ".join(path.name for path in options.tables)
    folder = data_folder("hardware_profiles")
    for name in families_with_a_prior(names_in(folder / "architectures")):
        of_family = [one for one in rows if architecture_of(one.gpu) == name]
        _report(name, fits, of_family)
        if options.write and name in (options.only or [name]):
            _write(folder / "architectures" / f"{name}.yaml", fits, of_family, name, "", tables)
    for gpu in sorted({one.gpu for one in rows}) if options.write and not options.only else ():
        of_gpu = [one for one in rows if one.gpu == gpu]
        _write(folder / f"{gpu}.yaml", fits, of_gpu, architecture_of(gpu), gpu, tables)
    return 0


def _report(name: str, fits: Sequence[FamilyFit], rows: Sequence[Measured]) -> None:
    for fit in fits:
        found = _errors(fit, fits, rows)
        if found:
            values = "  ".join(f"{key} {value:g}" for key, value in fit.values("", name).items())
            sys.stdout.write(f"{name} {_name(fit)}: {_residual(found)}; {values}\n")


def _name(fit: FamilyFit) -> str:
    return ".".join(fit.block.path) or "memory"


def _write(
    path: Path, fits: Sequence[FamilyFit], rows: Sequence[Measured], architecture: str, gpu: str,
    tables: str,
) -> None:  # fmt: skip
    """Write into a file what the fits say of an architecture, or of one GPU."""
    text = path.read_text(encoding="utf-8")
    for fit in fits:
        errors = _errors(fit, fits, rows)
        if not errors and (gpu or not fit.rows or not _is_shared(fit)):
            continue
        kind, said = "assumed", f"what all architectures share; {tables}: no row of this one"
        if errors:
            gpus = len({one.gpu for one in rows if fit.block.rows(one.row)})
            of = "" if gpu else f", {gpus} GPU{'s' if gpus > 1 else ''}"
            kind, said = "fitted", f"{tables}: {_residual(errors)}{of}"
        numbers = Fit(gpu or architecture, fit.block, fit.values(gpu, architecture), errors)
        for target in (fit.block.path, *fit.block.also):
            if not _holds_rows_of(target, fit.block.path):
                kind, said = "assumed", f"as {_name(fit)}, whose units it shares"
            if target[-1:] == ("tf32",) != fit.block.path[-1:]:
                said = f"{said}: half the rate for as much power"
                numbers = replace(numbers, values=_at_half_rate(numbers.values))
            if _stands_in(text, gpu, target):
                text = written(text, target, unpublished(numbers, text, target), kind, said)
    path.write_text(text, encoding="utf-8")


def _at_half_rate(values: Mapping[str, float]) -> dict[str, float]:
    """Parameters of units that take two cycles for an operation and draw as much power."""
    energy = "joule_per_operation"
    return {name: 2.0 * value if name == energy else value for name, value in values.items()}


def _holds_rows_of(target: tuple[str, ...], fitted: tuple[str, ...]) -> bool:
    """Whether a fit has rows of a block: 16-bit products are fitted as one, from both formats."""
    return target == fitted or {target, fitted} == _SIXTEEN_BIT_PRODUCTS


def _is_shared(fit: FamilyFit) -> bool:
    """Whether what all architectures share says something of one more.

    Of attention, kernels of whole generations differ, and the file's own assumption stands.
    """
    return fit.block.path[:1] in ((), ("gemm",))


def _stands_in(text: str, gpu: str, path: Sequence[str]) -> bool:
    """Whether an architecture's file, or the profile of a GPU, has the block."""
    if gpu:
        return has_block(cool_profile(gpu), tuple(path))
    block = parse_yaml(text)["kernels"]
    for key in path:
        block = block.get(key)
    return block is not None


def unpublished(fit: Fit, text: str, path: Sequence[str]) -> Fit:
    """What a fit may write at a place of a file, where published numbers stay."""
    block = parse_yaml(text)["kernels"]
    for key in path:
        block = block.get(key, {})

    def is_published(name: str) -> bool:
        number = block.get(file_name_of_field(name))
        holder = number if isinstance(number, Mapping) else block if path else {}
        return bool(holder.get("source", {}).get("kind") == "published")

    return replace(fit, values={n: v for n, v in fit.values.items() if not is_published(n)})


def _errors(fit: FamilyFit, fits: Sequence[FamilyFit], rows: Sequence[Measured]) -> list[float]:
    """Relative errors of the block's rows."""
    profiles = {gpu: profile_with(gpu, fits) for gpu in {one.gpu for one in rows}}
    found = []
    for one in rows:
        if fit.block.rows(one.row):
            with suppress(SkippedRowError):
                found.append(math.expm1(error_of(one, profiles[one.gpu])))
    return found


def _residual(errors: Sequence[float]) -> str:
    size = [abs(error) for error in errors]
    mean, median = statistics.fmean(size), statistics.median(size)
    return f"{len(size)} rows, mean error {mean:.1%}, median {median:.1%}"


if __name__ == "__main__":
    raise SystemExit(main())
