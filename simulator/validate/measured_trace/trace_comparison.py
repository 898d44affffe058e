"""Where do a real step and its prediction differ, and are both of the same model?

Kernels of the forward passes are counted. Products are fused by some libraries (queries, keys and
values as one; gate and up as one) and cut by others, which changes their number by less than two.
Fused attention runs as often as layers do; that of several ranks that share a sequence is several
kernels per layer, and is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.ir import Kind
from simulator.program.price.roofline import KernelKind, kernel_kinds
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.views.rank_classes import classes_of
from simulator.units import format_seconds, signed_seconds
from simulator.validate.measured_trace.account import (
    IDLE,
    PHASES,
    Account,
    Phase,
    Span,
    account,
    predicted_spans,
)
from simulator.validate.measured_trace.kernel_names import Wait
from simulator.validate.measured_trace.measured_step import TracedStep, read_step

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


SCHEMA_VERSION = 1
_KINDS = (*map(str, KernelKind), *map(str, Kind), *map(str, Wait), IDLE)


@dataclass(frozen=True)
class Gap:
    """One kind of time in both steps.

    Attributes:
        phase: Of which phase; empty for the whole step.
        kind: What runs; empty for the whole phase.
        measured_s, predicted_s: How long [s].
    """

    phase: str
    kind: str
    measured_s: float
    predicted_s: float

    @property
    def gap_s(self) -> float:
        """How much longer the real step spends on it than predicted [s]."""
        return self.measured_s - self.predicted_s

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"gap_s": self.gap_s}


@dataclass(frozen=True)
class TraceComparison:
    """A real step of one rank beside the predicted one.

    Attributes:
        job: What is said to have run.
        rank: Which rank.
        rank_class: Index of the class that stands for it.
        step: The real step.
        result: The simulated one.
        predicted: What the simulated rank ran, in order of start.
        notes: What the reader must know.
    """

    job: Job
    rank: int
    rank_class: int
    step: TracedStep
    result: StepResult
    predicted: Sequence[Span]
    notes: Sequence[str]

    @property
    def stage(self) -> int:
        """Its pipeline stage."""
        classes = self.result.timeline.program.classes
        return classes[self.rank_class].stage

    @property
    def accounts(self) -> tuple[Account, Account]:
        """Where the time goes, measured and predicted."""
        return (
            account(self.step.spans, self.step.step_s),
            account(self.predicted, self.result.step_time_s),
        )

    @property
    def gaps(self) -> list[Gap]:
        """The step, then each phase, each followed by its kinds, which sum to it."""
        return list(self._gaps(*self.accounts))

    @property
    def communication(self) -> list[Gap]:
        """Time in which each kind of collective runs, hidden or not."""
        measured, predicted = self.accounts
        return [
            Gap("", kind, *_pair(measured.communication_s, predicted.communication_s, kind))
            for kind in _KINDS
            if kind in measured.communication_s or kind in predicted.communication_s
        ]

    @property
    def verdict(self) -> str:
        """How far the step is off, whether that was to be expected, and where most of it lies."""
        whole, *gaps = self.gaps
        if round(whole.gap_s / whole.predicted_s, 3) == 0:
            return "The step takes as long as predicted."
        side = "longer" if whole.gap_s > 0 else "less"
        share = abs(whole.gap_s) / whole.predicted_s
        sentence = (
            f"The step takes {format_seconds(abs(whole.gap_s))} ({100 * share:.0f} %) {side} than "
            f"predicted{self._expectation(whole.measured_s)}."
        )
        largest = max((gap for gap in gaps if gap.kind), key=lambda gap: gap.gap_s * whole.gap_s)
        return f"{sentence} Most of it: {largest.kind} of {largest.phase}, " + (
            f"{signed_seconds(largest.gap_s)}."
        )

    def _expectation(self, measured_s: float) -> str:
        band_s = self.result.step_time_band_s
        if band_s is None:
            return ""
        is_inside = band_s[0] <= measured_s <= band_s[1]
        return f", {'inside' if is_inside else 'outside'} the 80 % prediction interval"

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        step, (whole, *gaps) = self.step, self.gaps
        return {
            "schema_version": SCHEMA_VERSION,
            "title": self.job.title,
            "rank": self.rank,
            "trace": {
                "step": step.number,
                "steps": list(step.numbers),
                "is_gpu": step.is_gpu,
                "device": step.device,
            },
            "measured_step_s": whole.measured_s,
            "predicted_step_s": whole.predicted_s,
            "gap_s": whole.gap_s,
            "verdict": self.verdict,
            "phases": [gap.to_dict() for gap in gaps if not gap.kind],
            "gaps": [gap.to_dict() for gap in gaps if gap.kind],
            "communication": [gap.to_dict() for gap in self.communication],
            "notes": list(self.notes),
        }

    def _gaps(self, measured: Account, predicted: Account) -> Iterator[Gap]:
        yield Gap("", "", measured.step_s, predicted.step_s)
        for phase in PHASES:
            kinds = list(self._kinds(phase, measured, predicted))
            if kinds:
                yield Gap(phase, "", measured.phase_s(phase), predicted.phase_s(phase))
                yield from kinds

    def _kinds(self, phase: Phase, measured: Account, predicted: Account) -> Iterator[Gap]:
        for kind in _KINDS:
            key = phase, kind
            pair = _pair(measured.by_phase_s, predicted.by_phase_s, key)
            if any(pair):
                yield Gap(phase, kind, *pair)


def compare_trace(
    path: Path, job: Job, *, step: int | None = None, rank: int | None = None
) -> TraceComparison:
    """Hold one rank's trace against the prediction of its job.

    Args:
        path: What torch's profiler recorded (.json or .json.gz).
        job: What ran.
        step: Which step; by default one of median length.
        rank: Which rank it is of, where the trace does not say.

    Raises:
        InputError: The trace is none, is damaged, or is of another number of ranks.
    """
    traced = read_step(path, step)
    own, notes = _rank(traced, job, rank), list(traced.notes)
    result = run_step(job)
    [rank_class] = classes_of([own], job, result.timeline.program.classes)
    if traced.ranks is None and job.cluster.gpus > 1:
        notes.append(f"the trace does not name its rank; it is compared with rank {own}")
    if not traced.is_gpu:
        notes.append(
            "a CPU dispatches its operators itself: that time is part of its operators in the "
            "trace, and time of the host in the prediction"
        )
        if not job.cluster.profile.device.launches_itself:
            notes.append(
                "the trace was recorded on a CPU alone; to record the kernels of a GPU, add "
                "ProfilerActivity.CUDA"
            )
    if traced.number is not None and len(traced.numbers) > 1:
        notes.append(f"step {traced.number} of steps {traced.numbers[0]} to {traced.numbers[-1]}")
    if traced.is_gpu:
        notes += census_notes(traced.spans, predicted_census(job, result, rank_class))
    spans = predicted_spans(job, result, rank_class)
    return TraceComparison(job, own, rank_class, traced, result, spans, notes)


def _rank(traced: TracedStep, job: Job, rank: int | None) -> int:
    gpus = job.cluster.gpus
    if traced.ranks is not None and traced.ranks != gpus:
        rule = f"is not the number of ranks of the trace, {traced.ranks}"
        hint = f"compare with the job that ran, or set cluster.gpus={traced.ranks}"
        raise InputError.single("cluster.gpus", rule, gpus, hint)
    if rank is not None and traced.rank is not None and rank != traced.rank:
        raise InputError.single("--rank", f"the trace says that it is of rank {traced.rank}", rank)
    own = rank if rank is not None else traced.rank or 0
    if own >= gpus:
        raise InputError.single("--rank", f"must be below the job's {gpus} ranks", own)
    return own


def _pair(
    measured: Mapping[Any, float], predicted: Mapping[Any, float], key: object
) -> tuple[float, float]:
    return measured.get(key, 0.0), predicted.get(key, 0.0)
