"""Which fitted numbers describe the kernels of a family of devices?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from simulator.described.base import Ratio, Seconds, Spec
from simulator.described.cluster.hardware import HardwareProfile, Provenance
from simulator.described.documents import validated, yaml_mapping

_FILE = "kernels.yaml"


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
    tile_rows: Ratio
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


class KernelFits(Spec):
    """All kernels of one family of devices."""

    devices: tuple[str, ...]
    """Profiles of the family."""
    products: Mapping[str, ProductFit]
    decode: DecodeFit
    prefill: PrefillFit
    latent: LatentFit
    experts: Mapping[str, ExpertFit]
    all_reduce: ExchangeFit


class Format(NamedTuple):
    """What a number format of weights means for a product.

    Attributes:
        weight_bytes: Bytes of a weight, block scales included.
        activation_bytes: Bytes of an activation as the product reads it.
        peak: Formats whose peak rate holds, the first that the device has.
        stand_in: Format whose parameters hold where a family has none of its own.
    """

    weight_bytes: float
    activation_bytes: float
    peak: tuple[str, ...]
    stand_in: str


FORMATS: Mapping[str, Format] = {
    "fp32": Format(4.0, 4.0, ("tf32", "fp32"), "bf16"),
    "fp16": Format(2.0, 2.0, ("fp16", "bf16"), "bf16"),
    "bf16": Format(2.0, 2.0, ("bf16", "fp16"), "bf16"),
    "fp8": Format(1.0, 1.0, ("fp8", "bf16"), "bf16"),
    "fp8_block": Format(1.0, 1.0, ("fp8", "bf16"), "fp8"),
    "int8": Format(1.0, 2.0, ("bf16", "fp16"), "bf16"),
    "int4": Format(0.53, 2.0, ("bf16", "fp16"), "bf16"),
    "nvfp4": Format(0.5625, 0.5625, ("nvfp4", "fp8", "bf16"), "fp8"),
    "mxfp4": Format(0.53125, 1.0, ("fp8", "bf16"), "fp8"),
}
"""By name. ``fp8_block`` has a scale for every block of 128 x 128 weights, as DeepSeek's.
Scales: OCP Microscaling 1.0 for mxfp4, NVIDIA's NVFP4 layout, groups of 64 for int4 (assumed)."""


@lru_cache
def kernel_families() -> Mapping[str, KernelFits]:
    """All families by name, from ``kernels.yaml`` beside this file."""
    text = files("simulator.serving.kernels").joinpath(_FILE).read_text(encoding="utf-8")
    document = yaml_mapping(text, _FILE)
    return {
        name: validated(KernelFits, block, name, file=_FILE) for name, block in document.items()
    }


def kernel_fits(profile: HardwareProfile) -> KernelFits:
    """The parameters of a profile's family; the nearest by name, else Hopper's (assumption)."""
    families = kernel_families()
    for fits in families.values():
        if profile.name in fits.devices:
            return fits
    return families["sm90"]


def product_fit(fits: KernelFits, weight_format: str) -> ProductFit:
    """Parameters of products in a format, or of the one that stands in for it."""
    found = fits.products.get(weight_format)
    return found or product_fit(fits, FORMATS[weight_format].stand_in)


def expert_fit(fits: KernelFits, weight_format: str) -> ExpertFit:
    """Parameters of grouped products in a format, or of the one that stands in for it."""
    found = fits.experts.get(weight_format)
    return found or expert_fit(fits, FORMATS[weight_format].stand_in)


def peak_flop_per_s(profile: HardwareProfile, weight_format: str) -> float:
    """Dense rate of products in a format [FLOP/s]: the first of its formats that there is."""
    for name in FORMATS[weight_format].peak:
        rate = profile.device.peak.of(name)  # type: ignore[arg-type]
        if rate is not None:
            return rate
    return profile.device.peak.fp32_flop_per_s
