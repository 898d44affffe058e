"""What does a profile leave open, and what does it predict unlike profiles of its kind?

Numbers of two profiles are hard to compare one by one, because a fit trades one for
another; what they predict for the same kernels and collectives is not. Neighbours are the
shipped profiles of devices with the same number formats, nearly the same arithmetic per
multiprocessor and clock, which differs between generations of matrix units, and similar memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.cost.kernel_time import (
    attention_s,
    gemm_s,
    memory_bound_s,
    peak_flop_per_s,
    without_sustained_clock,
)
from simulator.described.base import file_name_of_field
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.load import load_profile, profile_names
from simulator.described.rules.profile_rules import rates_beyond_hardware

_SAME_GENERATION = 1.3
"""Factor of arithmetic per multiprocessor and clock within one generation: rounded data-sheet
peaks and clocks differ by less, generations by two (NVIDIA V100 1024, A100 2048, H100 4096,
B200 8192 dense 16-bit FLOP)."""

_SAME_MEMORY = 3.0
"""Factor of memory bandwidth within one generation: 2.3 among Hoppers; stacked memory has four
times that of a card (L40S and H20, whose matrix units are the same)."""

_FORMATS: Sequence[tuple[str, Precision]] = (
    ("fp32", "fp32"), ("tf32", "tf32"), ("fp16", "fp16"), ("bf16", "bf16"), ("fp8", "fp8"),
)  # fmt: skip
"""Formats with a peak, and the products that a profile should then know."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a profile that is no fault, but that its author should see.

    Attributes:
        kind: ``missing``, ``unlike`` its neighbours, or ``doubtful`` for any hardware.
        path: The field or the behaviour.
        text: What is remarkable.
    """

    kind: Literal["doubtful", "missing", "unlike"]
    path: str
    text: str

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.kind}: {self.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Something that every profile predicts.

    Attributes:
        name: In words, with what the value is a share of or its unit.
        value: Of a profile; None where it does not apply.
        factor: The ratio between neighbours above which it is remarkable: more than the
            shipped, fitted ones are (assumption).
    """

    name: str
    value: Callable[[HardwareProfile], float | None]
    factor: float


def remarks(profile: HardwareProfile) -> list[Remark]:
    """Everything remarkable about a profile: what is doubtful, then gaps."""
    doubtful = [
        Remark("doubtful", fault.path, f"{fault.value} {fault.rule}; {fault.hint}")
        for fault in rates_beyond_hardware(profile)
    ]
    return [*doubtful, *_gaps(profile), *_unlike(profile, neighbours_of(profile))]


def neighbours_of(profile: HardwareProfile) -> list[HardwareProfile]:
    """Other shipped profiles of the same generation."""
    shipped = (load_profile(name) for name in profile_names() if name != profile.name)
    return [other for other in shipped if _are_neighbours(profile, other)]


def _are_neighbours(one: HardwareProfile, other: HardwareProfile) -> bool:
    if _formats(one) != _formats(other):
        return False
    one_rate, other_rate = (p.device.memory_bandwidth_bytes_per_s for p in (one, other))
    return (
        _ratio(_flop_per_clock(one), _flop_per_clock(other)) <= _SAME_GENERATION
        and _ratio(one_rate, other_rate) <= _SAME_MEMORY
    )


def _ratio(one: float, other: float) -> float:
    """Factor between two positive numbers, 1 or more."""
    return max(one, other) / max(min(one, other), 1e-300)


def _formats(profile: HardwareProfile) -> frozenset[str]:
    return frozenset(name for name, rate in profile.device.peak.model_dump().items() if rate)


def _flop_per_clock(profile: HardwareProfile) -> float:
    """Sixteen-bit arithmetic of one multiprocessor in one clock; fp32 without such a format."""
    peak, device = profile.device.peak, profile.device
    rate = peak.fp16_flop_per_s or peak.bf16_flop_per_s or peak.fp32_flop_per_s
    return max(rate, 1.0) / device.sm_count / max(device.boost_clock_hz, 1.0)


def _gaps(profile: HardwareProfile) -> Iterator[Remark]:
    for name, precision in _FORMATS:
        has_peak = getattr(profile.device.peak, f"{name}_flop_per_s")
        if has_peak and precision not in profile.kernels.gemm:
            text = "the device has a peak for it, but matrix products in it cannot be predicted"
            yield Remark("missing", f"kernels.gemm.{name}", text)
    given = profile.model_dump(exclude_unset=True)
    for block in ("kernels", "network.scale_up", "network.fabric"):
        spec: Any = profile
        present: Any = given
        for part in block.split("."):
            spec, present = getattr(spec, part), present[part]
        for field, info in type(spec).model_fields.items():
            is_number = isinstance(info.default, float)
            if field in present or not is_number or _is_without_effect(field, profile):
                continue
            name = file_name_of_field(field)
            value = spec.model_dump(mode="json", by_alias=True)[name]
            yield Remark("missing", f"{block}.{name}", f"{value} by default")


def _is_without_effect(field: str, profile: HardwareProfile) -> bool:
    """Whether a field changes nothing by default, or the system has nothing it applies to."""
    up = profile.network.scale_up
    if field.startswith("in_switch"):
        return not up.in_switch_reduction
    if field in ("wide_launch_s", "loaded_latency_s", "line_latency_s", "chunk_latency_s"):
        return profile.network.tuning is None
    is_off = field in (
        "background_load", "slowness", "ring_piece_bytes", "late_node_hop",
        "grouped_results_exposed",
    )  # fmt: skip
    of_cards = field in ("crowding", "socket_link_bytes_per_s")
    return is_off or (of_cards and up.kind != "pcie") or field == "host_ring_share"


def _unlike(profile: HardwareProfile, neighbours: Sequence[HardwareProfile]) -> Iterator[Remark]:
    for behaviour in BEHAVIOURS:
        own = behaviour.value(profile)
        values = [v for other in neighbours if (v := behaviour.value(other)) is not None]
        if own is None or not values:
            continue
        usual = statistics.median(values)
        if not usual / behaviour.factor <= own <= usual * behaviour.factor:
            text = (
                f"{own:.3g}, and {usual:.3g} (median; {min(values):.3g} to {max(values):.3g}) "
                f"in {', '.join(other.name for other in neighbours)}"
            )
            yield Remark("unlike", behaviour.name, text)


def _product_share(
    m: int, n: int, k: int, precision: Precision
) -> Callable[[HardwareProfile], float | None]:
    def share(profile: HardwareProfile) -> float | None:
        if precision not in profile.kernels.gemm:
            return None
        cool = without_sustained_clock(profile)
        seconds = gemm_s(cool, m, n, k, precision=precision)
        return 2.0 * m * n * k / seconds / peak_flop_per_s(profile, precision)

    return share


def _attention_share(*, backward: bool) -> Callable[[HardwareProfile], float | None]:
    seq, heads, dim = 8192, 32, 128

    def share(profile: HardwareProfile) -> float | None:
        if "bf16" not in profile.kernels.gemm:
            return None
        seconds = attention_s(
            without_sustained_clock(profile), batch=1, heads=heads, kv_heads=heads, seq_q=seq,
            seq_kv=seq, head_dim=dim, causal=True, backward=backward,
        )  # fmt: skip
        flop = 2.0 * heads * seq * seq * dim * (2.5 if backward else 1.0)
        return flop / seconds / peak_flop_per_s(profile, "bf16")

    return share


def _copy_share(profile: HardwareProfile) -> float:
    rate = 2.0**29 / memory_bound_s(profile, 2.0**29)
    return rate / profile.device.memory_bandwidth_bytes_per_s


def _all_reduce_s(num_bytes: float) -> Callable[[HardwareProfile], float | None]:
    def seconds(profile: HardwareProfile) -> float | None:
        up = profile.network.scale_up
        if up.gpus < 8 or up.kind != "nvswitch":
            return None
        cost = collective_cost(CollectiveKind.ALL_REDUCE, num_bytes, Group(8, 8), profile.network)
        return cost.seconds

    return seconds


def _all_reduce_share(profile: HardwareProfile) -> float | None:
    """Bus bandwidth over that of the link."""
    num_bytes = 2.0**30
    seconds = _all_reduce_s(num_bytes)(profile)
    if seconds is None:
        return None
    return 2 * 7 / 8 * num_bytes / seconds / profile.network.scale_up.bandwidth_bytes_per_s


BEHAVIOURS: Sequence[Behaviour] = (
    Behaviour("large bf16 product [share of peak]", _product_share(8192, 8192, 8192, "bf16"), 1.3),
    Behaviour("large fp8 product [share of peak]", _product_share(8192, 8192, 8192, "fp8"), 1.4),
    Behaviour("flat bf16 product [share of peak]", _product_share(256, 4096, 4096, "bf16"), 1.6),
    Behaviour("attention forward [share of peak]", _attention_share(backward=False), 1.4),
    Behaviour("attention backward [share of peak]", _attention_share(backward=True), 1.4),
    Behaviour("copy of memory [share of bandwidth]", _copy_share, 1.25),
    Behaviour("smallest kernel [s]", lambda profile: memory_bound_s(profile, 0.0), 4.0),
    Behaviour("launch of a kernel [s]", lambda profile: profile.kernels.launch_s, 3.0),
    Behaviour("clock under load [share]", lambda profile: profile.kernels.sustained_clock, 1.25),
    Behaviour("all_reduce of 8 GPUs, 1 GiB [share of link]", _all_reduce_share, 1.3),
    Behaviour("all_reduce of 8 GPUs, 1 KiB [s]", _all_reduce_s(1024.0), 3.0),
)
"""What profiles of one generation should predict the same."""
