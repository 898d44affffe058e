"""Which rules must a hardware profile keep beyond being readable?

Every number has parents, the peaks of one device are all dense or all wrong, data can move over
the links as they are described, and a rate that no hardware reaches is most likely a slip of its
unit: a gigabyte per second where a gigabit was meant makes a network eight times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, get_args

from simulator.described.base import file_name_of_field
from simulator.described.cluster.hardware import HardwareProfile, peak_name
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.cluster.network import Fabric, Network, ScaleUp, SwitchTier
from simulator.errors import Fault
from simulator.units import (
    format_bytes,
    format_quantity,
    format_rate,
    format_seconds,
    parse_quantity,
)

_BITS_PER_BYTE = 8
_PREFIX = 1000


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest part of its kind.

    Attributes:
        rate: In SI units.
        dimension: Key of :data:`simulator.units.UNITS`.
        text: The rate as the data sheet writes it, and the part.
    """

    rate: float
    dimension: str
    text: str


_NIC = _Fastest(200e9, "bytes_per_s", "1600 Gbit/s (ConnectX-9 SuperNIC)")
_LINKS = _Fastest(1.8e12, "bytes_per_s", "1.8 TB/s per GPU and one way (NVLink 6)")
_MEMORY = _Fastest(22e12, "bytes_per_s", "22 TB/s (HBM4 of a Rubin)")
_PEAKS = {
    "fp4": _Fastest(50e15, "flop_per_s", "50 PFLOP/s (Rubin)"),
    "fp8": _Fastest(25e15, "flop_per_s", "25 PFLOP/s, half of a Rubin in fp4"),
    "int8": _Fastest(25e15, "flop_per_s", "25 PFLOP/s, half of a Rubin in fp4"),
    "bf16": _Fastest(12.5e15, "flop_per_s", "12.5 PFLOP/s, a quarter of a Rubin in fp4"),
    "fp16": _Fastest(12.5e15, "flop_per_s", "12.5 PFLOP/s, a quarter of a Rubin in fp4"),
    "tf32": _Fastest(6.25e15, "flop_per_s", "6.25 PFLOP/s, an eighth of a Rubin in fp4"),
    "fp32": _Fastest(6.25e15, "flop_per_s", "6.25 PFLOP/s, an eighth of a Rubin in fp4"),
}


def rates_beyond_hardware(profile: HardwareProfile) -> Iterator[Fault]:
    """Every rate of a profile that is faster than any hardware, with what may have been meant."""
    network, device = profile.network, profile.device
    given = {
        "network.fabric.nic": (network.fabric.nic_bytes_per_s, _NIC),
        "network.scale_up.bandwidth": (network.scale_up.bandwidth_bytes_per_s, _LINKS),
        "device.memory_bandwidth": (device.memory_bandwidth_bytes_per_s, _MEMORY),
    }
    for precision, fastest in _PEAKS.items():
        rate: float | None = getattr(device.peak, f"{precision}_flop_per_s")
        given[f"device.peak.{precision}"] = (rate or 0.0, fastest)
    for path, (rate, fastest) in given.items():
        if rate > fastest.rate:
            text = format_quantity(rate, fastest.dimension)
            rule = f"is more than the fastest known today, {fastest.text}"
            yield Fault(path, rule, text, _meant(rate, fastest))


def _meant(rate: float, fastest: _Fastest) -> str:
    """The rate with bits for bytes, or with the next smaller prefix, whichever can be."""
    if fastest in (_NIC, _LINKS) and rate / _BITS_PER_BYTE <= fastest.rate:
        return f"did you mean {format_rate(rate).replace('B/s', 'bit/s')}?"
    if rate / _PREFIX <= fastest.rate:
        return f"did you mean {format_quantity(rate / _PREFIX, fastest.dimension)}?"
    return "check the unit"


def network_faults(network: Network, path: str) -> Iterator[Fault]:
    """Every rule between nodes, NICs and switches that the network breaks.

    Args:
        network: All links of a system.
        path: Where it lies in what the user wrote.
    """
    yield from _nics_divide(network, path)
    yield from _torus_has_a_shape(network.scale_up, f"{path}.scale_up")
    fabric = network.fabric
    for name, tier in (("leaf", fabric.leaf), ("pod", fabric.pod)):
        yield from _tier_says_what_is_below(tier, f"{path}.fabric.{name}")
        yield from _tier_holds_whole_domains(tier, network, f"{path}.fabric.{name}")
    yield from _pods_hold_whole_leafs(fabric, f"{path}.fabric")


def _nics_divide(network: Network, path: str) -> Iterator[Fault]:
    nics, gpus = network.fabric.nics_per_node, network.gpus_per_node
    if nics and gpus % nics and nics % gpus:
        yield Fault(
            f"{path}.fabric.nics_per_node",
            f"must divide, or be a multiple of, the {gpus} GPUs of a node",
            nics,
            "count only the NICs that carry traffic of GPUs",
        )


def _torus_has_a_shape(up: ScaleUp, path: str) -> Iterator[Fault]:
    if (up.kind == "torus") != (up.torus is not None):
        rule = "is the shape of links of kind torus, which only they have"
        value = None if up.torus is None else up.torus.model_dump()
        yield Fault(f"{path}.torus", rule, value, "give kind: torus and torus, or neither")


def _tier_says_what_is_below(tier: SwitchTier, path: str) -> Iterator[Fault]:
    if tier.gpus == 0 and tier != SwitchTier():
        rule = "is missing: uplinks need the number of GPUs below these switches"
        yield Fault(f"{path}.gpus", rule, tier.gpus, "give the number of GPUs below these switches")


def _tier_holds_whole_domains(tier: SwitchTier, network: Network, path: str) -> Iterator[Fault]:
    domain = network.scale_up.gpus
    if tier.gpus % domain:
        rule = f"must be a multiple of the {domain} GPUs that the scale-up links join"
        yield Fault(f"{path}.gpus", rule, tier.gpus, f"use {-(-tier.gpus // domain) * domain}")


def _pods_hold_whole_leafs(fabric: Fabric, path: str) -> Iterator[Fault]:
    leaf, pod = fabric.leaf.gpus, fabric.pod.gpus
    if pod and not leaf:
        rule = "is missing: pods consist of leafs"
        yield Fault(f"{path}.leaf.gpus", rule, leaf, "give the number of GPUs below a leaf")
    elif pod and pod % leaf:
        rule = f"must be a multiple of the {leaf} GPUs below a leaf"
        yield Fault(f"{path}.pod.gpus", rule, pod, f"use {-(-pod // leaf) * leaf}")


_SHARES = ("efficiency", "low_latency_share")


def precision_faults(profile: HardwareProfile, precision: Precision) -> Iterator[Fault]:
    """What products in a number format lack on a device: a unit, or what is known of its speed."""
    given = profile.kernels.gemm
    if profile.device.peak.of(precision) is None:
        known = [name for name in get_args(Precision) if profile.device.peak.of(name)]
        rule = f"{profile.name} has no {precision} matrix unit"
        yield Fault("plan.precision", rule, precision, f"choose one of {', '.join(known)}")
    elif precision not in given:
        rule = f"profile {profile.name} has no matrix-product parameters for it"
        yield Fault("plan.precision", rule, precision, f"choose one of {', '.join(given)}")


def power_faults(profile: HardwareProfile, path: str) -> Iterator[Fault]:
    """A limit is below what the device draws without one."""
    device = profile.device
    if device.allowed_power_w > device.power_w:
        hint = "remove it, or give at most device.power"
        given = format_quantity(device.allowed_power_w, "w")
        yield Fault(f"{path}.power_limit", "is above device.power", given, hint)


def link_faults(network: Network, path: str, gpus: int | None = None) -> Iterator[Fault]:
    """Every link that carries nothing, and every domain that cuts a node.

    Args:
        network: The links.
        path: Where they stand in what the user wrote, for messages.
        gpus: GPUs that a job takes; None if there is no job, and any number may come.
    """
    if network.algorithm and network.library != "nccl":
        rule = f"is a choice of NCCL, but {path}.library is {network.library}"
        yield Fault(f"{path}.algorithm", rule, network.algorithm, "remove it")
    yield from _domain_and_node_divide(network, path)
    if network.scale_up.gpus > 1:
        yield from _scale_up_carries(network, path)
    if gpus is None or gpus > network.scale_up.gpus:
        yield from _fabric_carries(network, path)
    if gpus is not None and gpus > network.scale_up.gpus:
        yield from _fabric_is_described(network, path, gpus)


def _domain_and_node_divide(network: Network, path: str) -> Iterator[Fault]:
    domain, node = network.scale_up.gpus, network.gpus_per_node
    if domain % node and node % domain:
        yield Fault(
            f"{path}.scale_up.gpus",
            f"must divide, or be a multiple of, the {node} GPUs of a node",
            domain,
            f"use {node}, or correct gpus_per_node",
        )


def _scale_up_carries(network: Network, path: str) -> Iterator[Fault]:
    up = network.scale_up
    needed = ["bandwidth_bytes_per_s", *_SHARES]
    if up.in_switch_reduction:
        needed.append("in_switch_efficiency")
    for name in needed:
        if not getattr(up, name):
            rule = f"must be above 0: {up.gpus} GPUs communicate over these links"
            hint = "or set scale_up.gpus: 1 if there are no such links"
            yield Fault(f"{path}.scale_up.{file_name_of_field(name)}", rule, 0, hint)


def _fabric_carries(network: Network, path: str) -> Iterator[Fault]:
    fabric = network.fabric
    for name in ("nic_bytes_per_s", *_SHARES) if fabric.nics_per_node else ():
        if not getattr(fabric, name):
            rule = (
                f"must be above 0: {fabric.nics_per_node} NICs per node carry the traffic "
                "between nodes"
            )
            hint = "or set fabric.nics_per_node: 0 if there is no fabric"
            yield Fault(f"{path}.fabric.{file_name_of_field(name)}", rule, 0, hint)


def _fabric_is_described(network: Network, path: str, gpus: int) -> Iterator[Fault]:
    domain = network.scale_up.gpus
    if not network.fabric.nics_per_node:
        yield Fault(
            f"{path}.fabric.nics_per_node",
            f"groups of {gpus} GPUs span more than one scale-up domain of {domain} GPUs, but no "
            "fabric is described",
            hint=f"describe it (kind, nics_per_node, nic), or use at most {domain} GPUs",
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
    faults = chain(
        *(rule(profile) for rule in _RULES),
        network_faults(profile.network, "network"),
        link_faults(profile.network, "network"),
        power_faults(profile, "device"),
    )
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
    widths = {"tf32": 4, "bf16": 2, "fp8": 1, "int8": 1}
    by_width = {"tf32": peak.tf32_flop_per_s, "bf16": half, "fp8": peak.fp8_flop_per_s}
    known = [(name, rate) for name, rate in by_width.items() if rate]
    steps = list(pairwise(known))
    if half and peak.int8_flop_per_s:
        steps.append((("bf16", half), ("int8", peak.int8_flop_per_s)))
    for (wide, slower), (narrow, faster) in steps:
        limit = _STEP_BETWEEN_FORMATS * widths[wide] / (2 * widths[narrow])
        if faster > limit * slower:
            ratio = faster / slower
            rule = f"is {ratio:.1f} times the {wide} peak, so it is probably a sparse figure"
            given = format_quantity(faster, "flop_per_s")
            yield Fault(f"device.peak.{narrow}", rule, given, "give dense figures only")


def _products_have_a_peak(profile: HardwareProfile) -> Iterator[Fault]:
    for precision in profile.kernels.gemm:
        if profile.device.peak.of(precision) is None:
            rule = "has kernels for a format that the device has no peak for"
            hint = f"give device.peak.{peak_name(precision)}, or leave the block out"
            yield Fault(f"kernels.gemm.{precision}", rule, hint=hint)


def _kernels_come_to_an_end(profile: HardwareProfile) -> Iterator[Fault]:
    """The smallest kernel is short."""
    for path, value in _values(profile.kernels.model_dump(by_alias=True)):
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
            rule = "is faster than device.memory_bandwidth, its source of data"
            yield Fault(path, rule, format_rate(rate), "give it per GPU and direction")
    for name in ("context_bytes", "l2_cache_bytes"):
        size: float = getattr(device, name)
        if size >= device.memory_bytes:
            path = f"device.{name.removesuffix('_bytes')}"
            yield Fault(path, "does not fit into device.memory", format_bytes(size))


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
)
