"""What do a device's peaks and number formats mean for every kernel model?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import Precision
from simulator.errors import InputError

ELEMENT_BYTES: Mapping[Precision, float] = MappingProxyType(
    {
        "fp32": 4.0,
        "tf32": 4.0,
        "fp16": 2.0,
        "bf16": 2.0,
        "fp8": 1.0,
        "mxfp8": 1.0 + 1 / 32,
        "nvfp4": 0.5 + 1 / 16,
    }
)
"""Bytes per operand element, block scales included.

Source: OCP Microscaling specification 1.0 (one scale byte per 32 elements) for mxfp8;
NVIDIA's NVFP4 layout (one scale byte per 16 elements).
"""

_HALF_BYTES = 2.0


def activation_precision(precision: Precision) -> Precision:
    """Format of all that is not a product with a weight: of 8- and 4-bit training, bf16."""
    return "bf16" if ELEMENT_BYTES[precision] < _HALF_BYTES else precision


def output_bytes(precision: Precision) -> float:
    """Bytes per output element: fp32 for fp32 and tf32 products, else a 16-bit format."""
    return 4.0 if precision in ("fp32", "tf32") else 2.0


def peak_flop_per_s(profile: HardwareProfile, precision: Precision) -> float:
    """Dense peak rate of the device in a number format [FLOP/s].

    Raises:
        InputError: The device has no matrix unit for the format.
    """
    peak = profile.device.peak.of(precision)
    if peak is None:
        raise InputError.single(
            "plan.precision",
            f"{profile.name} has no {precision} matrix unit",
            precision,
            f"choose one of {', '.join(p for p in ELEMENT_BYTES if profile.device.peak.of(p))}",
        )
    return peak
