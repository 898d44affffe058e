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

_UNUSED = "unused by the allocator"
"""Name of what the caching allocator reserves beyond all tensors."""


@dataclass(frozen=True)
class Waits:
    """Gaps of the compute streams, one row each, columnar.

    Attributes:
        rank_class: Class index, shape (waits,).
        category: Cause of the wait (a communication category or bubble), per row.
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
        peak_allocated_bytes: Bytes of tensors at the peak [B].
        peak_reserved_bytes: Bytes held by the caching allocator at its peak [B].
        peak_device_bytes: Bytes that nvidia-smi would show, with context and libraries, if the
            device has room for them [B].
        least_device_bytes: Device memory if the allocator returns unused segments to a full device
            [B].
        peak_time_s: Moment of the peak [s]; -1 where it is that of loading, before the step.
        by_owner: Bytes at the peak by owner [B].
        time_s: Times at which memory changes, shape (changes,) [s].
        owner_bytes: Bytes from each moment on, per owner, each of shape (changes,) [B].
        outside: Memory outside the allocator, by cause [B].
        role: Role of its ranks, if other ranks of the stage do something else.
        capacity_bytes: Memory of the GPU [B].
    """

    stage: int
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    peak_device_bytes: float
    least_device_bytes: float
    peak_time_s: float
    by_owner: Mapping[Owner, float]
    time_s: NDArray[np.float64] = field(repr=False)
    owner_bytes: Mapping[Owner, NDArray[np.float64]] = field(repr=False)
    outside: Mapping[str, float] = field(default_factory=dict)
    role: str = ""
    capacity_bytes: float = math.inf

    @property
    def device_shares(self) -> dict[str, float]:
        """Parts of ``peak_device_bytes``, by name [B]."""
        owners = {owner.value: held for owner, held in self.by_owner.items()}
        unused = self.peak_reserved_bytes - self.peak_allocated_bytes
        return {**owners, _UNUSED: unused, **self.outside}

    @property
    def filled_share(self) -> float:
        """Share of the GPU's memory that is used at the peak."""
        return self.peak_device_bytes / self.capacity_bytes

    @property
    def label(self) -> str:
        """The stage, and the role if it has several."""
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
        step_time_s: Time from the start of the step to the end of its last update [s].
        step_time_band_s: The 80 % prediction interval, for runs of a source that nothing was tuned
            to [s]; None for clusters with several kinds of GPUs.
        tokens_per_s_per_gpu: Tokens of the batch per GPU and second.
        model_tflops_per_gpu: FLOP/s that the model needs, without recomputation [TFLOP/s].
        mfu: Model FLOP/s as a share of the dense peak of the plan's precision (PaLM, arXiv
            2204.02311, appendix B), including attention scores that a causal mask skips.
        mfu_causal: MFU without those scores; None for a captured step, whose masks are unknown.
        hfu: Like MFU, but of what is executed: with recomputation, and without gradients of frozen
            weights, so that it is below MFU where adapters are trained.
        bubble_fraction: Share of the step in which a mean GPU waits for the pipeline.
        breakdown_s: Time of the mean GPU by category [s]; sums to the step.
        exposed_comm_s: Exposed communication in that breakdown, by category [s].
        class_breakdown_s: The same breakdown for each class of ranks that behave the same.
        waits: Every gap of the compute streams, and its cause.
        memory: Memory of each class of ranks, by stage.
        capacity_bytes: Device memory of one GPU [B].
        memory_spread: Spread of the true memory around the predicted one.
        title: One line that describes the job.
        asynchrony: Updates, weight versions and staleness, if training is not synchronous.
        host: Memory and drives of the fullest node; None if nothing is offloaded.
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
        """Probability that the job fits on the fullest GPU; 0 if a node's memory is too small."""
        if self.host is not None and not self.host.fits:
            return 0.0
        fullest = self.fullest
        return self.memory_spread.probability(fullest.peak_device_bytes, fullest.capacity_bytes)

    @property
    def fits(self) -> bool:
        """Whether the probability of fitting is at least one half."""
        return self.fits_probability >= EVEN

    @property
    def fit(self) -> Fit:
        """Verdict: fits, tight, probably does not fit, or does not fit."""
        return fit_of(self.fits_probability)

    @property
    def peak_allocated_bytes(self) -> float:
        """Largest allocated memory of any rank [B]."""
        return max(memory.peak_allocated_bytes for memory in self.memory)

    @property
    def peak_reserved_bytes(self) -> float:
        """Largest reserved memory of any rank [B]."""
        return max(memory.peak_reserved_bytes for memory in self.memory)

    @property
    def peak_device_bytes(self) -> float:
        """Largest device memory of any rank [B]."""
        return max(memory.peak_device_bytes for memory in self.memory)

    @property
    def fullest(self) -> ClassMemory:
        """The ranks that use the largest share of their memory."""
        return max(self.memory, key=lambda memory: memory.filled_share)
