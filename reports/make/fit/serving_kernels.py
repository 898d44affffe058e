"""Fits the kernels of serving to tables of measured kernels, for each architecture and engine.

Run as ``python -m reports.make.fit.serving_kernels SERVING.csv ENGINES.csv.gz [--write]``. Least
squares of the logarithm with a soft loss, and a weak pull to the numbers of before; an engine gets
numbers of its own where they halve what is left of its error, or nearly so. Families of devices
without rows are kept as they are, and so are numbers that somebody published.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy.optimize import least_squares

from reports.make.fit.serving_kernel_rows import KernelRow, kernel_rows, predicted_s

_KERNELS = Path("simulator/serving/kernels/kernels.yaml")
_ARCHITECTURES = {
    "a100-sxm-80gb": "sm80",
    "h100-sxm-80gb": "sm90",
    "h200-sxm-141gb": "sm90",
    "h800": "sm90",
    "b200-sxm-180gb": "sm100",
    "gb200-nvl72": "sm100",
    "rtx-pro-6000-server": "sm120",
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    "products": ("floor", "efficiency", "memory_efficiency", "tile_half", "k_ramp"),
    "experts": ("floor", "memory_efficiency", "efficiency", "tile_half", "width_half"),
    "decode": ("floor", "memory_efficiency", "head", "key"),
    "prefill": ("floor", "efficiency", "tail"),
    "latent": ("floor", "memory_efficiency", "efficiency"),
}
_BOUNDS = {
    "floor": (5e-7, 2e-4),
    "efficiency": (0.03, 1.05),
    "memory_efficiency": (0.1, 1.1),
    "tile_half": (1.0, 200.0),
    "k_ramp": (10.0, 1000.0),
    "width_half": (10.0, 2000.0),
    "head": (1e-10, 2e-7),
    "key": (1e-10, 1e-7),
    "tail": (0.01, 3.0),
}
_SECONDS = ("floor", "head", "key")
_START = {
    "floor": 1e-5,
    "efficiency": 0.5,
    "memory_efficiency": 0.8,
    "tile_half": 50.0,
    "k_ramp": 50.0,
    "width_half": 150.0,
    "head": 1e-8,
    "key": 5e-9,
    "tail": 0.5,
}
_EXPERTS_START = {
    "floor": 3e-5,
    "memory_efficiency": 0.95,
    "efficiency": 0.35,
    "tile_half": 25.0,
    "width_half": 300.0,
}
"""Medians of the groups with more than a hundred rows."""
_MOST_ROWS, _LEAST_OWN_ROWS, _OWN_GAIN = 260, 40, 0.8
_PULL, _EXPERTS_PULL, _SOFT = 0.045, 0.45, 0.15


class Fit(NamedTuple):
    """Numbers of one kernel, and how far they are off."""

    numbers: Mapping[str, float]
    rows: int
    median_error: float
    mean_error: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits all kernels, shows what is left of the errors and may write the numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="*", help="families; all if not given")
    parser.add_argument("--kernels", nargs="*", help="of _NAMES; all if not given")
    options = parser.parse_args(arguments)
    groups: dict[tuple[str, str, str], list[KernelRow]] = defaultdict(list)
    for row in kernel_rows(options.tables):
        if row.gpu in _ARCHITECTURES and not (row.is_of_the_host or row.is_unlike_engines):
            groups[_ARCHITECTURES[row.gpu], row.kernel, row.form].append(row)
    document = yaml.safe_load(_KERNELS.read_text(encoding="utf-8"))
    for (family, kernel, form), rows in sorted(groups.items()):
        if options.only and family not in options.only:
            continue
        if options.kernels and kernel not in options.kernels:
            continue
        _fit_group(document[family], kernel, form, rows)
    if options.write:
        _KERNELS.write_text(_HEADER + _yaml(document), encoding="utf-8")
    return 0


def _fit_group(family: dict[str, Any], kernel: str, form: str, rows: list[KernelRow]) -> None:
    start = _EXPERTS_START if kernel == "experts" else _START
    together = _published(family, kernel, form) or _fitted(kernel, _sampled(rows), start)
    if together.rows:
        _put(family, kernel, form, together)
    print(kernel, form, _shown(together))
    for engine in sorted({row.engine for row in rows}):
        own_rows = _sampled([row for row in rows if row.engine == engine])
        own_block = family.setdefault("by_engine", {}).setdefault(engine, {})
        _drop(own_block, kernel, form)
        if len(own_rows) < _LEAST_OWN_ROWS:
            continue
        own = _fitted(kernel, own_rows, together.numbers)
        before = float(np.mean(_errors(kernel, own_rows, together.numbers)))
        if own.mean_error < _OWN_GAIN * before:
            _put(own_block, kernel, form, own)
            print("  ", engine, f"{before:.1%} ->", _shown(own))
    family["by_engine"] = {name: block for name, block in family["by_engine"].items() if block}


def _published(family: Mapping[str, Any], kernel: str, form: str) -> Fit | None:
    """Numbers of a document, which hold for engines whose kernels no row has."""
    given = family.get(kernel, {})
    given = given.get(form, {}) if form else given
    if given.get("source", {}).get("kind") != "published":
        return None
    scale = {name: 1e-6 if name in _SECONDS else 1.0 for name in _NAMES[kernel]}
    numbers = {name: float(str(given[name]).split()[0]) * by for name, by in scale.items()}
    return Fit(numbers, rows=0, median_error=math.nan, mean_error=math.nan)


def _fitted(kernel: str, rows: Sequence[KernelRow], start: Mapping[str, float]) -> Fit:
    names = _NAMES[kernel]
    low, high = np.log([_BOUNDS[name] for name in names]).T
    first = np.clip(np.log([start[name] for name in names]), low + 0.01, high - 0.01)
    measured = np.log([row.seconds for row in rows])
    # Few rows of experts are bound by computing, so many rows say little of its efficiency.
    pull = (_EXPERTS_PULL if kernel == "experts" else _PULL) * math.sqrt(len(rows) / 30)

    def left(logs: Any) -> Any:
        numbers = dict(zip(names, np.exp(logs), strict=True))
        return np.concatenate([_predicted(kernel, rows, numbers) - measured, pull * (logs - first)])

    found = least_squares(
        left, first, bounds=(low, high), loss="soft_l1", f_scale=_SOFT, max_nfev=40
    )
    numbers = dict(zip(names, map(float, np.exp(found.x)), strict=True))
    errors = _errors(kernel, rows, numbers)
    return Fit(numbers, len(rows), float(np.median(errors)), float(np.mean(errors)))


def _predicted(kernel: str, rows: Sequence[KernelRow], numbers: Mapping[str, float]) -> Any:
    fields = {f"{name}_s" if name in _SECONDS else name: value for name, value in numbers.items()}
    fit = SimpleNamespace(**fields)
    return np.log([predicted_s(fit, row) for row in rows])


def _errors(kernel: str, rows: Sequence[KernelRow], numbers: Mapping[str, float]) -> Any:
    measured = np.log([row.seconds for row in rows])
    return np.abs(np.expm1(_predicted(kernel, rows, numbers) - measured))


def _sampled(rows: list[KernelRow]) -> list[KernelRow]:
    step = max(1.0, len(rows) / _MOST_ROWS)
    return [rows[int(place * step)] for place in range(min(len(rows), _MOST_ROWS))]


def _put(block: dict[str, Any], kernel: str, form: str, fit: Fit) -> None:
    found: dict[str, Any] = {}
    for name, value in fit.numbers.items():
        found[name] = f"{value * 1e6:.3g} us" if name in _SECONDS else float(f"{value:.3g}")
    text = (
        f"serving_kernels_open.csv, kernels_engines_opened.csv: {fit.rows} rows, "
        f"median error {fit.median_error:.1%}, mean {fit.mean_error:.1%}".replace("%", " %")
    )
    found["source"] = {"kind": "fitted", "reference": text}
    if form:
        block.setdefault(kernel, {})[form] = found
    else:
        block[kernel] = found


def _drop(block: dict[str, Any], kernel: str, form: str) -> None:
    if not form:
        block.pop(kernel, None)
    elif kernel in block:
        block[kernel].pop(form, None)
        if not block[kernel]:
            del block[kernel]


def _shown(fit: Fit) -> str:
    numbers = " ".join(f"{name} {value:.3g}" for name, value in fit.numbers.items())
    return f"{fit.rows} rows, median {fit.median_error:.1%}, mean {fit.mean_error:.1%}: {numbers}"


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice out twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(document: Mapping[str, Any]) -> str:
    blocks = (
        yaml.dump({name: block}, Dumper=_Plain, sort_keys=False, width=150, allow_unicode=True)
        for name, block in document.items()
    )
    return "\n".join(blocks)


_HEADER = """\
# Kernels of serving for each family of devices, fitted by reports/make/fit/serving_kernels.py
# to serving_kernels_open.csv and kernels_engines_opened.csv (rows of ai-dynamo/aiconfigurator,
# Apache-2.0, and of InferSim, DeepSeek and Sarathi-Serve): least squares of the logarithm with a
# soft loss, over all engines together, and under by_engine for those whose kernels are others.
# Left out are rows of vLLM 0.24 with blocks of fp8 and with latent attention, whose least time of
# 80 to 180 us is the host's, and experts on Hopper that engines do not run (see the file).
# in_situ has factors that measured runs of serving told.
# sm80 is Ampere (measured on A100; that Volta behaves alike is assumed), sm86 Ampere with memory of
# graphics cards, sm90 Hopper (H100, H200, H800), sm100 Blackwell (B200, GB200), sm120 consumer
# Blackwell (RTX PRO 6000), sm89 Ada, of which that it behaves alike is assumed, gfx942 MI300X and
# MI325X (and MI100 to MI250X: 393 runs of LLM-Inference-Bench on MI250, of which every fifth is
# 14 % off, and 21 % with Hopper's), gfx950 MI355X. sm_flop_per_cycle is that of the measured
# device, dense in 16 bits (NVIDIA's white papers of its architectures).

"""

if __name__ == "__main__":
    raise SystemExit(main())
