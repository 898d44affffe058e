"""How large may the microbatch, the sequence or the model become before it does not fit?

Each is answered by bisection on the simulator itself, everything else as the job has it:

- **micro batch**: sequences per microbatch, in steps that a grid of tensor-parallel ranks
  divides; the number of microbatches stays, so the global batch grows along;
- **sequence length**: tokens, in steps of 128 on each rank that shares a sequence; learned
  positions grow along;
- **layers**: in steps that keep all stages of the pipeline equal.

Memory never falls where one of them grows; that is what bisection rests on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError
from simulator.results.simulation import run_step

_TOKENS_STEP = 128
_MOST_DOUBLINGS = 16
"""Larger than 65536 times the step is called without limit."""


@dataclass(frozen=True)
class Limit:
    """The largest value of one field that fits.

    Attributes:
        field: Dotted path in the job.
        largest: The largest value that fits; 0 where not even the smallest does.
        step: Distance of the values that were tried; ``largest + step`` does not fit.
        peak_device_bytes: Fullest GPU at ``largest`` [B].
        is_open: Whether no value that was tried is too large.
        obstacle: Why values other than ``now`` cannot be tried; empty if they can.
    """

    field: str
    now: int
    largest: int = 0
    step: int = 1
    peak_device_bytes: float = 0.0
    is_open: bool = False
    obstacle: str = ""


def limits(job: Job, *, on_trial: Callable[[], None] | None = None) -> tuple[Limit, ...]:
    """The largest microbatch, sequence length and number of layers that fit.

    Raises:
        InputError: The job itself cannot run.
    """
    refuse_pools(job, "how far a job can grow")
    plan = job.plan
    run_step(job, "replay")
    sharers = plan.cp * job.choices.tensor_ranks
    sequences = plan.tensor_grid.token_ways if plan.tensor_grid else 1
    steps = (
        ("batch.micro", job.batch.micro_batch, sequences, _with_micro_batch),
        ("batch.seq_len", job.batch.seq_len, _TOKENS_STEP * sharers, _with_seq_len),
        ("model.layers", job.model.layers, _layer_step(job), _with_layers),
    )
    return tuple(
        _Bisection(job, field, now, step, changes, on_trial).run()
        for field, now, step, changes in steps
    )


def _with_micro_batch(job: Job, value: int) -> Mapping[str, int]:
    return {"batch.micro": value, "batch.global": value * job.dp * job.microbatches}


def _with_seq_len(job: Job, value: int) -> Mapping[str, int]:
    learned = {"model.max_positions": value} if job.model.positions == "learned" else {}
    return {"batch.seq_len": value, **learned}


def _with_layers(_: Job, value: int) -> Mapping[str, int]:
    return {"model.layers": value}


def _layer_step(job: Job) -> int:
    """Layers that give every virtual stage one more, in whole periods of layer kinds."""
    model = job.model
    period = model.experts.every if model.experts else 1
    return job.plan.pp * job.plan.vpp * period


@dataclass
class _Bisection:
    """Finds the largest multiple of a step, counted from the job's own value, that fits."""

    job: Job
    field: str
    now: int
    step: int
    changes: Callable[[Job, int], Mapping[str, int]]
    on_trial: Callable[[], None] | None

    def run(self) -> Limit:
        smallest = self.now - (self.now - 1) // self.step * self.step
        try:
            low = self._doubled_from(smallest)
        except InputError as error:
            fault = error.faults[0]
            return Limit(self.field, self.now, obstacle=f"{fault.path} {fault.rule}")
        return low

    def _doubled_from(self, smallest: int) -> Limit:
        """Start at the job's own value, or at the smallest where that does not fit."""
        low, peak = self.now, self._peak(self.now)
        if not self._fits(peak):
            low, peak = smallest, self._peak(smallest)
            if not self._fits(peak):
                return Limit(self.field, self.now, step=self.step, peak_device_bytes=peak)
            return self._bisected(low, self.now, peak)
        for doubling in range(_MOST_DOUBLINGS):
            high = self.now + self.step * 2**doubling
            high_peak = self._peak(high)
            if not self._fits(high_peak):
                return self._bisected(low, high, peak)
            low, peak = high, high_peak
        return Limit(self.field, self.now, low, self.step, peak, is_open=True)

    def _bisected(self, low: int, high: int, peak: float) -> Limit:
        while high - low > self.step:
            middle = low + (high - low) // self.step // 2 * self.step
            middle_peak = self._peak(middle)
            if self._fits(middle_peak):
                low, peak = middle, middle_peak
            else:
                high = middle
        return Limit(self.field, self.now, low, self.step, peak)

    def _peak(self, value: int) -> float:
        """Fullest GPU with this value [B]; infinite where its node has no room."""
        job = self.job
        if value != self.now:
            job = job.replace(self.changes(job, value))
        step = run_step(job, "replay")
        if self.on_trial:
            self.on_trial()
        if step.host is not None and not step.host.fits:
            return inf
        return step.peak_device_bytes

    def _fits(self, peak_bytes: float) -> bool:
        return peak_bytes <= self.job.cluster.profile.device.memory_bytes
