"""Which profile do the measured kernels of a device make?

Kernel models are fitted as those of the shipped profiles are; what was measured directly
(launch, host copies, the rate under load) is taken as it is. Everything else stays as in
the profile that the fit starts from.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from simulator.calibrate.gpu.fit_kernels import Fit, fit_profile, with_fits, with_values
from simulator.calibrate.profile_text import SourcedValue, with_sourced_values, with_value
from simulator.cost.rates import peak_flop_per_s
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import parse_yaml
from simulator.described.load import profile_from_document
from simulator.errors import InputError
from simulator.facts import host_launches
from simulator.tables.kernel_rows import KernelRow, SkippedRowError, precision_of
from simulator.units import format_quantity, three_digits
from simulator.validate.kernel_errors import KernelReport, kernel_report

_ABOVE_PEAK = 1.02
"""Share of the peak from which on a rate is impossible, clocks above the stated boost aside."""

_HOST_WORK: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "host_launch": ("in_place_addition", "one in-place addition"),
        "host_operator": ("operator", "one operator of a small layer"),
    }
)
"""What a row of host time is of: in ``facts/host_work.yaml``, and in words."""

_SHARE_WHEN_HOT = re.compile(r"rate when hot over cool ([\d.]+)")


@dataclass(frozen=True)
class KernelCalibration:
    """A device's kernels, fitted.

    Attributes:
        base: The profile that the fit started from.
        text: The new profile, as YAML.
        profile: The same, read.
        before, after: How well the rows are predicted by the two.
        fits: The fitted blocks.
        values: What was measured directly, by dotted path.
        notes: Sentences on what the rows do not tell or contradict.
    """

    base: HardwareProfile
    text: str
    profile: HardwareProfile
    before: KernelReport
    after: KernelReport
    fits: Sequence[Fit]
    values: Mapping[str, SourcedValue]
    notes: Sequence[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The calibration for JSON."""
        return {
            "profile": self.profile.name,
            "base": self.base.name,
            "parameters": [
                {"block": ".".join(fit.block.path) or "memory", "name": name, "fitted": value}
                for fit in self.fits
                for name, value in fit.values.items()
            ],
            "measured": {path: str(value.value) for path, value in self.values.items()},
            "before": self.before.to_dict()["families"],
            **self.after.to_dict(),
            "notes": list(self.notes),
        }


def calibrate_kernels(
    rows: Sequence[KernelRow],
    base_text: str,
    base_file: str,
    name: str,
    reference: str,
    facts: Mapping[str, SourcedValue] = MappingProxyType({}),
) -> KernelCalibration:
    """The profile of ``base_text`` with what the rows tell in it. Needs scipy.

    Raises:
        InputError: There is nothing to fit.
    """
    base = profile_from_document(parse_yaml(base_text, base_file), base_file)
    if not rows:
        raise InputError.single("--minutes", "nothing was measured", hint="give it more time")
    started = base.model_copy(update={"name": name})
    fits = fit_profile(started, rows)
    values = {**facts, **measured_values(rows, reference)}
    text = with_sourced_values(base_text, values, base_file)
    spread = statistics.median((row.number("spread_pct") or 0.0) / 100 for row in rows)
    text = with_fits(text, started, fits, f"{reference}; median spread {spread:.1%}")
    text = with_value(text, ["name"], name)
    text = with_value(text, ["description"], json.dumps(f"{base.description}; kernels measured"))
    profile = profile_from_document(parse_yaml(text, base_file), base_file)
    fitted = started
    for fit in fits:
        fitted = with_values(fitted, fit.block, fit.values)
    notes = [*_above_peak(rows, base), *_left_open(base, fits, values)]
    return KernelCalibration(
        base,
        text,
        profile,
        kernel_report(rows, base),
        kernel_report(rows, fitted),
        fits,
        values,
        notes,
    )


def measured_values(rows: Sequence[KernelRow], reference: str) -> dict[str, SourcedValue]:
    """What needs no fit, by dotted path of the profile, with its source."""
    found: dict[str, tuple[float, str, str]] = {}
    # An operator of a layer tells more than an addition alone, so that it comes last.
    for row in sorted(rows, key=lambda row: row.text("op") == "host_operator"):
        time_us, gbps = row.number("time_us"), row.number("gbps")
        hot = _SHARE_WHEN_HOT.search(row.text("notes"))
        if row.text("op") in _HOST_WORK and time_us:
            work, words = _HOST_WORK[row.text("op")]
            launch_s = time_us * 1e-6 / host_launches(work)
            found["kernels.launch"] = (launch_s, "s", f"host time of {words}, {time_us} us")
        elif row.text("op") == "copy_to_device_pinned" and gbps:
            best = max(gbps * 1e9, found.get("host.pcie", (0.0,))[0])
            found["host.pcie"] = (
                best,
                "bytes_per_s",
                "largest rate of pinned copies to the device",
            )
        elif row.text("op") == "sustained_gemm" and hot:
            share = min(1.0, float(hot.group(1)))
            found["kernels.sustained_clock"] = (share, "", row.text("notes"))
    return {
        path: SourcedValue(
            format_quantity(three_digits(value), unit) if unit else three_digits(value),
            "measured",
            f"{reference}: {what}",
        )
        for path, (value, unit, what) in found.items()
    }


def _above_peak(rows: Sequence[KernelRow], base: HardwareProfile) -> list[str]:
    """Rates that the device cannot have: the profile is of another one, or the clock wrong."""
    above: dict[str, list[float]] = {}
    for row in rows:
        rate = row.number("tflops")
        try:
            share = (rate or 0.0) * 1e12 / peak_flop_per_s(base, precision_of(row))
        except (SkippedRowError, InputError):
            continue
        if share > _ABOVE_PEAK:
            above.setdefault(row.text("dtype"), []).append(share)
    return [
        f"{len(shares)} {dtype} rows are faster than the peak of {base.name}, up to "
        f"{max(shares):.2f} times: check that the base profile is of the same device"
        for dtype, shares in above.items()
    ]


def _left_open(
    base: HardwareProfile, fits: Sequence[Fit], values: Mapping[str, SourcedValue]
) -> list[str]:
    fitted = {fit.block.path for fit in fits}
    blocks: list[tuple[str, ...]] = [("gemm", dtype) for dtype in base.kernels.gemm]
    blocks += [("flash_attention",)]
    blocks += [("flash_attention_2",)] if base.kernels.flash_attention_2 else []
    shared = {target for fit in fits for target in fit.block.also}
    left = [".".join(path) for path in blocks if path not in fitted | shared]
    left += [
        path.partition(".")[2] if path.startswith("kernels.") else path
        for path in ("kernels.launch", "host.pcie", "kernels.sustained_clock")
        if path not in values
    ]
    return (
        [f"as in {base.name}, because too few rows determine it: {', '.join(left)}"] if left else []
    )
