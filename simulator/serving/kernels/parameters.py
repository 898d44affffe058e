"""Which fitted numbers describe the kernels of a family of devices?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple, TypeVar

from simulator.described.base import Ratio, Seconds, Spec
from simulator.described.cluster.hardware import HardwareProfile, Provenance
from simulator.described.documents import validated, yaml_mapping

_FILE = "kernels.yaml"
_SMALL_KERNEL_S = 1.5e-6
"""Least time of a small kernel in a graph, and of what lies between two (assumed)."""


OVERLAP = 3.0
"""Exponent of the norm that joins computing and memory time; 1 adds, infinity hides. Assumed:
between the fits' own optima for different devices."""


def joined_s(first_s: float, second_s: float) -> float:
    """Seconds of a kernel that computes and moves data side by side."""
    return float((first_s**OVERLAP + second_s**OVERLAP) ** (1.0 / OVERLAP))


def share_left(times: float, relative_rate: float) -> float:
    """Share of a kernel's time that is left, counted in times of slower matrix units.

    What a kernel takes beside its products lasts as long where the matrix units are slower.
    GPUs are sold with a part of their rate and all of the rest, such as H20 and GeForce cards.

    Args:
        times: Times that it takes as long as its products at full rate, on the measured device.
        relative_rate: Rate of one multiprocessor's matrix units over that of the measured device.
    """
    return relative_rate + (1.0 - relative_rate) / max(1.0, times)


class ProductFit(Spec):
    """Of :func:`~simulator.serving.kernels.products.product_s`."""

    floor_s: Seconds
    efficiency: Ratio
    memory_efficiency: Ratio
    tile_half: Ratio
    k_ramp: Ratio
    source: Provenance


class DecodeFit(Spec):
    """Of :func:`~simulator.serving.kernels.cache_attention.decode_s`."""

    floor_s: Seconds
    memory_efficiency: Ratio
    head_s: Seconds
    """For each request and head of keys."""
    key_s: Seconds
    """For each key that one unit of work walks over."""
    source: Provenance


class PrefillFit(Spec):
    """Of :func:`~simulator.serving.kernels.cache_attention.prefill_s`."""

    floor_s: Seconds
    efficiency: Ratio
    tail: Ratio
    """Work lost where tiles are few, in units of a tile on every multiprocessor."""
    source: Provenance


class LatentFit(Spec):
    """Of :func:`~simulator.serving.kernels.cache_attention.latent_decode_s`."""

    floor_s: Seconds
    memory_efficiency: Ratio
    efficiency: Ratio
    source: Provenance


class ExpertFit(Spec):
    """Of :func:`~simulator.serving.kernels.routed_experts.experts_s`."""

    floor_s: Seconds
    memory_efficiency: Ratio
    efficiency: Ratio
    tile_half: Ratio
    """Rows of a tile at which half of the efficiency is left."""
    width_half: Ratio
    """Width of an expert's MLP on a rank at which half of the efficiency is left."""
    source: Provenance


class ExchangeFit(Spec):
    """Of :func:`~simulator.serving.kernels.exchange.all_reduce_s`."""

    floor_s: Seconds
    rank_s: Seconds
    """For each further rank."""
    efficiency: Ratio
    """Share of the scale-up bandwidth."""
    source: Provenance


class InSitu(Spec):
    """How many times as long kernels take in a running engine as the numbers of their family say.

    Caches are warm or not, scaling is fused or not, devices draw their power limit, and some
    devices have no measured kernels at all. Least times have a factor of their own.
    """

    floor: Ratio = 1.0
    products: Mapping[str, Ratio] = {}
    """By format of the weights; ``other`` are those that are not named."""
    experts: Mapping[str, Ratio] = {}
    """Likewise."""
    expert_compute: Mapping[str, Ratio] = {}
    """Likewise, of what experts compute beside reading weights."""
    decode: Ratio = 1.0
    """Of attention of single tokens, latent or not."""
    prefill: Ratio = 1.0
    exchange: Ratio = 1.0
    """Of exchanges between ranks."""
    found_with: tuple[str, ...] = ()
    """Sources whose measured runs told; each is predicted without it when it is left out."""
    source: Provenance


class EngineFits(Spec):
    """Kernels that differ from those of all engines together."""

    products: Mapping[str, ProductFit] = {}
    experts: Mapping[str, ExpertFit] = {}
    decode: DecodeFit | None = None
    prefill: PrefillFit | None = None
    latent: LatentFit | None = None
    all_reduce: ExchangeFit | None = None
    in_situ: InSitu | None = None


class Family(EngineFits):
    """All kernels of one family of devices."""

    devices: tuple[str, ...]
    """Profiles of the family."""
    like: str = ""
    """Family whose kernels these are, but for what is given here."""
    sm_flop_per_cycle: Ratio = 0.0
    """Of the measured device, dense in 16 bits; 0 if none was measured."""
    by_engine: Mapping[str, EngineFits] = {}
    """By engine, or by ``engine before version``; the later over the earlier."""


class KernelFits(NamedTuple):
    """Kernels of one engine on one family of devices."""

    products: Mapping[str, ProductFit]
    experts: Mapping[str, ExpertFit]
    decode: DecodeFit
    prefill: PrefillFit
    latent: LatentFit
    all_reduce: ExchangeFit
    small_kernel_s: float
    exchange_times: float = 1.0
    """Times that exchanges take as long as alone."""
    sm_flop_per_cycle: float = 0.0
    """As of the family."""


_Fit = TypeVar("_Fit", ProductFit, ExpertFit, DecodeFit, PrefillFit, LatentFit)


_EMPTY = KernelFits({}, {}, None, None, None, None, _SMALL_KERNEL_S)  # type: ignore[arg-type]


class Format(NamedTuple):
    """What a number format of weights means for a product.

    Attributes:
        weight_bytes: Bytes of a weight, block scales included.
        activation_bytes: Bytes of an activation as the product reads it.
        peak: Formats whose peak rate holds, the first that the device has.
        stand_in: Format whose parameters hold where a family has none of its own.
        least_rows: Of the tiles of its products.
    """

    weight_bytes: float
    activation_bytes: float
    peak: tuple[str, ...]
    stand_in: str
    least_rows: int = 64


FORMATS: Mapping[str, Format] = {
    "fp32": Format(4.0, 4.0, ("tf32", "fp32"), "bf16"),
    "fp16": Format(2.0, 2.0, ("fp16", "bf16"), "bf16"),
    "bf16": Format(2.0, 2.0, ("bf16", "fp16"), "bf16"),
    "fp8": Format(1.0, 1.0, ("fp8", "bf16"), "bf16"),
    "fp8_block": Format(1.0, 1.0, ("fp8", "bf16"), "fp8"),
    "int8": Format(1.0, 2.0, ("bf16", "fp16"), "bf16"),
    "int4": Format(0.53, 2.0, ("bf16", "fp16"), "bf16", least_rows=16),
    "nvfp4": Format(0.5625, 0.5625, ("nvfp4", "fp8", "bf16"), "fp8"),
    "mxfp4": Format(0.53125, 1.0, ("fp8", "bf16"), "fp8"),
}
"""By name. ``fp8_block`` has a scale for every block of 128 x 128 weights, as DeepSeek's and Qwen's
own checkpoints in 8 bits.
Scales: OCP Microscaling 1.0 for mxfp4, NVIDIA's NVFP4 layout, groups of 64 for int4 (assumed).
Tiles of few rows: Marlin (vLLM, gptq_marlin.cu: 16 rows to 64)."""


@lru_cache
def kernel_families() -> Mapping[str, Family]:
    """All families by name, from ``kernels.yaml`` beside this file."""
    text = files("simulator.serving.kernels").joinpath(_FILE).read_text(encoding="utf-8")
    document = yaml_mapping(text, _FILE)
    return {name: validated(Family, block, name, file=_FILE) for name, block in document.items()}


@lru_cache
def kernel_fits(device: str, engine: str = "", version: str = "", without: str = "") -> KernelFits:
    """The parameters of a profile's family; the nearest by name, else Hopper's (assumption).

    Args:
        device: Name of the profile.
        engine: Whose kernels; empty is all engines together.
        version: Its version; empty is the newest.
        without: Source of measured runs whose factors are left out.
    """
    names = [name for name, family in kernel_families().items() if device in family.devices]
    family = kernel_families()[names[0] if names else "sm90"]
    fits, in_situ = _EMPTY, None
    for own in _layers(family, engine, version):
        fits = _over(fits, own)
        if own.in_situ is not None and not _is_from(own.in_situ, without):
            in_situ = own.in_situ
    if names:
        fits = fits._replace(sm_flop_per_cycle=family.sm_flop_per_cycle)
    return fits if in_situ is None else _in_situ(fits, in_situ)


def _is_from(in_situ: InSitu, source: str) -> bool:
    return bool(source) and source.startswith(in_situ.found_with)


def _layers(family: Family, engine: str, version: str) -> Iterator[EngineFits]:
    """What holds for an engine, the general first."""
    if family.like:
        yield from _layers(kernel_families()[family.like], "", "")
    yield family
    for key, own in family.by_engine.items():
        wanted, _, before = key.partition(" before ")
        is_old = bool(before and version) and version_key(version) < version_key(before)
        if wanted == engine and (is_old or not before):
            yield own


def _over(base: KernelFits, own: EngineFits) -> KernelFits:
    """The given parameters over those of the base."""
    given = {
        name: getattr(own, name)
        for name in ("decode", "prefill", "latent", "all_reduce")
        if getattr(own, name) is not None
    }
    return base._replace(
        products={**base.products, **own.products}, experts={**base.experts, **own.experts}, **given
    )


def _in_situ(base: KernelFits, times: InSitu) -> KernelFits:
    def scaled(fit: _Fit, factor: float) -> _Fit:
        update = {"floor_s": fit.floor_s * times.floor}
        for name in ("memory_efficiency", "efficiency"):
            if hasattr(fit, name):
                update[name] = getattr(fit, name) / factor
        for name in ("head_s", "key_s"):
            if hasattr(fit, name):
                update[name] = getattr(fit, name) * factor
        return fit.model_copy(update=update)

    def all_scaled(fits: Mapping[str, _Fit], factors: Mapping[str, float]) -> dict[str, _Fit]:
        other = factors.get("other", 1.0)
        return {name: scaled(fit, factors.get(name, other)) for name, fit in fits.items()}

    experts = all_scaled(base.experts, times.experts)
    for name, factor in times.expert_compute.items():
        fit = expert_fit(base._replace(experts=experts), name)
        experts[name] = fit.model_copy(update={"efficiency": fit.efficiency / factor})
    return base._replace(
        products=all_scaled(base.products, times.products),
        experts=experts,
        decode=scaled(base.decode, times.decode),
        latent=scaled(base.latent, times.decode),
        prefill=scaled(base.prefill, times.prefill),
        small_kernel_s=base.small_kernel_s * times.floor,
        exchange_times=times.exchange,
    )


def version_key(text: str) -> tuple[int, ...]:
    """A version as numbers, for comparison."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3]) or (0,)


def product_fit(fits: KernelFits, weight_format: str) -> ProductFit:
    """Parameters of products in a format, or of the one that stands in for it."""
    found = fits.products.get(weight_format)
    return found or product_fit(fits, FORMATS[weight_format].stand_in)


def expert_fit(fits: KernelFits, weight_format: str) -> ExpertFit:
    """Parameters of grouped products in a format, or of the one that stands in for it."""
    found = fits.experts.get(weight_format)
    return found or expert_fit(fits, FORMATS[weight_format].stand_in)


def relative_rate(fits: KernelFits, profile: HardwareProfile) -> float:
    """Rate of one multiprocessor's matrix units over that of the measured device, at most 1.

    Matrix units are cut in halves; what lies between is the clock, at which data sheets differ.
    """
    if not fits.sm_flop_per_cycle:
        return 1.0
    device = profile.device
    own = peak_flop_per_s(profile, "bf16") / (device.sm_count * device.boost_clock_hz)
    return min(1.0, 2.0 ** round(math.log2(own / fits.sm_flop_per_cycle)))


def peak_flop_per_s(profile: HardwareProfile, weight_format: str) -> float:
    """Dense rate of products in a format [FLOP/s]: the first of its formats that there is."""
    for name in FORMATS[weight_format].peak:
        rate = profile.device.peak.of(name)  # type: ignore[arg-type]
        if rate is not None:
            return rate
    return profile.device.peak.fp32_flop_per_s
