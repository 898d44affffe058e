"""What does one row of a table of measured kernels say?

Which prediction answers it is for :mod:`simulator.validate.kernel_answers` to say.

A device computes at its boost clock until its power limit is felt. Benchmarks that repeat a call
back to back run into the limit, find their operands in the cache, and, where the clock runs on
the host, take at least as long as the host needs to issue a call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from simulator import cells
from simulator.cells import read_table
from simulator.cost.kernel_time import ELEMENT_BYTES, memory_bound_s
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.load import profile_names
from simulator.errors import InputError
from simulator.facts import shipped_facts
from simulator.tables.spellings import precision_name
from simulator.tables.spellings import profile_name_of as profile_of_gpu
from simulator.units import parse_quantity

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a benchmark repeats a call.

    Attributes:
        warm_up: Rounds back to back before those that count.
        counted: Rounds back to back of which the time is the mean.
        host_s: Time the host takes to issue a call; 0 where the device's own clock is read.
        events_s: What two events of a stream take with nothing between them.
        is_per_group: Whether a grouped product is a call for each of its groups.
        weights: Products of a round, each with weights of its own.
        fills_cache: Whether a round ends with the product whose weights fill the last cache.
        is_random: Whether weights are random numbers, of which units draw the power that they can.
        clears_cache: Whether the last cache is overwritten before each call.
        is_eager: Whether norms, softmaxes and grouped products are torch's own kernels.
        cuts_inner: Whether the library may cut the inner dimension of a product.
        inner: Column of a product's inner dimension, ``k`` or ``n``; the other is its columns.
    """

    warm_up: int = 0
    counted: int = 1
    host_s: float = 0.0
    is_per_group: bool = False
    weights: int = 1
    fills_cache: bool = False
    is_random: bool = True
    clears_cache: bool = False
    is_eager: bool = False
    cuts_inner: bool = True
    inner: str = "k"
    events_s: float = 0.0

    @property
    def read_again_after(self) -> int:
        """After how many products their weights are read again; 0 is never."""
        return self.weights if self.warm_up + self.counted > 1 else 0

    def on(self, profile: HardwareProfile, weight_bytes: float) -> Protocol:
        """What it is for products with so many bytes of weights on a device."""
        if not self.fills_cache:
            return self
        filling = math.ceil(profile.device.l2_cache_bytes / weight_bytes)
        return replace(self, weights=min(self.weights, filling))


def protocol_of(row: KernelRow) -> Protocol:
    """How the row's benchmark repeats calls: as its notes say, else as the program is known to.

    Benchmarks that clear the cache or write to memory between calls leave the device time to
    cool, and count as single calls.
    """
    return row.once("protocol", lambda: _stated_protocol(row))


def _stated_protocol(row: KernelRow) -> Protocol:
    stated = re.search(r"(\d+) warm-up", row.text("notes"))
    if stated:
        return Protocol(warm_up=int(stated.group(1)), counted=1)
    said = f"{row.text('source')} {row.text('notes')}".lower()
    for known in shipped_facts("benchmarks"):
        if all(word in said for word in known["words"]):
            return Protocol(
                known.get("warm_up", 0),
                known.get("counted", 1),
                parse_quantity(known.get("host", "0 s"), "s"),
                known.get("per_group", False),
                known.get("weights", 1),
                known.get("fills_cache", False),
                known.get("random", True),
                known.get("clears_cache", False),
                known.get("eager", False),
                known.get("cuts_inner", True),
                known.get("inner", "k"),
                parse_quantity(known.get("events", "0 s"), "s"),
            )
    return Protocol()


def mean_call_s(
    profile: HardwareProfile, precision: Precision, cool_s: float, flop: float, protocol: Protocol
) -> float:
    """Mean seconds of a repeated product that takes ``cool_s`` on a cool device.

    A device keeps its boost clock for a while; after that its operations per second are at most
    its power limit over the energy of one; of weights that were never set, mostly zeros, it draws
    little. Ignores that the device cools where the host is late.

    Args:
        profile: Device, with ``joule_per_operation`` and ``boost`` of the format.
        precision: Number format of the operands.
        cool_s: Time of one call at boost clock [s].
        flop: Operations of one call.
        protocol: How calls are repeated.

    Source:
        Energy per operation: fitted, see the profile; the shape is an assumption.
    """
    model = profile.kernels.gemm[precision]
    drawn_j = flop * model.joule_per_operation if protocol.is_random else 0.0
    held_s = max(cool_s, drawn_j / profile.device.power_w)

    def calls_s(calls: int) -> float:
        in_boost = min(calls, model.boost_s / cool_s)
        return in_boost * cool_s + (calls - in_boost) * held_s

    warm_up, counted = (protocol.weights * n for n in (protocol.warm_up, protocol.counted))
    mean_s = (calls_s(warm_up + counted) - calls_s(warm_up)) / counted
    return max(mean_s, protocol.host_s)


_QUANTISE_KERNELS = 5
"""Kernels that scale an input to fp8: magnitude, maximum (two stages), scale, cast.

Source: assumption, the plain operations of dynamic per-tensor scaling.
"""


def quantise_s(profile: HardwareProfile, elements: int) -> float:
    """Seconds in which a framework's fp8 linear scales its 16-bit input.

    The input is read twice and written once.
    """
    extra_kernels_s = (_QUANTISE_KERNELS - 1) * memory_bound_s(profile, 0.0)
    efficiency = profile.common.quantise_share * profile.kernels.memory_efficiency
    return extra_kernels_s + memory_bound_s(profile, (2 + 2 + 1) * elements, efficiency=efficiency)


def cache_append_s(
    profile: HardwareProfile, tokens: int, heads: int, kv_heads: int, head_dim: int
) -> float:
    """Seconds in which a serving engine turns projections into what attention reads.

    Queries, keys and values of 16 bits are read once, rotated, and written once, keys and values
    into the cache (TensorRT-LLM, applyBiasRopeUpdateKVCache).
    """
    elements = tokens * head_dim * (heads + 2 * kv_heads)
    return memory_bound_s(profile, 2.0 * ELEMENT_BYTES["bf16"] * elements)


_COLUMNS = ("id", "op", "gpu", "dtype")

_DIRECTION_OF_WORD = {
    "forward": "fwd", "forwards": "fwd", "fprop": "fwd", "f": "fwd",
    "backward": "bwd", "backwards": "bwd", "bprop": "bwd", "b": "bwd",
}  # fmt: skip


class SkippedRowError(Exception):
    """The row cannot be answered; the message says which fact it lacks."""


_LARGEST_SIZE = 2**40
"""More than a dimension or a count of any kernel."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One measured kernel, as the table states it.

    Attributes:
        cells: Column name to text; an absent value is empty.
    """

    cells: Mapping[str, str]
    _read: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, name: str, read: Callable[[], _T]) -> _T:
        """What ``read`` gives, by name: a fit asks a row for the same ten thousand times."""
        if name not in self._read:
            self._read[name] = read()
        found: _T = self._read[name]
        return found

    def text(self, name: str) -> str:
        """Text of a column, empty if absent."""
        return self.once(f"text {name}", lambda: cells.text(self.cells, name))

    def number(self, name: str) -> float | None:
        """Number of a column above 0, None if there is none."""
        return self.once(f"number {name}", lambda: self._number(name))

    def _number(self, name: str) -> float | None:
        try:
            return cells.measured(self.cells, name)
        except InputError:
            return None

    def count(self, name: str) -> int:
        """Whole number of a column.

        Raises:
            SkippedRowError: The row does not state it, or no kernel has so many.
        """
        value = self.number(name)
        if value is None or value < 1:
            raise SkippedRowError(f"{name} is not stated")
        if value > _LARGEST_SIZE:
            raise SkippedRowError(f"{name} is larger than that of any kernel")
        return round(value)

    def noted(self, pattern: str, default: int | None = None) -> int | None:
        """Whole number that the notes give after ``pattern``."""
        match = re.search(pattern + r"\s*(\d{1,12})(?!\d)", self.text("notes"))
        return int(match.group(1)) if match else default

    def noted_before(self, pattern: str) -> int | None:
        """Whole number that the notes give before ``pattern``."""
        match = re.search(r"(?<!\d)(\d{1,12})\s*" + pattern, self.text("notes"))
        return int(match.group(1)) if match else None

    @property
    def op(self) -> str:
        """The operation in small letters, its words joined by underscores."""
        return re.sub(r"[\s.-]+", "_", self.text("op").lower())

    @property
    def direction(self) -> str:
        """fwd, bwd, fwd+bwd, dgrad or wgrad; what the table says where it is none of them."""
        words = re.findall(r"[a-z]+", self.text("direction").lower())
        said = "+".join(_DIRECTION_OF_WORD.get(w, w) for w in words if w not in ("and", "pass"))
        both = said in ("fwd+bwd", "bwd+fwd", "fwdbwd", "full", "both", "train", "training")
        return "fwd+bwd" if both else said

    @property
    def is_best_shape(self) -> bool:
        """Whether the time is the best of a search over shapes, not a typical one."""
        return "best shape" in self.text("notes")


def read_kernel_rows(path: str | Path) -> list[KernelRow]:
    """All rows of a kernel table.

    Raises:
        InputError: The file cannot be read or lacks a needed column.
    """
    return [KernelRow(cells_of_row) for cells_of_row in read_table(path, _COLUMNS)]


def profile_name_of(row: KernelRow) -> str:
    """Name of the row's hardware profile.

    Raises:
        SkippedRowError: No profile describes the GPU.
    """
    gpu = row.text("gpu")
    name = profile_of_gpu(gpu, profile_names())
    if name is None:
        raise SkippedRowError(f"no hardware profile describes {gpu or 'an unnamed GPU'}")
    return name


def precision_of(row: KernelRow) -> Precision:
    """Number format of the row's products.

    Raises:
        SkippedRowError: The row states none, or one that no profile knows.
    """
    dtype = row.text("dtype").lower()
    precision = row.once("precision", lambda: precision_name(dtype.replace("_", "-")))
    if precision in get_args(Precision):
        return precision  # type: ignore[return-value]
    raise SkippedRowError(f"number format {dtype or 'unstated'} is not modelled")
