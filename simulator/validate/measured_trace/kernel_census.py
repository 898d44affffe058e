"""Is a trace of the model that it is compared with, by the kernels of its forward passes?

Products are fused by some libraries (queries, keys and values as one; gate and up as one) and cut
by others, which changes their number by less than two. Fused attention runs as often as layers do.

Attention of several ranks that share a sequence is several kernels per layer, and is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from simulator.described.job import Job
from simulator.program.ir import Kind
from simulator.program.price.roofline import KernelKind, kernel_kinds
from simulator.results.step import StepResult
from simulator.validate.measured_trace.account import Span

_FUSED_OR_CUT = 2.0
"""By how much the number of products of the same model differs between libraries at the most."""


def predicted_census(job: Job, result: StepResult, rank_class: int) -> Counter[KernelKind]:
    """How many kernels of each kind the forward passes of a rank run, where that is one number."""
    kinds, found = kernel_kinds(job), Counter[KernelKind]()
    program = result.timeline.program
    for indices in (ids for (own, _), ids in program.lanes.items() if own == rank_class):
        for operation in (program.operations[index] for index in indices):
            if operation.kind is Kind.FORWARD:
                for part in operation.work.parts:
                    if part.name in kinds:
                        found[kinds[part.name]] += part.repeats
    if job.plan.cp > 1:
        del found[KernelKind.ATTENTION]
    return found


def census_notes(spans: Sequence[Span], predicted: Counter[KernelKind]) -> Iterator[str]:
    """Sentences on numbers of kernels that no fusing explains."""
    measured = Counter(span.kind for span in spans if span.phase == "forward")
    for kind, noun, tolerance in (
        (KernelKind.ATTENTION, "attention kernels", 1.0),
        (KernelKind.GEMM, "matrix products", _FUSED_OR_CUT),
    ):
        seen, expected = measured[kind], predicted[kind]
        if seen and expected and max(seen / expected, expected / seen) > tolerance:
            yield (
                f"forward runs {seen} {noun} in the trace and {expected} in the prediction: "
                "is the trace of another model, number of microbatches or pipeline stage?"
            )
            return
