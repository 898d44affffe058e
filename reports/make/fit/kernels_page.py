"""Writes how well kernels are foretold that no fit has seen, as reports/kernels.md.

Run as ``python -m reports.make.fit.kernels_page TABLE.csv...``. In turn all rows of a team, then
all rows of a GPU, are left out of the fit and predicted; the fit itself is
:mod:`reports.make.fit.kernel_families`.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from reports.make.fit.kernel_families import (
    FamilyFit,
    Measured,
    error_of,
    fit_families,
    measured_kernels,
    profile_with,
    sampled,
)
from simulator.calibrate.gpu.fit_kernels import is_half_precision
from simulator.tables.kernel_rows import SkippedRowError, read_kernel_rows

PAGE = Path("reports/kernels.md")

Errors = Mapping[str, float]

_GROUPS: Sequence[tuple[str, str]] = (
    (r"grouped", "grouped products"),
    (r"bmm|batched", "batched products"),
    (r"gemm", "products"),
    (r"moe", "experts of serving engines"),
    (r"unfused", "attention in several kernels"),
    (r"attention", "fused attention"),
    (r"", "bound by memory"),
)

_HEAD = """# Kernels that no fit has seen

Written by `python -m reports.make.fit.kernels_page kernels_open.csv kernels_opened.csv`. Errors are
the absolute relative error of the predicted time, mean / median in %. *In sample*: rows of all
teams and GPUs are in the fit. *Team unseen*: all rows of a team (a repository) are left out of the
fit, then predicted. *GPU unseen*: all rows of a GPU are, so it is its data sheet and its family.
The numbers in the profiles are of fits that hold less to their priors, with weights of 0.02 and
0.07 instead of 0.6, but those of sm_86, of which no products are measured. With 0.6, steps of
training on Hopper, Blackwell and CDNA 2 were farther off, whatever clock was fitted beside it, and
those on A100 and V100 no nearer. Experts of serving engines are predicted with the numbers of
serving, fitted to other rows of the same team; no other team measured them. A product whose kernel
a table names has the tile of that name here. The numbers of fp32 in the profiles are fitted with
the fastest tile instead, as a step predicts products: fitted with tiles of names, steps in fp32
on A100 came out too fast.

{answered} of {rows} rows are answered; of the others, {limits}.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits as often as there are teams and GPUs, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", type=Path, nargs="+", help="kernel tables (CSV)")
    options = parser.parse_args(arguments)
    every = measured_kernels(options.tables)
    rows = sampled(every)
    full = fit_families(rows)
    seen = _errors(every, full)
    team = _left_out(every, rows, full, lambda one: one.team)
    gpu = _left_out(every, rows, full, lambda one: one.gpu)
    stated = sum(len(read_kernel_rows(path)) for path in options.tables)
    reasons = Counter(_refusal(one) for one in every if _id(one) not in seen)
    reasons["no profile describes the GPU"] = stated - len(every)
    limits = "; ".join(f"{n}: {why}" for why, n in reasons.most_common() if why and n)
    text = _HEAD.format(answered=len(seen), rows=stated, limits=limits)
    text += _table("kernels", every, seen, team, gpu, _group)
    text += _table("GPU, products", _products(every), seen, team, gpu, lambda one: one.gpu)
    text += _table("team", every, seen, team, gpu, lambda one: one.team)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def _left_out(
    every: Sequence[Measured],
    rows: Sequence[Measured],
    full: Sequence[FamilyFit],
    key: Callable[[Measured], str],
) -> Errors:
    """Errors of every row where all of its team, or its GPU, are left out of the fit."""
    found: dict[str, float] = {}
    for name in sorted({key(one) for one in every}):
        sys.stderr.write(f"without {name}\n")
        fits = fit_families([one for one in rows if key(one) != name], full)
        found.update(_errors([one for one in every if key(one) == name], fits))
    return found


def _errors(rows: Sequence[Measured], fits: Sequence[FamilyFit]) -> dict[str, float]:
    profiles = {gpu: profile_with(gpu, fits) for gpu in {one.gpu for one in rows}}
    found = {}
    for one in rows:
        try:
            found[_id(one)] = abs(math.expm1(error_of(one, profiles[one.gpu])))
        except SkippedRowError:
            continue
    return found


def _refusal(one: Measured) -> str:
    try:
        error_of(one, profile_with(one.gpu, ()))
    except SkippedRowError as reason:
        return str(reason)
    return ""


def _id(one: Measured) -> str:
    return one.row.text("id")


def _products(rows: Iterable[Measured]) -> list[Measured]:
    return [one for one in rows if "products" in _group(one)]


def _group(one: Measured) -> str:
    name = next(name for word, name in _GROUPS if re.search(word, one.row.op))
    if name != "products":
        return name
    if is_half_precision(one.row):
        return "16-bit products"
    return f"{one.row.text('dtype').split()[0]} products"


def _table(
    title: str,
    rows: Sequence[Measured],
    seen: Errors,
    team: Errors,
    gpu: Errors,
    key: Callable[[Measured], str],
) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for one in rows:
        if _id(one) in seen:
            groups[key(one)].append(_id(one))
    lines = [
        f"\n| {title} | rows | in sample | team unseen | GPU unseen |",
        "|---|---|---|---|---|",
    ]
    every = [name for names in groups.values() for name in names]
    for name, ids in [*sorted(groups.items()), ("all", every)]:
        cells = " | ".join(_mean_and_median(ids, errors) for errors in (seen, team, gpu))
        lines.append(f"| {name} | {len(ids)} | {cells} |")
    return "\n".join(lines) + "\n"


def _mean_and_median(ids: Sequence[str], errors: Errors) -> str:
    found = [100 * errors[each] for each in ids if each in errors]
    if not found:
        return "-"
    return f"{statistics.fmean(found):.1f} / {statistics.median(found):.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
