"""A system in round numbers, so that expected times can be computed by eye.

1 TFLOP/s in every format, 1 GB/s of memory, 1 us per kernel, four multiprocessors, and
kernels that reach all of it.
"""

from __future__ import annotations

from typing import Any

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import AttentionModel, GemmModel, KernelModel

GEMM = GemmModel(efficiency=1.0, memory_efficiency=1.0, floor="1 us")
ATTENTION = AttentionModel(forward_efficiency=1.0, backward_efficiency=1.0, tail=0.0, floor="1 us")
KERNELS = KernelModel(
    gemm={"fp32": GEMM, "fp16": GEMM, "bf16": GEMM, "fp8": GEMM},
    flash_attention=ATTENTION,
    memory_efficiency=1.0,
    memory_floor="1 us",
    launch="5 us",
)


def tiny_profile(**kernels: Any) -> HardwareProfile:
    """The round-number system, with fields of its kernel model changed."""
    profile = HardwareProfile.model_validate(
        {
            "name": "tiny",
            "description": "round numbers",
            "device": {
                "memory": "1 GiB",
                "memory_bandwidth": "1 GB/s",
                "peak": dict.fromkeys(("fp32", "fp16", "bf16", "fp8"), "1 TFLOP/s"),
                "sm_count": 4,
                "l2_cache": "1 MiB",
                "boost_clock": "1 GHz",
                "power": "100 W",
                "context": "0 B",
            },
            "kernels": KERNELS.model_dump(by_alias=True),
            "network": {
                "gpus_per_node": 1,
                "scale_up": {
                    "kind": "nvswitch",
                    "gpus": 1,
                    "bandwidth": "1 GB/s",
                    "efficiency": 1.0,
                    "latency": "1 us",
                },
                "fabric": {
                    "kind": "ib",
                    "nics_per_node": 1,
                    "nic": "1 GB/s",
                    "efficiency": 1.0,
                    "latency": "1 us",
                },
            },
            "host": {"memory": "1 GiB", "pcie": "1 GB/s"},
        }
    )
    return profile.model_copy(update={"kernels": KERNELS.model_copy(update=kernels)})


def with_bandwidth(profile: HardwareProfile, bytes_per_s: float) -> HardwareProfile:
    """The profile with another memory bandwidth."""
    device = profile.device.model_copy(update={"memory_bandwidth_bytes_per_s": bytes_per_s})
    return profile.model_copy(update={"device": device})


TINY_FAST = with_bandwidth(tiny_profile(), 1e30)
"""The same with memory so fast that only computing counts."""
