"""What does one step cost?

:class:`StepResult` is plain data: everything a person asks of one simulated step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.engine.timeline import Timeline
from simulator.program.ir import Category, Owner
from simulator.program.run.order import Asynchrony
from simulator.results.fit_probability import EVEN, Fit, MemorySpread, fit_of

UNUSED = "unused by allocator"
"""Name of what the caching allocator reserves beyond all tensors."""


@dataclass(frozen=True)
class Waits:
    """Gaps of the compute streams, one row each, columnar.

    Attributes:
        rank_class: Class index, shape (waits,).
        category: What was waited for (a communication category or bubble), per row.
        start_s, end_s: The gap [s], shape (waits,).
    """

    rank_class: NDArray[np.int64]
    category: tuple[Category, ...]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


@dataclass(frozen=True)
class ClassMemory:
    """Memory of one rank class over the step.

    Attributes:
        stage: Pipeline stage.
        peak_allocated_bytes: Tensors alive at the peak [B].
        peak_reserved_bytes: Held by the caching allocator at its peak [B].
        peak_device_bytes: As nvidia-smi would show it, with context and libraries, on a device
            that has room for it [B].
        least_device_bytes: What is left of it where the allocator returns unused segments to a
            device that is full [B].
        peak_time_s: Moment of the peak [s]; -1 where it is that of loading, before the step.
        by_owner: Who holds the bytes at the peak [B].
        time_s: Moments at which memory changes, shape (changes,) [s].
        owner_bytes: Bytes from each moment on, per owner, each of shape (changes,) [B].
        outside: What is held outside the allocator, by cause [B].
        role: What its ranks are, where others of their stage do something else.
        capacity_bytes: Memory of its GPU [B].
    """

    stage: int
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    peak_device_bytes: float
    least_device_bytes: float
    peak_time_s: float
    by_owner: Mapping[Owner, float]
    time_s: NDArray[np.float64]
    owner_bytes: Mapping[Owner, NDArray[np.float64]]
    outside: Mapping[str, float] = field(default_factory=dict)
    role: str = ""
    capacity_bytes: float = math.inf

    @property
    def device_shares(self) -> dict[str, float]:
        """All that ``peak_device_bytes`` is made of, by name [B]."""
        owners = {owner.value: held for owner, held in self.by_owner.items()}
        unused = self.peak_reserved_bytes - self.peak_allocated_bytes
        return {**owners, UNUSED: unused, **self.outside}

    @property
    def filled_share(self) -> float:
        """Share of the GPU's memory that is used at the peak."""
        return self.peak_device_bytes / self.capacity_bytes

    @property
    def label(self) -> str:
        """The stage, and the role where it has several."""
        return f"{self.stage}, {self.role}" if self.role else str(self.stage)


@dataclass(frozen=True)
class HostMemory:
    """Memory and drives of the node that holds most.

    Attributes:
        held_bytes: In its memory, by owner [B]; pinned buffers are ``communication``.
        capacity_bytes: Its memory [B].
        nvme_held_bytes: On its drives, by owner [B].
        nvme_capacity_bytes: Its drives [B]; 0 where the profile knows none.
    """

    held_bytes: Mapping[Owner, float]
    capacity_bytes: float
    nvme_held_bytes: Mapping[Owner, float]
    nvme_capacity_bytes: float

    @property
    def fits(self) -> bool:
        """Whether there is room for both; ignores the system and data loaders."""
        in_memory, on_drives = (
            math.fsum(self.held_bytes.values()),
            math.fsum(self.nvme_held_bytes.values()),
        )
        return in_memory <= self.capacity_bytes and on_drives <= self.nvme_capacity_bytes


@dataclass(frozen=True)
class StepResult:
    """Everything about one simulated training step.

    Attributes:
        timeline: What ran when, one row per operation and lane; ``to_frame()`` is a table of it.
        step_time_s: From the start of the step to the end of its last update [s].
        step_time_band_s: Between which eight of ten such runs, of a source that nothing was
            tuned to, would lie [s]; None where there are several kinds of GPUs.
        tokens_per_s_per_gpu: Tokens of the batch, by GPU and second.
        model_tflops_per_gpu: What the model needs, whatever is repeated [TFLOP/s].
        mfu: That, as a share of the dense peak of the plan's precision (PaLM, arXiv 2204.02311,
            appendix B), scores of attention that a causal mask leaves out included.
        mfu_causal: The same without those scores; None of a captured step, whose masks are not
            known.
        hfu: MFU with recomputation counted as work.
        bubble_fraction: Share of the step in which a mean GPU waits for the pipeline.
        breakdown_s: Where a mean GPU's time goes, by category [s]; sums to the step.
        exposed_comm_s: The communication among it, by category [s]: what delays computation.
        class_breakdown_s: The same breakdown for each class of ranks that behave the same.
        waits: Every gap of the compute streams and what it waited for.
        memory: What each class of ranks holds, by stage.
        capacity_bytes: Device memory of one GPU [B].
        memory_spread: How far the memory that is held spreads about the predicted one.
        title: One line that says which job this was.
        asynchrony: Updates, weight versions and staleness where training is not synchronous.
        host: Memory and drives of the fullest node; None where nothing leaves the GPUs.
    """

    timeline: Timeline
    step_time_s: float
    step_time_band_s: tuple[float, float] | None
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    mfu_causal: float | None
    hfu: float
    bubble_fraction: float
    breakdown_s: Mapping[Category, float]
    exposed_comm_s: Mapping[Category, float]
    class_breakdown_s: tuple[Mapping[Category, float], ...]
    waits: Waits
    memory: tuple[ClassMemory, ...]
    capacity_bytes: float
    memory_spread: MemorySpread
    title: str
    asynchrony: Asynchrony | None
    host: HostMemory | None

    @property
    def breakdown(self) -> Mapping[Category, float]:
        """``breakdown_s`` by its short name [s]."""
        return self.breakdown_s

    @property
    def fits_probability(self) -> float:
        """Probability that the fullest GPU has room for what it holds; 0 where a node has none."""
        if self.host is not None and not self.host.fits:
            return 0.0
        fullest = self.fullest
        return self.memory_spread.probability(fullest.peak_device_bytes, fullest.capacity_bytes)

    @property
    def fits(self) -> bool:
        """Whether it is as likely as not to have room."""
        return self.fits_probability >= EVEN

    @property
    def fit(self) -> Fit:
        """Whether it fits, does not, or is too close to call."""
        return fit_of(self.fits_probability)

    @property
    def peak_allocated_bytes(self) -> float:
        """Of the ranks that allocate most [B]."""
        return max(memory.peak_allocated_bytes for memory in self.memory)

    @property
    def peak_reserved_bytes(self) -> float:
        """Of the ranks that reserve most [B]."""
        return max(memory.peak_reserved_bytes for memory in self.memory)

    @property
    def peak_device_bytes(self) -> float:
        """Of the ranks whose GPU holds most [B]."""
        return max(memory.peak_device_bytes for memory in self.memory)

    @property
    def fullest(self) -> ClassMemory:
        """The ranks that use the largest share of their memory."""
        return max(self.memory, key=lambda memory: memory.filled_share)
