"""What draws steps of a job, and replays them?

A chunk of samples is replayed at once. Drawn again, it gives the same numbers, which is how single
steps of it are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.engine.des import simulate_program
from simulator.engine.sampled_replay import Pipelines, sampled_replay
from simulator.planning.distribution.draws import (
    DrawnFactors,
    DrawnMicrobatches,
    DrawnRouting,
    Factors,
    FactorTables,
    Members,
    RoutingTables,
    drawn_microbatches,
)
from simulator.planning.distribution.step_costs import PeakMemory, Place, StepCosts, interpolated
from simulator.program.build import folded_program
from simulator.program.grid.expert_tokens import ExpertShare, busiest_share
from simulator.program.grid.rank_groups import scope_labels
from simulator.program.ir import Operation, Program, Scope
from simulator.results.shorter_sequences import padded_multiple

Floats = NDArray[np.float64]
Span = tuple[int, int]
"""Samples that are replayed at once: the first, and how many."""

_JOINING = frozenset({Scope.SHARDS, Scope.COPIES, Scope.WORLD})
"""Scopes of operations that several pipelines run as one."""
_POINTS = 6
"""Values of microbatches that are priced."""
_CHUNK = 16_384
"""Pipelines times samples that are replayed at a time: few enough for the processor's cache."""
_MOST_DRAWN = 50_000_000
"""Durations that are drawn at most for all samples; where there are more, fewer pipelines are
drawn than there are, and stand for the others."""
_FEWEST_PIPELINES = 4
"""Pipelines that are drawn at least, where there are as many."""
_CONTROLS = 4
_SCALE_SAMPLES = 500
"""Samples of a part of the pipelines."""
_TRIAL_SAMPLES = 64
"""Samples from which the range of values is taken that are priced."""


@dataclass(frozen=True)
class Control:
    """Sampled steps that were simulated in full.

    Attributes:
        steps: How many.
        mean_ratio: Mean of simulated time over sampled time.
        largest_difference: Largest difference of that ratio from 1.
    """

    steps: int
    mean_ratio: float
    largest_difference: float


class StepSampler:
    """Draws steps of a job."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.seed = job, seed
        labels = scope_labels(job)
        _, first, ranks = np.unique(labels[Scope.PASS], return_index=True, return_counts=True)
        self.pipelines = self.drawn = len(first)
        self._joined = {scope: labels[scope][first] for scope in _JOINING}
        self._members, variation = Members(job.plan.pp, int(ranks[0]), len(first)), job.variation
        self.compute = FactorTables(variation.compute, variation.slow, self._members)
        self.links = FactorTables(variation.links, None, self._members)

    def draw_fewer(self, samples: int) -> None:
        """Draw fewer pipelines than there are where they would need too many durations.

        They stand for the others where pipelines meet at the ends of a step only: the step is then
        as long as its slowest pipeline by itself takes.
        """
        experts = self.job.variation.experts
        is_common = experts is not None and experts.step is not None
        if self.job.choices.shards_weights or is_common:
            return
        both = self.compute.last and self.compute.pass_by
        each = len(self.costs.program.operations) * (self._members.ranks if both else 1)
        self.drawn = min(self.pipelines, max(_FEWEST_PIPELINES, _MOST_DRAWN // (each * samples)))

    @property
    def _is_for_others(self) -> bool:
        """Whether pipelines that are drawn stand for others."""
        return self.drawn < self.pipelines

    def joined(self, samples: int) -> Pipelines:
        """The pipelines that are drawn; those that stand for others run by themselves."""
        first = 1 if self._is_for_others else self.drawn
        labels = {} if self._is_for_others else self._joined
        return Pipelines(
            {scope: its[:first] for scope, its in labels.items()}, (self.drawn, samples)
        )

    def mean_step_s(self, count: int, ends: Floats) -> float:
        """Mean step of so many of the pipelines [s]; ``ends`` are those of :meth:`ends`."""
        if self._is_for_others:
            return float(self._slowest_of(count, ends).mean())
        fewer = copy(self)
        fewer.pipelines = fewer.drawn = count
        return float(fewer.ends(min(ends.shape[1], _SCALE_SAMPLES)).max(axis=0).mean())

    def steps_s(self, ends: Floats) -> Floats:
        """Times of the steps whose pipelines end then [s], shape (samples,)."""
        return self._slowest_of(self.pipelines, ends) if self._is_for_others else ends.max(axis=0)

    def _slowest_of(self, count: int, ends: Floats) -> Floats:
        """End of the slowest of so many pipelines that are like those drawn, shape (samples,).

        The largest of n lies at quantile U^(1/n) of what all samples together tell.
        """
        samples = ends.shape[1]
        random = np.random.default_rng([self.seed, 3])
        quantile = random.random(samples) ** (1 / count)
        place = np.minimum((quantile * ends.size).astype(np.int64), ends.size - 1)
        slowest: Floats = np.sort(ends, axis=None)[place]
        return slowest

    @cached_property
    def routing(self) -> RoutingTables | None:
        """What loads of experts are drawn from; None where they do not vary."""
        experts = self.job.variation.experts
        return RoutingTables(self.job, experts, self.seed) if experts else None

    @cached_property
    def costs(self) -> StepCosts:
        """Durations of the operations, by what microbatches bring."""
        program = self._program(None)
        points = self._points()
        return StepCosts(program, points, [self._program(point) for point in points])

    @cached_property
    def memory(self) -> PeakMemory:
        """What stages hold at their peak."""
        costs = self.costs
        return PeakMemory(self.job, costs.points, costs.programs or [costs.program])

    def typical_step_s(self) -> float:
        """The step in which no variation [s]."""
        costs, mean = self.costs, self._mean_tokens
        if mean is None:
            return costs.step_time_s
        place = costs.place(np.full((1, 1), mean))

        def seconds(index: int) -> Floats:
            ratios = costs.ratios(index)
            one = np.ones((1, 1)) if ratios is None else interpolated(ratios, place)
            found: Floats = costs.seconds[index] * one
            return found

        alone = Pipelines({}, (1, 1))
        return float(sampled_replay(costs.program, costs.order, alone, seconds)[0, 0])

    @cached_property
    def _trial_tokens(self) -> Floats | None:
        """Some microbatches [tokens]; None where their lengths are not drawn."""
        lengths = self.job.batch.lengths
        if lengths is None:
            return None
        random = np.random.default_rng([self.seed, 1])
        shape = (self.pipelines, _TRIAL_SAMPLES)
        return drawn_microbatches(self.job, lengths, shape, random).tokens

    @property
    def _mean_tokens(self) -> float | None:
        tokens = self._trial_tokens
        return None if tokens is None else float(tokens.mean())

    def _points(self) -> list[float]:
        """Values of microbatches between those that are drawn, more where they lie denser."""
        drawn = self._range()
        if drawn is None:
            return []
        low, high = drawn
        points = np.geomspace(low, high, _POINTS)
        if self.routing is None:
            multiple = 1 if self._is_packed else padded_multiple(self.job)
            longest = self.job.batch.seq_len
            points = np.minimum(np.ceil(points / multiple) * multiple, longest)
        return [float(point) for point in np.unique(points)]

    def _range(self) -> tuple[float, float] | None:
        if self.routing is not None:
            single = self.routing.of_layers(1)
            return float(min(1.0, single.min())), float(single.max())
        tokens = self._trial_tokens
        if tokens is None:
            return None
        return float(tokens.min()), float(min(tokens.max() * 1.25, self.job.batch.seq_len))

    def _program(self, value: float | None) -> Program:
        """The step, or that in which all microbatches have a value."""
        job = self.job
        if value is None:
            return folded_program(_of_batch(job, lengths=None), busiest_share(job))
        if self.routing is not None:
            return folded_program(job, ExpertShare((value,) * self.routing.local, value))
        field = "document_len" if self._is_packed else "seq_len"
        return folded_program(_of_batch(job, lengths=None, **{field: round(value)}))

    @property
    def _is_packed(self) -> bool:
        lengths = self.job.batch.lengths
        return lengths is not None and lengths.layout == "packed"

    def spans(self, samples: int) -> list[Span]:
        """What is replayed at a time; the same samples give the same draws."""
        size = max(1, min(samples, _CHUNK // self.drawn))
        return [(first, min(size, samples - first)) for first in range(0, samples, size)]

    def ends(self, samples: int) -> Floats:
        """When each pipeline that is drawn is done [s], shape (pipelines, samples)."""
        return self.ends_of(self.spans(samples))

    def ends_of(self, spans: Sequence[Span]) -> Floats:
        """The same of some spans."""
        return np.concatenate([_Chunk(self, *span).ends() for span in spans], axis=1)

    def peaks_bytes(self, spans: Sequence[Span]) -> Floats:
        """What the fullest GPU of each sample of some spans holds [B], shape (samples,)."""
        return np.concatenate([_Chunk(self, *span).peaks_bytes() for span in spans])

    def control(self, ends: Floats) -> Control:
        """Some pipelines of some samples in full, from the fastest to the slowest."""
        order = np.argsort(ends.max(axis=0), kind="stable")
        samples = len(order)
        strata = min(_CONTROLS, samples)
        chosen = [int(order[int((k + 0.5) / strata * samples)]) for k in range(strata)]
        seconds = np.empty((len(self.costs.program.operations), strata))
        for first, count in self.spans(samples):
            inside = [k for k, sample in enumerate(chosen) if first <= sample < first + count]
            if inside:
                places = [(int(ends[:, chosen[k]].argmax()), chosen[k] - first) for k in inside]
                seconds[:, inside] = _Chunk(self, first, count).durations_of(places)
        alone = Pipelines({}, (1, strata))
        replayed_s = sampled_replay(
            self.costs.program, self.costs.order, alone, lambda index: seconds[index : index + 1]
        )[0]
        ratios = ([self._simulated_s(each) for each in seconds.T] / replayed_s).tolist()
        return Control(strata, math.fsum(ratios) / strata, max(abs(ratio - 1) for ratio in ratios))

    def _simulated_s(self, seconds: Floats) -> float:
        """The full simulation of a step whose operations take so long [s]."""
        program, scaled = self.costs.program, []
        for operation, its_s, usual_s in zip(
            program.operations, seconds.tolist(), self.costs.seconds.tolist(), strict=True
        ):
            factor = its_s / usual_s if usual_s else 1.0
            work = replace(operation.work, seconds=operation.work.seconds * factor)
            scaled.append(replace(operation, work=work))
        return simulate_program(replace(program, operations=scaled)).step_time_s


def _of_batch(job: Job, **fields: Any) -> Job:
    """The job with some fields of its batch changed."""
    return job.model_copy(update={"batch": job.batch.model_copy(update=fields)})


class _Chunk:
    """Some samples that are replayed at once.

    Args:
        sampler: What draws them.
        first: The first of them.
        count: How many there are.
    """

    def __init__(self, sampler: StepSampler, first: int, count: int) -> None:
        self._sampler, job = sampler, sampler.job
        self._pipelines = sampler.joined(count)
        self._shape = shape = self._pipelines.shape
        random = np.random.default_rng([sampler.seed, 2, sampler.pipelines, first])
        self._compute = DrawnFactors(sampler.compute, *shape, random)
        self._links = DrawnFactors(sampler.links, *shape, random)
        self._values: DrawnMicrobatches | DrawnRouting | None = None
        if sampler.routing is not None:
            self._values = DrawnRouting(sampler.routing, shape, random)
        elif job.batch.lengths is not None:
            self._values = drawn_microbatches(job, job.batch.lengths, shape, random)
        self._places: dict[tuple[int, tuple[int, int]], Place] = {}

    def ends(self) -> Floats:
        """When each pipeline is done [s], shape (pipelines, samples)."""
        costs = self._sampler.costs
        return sampled_replay(costs.program, costs.order, self._pipelines, self._durations_s)

    def durations_of(self, places: Sequence[tuple[int, int]]) -> Floats:
        """Durations of some pipelines and samples [s], shape (operations, places).

        Only a new chunk draws those of which its ends are made.
        """
        costs = self._sampler.costs
        found = np.empty((len(costs.program.operations), len(places)))
        for index in costs.order.operations:
            durations = np.broadcast_to(self._durations_s(index), self._shape)
            found[index] = [durations[place] for place in places]
        return found

    def peaks_bytes(self) -> Floats:
        """What the fullest GPU of each sample holds [B], shape (samples,)."""
        sampler = self._sampler
        return sampler.memory.peaks_bytes(self._values, sampler.pipelines, self._shape[1])

    def _durations_s(self, index: int) -> Floats:
        costs = self._sampler.costs
        operation = costs.program.operations[index]
        factor: NDArray[Any] | None = self._factor(
            costs.compute_share[index], self._compute, operation
        )
        links = self._factor(costs.link_share[index], self._links, operation)
        if factor is None or links is None:
            factor = links if factor is None else factor
        else:
            factor = factor + links - 1
        ratios = costs.ratios(index)
        if ratios is not None and self._values is not None and operation.microbatch >= 0:
            loads = interpolated(ratios, self._place(operation, self._values))
            factor = loads if factor is None else factor * loads
        seconds: Floats = costs.seconds[index] * (np.ones((1, 1)) if factor is None else factor)
        return seconds

    def _place(self, operation: Operation, values: DrawnMicrobatches | DrawnRouting) -> Place:
        """Between which priced values the microbatches of an operation lie."""
        layers = operation.layers if isinstance(values, DrawnRouting) else (0, 0)
        key = (operation.microbatch, layers)
        if key not in self._places:
            self._places[key] = self._sampler.costs.place(values.of(*key))
        return self._places[key]

    @staticmethod
    def _factor(share: float, drawn: DrawnFactors, operation: Operation) -> Factors | None:
        """How much longer an operation takes, of which a share does."""
        if not share:
            return None
        is_of_all = operation.scope in _JOINING
        factors = drawn.of_operation(operation.lanes[0][0], of_all=is_of_all)
        if factors is None or share == 1.0:
            return factors
        return 1 + np.float32(share) * (factors - 1)
