"""When does a rank begin and end each phase of a step?

A mark costs nothing that would change what it measures: on a GPU it is an event in the
stream, read once the step is over; on a CPU, which computes in order, the time of day.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

Phase = Literal["forward", "backward", "optimizer"]
PREFIX = "step: "
"""What the names of phases begin with in a profile."""


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


Mark = float | torch.cuda.Event


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
