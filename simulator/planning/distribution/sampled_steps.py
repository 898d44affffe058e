"""How long do steps take, and how much do they hold, where not all are alike?

``variation`` and ``batch.lengths`` of a job say what differs. A thousand steps or more are drawn
and replayed at once (:mod:`simulator.engine.sampled_replay`): operations of a step keep their order
and get durations of their own in every pipeline of every sample. A few of the drawn steps, spread
over the slow and the fast, are also simulated in full, as control.

Assumptions: a pass waits for its slowest rank at its end; steps differ independently of each other.
Where pipelines are too many to draw, some stand for all, if they meet at the ends of a step only.
Ignores that the host, where it paces a pass, hides jitter of the device; that schedules decided
from costs would be decided otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError, UnsupportedError
from simulator.planning.distribution.step_sampler import Control, Span, StepSampler
from simulator.planning.drawn_lengths import Spread
from simulator.planning.executors import run_on_executor
from simulator.program.build import steps_around
from simulator.results.fit_probability import job_spread, out_of_memory_probability

Floats = NDArray[np.float64]

_DEFAULT_SAMPLES = 1000
_TASKS = 16
"""Parts into which samples are dealt to workers; each prices the job's microbatches itself."""
_MOST_SAMPLES = 1_000_000
"""Steps that are drawn at most: each keeps the end of every pipeline that is drawn."""


@dataclass(frozen=True)
class StragglerScale:
    """Step time with some of the job's pipelines, each with its own share of the batch.

    Attributes:
        pipelines: Number of pipelines that wait for each other.
        gpus: Number of their GPUs.
        mean_step_s: Mean step [s]; communication between pipelines takes as long as in the job.
        amplification: Mean step over the step without variation.
    """

    pipelines: int
    gpus: int
    mean_step_s: float
    amplification: float


_RUN_STEPS = (100, 10_000)
"""Steps of a run whose probability of running out of memory is said."""


@dataclass(frozen=True)
class StepDistribution:
    """Sampled steps of a job.

    Attributes:
        title: One line that describes the job.
        samples, seed: Number of sampled steps, and the random seed.
        step_time_s: Mean and percentiles of their times [s].
        steps_s: Time of each step, shape (samples,) [s].
        typical_step_s: The simulated step without variation; if lengths vary,
            all microbatches have the mean length [s].
        amplification: Mean step time over the typical one.
        stragglers: Growth of the amplification with the number of pipelines that wait for each
            other.
        peak_device_bytes: Device memory of the fullest GPU in these steps [B].
        out_of_memory_probability: Probability that a step runs out of memory; counts the variation
            and the error of memory predictions.
        out_of_memory_in_steps: Probability that any of so many steps does, by their number.
        control: Full simulations of some of these steps.
    """

    title: str
    samples: int
    seed: int
    step_time_s: Spread
    steps_s: Floats
    typical_step_s: float
    amplification: float
    stragglers: tuple[StragglerScale, ...]
    peak_device_bytes: Spread
    out_of_memory_probability: float
    out_of_memory_in_steps: Mapping[int, float]
    control: Control

    def to_dict(self) -> dict[str, Any]:
        """The distribution as plain data, with every sampled step."""
        return {
            "title": self.title,
            "samples": self.samples,
            "seed": self.seed,
            "step_time_s": vars(self.step_time_s),
            "typical_step_s": self.typical_step_s,
            "amplification": self.amplification,
            "stragglers": [vars(each) for each in self.stragglers],
            "peak_device_bytes": vars(self.peak_device_bytes),
            "out_of_memory_probability": self.out_of_memory_probability,
            "out_of_memory_in_steps": {str(n): p for n, p in self.out_of_memory_in_steps.items()},
            "control": vars(self.control),
            "steps_s": self.steps_s.tolist(),
        }


def step_distribution(
    job: Job,
    samples: int = _DEFAULT_SAMPLES,
    seed: int | None = None,
    executor: Executor | None = None,
) -> StepDistribution:
    """Sampled steps of a job.

    Args:
        job: With ``variation``, ``batch.lengths`` or both.
        samples: Number of steps to sample.
        seed: Random seed; by default the job's.
        executor: Whose workers sample; by default this process. The steps are the same.

    Raises:
        InputError: Nothing in the job varies, or not in a way that is modelled.
    """
    _check(job, samples)
    seed = job.variation.seed if seed is None else seed
    sampler = StepSampler(job, seed)
    pipelines = sampler.pipelines
    sampler.draw_fewer(samples)
    ends, peaks_bytes = _sampled(sampler, samples, executor)
    steps_s, typical_s = sampler.steps_s(ends), sampler.typical_step_s()
    scales = [
        *((count, float(sampler.mean_step_s(count, ends)))
          for count in _powers_of_two_below(pipelines)),
        (pipelines, float(steps_s.mean())),
    ]  # fmt: skip
    spread, capacity = job_spread(job), job.cluster.profile.device.memory_bytes
    out_of_memory = partial(out_of_memory_probability, peaks_bytes.tolist(), capacity, spread)
    return StepDistribution(
        title=job.title,
        samples=samples,
        seed=seed,
        step_time_s=Spread.of(steps_s.tolist()),
        steps_s=steps_s,
        typical_step_s=typical_s,
        amplification=float(steps_s.mean()) / typical_s,
        stragglers=tuple(
            StragglerScale(count, count * job.cluster.gpus // pipelines, mean_s, mean_s / typical_s)
            for count, mean_s in scales
        ),
        peak_device_bytes=Spread.of(peaks_bytes.tolist()),
        out_of_memory_probability=out_of_memory(1),
        out_of_memory_in_steps={steps: out_of_memory(steps) for steps in _RUN_STEPS},
        control=sampler.control(ends),
    )


def _sampled(
    sampler: StepSampler, samples: int, executor: Executor | None
) -> tuple[Floats, Floats]:
    """Ends of pipelines, shape (pipelines, samples) [s], and peaks of the samples [B]."""
    spans = sampler.spans(samples)
    if executor is None:
        return sampler.ends_of(spans), sampler.peaks_bytes(spans)
    each = -(-len(spans) // _TASKS)
    parts = [spans[first : first + each] for first in range(0, len(spans), each)]
    draw = partial(_sampled_elsewhere, sampler.job, sampler.seed, samples)
    found: dict[int, tuple[Floats, Floats]] = {}
    for index, outcome in run_on_executor(draw, parts, executor):
        if isinstance(outcome, Exception):
            raise outcome
        found[index] = outcome
    ends, peaks_bytes = zip(*(found[index] for index in range(len(parts))), strict=True)
    return np.concatenate(ends, axis=1), np.concatenate(peaks_bytes)


def _sampled_elsewhere(
    job: Job, seed: int, samples: int, spans: Sequence[Span]
) -> tuple[Floats, Floats]:
    """The same of some of the samples, by a worker."""
    sampler = StepSampler(job, seed)
    sampler.draw_fewer(samples)
    return sampler.ends_of(spans), sampler.peaks_bytes(spans)


def _powers_of_two_below(limit: int) -> Iterator[int]:
    count = 1
    while count < limit:
        yield count
        count *= 2


def _check(job: Job, samples: int) -> None:
    variation, path = job.variation, "variation"
    if not 1 <= samples <= _MOST_SAMPLES:
        hint = f"percentiles need a few thousand; use {_DEFAULT_SAMPLES:,}"
        raise InputError.single("samples", f"must be 1 to {_MOST_SAMPLES:,}", samples, hint)
    if not variation.is_any and job.batch.lengths is None:
        hint = "for example --set 'variation={compute: {sigma: 0.02}}'"
        raise InputError.single(path, "contains nothing that varies", hint=hint)
    refuse_pools(job, "a distribution of steps")
    if job.perturbations:
        hint = "use variation.slow, or clustersim run"
        raise UnsupportedError.single(
            "perturbations", "are not sampled: they are the same in all steps", hint=hint
        )
    if job.choices.data_parallelism.is_one_process or steps_around(job).total > 1:
        raise UnsupportedError.single(
            path,
            "is modelled only for steps that begin and end together, with one process per GPU",
            hint="use plan.data_parallel: ddp and a schedule with a flush, such as 1f1b",
        )
    if variation.experts is None:
        return
    if job.model.experts is None:
        hint = "remove it"
        raise InputError.single("variation.experts", "needs a model with experts", hint=hint)
    if job.batch.lengths is not None:
        raise UnsupportedError.single(
            "variation.experts",
            "is not modelled together with batch.lengths",
            hint="remove one of them",
        )
