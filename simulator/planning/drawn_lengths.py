"""How long do steps take, and how much do they hold, where the lengths of sequences are drawn?

A step ends when the slowest rank has run its microbatches. What one takes follows from its length,
or, packed, from how long its documents are: a token attends to its own document alone, so what
counts is their mean length weighted by tokens. A few lengths are simulated, and those between them
interpolated.

Assumption: microbatches of several lengths take as long one after another as those of one length.
Ignores: that pipelines pad all microbatches to the longest; the time that packing itself takes.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from simulator.described.job import Job
from simulator.described.variation import Lengths
from simulator.errors import InputError
from simulator.results.shorter_sequences import padded_multiple
from simulator.results.simulation import run_step
from simulator.results.step import StepResult

_GRID = 6
"""Lengths that are simulated."""


@dataclass(frozen=True)
class Spread:
    """A number that differs from step to step.

    Attributes:
        mean, p5, p50, p95: Its mean, and what 5, 50 and 95 % of the steps do not exceed.
    """

    mean: float
    p5: float
    p50: float
    p95: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of some values."""
        ordered = sorted(values)

        def quantile(share: float) -> float:
            return ordered[round(share * (len(ordered) - 1))]

        return cls(fmean(ordered), quantile(0.05), quantile(0.5), quantile(0.95))


@dataclass(frozen=True)
class DrawnSteps:
    """Steps of drawn lengths.

    Attributes:
        steps: How many were drawn.
        step_time_s: Mean and percentiles of their times [s].
        peak_device_bytes: Device memory of the fullest GPU in these steps [B].
        filled_share: Part of the tokens that are computed that belong to a sequence.
    """

    steps: int
    step_time_s: Spread
    peak_device_bytes: Spread
    filled_share: float


def drawn_steps(job: Job, steps: int = 400) -> DrawnSteps:
    """What steps of a job with ``batch.lengths`` take and hold.

    Raises:
        InputError: The job has no lengths, or stages of a pipeline.
    """
    lengths = job.batch.lengths
    if lengths is None:
        hint = "give batch.lengths, for example {lognormal: {median: 400, sigma: 0.9}}"
        raise InputError.single("batch.lengths", "is needed to sample steps", hint=hint)
    _refuse_pipelines(job)
    draws = _Draws(job, lengths)
    drawn = [draws.step() for _ in range(steps)]
    grid = _Grid(job, lengths.layout, [x for ranks in drawn for rank in ranks for x in rank])
    return DrawnSteps(
        steps=steps,
        step_time_s=Spread.of([grid.step_s(ranks) for ranks in drawn]),
        peak_device_bytes=Spread.of([grid.peak_bytes(ranks) for ranks in drawn]),
        filled_share=draws.filled / draws.computed,
    )


def steps_of_lengths(job: Job, steps: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """What steps take whose lengths are known [s].

    Args:
        job: Its ``batch.seq_len`` is no shorter than any of the lengths.
        steps: Of every step and data-parallel rank, the length of each microbatch [tokens].

    Raises:
        InputError: The job has stages of a pipeline.
    """
    _refuse_pipelines(job)
    grid = _Grid(job, "padded", [x for ranks in steps for rank in ranks for x in rank])
    return [grid.step_s(ranks) for ranks in steps]


def _refuse_pipelines(job: Job) -> None:
    if job.plan.pp > 1:
        rule = "is not modelled with pipelines, whose stages pad to the longest microbatch"
        raise InputError.single("batch.lengths", rule, hint="use plan.pp: 1")


class _Draws:
    """Draws the microbatches of every rank, by the number that decides what they cost."""

    def __init__(self, job: Job, lengths: Lengths) -> None:
        self._job, self._lengths = job, lengths
        self._random = random.Random(lengths.seed)
        self._multiple = padded_multiple(job)
        self.filled = self.computed = 0.0

    def step(self) -> list[list[float]]:
        """Of every data-parallel rank, the length of every microbatch [tokens]."""
        return [list(self._rank()) for _ in range(self._job.dp)]

    def _rank(self) -> Iterator[float]:
        batch, count = self._job.batch, self._job.microbatches
        if self._lengths.layout == "packed":
            yield from (self._pack() for _ in range(count * batch.micro_batch))
            return
        drawn = [self._length() for _ in range(count * batch.micro_batch)]
        if self._lengths.layout == "bucketed":
            drawn.sort()
        for first in range(0, len(drawn), batch.micro_batch):
            microbatch = drawn[first : first + batch.micro_batch]
            padded = -(-max(microbatch) // self._multiple) * self._multiple
            self.filled += math.fsum(microbatch)
            self.computed += padded * len(microbatch)
            yield float(padded)

    def _pack(self) -> float:
        """Mean length of the documents of one sequence, weighted by their tokens."""
        room, squares = self._job.batch.seq_len, 0.0
        while room > 0:
            length = min(room, self._length())
            squares += length**2
            room -= length
        self.filled += self._job.batch.seq_len
        self.computed += self._job.batch.seq_len
        return squares / self._job.batch.seq_len

    def _length(self) -> int:
        longest, of = self._job.batch.seq_len, self._lengths.lognormal
        if of is None:
            return min(longest, self._random.choice(self._lengths.values))
        drawn = self._random.lognormvariate(0.0, of.sigma) * of.median
        return max(1, min(longest, round(drawn)))


class _Grid:
    """What microbatches of some lengths cost, and of any between them."""

    def __init__(self, job: Job, layout: str, drawn: Sequence[float]) -> None:
        self._job, self._packed = job, layout == "packed"
        self._multiple = padded_multiple(job)
        low, high = max(1.0, min(drawn)), max(drawn)
        ratio = (high / low) ** (1 / (_GRID - 1))
        points = {self._rounded(low * ratio**index) for index in range(_GRID)}
        self._points = sorted(points)

    def _rounded(self, length: float) -> int:
        return max(1, round(length / self._multiple)) * self._multiple

    @cached_property
    def _steps(self) -> list[tuple[float, float, float]]:
        """Of each point: what one more microbatch takes [s], the rest of a step [s], its peak."""
        found = []
        for length in self._points:
            one, two = (self._run(length, count) for count in (1, 2))
            each_s = two.step_time_s - one.step_time_s
            found.append((each_s, one.step_time_s - each_s, two.peak_device_bytes))
        return found

    def _run(self, length: int, microbatches: int) -> StepResult:
        batch = self._job.batch
        sequences = batch.micro_batch * self._job.dp * microbatches
        fields: dict[str, Any] = {"batch.lengths": None, "batch.global": sequences}
        if self._packed:
            fields["batch.document_len"] = min(length, batch.seq_len)
        else:
            fields["batch.seq_len"] = min(length, batch.seq_len)
        return run_step(self._job.replace(fields), "replay")

    def step_s(self, ranks: Sequence[Sequence[float]]) -> float:
        """A step of ranks with microbatches of these lengths [s]."""
        share = self._job.batch.micro_batch if self._packed else 1
        each = max(math.fsum(self._at(length, 0) for length in rank) / share for rank in ranks)
        longest = max(length for rank in ranks for length in rank)
        return each + self._at(longest, 1)

    def peak_bytes(self, ranks: Sequence[Sequence[float]]) -> float:
        """What the fullest GPU holds in it [B]."""
        return self._at(max(length for rank in ranks for length in rank), 2)

    def _at(self, length: float, column: int) -> float:
        """A column of the grid at a length, linear between its points."""
        right = min(max(1, bisect_left(self._points, length)), len(self._points) - 1)
        if len(self._points) == 1:
            return self._steps[0][column]
        low, high = self._points[right - 1], self._points[right]
        share = (length - low) / (high - low)
        before, after = self._steps[right - 1][column], self._steps[right][column]
        return before + share * (after - before)
