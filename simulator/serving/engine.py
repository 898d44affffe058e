"""What does one replica do from step to step?

An engine that plans ahead schedules a step while the one before runs on the device: the host's
work then hides behind the device's, and what the running step frees is free one step later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Batch, Chunk, Scheduler
from simulator.serving.step_time import StepSeconds

_MOST_STEPS = 512
"""Steps that are taken at once."""


class Step(NamedTuple):
    """A step as it ran, or several that are alike: when, which requests, and the cache."""

    start_s: float
    end_s: float
    decodes: int
    prompt_tokens: int
    running: int
    waiting: int
    used_share: float
    preempted: int
    read_tokens: float
    """Tokens of the cache that the step attends to, its own prompts' included."""
    merged: int
    """Steps that it stands for."""


class Replica:
    """One copy of the model, with its scheduler.

    Args:
        scheduler: Who forms batches.
        step_time: Seconds of a batch.
        plans_ahead: Whether a step is scheduled while another runs.
        waits_for_ends: Whether somebody arrives as soon as somebody is done.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        step_time: Callable[[Batch], StepSeconds],
        *,
        plans_ahead: bool,
        waits_for_ends: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self._step_time = step_time
        self._plans_ahead = plans_ahead
        self.steps_taken: list[Step] | None = None
        """Each step as it ran; None keeps none."""
        self.on_ended: Callable[[int], None] | None = None
        """Told how many requests end with a step, if any do."""
        self._waits_for_ends = waits_for_ends
        self._flying: Batch | None = None
        self._planned: tuple[Batch, StepSeconds, float, int] | None = None
        self._start_s = 0.0
        self._flying_steps = 1
        self._quiet_until_s = 0.0
        self.steps = 0
        self.busy_s = 0.0
        self.preemptions = 0
        self.end_s = float("inf")
        """When the running step ends [s]; never, while there is none."""

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return self.scheduler.load

    @property
    def running_chunks(self) -> Sequence[Chunk]:
        """Parts of prompts that the running step computes."""
        return self._flying.chunks if self._flying is not None else ()

    def arrive(self, request: Request) -> None:
        """Queue a request."""
        self.scheduler.arrive(request)

    def wake(self, now_s: float, quiet_until_s: float = 0.0) -> None:
        """Start a step if none runs, or plan the next one if none is planned.

        Args:
            now_s: Time.
            quiet_until_s: Nobody arrives before this.
        """
        self._quiet_until_s = quiet_until_s
        if self._flying is None:
            self._start(now_s)
        elif self._plans_ahead and self._planned is None:
            self._plan(now_s)

    def finish_step(self) -> list[Request]:
        """End the running step and start the next; returns the requests that are done."""
        batch, now_s = self._flying, self.end_s
        assert batch is not None
        self._flying, self.end_s = None, float("inf")
        self.scheduler.complete(batch, now_s)
        if self.steps_taken is not None:
            self.steps_taken.append(self._step(batch, now_s))
        if self.on_ended is not None and batch.finished:
            self.on_ended(len(batch.finished))
        return batch.finished

    def run_on(self, quiet_until_s: float) -> None:
        """Take the steps that end before somebody arrives, up to one that somebody waits for."""
        while self.end_s < quiet_until_s and not self._is_awaited():
            now_s = self.end_s
            self.finish_step()
            self.wake(now_s, quiet_until_s)

    def _is_awaited(self) -> bool:
        """Whether somebody arrives as the running step ends."""
        return self._waits_for_ends and self._flying is not None and bool(self._flying.finished)

    def _start(self, now_s: float) -> None:
        if self._planned is None:
            self._plan(now_s)
        if self._planned is None:
            return
        batch, seconds, ready_s, steps = self._planned
        self._planned = None
        start_s = max(now_s, ready_s)
        self._flying, self._start_s = batch, now_s
        self.end_s = start_s + seconds.device_s
        self.steps += steps
        self._flying_steps = steps
        self.busy_s += self.end_s - now_s
        for chunk in batch.chunks:
            if chunk.request.scheduled_s < 0:
                chunk.request.scheduled_s = start_s
        if self._plans_ahead:
            self._plan(start_s)

    def _plan(self, now_s: float) -> None:
        """Schedule a batch; the host has it ready after its work."""
        batch = self.scheduler.schedule()
        while batch is not None and not (batch.decodes or batch.chunks):
            # Everybody who ran was preempted: those who wait are next.
            self.preemptions += len(batch.preempted)
            batch = self.scheduler.schedule()
        if batch is None:
            return
        self.preemptions += len(batch.preempted)
        seconds = self._step_time(batch)
        steps = 1
        if self._quiet_until_s > now_s and not batch.chunks and not self._frees_a_place():
            steps, seconds = self._repeated(batch, seconds, now_s)
        self._planned = (batch, seconds, now_s + seconds.host_s, steps)

    def _frees_a_place(self) -> bool:
        """Whether somebody may be admitted or arrive because the running step ends."""
        flying = self._flying
        is_awaited = self._waits_for_ends or self.scheduler.waits > 0
        return is_awaited and flying is not None and bool(flying.finished)

    def _repeated(self, batch: Batch, first: StepSeconds, now_s: float) -> tuple[int, StepSeconds]:
        """Steps that a batch lasts while nothing else happens, and the time of all of them.

        Contexts grow by the same number of tokens every step, so the mean of the first and the
        last step is that of all.
        """
        begin_s = max(now_s, self.end_s) if self._flying is not None else now_s
        room = (self._quiet_until_s - begin_s) / self._interval_s(*first) - 1.0
        more = self.scheduler.repeat(batch, int(min(room, _MOST_STEPS))) if room >= 1 else 0
        if not more:
            return 1, first
        late = Batch(batch.decodes, batch.decode_context * (1.0 + more / self._context(batch)))
        late.adapters, late.adapted_share = batch.adapters, batch.adapted_share
        last = self._step_time(late)
        device_s = (first.device_s + last.device_s) / 2.0
        seconds = device_s + more * self._interval_s(device_s, first.host_s)
        return 1 + more, StepSeconds(seconds, first.host_s)

    def _interval_s(self, device_s: float, host_s: float) -> float:
        """From the end of one step to the end of the next."""
        return max(device_s, host_s) if self._plans_ahead else device_s + host_s

    def _context(self, batch: Batch) -> float:
        """Mean tokens that a request of the batch attends to, for each that a step adds."""
        mean = batch.decode_context / batch.decodes
        return mean / self.scheduler.limits.tokens_per_step

    def _step(self, batch: Batch, now_s: float) -> Step:
        scheduler = self.scheduler
        return Step(
            self._start_s,
            now_s,
            batch.decodes,
            sum(chunk.tokens for chunk in batch.chunks),
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.used_share,
            len(batch.preempted),
            batch.decode_context + sum(chunk.context + chunk.tokens for chunk in batch.chunks),
            self._flying_steps,
        )
