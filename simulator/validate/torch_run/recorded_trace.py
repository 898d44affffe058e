"""When does a rank begin and end each phase of a step, and what did torch's profiler see of it?

A mark costs nothing that would change what it measures: on a GPU it is an event in the stream, read
once the step is over; on a CPU, which computes in order, the time of day. Phases are ranges in the
profile; communication is what the library names itself: kernels of NCCL, ranges of gloo. Of a CPU
run, allocations are counted, too.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from simulator.validate.measured_trace.kernel_names import collective_kind
from simulator.validate.torch_run.run_comparison import TracedSpan

if TYPE_CHECKING:
    from simulator.validate.torch_run.train import Trainer


Phase = Literal["forward", "backward", "optimizer"]
PREFIX = "step: "
"""What the names of phases begin with in a profile."""

Mark = float | torch.cuda.Event

_STEP = "ProfilerStep#0"
"""What torch's own schedule of steps calls the first."""


class Span(NamedTuple):
    """One phase of one microbatch on one rank.

    Attributes:
        phase: What was done.
        microbatch: For which microbatch; -1 for all.
        chunk: In which of the rank's model chunks.
        start_s, end_s: Since the step began [s].
    """

    phase: str
    microbatch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass
class PhaseClock:
    """Marks the phases of one step.

    Attributes:
        is_gpu: Whether the rank computes on a GPU.
    """

    is_gpu: bool
    _begun: Mark = 0.0
    _marks: list[tuple[Phase, int, int, Mark, Mark]] = field(default_factory=list)

    def begin(self) -> None:
        """The step begins now; earlier phases are forgotten."""
        self._marks.clear()
        self._begun = self._mark()

    @contextlib.contextmanager
    def phase(self, phase: Phase, microbatch: int = -1, chunk: int = 0) -> Iterator[None]:
        """What runs inside belongs to the phase."""
        start = self._mark()
        with torch.profiler.record_function(f"{PREFIX}{phase} {microbatch} {chunk}"):
            yield
        self._marks.append((phase, microbatch, chunk, start, self._mark()))

    def end(self) -> tuple[float, list[Span]]:
        """Length of the step [s] and its phases, once all work is done."""
        end = self._mark()
        if self.is_gpu:
            torch.cuda.synchronize()
        since = self._since_begun()
        spans = [
            Span(phase, microbatch, chunk, since(start), since(stop))
            for phase, microbatch, chunk, start, stop in self._marks
        ]
        return since(end), spans

    def _mark(self) -> Mark:
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _since_begun(self) -> Callable[[Mark], float]:
        begun = self._begun

        def since(mark: Mark) -> float:
            if isinstance(mark, float) or isinstance(begun, float):
                return float(mark) - float(begun)  # type: ignore[arg-type]
            return float(begun.elapsed_time(mark)) / 1e3

        return since


@dataclass(frozen=True)
class Traced:
    """One profiled step of one rank.

    Attributes:
        spans: What ran when, in order of start.
        peak_extra_bytes: Most memory beyond that at the start of the step [B]; None where
            the allocator is asked itself.
    """

    spans: list[TracedSpan]
    peak_extra_bytes: float | None


def profiled_step(trainer: Trainer, keep: Path | None) -> Traced:
    """Run one step under torch's profiler.

    Args:
        trainer: What runs it.
        keep: Where the profiler's own file shall stay (.json or .json.gz); None is nowhere.
    """
    world = trainer.world
    activities = [ProfilerActivity.CPU]
    if world.is_gpu:
        activities.append(ProfilerActivity.CUDA)
    if world.backend != "fake":
        dist.barrier()
    with profile(activities=activities, profile_memory=not world.is_gpu) as profiler:
        with record_function(_STEP):
            trainer.clock.begin()
            trainer.step()
            if world.is_gpu:
                torch.cuda.synchronize()
        trainer.clock.end()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = path.read_text(encoding="utf-8")
    if keep is not None:
        packed = keep.suffix == ".gz"
        keep.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    events = json.loads(text)["traceEvents"]
    return read_events(events, is_gpu=world.is_gpu)


def read_events(events: Iterable[Mapping[str, Any]], *, is_gpu: bool) -> Traced:
    """The spans and the memory of one step."""
    events = list(events)
    annotation = "gpu_user_annotation" if is_gpu else "user_annotation"
    step = next(e for e in events if e.get("name") == _STEP and e.get("cat") == "user_annotation")
    begin, end = float(step["ts"]), float(step["ts"]) + float(step["dur"])
    spans = sorted(
        (
            span
            for event in events
            if event.get("ph") == "X" and begin <= float(event["ts"]) <= end
            if (span := _span(event, begin, annotation)) is not None
        ),
        key=lambda span: (span.start_s, span.end_s),
    )
    return Traced(spans, None if is_gpu else _peak_extra_bytes(events, begin, end))


def _span(event: Mapping[str, Any], begin_us: float, annotation: str) -> TracedSpan | None:
    name, category = str(event["name"]), event.get("cat")
    start_s = (float(event["ts"]) - begin_us) / 1e6
    end_s = start_s + float(event["dur"]) / 1e6
    if name.startswith(PREFIX) and category == annotation:
        phase, microbatch, chunk = name.removeprefix(PREFIX).split()
        return TracedSpan(phase, False, int(microbatch), int(chunk), start_s, end_s)
    is_gloo = name.startswith("gloo:") and category == "user_annotation"
    is_nccl = name.startswith("nccl") and category == "kernel"
    if not (is_gloo or is_nccl):
        return None
    kind = collective_kind(name)
    return None if kind is None else TracedSpan(kind, True, -1, 0, start_s, end_s)


def _peak_extra_bytes(
    events: Iterable[Mapping[str, Any]], begin_us: float, end_us: float
) -> float | None:
    """Most that was held at once beyond the start, of every allocation that was seen [B]."""
    changes = sorted(
        (float(event["ts"]), float(event["args"]["Bytes"]))
        for event in events
        if event.get("name") == "[memory]" and begin_us <= float(event["ts"]) <= end_us
    )
    if not changes:
        return None
    held = most = 0.0
    for _, num_bytes in changes:
        held += num_bytes
        most = max(most, held)
    return most
