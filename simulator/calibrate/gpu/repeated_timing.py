"""How long does a piece of work take on a device, and how far do repetitions differ?

On a GPU the work stands between two events of its stream, behind a memset that is longer
than the host needs to queue it: launching is hidden, and the cache holds nothing of the
last repetition, as between the kernels of a training step. On a CPU a clock is read; with
one thread it is that of the process, which stands still while others use the core.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

Work = Callable[[], object]

_COVER_BYTES = 2**29
"""Memset before each repetition: about 0.2 ms at 3 TB/s, and larger than any cache."""

_WARM_CALLS = 3
_FEWEST, _MOST = 5, 60


@dataclass(frozen=True, slots=True)
class Timing:
    """Repetitions of one piece of work.

    Attributes:
        samples_s: Seconds of each repetition, in order.
    """

    samples_s: Sequence[float]

    @property
    def median_s(self) -> float:
        """Median time [s]."""
        return statistics.median(self.samples_s)

    @property
    def spread(self) -> float:
        """Distance of the quartiles over the median: 0 where all repetitions agree."""
        if len(self.samples_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return (high - low) / self.median_s


@dataclass
class Stopwatch:
    """Times work on one device.

    Attributes:
        device: Where the work runs.
        budget_s: Time that the repetitions of one piece of work may take, beyond the fewest
            that a spread needs.
    """

    device: torch.device
    budget_s: float = 0.1
    _cover: torch.Tensor | None = field(default=None, init=False, repr=False)

    def timing(self, work: Work) -> Timing:
        """Repetitions of ``work`` after a few warm calls."""
        for _ in range(_WARM_CALLS):
            work()
        self.wait()
        samples: list[float] = []
        started = time.perf_counter()
        while len(samples) < _MOST:
            if len(samples) >= _FEWEST and time.perf_counter() - started > self.budget_s:
                break
            samples.append(self.once_s(work))
        return Timing(samples)

    def once_s(self, work: Work) -> float:
        """Seconds of one call."""
        if self.device.type == "cuda":
            return self._once_on_stream_s(work)
        return self.elapsed_s(work)

    def elapsed_s(self, work: Work) -> float:
        """Seconds that pass on the host."""
        is_own = self.device.type == "cpu" and torch.get_num_threads() == 1
        clock = time.process_time if is_own else time.perf_counter
        started = clock()
        work()
        return clock() - started

    def wait(self) -> None:
        """Return when the device has done all that was queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _once_on_stream_s(self, work: Work) -> float:
        if self._cover is None:
            self._cover = torch.empty(_COVER_BYTES, dtype=torch.uint8, device=self.device)
        self._cover.zero_()
        return seconds_on_stream(work)


def seconds_on_stream(work: Work) -> float:
    """Seconds between two events of the current stream, with ``work`` queued in between."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def new_stream() -> torch.cuda.Stream:
    """A second queue of the current GPU."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
