"""Which rules must a hardware profile keep beyond being readable?

Every number has parents, and the peaks of one device are all dense or all wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from simulator.described.cluster.fastest_hardware import rates_beyond_hardware
from simulator.described.cluster.hardware import HardwareProfile, peak_name
from simulator.described.rules.link_rules import link_faults
from simulator.described.rules.network_rules import network_faults
from simulator.errors import Fault
from simulator.units import (
    format_bytes,
    format_quantity,
    format_rate,
    format_seconds,
    parse_quantity,
)

_STEP_BETWEEN_FORMATS = 2.1
"""A format of half the width runs at most twice as fast on a matrix unit; some data-sheet
figures are rounded. Sparse figures are twice the dense ones, so mixing them in exceeds it."""

_LONGEST_FLOOR_S = 1e-2
"""A thousand times the smallest kernel of any GPU; beyond it, a unit is wrong."""


def profile_faults(profile: HardwareProfile, file: str = "") -> list[Fault]:
    """Every rule that the profile breaks; empty if it is sound.

    Args:
        profile: What was read; only the numbers given in the file need sources.
        file: Named in the faults.
    """
    faults = [fault for rule in _RULES for fault in rule(profile)]
    return [replace(fault, file=file) for fault in faults]


def doubts(profile: HardwareProfile) -> list[Fault]:
    """Numbers that a job can be simulated with but no hardware has; most are slips of units."""
    return [fault for rule in (*_PLAUSIBLE, rates_beyond_hardware) for fault in rule(profile)]


def _every_number_has_a_source(profile: HardwareProfile) -> Iterator[Fault]:
    given = profile.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for path, value in _values(given):
        if path not in ("name", "description") and path not in profile.provenance:
            hint = "write {value: ..., source: {kind: ..., reference: ...}}, or source in its block"
            yield Fault(path, "has no source", value, hint)


def _sources_say_where_to_look(profile: HardwareProfile) -> Iterator[Fault]:
    for path, source in profile.provenance.items():
        if source.kind != "assumed" and not source.reference.strip():
            hint = "name the document, table or measurement"
            yield Fault(path, f"is {source.kind}, but its source has no reference", hint=hint)


def _peaks_are_dense(profile: HardwareProfile) -> Iterator[Fault]:
    peak = profile.device.peak
    half = peak.bf16_flop_per_s or peak.fp16_flop_per_s
    by_width = {"tf32": peak.tf32_flop_per_s, "bf16": half, "fp8": peak.fp8_flop_per_s}
    known = [(name, rate) for name, rate in by_width.items() if rate]
    for (wide, slower), (narrow, faster) in pairwise(known):
        widths = {"tf32": 4, "bf16": 2, "fp8": 1}
        limit = _STEP_BETWEEN_FORMATS * widths[wide] / (2 * widths[narrow])
        if faster > limit * slower:
            ratio = faster / slower
            rule = f"is {ratio:.1f} times the {wide} peak, so it is probably a sparse figure"
            given = format_quantity(faster, "flop_per_s")
            yield Fault(f"device.peak.{narrow}", rule, given, "give dense figures throughout")


def _products_have_a_peak(profile: HardwareProfile) -> Iterator[Fault]:
    for precision in profile.kernels.gemm:
        if profile.device.peak.of(precision) is None:
            rule = "has kernels for a format that the device has no peak for"
            hint = f"give device.peak.{peak_name(precision)}, or leave the block out"
            yield Fault(f"kernels.gemm.{precision}", rule, hint=hint)


def _kernels_come_to_an_end(profile: HardwareProfile) -> Iterator[Fault]:
    """Shares of a rate are above zero, and the smallest kernel is short."""
    for path, value in _values(profile.kernels.model_dump(by_alias=True)):
        if path.endswith(("efficiency", "sustained_clock")) and value == 0:
            yield Fault(f"kernels.{path}", "must be above 0, or nothing ever ends", value)
        is_time = path.endswith(("floor", "launch"))
        if is_time and parse_quantity(str(value), "s") > _LONGEST_FLOOR_S:
            rule = f"must be at most {format_seconds(_LONGEST_FLOOR_S)}: it is one kernel's"
            yield Fault(f"kernels.{path}", rule, value, "check the unit")


def _memory_is_the_fastest_and_the_largest(profile: HardwareProfile) -> Iterator[Fault]:
    """What a device sends it has read, and what it holds fits in it."""
    device = profile.device
    rates = {
        "network.scale_up.bandwidth": profile.network.scale_up.bandwidth_bytes_per_s,
        "host.pcie": profile.host.pcie_bytes_per_s,
    }
    for path, rate in rates.items():
        if rate > device.memory_bandwidth_bytes_per_s:
            rule = "is faster than device.memory_bandwidth, from which it is fed"
            yield Fault(path, rule, format_rate(rate), "give it per GPU and one way")
    for name in ("context_bytes", "l2_cache_bytes"):
        size: float = getattr(device, name)
        if size >= device.memory_bytes:
            path = f"device.{name.removesuffix('_bytes')}"
            yield Fault(path, "does not fit into device.memory", format_bytes(size))


def _network_is_sound(profile: HardwareProfile) -> Iterator[Fault]:
    yield from network_faults(profile.network, "network")


def _links_carry_data(profile: HardwareProfile) -> Iterator[Fault]:
    yield from link_faults(profile.network, "network")


def _values(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


_PLAUSIBLE = (_peaks_are_dense, _kernels_come_to_an_end, _memory_is_the_fastest_and_the_largest)
_RULES = (
    _every_number_has_a_source,
    _sources_say_where_to_look,
    _products_have_a_peak,
    *_PLAUSIBLE,
    _network_is_sound,
    _links_carry_data,
)
