"""Which profile describes a computer that trains on its processor?

No data sheet says what a processor reaches in each number format, so the best measured
rates stand as its peaks, and shares are shares of those. All cores work on one operation
at a time, so there is one multiprocessor. The links are a start for ``calibrate
collectives``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined

from simulator.errors import InputError
from simulator.tables.kernel_rows import KernelRow
from simulator.units import format_quantity

_FORMATS = ("fp32", "bf16", "fp16")
_MOST_RANKS = 16
"""Processes that may share the computer as ranks."""


def processor_profile_text(
    name: str, processor: str, memory_bytes: int, rows: Sequence[KernelRow], reference: str
) -> str:
    """A profile whose peaks are the best rates of the rows; its kernels are not fitted yet.

    Args:
        name: Of the profile.
        processor: Words for its description.
        memory_bytes: Of the computer.
        rows: Measured kernels, products in fp32 and a copy among them.
        reference: Source of everything measured.

    Raises:
        InputError: The rows lack what a profile cannot be without.
    """
    peaks = _peaks_flop_per_s(rows)
    copies = [row for row in rows if row.text("op") == "stream_copy"]
    bandwidth = max((row.number("gbps") or 0.0 for row in copies), default=0.0)
    if "fp32" not in peaks or not bandwidth:
        rule = "no fp32 product or no copy of memory was measured"
        raise InputError.single("--minutes", rule, hint="give it more time, with --resume")
    environment = Environment(
        loader=PackageLoader("simulator.calibrate", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("processor_profile.yaml").render(
        name=name,
        processor=processor,
        measured=f"{{kind: measured, reference: {json.dumps(f'best rate of {reference}')}}}",
        memory=format_quantity(memory_bytes, "bytes"),
        rate=format_quantity(_three_digits(bandwidth * 1e9), "bytes_per_s"),
        peaks={
            dtype: format_quantity(_three_digits(peak), "flop_per_s")
            for dtype, peak in peaks.items()
        },
        # A message is copied into the system and out of it.
        loopback=format_quantity(_three_digits(bandwidth * 1e9 / 2), "bytes_per_s"),
        most_ranks=_MOST_RANKS,
        quoted=json.dumps,
    )


def _peaks_flop_per_s(rows: Sequence[KernelRow]) -> Mapping[str, float]:
    best: dict[str, float] = {}
    for row in rows:
        rate = row.number("tflops")
        if rate:
            best[row.text("dtype")] = max(best.get(row.text("dtype"), 0.0), rate * 1e12)
    return {dtype: best[dtype] for dtype in _FORMATS if dtype in best}


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")
