"""Which rules must a hardware profile keep beyond being readable?

Every number has parents, and the peaks of one device are all dense or all wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from simulator.errors import Fault
from simulator.spec.hardware import HardwareProfile
from simulator.spec.link_checks import link_faults
from simulator.spec.network_checks import network_faults

_STEP_BETWEEN_FORMATS = 2.1
"""A format of half the width runs at most twice as fast on a matrix unit; some data-sheet
figures are rounded. Sparse figures are twice the dense ones, so mixing them in exceeds it."""


def profile_faults(profile: HardwareProfile, file: str = "") -> list[Fault]:
    """Every rule that the profile breaks; empty if it is sound.

    Args:
        profile: What was read; only the numbers given in the file need sources.
        file: Named in the faults.
    """
    faults = [fault for rule in _RULES for fault in rule(profile)]
    return [replace(fault, file=file) for fault in faults]


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
            yield Fault(f"device.peak.{narrow}", rule, faster, "give dense figures throughout")


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


_RULES = (
    _every_number_has_a_source,
    _sources_say_where_to_look,
    _peaks_are_dense,
    _network_is_sound,
    _links_carry_data,
)
