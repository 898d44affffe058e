"""What is the machine, in numbers that have parents?

A profile describes one *system*: a device, the node it sits in, the links around it
and how fast its kernels really are. Every number carries a source, given once per
block or per value::

    device:
      source: {kind: datasheet, reference: "NVIDIA H100 data sheet"}
      memory: 79.6 GiB
      power: {value: 700 W, source: {kind: measured, reference: "..."}}

The loader (:mod:`simulator.described.load`) strips these sources from the values and keeps
them in ``HardwareProfile.provenance``, keyed by dotted field path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field

from simulator.described.base import (
    Bytes,
    Count,
    PositiveFraction,
    Ranks,
    Ratio,
    Seconds,
    SomeBytes,
    SomeBytesPerSecond,
    SomeFlopPerSecond,
    SomeHertz,
    Spec,
    Watts,
    Width,
)
from simulator.described.cluster.common import Common, shipped_common
from simulator.described.cluster.kernel_parameters import KernelModel, Precision
from simulator.described.cluster.network import Network
from simulator.described.documents import data_folder, names_in, read_yaml
from simulator.errors import InputError

SourceKind = Literal["measured", "fitted", "datasheet", "published", "assumed"]


class Provenance(Spec):
    """Where a number comes from."""

    kind: SourceKind
    reference: str = ""
    """Document, table or measurement; obligatory unless assumed."""


class PeakRates(Spec):
    """Dense peak rate per number format; sparse figures are refused by ``profile check``."""

    fp32_flop_per_s: SomeFlopPerSecond
    """Without tensor cores."""
    tf32_flop_per_s: SomeFlopPerSecond | None = None
    """fp32 operands on tensor cores; a device without it leaves it out, as below."""
    fp16_flop_per_s: SomeFlopPerSecond | None = None
    """16-bit operands, fp32 sums."""
    bf16_flop_per_s: SomeFlopPerSecond | None = None
    """16-bit operands, fp32 sums."""
    fp8_flop_per_s: SomeFlopPerSecond | None = None
    """8-bit floating-point operands, also of mxfp8 unless that has a rate of its own."""
    mxfp8_flop_per_s: SomeFlopPerSecond | None = None
    """8-bit floating-point operands with a scale for each block, where it is not that of fp8."""
    int8_flop_per_s: SomeFlopPerSecond | None = None
    """8-bit integer operands; given for TPUs, which train with them (MaxText, AQT)."""
    fp4_flop_per_s: SomeFlopPerSecond | None = None
    """4-bit operands (nvfp4)."""

    def of(self, precision: Precision) -> float | None:
        """Rate of products in a number format [FLOP/s]; None where no unit multiplies it."""
        if precision == "mxfp8" and self.mxfp8_flop_per_s is not None:
            return self.mxfp8_flop_per_s
        rate: float | None = getattr(self, f"{peak_name(precision)}_flop_per_s")
        return rate


def architecture_document(name: str) -> dict[str, Any]:
    """What is known of the kernels of a family of chips, with its sources.

    Raises:
        InputError: There is no such family.
    """
    folder = data_folder("hardware_profiles") / "architectures"
    if name not in names_in(folder):
        hint = f"choose one of {', '.join(names_in(folder))}, or remove it and give all kernels"
        raise InputError.single("device.architecture", "is not a known family", name, hint)
    return read_yaml(folder / f"{name}.yaml")


@cache
def stacks_of_family(name: str | None) -> tuple[str, ...]:
    """The stacks that run on a family of chips, its usual one first; empty where all may."""
    return tuple(architecture_document(name).get("stacks", ())) if name else ()


def peak_name(precision: Precision) -> str:
    """Field of the peak that a number format runs at where its block scales do not change it."""
    return {"mxfp8": "fp8", "nvfp4": "fp4"}.get(precision, precision)


class Device(Spec):
    """One GPU, as the software sees it."""

    architecture: str | None = None
    """Family of chips whose kernels stand in for all that the profile does not say of its own:
    a name in ``hardware_profiles/architectures``. None is a device of no such family."""
    memory_bytes: SomeBytes
    """Memory that the driver reports as the device's total."""
    memory_bandwidth_bytes_per_s: SomeBytesPerSecond
    """Of the device's memory, as on the data sheet."""
    peak: PeakRates
    sm_count: Width
    """Multiprocessors (compute units)."""
    l2_cache_bytes: Bytes
    """Last cache before the device's memory."""
    boost_clock_hz: SomeHertz
    """Clock that the peak rates hold at."""
    power_w: Watts
    """Most that the device draws, as on the data sheet."""
    power_limit_w: Watts | None = None
    """Less, where its owner allows less (``nvidia-smi -pl``): products then run slower."""
    context_bytes: Bytes
    """Device memory taken by the driver context and libraries before any tensor."""
    launches_itself: bool = False
    """Whether it is the host's own processor: it runs a kernel or the framework's code, never one
    beside the other. GPUs compute while their host launches what comes next."""

    @property
    def allowed_power_w(self) -> float:
        """Most that the device may draw [W]."""
        return self.power_w if self.power_limit_w is None else self.power_limit_w

    @property
    def limited_clock(self) -> float:
        """Share of the clock under load that the power limit leaves, as its square root.

        Source: assumption; H100 of 700 and of 500 W hold 0.740 and 0.627 of their benchmark rate
        (``hardware_profiles``), the 0.49th power. Ignores that a device which stays below its
        power loses less.
        """
        return min(1.0, math.sqrt(self.allowed_power_w / self.power_w))


class Nvme(Spec):
    """The drives of one node, taken together."""

    size_bytes: Bytes
    """Room for what a job keeps there."""
    read_bytes_per_s: SomeBytesPerSecond
    """Rate of long reads."""
    write_bytes_per_s: SomeBytesPerSecond
    """Rate of long writes."""


class Host(Spec):
    """The computer around the GPUs of one node."""

    memory_bytes: Bytes
    """Of one node."""
    pcie_bytes_per_s: SomeBytesPerSecond
    """Host-to-device copy rate of one GPU, pinned memory, one way."""
    gpus_per_pcie_link: Ranks = 1
    """GPUs behind one PCIe switch, whose copies share the rate of one link to the host."""
    layer_wait_s: Seconds = 0.0
    """What a GPU waits for its host beyond what is predicted, for each layer forward and backward,
    as own runs say (``clustersim calibrate runs``); less where the layer's own time hides it."""
    memory_bandwidth_bytes_per_s: SomeBytesPerSecond | None = None
    """Of all sockets of a node together; no limit of copies where it is unknown."""
    optimizer_efficiency: PositiveFraction = 0.46
    """Share of it that an optimizer step on all cores reaches. By default that of CPU-Adam on
    a DGX-2: 10 billion parameters, 30 B each, in 2.57 s, of 256 GB/s (arXiv 2101.06840,
    table 4)."""
    nvme: Nvme | None = None
    """Local drives, where there are any."""


class OwnMemory(Spec):
    """How far predicted memory is off, as own runs say."""

    runs: Count
    """How many runs told it."""
    scale: Ratio
    """Of the logarithm of held over predicted memory."""
    freedom: Count
    """Degrees of freedom of Student's t."""
    centre: float
    """Half of all runs hold no more than the predicted memory times e to this."""


class OwnRuns(Spec):
    """What own runs leave open of a predicted step (``clustersim calibrate runs``)."""

    framework: str
    """Whose runs they are: those of others have the band of a system without own runs."""
    runs: Count
    """How many runs it was learnt from."""
    freedom: Ratio
    """Degrees of freedom of Student's t."""
    covariance: tuple[tuple[float, ...], ...]
    """Of the error's logarithm by regime (:data:`simulator.results.step_error.REGIMES`)."""
    noise: tuple[float, ...]
    """Variance of a single run, by regime."""
    alike: tuple[float, ...] = ()
    """Variance that alike runs share (:data:`simulator.results.step_error.ASPECTS`)."""
    memory: OwnMemory | None = None
    """What their memory said; None where none was measured."""


class HardwareProfile(Spec):
    """A whole system: device, kernels, network and host."""

    name: str
    """What a job calls it."""
    description: str
    """The system in one line: device, node and links."""
    device: Device
    kernels: KernelModel
    network: Network
    host: Host
    common: Common = Field(default_factory=shipped_common)
    """What holds on every system; by default as shipped."""
    own_runs: OwnRuns | None = None
    """What runs on this very system have told."""
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, exclude=True)
    """Source of every number, by dotted path such as ``device.memory``."""
