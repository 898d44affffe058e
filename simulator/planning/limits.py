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
from dataclasses import field as dataclass_field

from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError
from simulator.results.fit_probability import DEFAULT_RISK, EVEN
from simulator.results.simulation import run_step
from simulator.results.step import StepResult

_TOKENS_STEP = 128
_MOST_DOUBLINGS = 16
"""Larger than 65536 times the step is called without limit."""


@dataclass(frozen=True)
class Limit:
    """The largest value of one field that fits.

    Attributes:
        field: Dotted path in the job.
        largest: The largest value that runs out of memory with no more than the risk that is asked;
            0 where not even the smallest does.
        step: Distance of the values that were tried; ``largest + step`` does not fit.
        peak_device_bytes: Fullest GPU at ``largest``, or at the smallest value if that is 0 [B].
        fits_probability: How likely it has room for that, 0 to 1.
        largest_even: The largest value that is as likely to fit as not: what more risk would give.
        is_open: Whether no value that was tried is too large.
        obstacle: Why values other than ``now`` cannot be tried; empty if they can.
    """

    field: str
    now: int
    largest: int = 0
    step: int = 1
    peak_device_bytes: float = 0.0
    fits_probability: float = 0.0
    largest_even: int = 0
    is_open: bool = False
    obstacle: str = ""


def limits(
    job: Job, *, risk: float = DEFAULT_RISK, on_trial: Callable[[], None] | None = None
) -> tuple[Limit, ...]:
    """The largest microbatch, sequence length and number of layers that fit.

    Args:
        job: The job to enlarge.
        risk: Probability of running out of memory that is accepted.
        on_trial: Called after each simulation, for progress.

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
        _Bisection(job, field, now, step, changes, on_trial).run(1 - risk)
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
    known: dict[int, StepResult] = dataclass_field(default_factory=dict)

    def run(self, probability: float) -> Limit:
        """The largest value that fits with a probability, and with an even one."""
        try:
            largest, is_open = self._largest(probability)
            even, _ = self._largest(EVEN)
        except InputError as error:
            fault = error.faults[0]
            return Limit(self.field, self.now, obstacle=f"{fault.path} {fault.rule}")
        step = self._simulated(largest or self._smallest)
        return Limit(
            field=self.field,
            now=self.now,
            largest=largest,
            step=self.step,
            peak_device_bytes=step.peak_device_bytes,
            fits_probability=step.fits_probability,
            largest_even=even,
            is_open=is_open,
        )

    @property
    def _smallest(self) -> int:
        return self.now - (self.now - 1) // self.step * self.step

    def _largest(self, probability: float) -> tuple[int, bool]:
        """The largest value, 0 where none fits, and whether none that was tried is too large.

        The search starts at the job's own value, or at the smallest where that does not fit.
        """

        def fits(value: int) -> bool:
            return self._simulated(value).fits_probability >= probability

        if not fits(self.now):
            smallest = self._smallest
            return (self._bisected(smallest, self.now, fits) if fits(smallest) else 0), False
        low = self.now
        for doubling in range(_MOST_DOUBLINGS):
            high = self.now + self.step * 2**doubling
            if not fits(high):
                return self._bisected(low, high, fits), False
            low = high
        return low, True

    def _bisected(self, low: int, high: int, fits: Callable[[int], bool]) -> int:
        while high - low > self.step:
            middle = low + (high - low) // self.step // 2 * self.step
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _simulated(self, value: int) -> StepResult:
        """The step with this value."""
        if value not in self.known:
            job = self.job
            if value != self.now:
                job = job.replace(self.changes(job, value))
            self.known[value] = run_step(job, "replay")
            if self.on_trial:
                self.on_trial()
        return self.known[value]
