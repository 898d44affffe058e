"""What does it cost to reduce gradients in buckets that are not the gradients themselves?

PyTorch's DDP copies each gradient into its bucket, scaled by the number of ranks, and copies the
sum back, unless gradients are views of their buckets (``gradient_as_bucket_view``). Both copies
read and write every byte on the compute stream; they are booked with the backward that fills the
bucket, or with the last one where nothing is reduced before it has ended. Megatron's gradients lie
in one buffer, so it copies none.

Ignores: scaling in place, where gradients are views.
Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, mark_variable_ready_dense and
finalize_bucket_dense.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from simulator.cost.kernel_time import memory_bound_s
from simulator.described.job import Job
from simulator.program.ir import Category, Part, Program, Work
from simulator.program.states.resident import state_bytes

BUCKET_COPY = "bucket_copy"
"""Name of the part that copies gradients into buckets and back, on the device."""

_PASSES = 4
"""Read and write on the way in, and again on the way back."""


@dataclass
class BucketCopies:
    """Lengthens the backward passes that fill buckets; equal ones share their work."""

    job: Job
    _works: dict[tuple[int, float], tuple[Work, Work]] = field(default_factory=dict)
    """Without and with the copies, by the identity of the first, which is thereby kept."""

    def add(self, program: Program, operation: int, numel: float) -> None:
        """Book the copies of ``numel`` gradients with a backward, where there are any."""
        if not self.job.choices.copies_buckets:
            return
        backward = program.operations[operation]
        key = id(backward.work), numel
        if key not in self._works:
            self._works[key] = backward.work, self._with_copies(backward.work, numel)
        backward.work = self._works[key][1]

    def _with_copies(self, work: Work, numel: float) -> Work:
        num_bytes = _PASSES * state_bytes(self.job).reduced * numel
        seconds = memory_bound_s(self.job.cluster.profile, num_bytes)
        copies = Part(BUCKET_COPY, Category.DATA_PARALLEL, seconds)
        return replace(work, seconds=work.seconds + seconds, parts=(*work.parts, copies))
