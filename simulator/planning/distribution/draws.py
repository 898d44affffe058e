"""What is drawn for each pipeline and sample: jitter, lengths of microbatches, routing?

Jitter: every GPU of a pipeline's stage draws its own factor and the operation waits for the
largest. What is drawn anew for each operation needs one draw per group; what lasts for a step is
drawn for every GPU.

A group waits for the slowest of its n ranks. The largest of n independent draws has the
distribution function F^n, so it lies at quantile U^(1/n) of F, with U drawn evenly from 0 to 1.
Here U takes the midpoints of 65,536 equal parts: one draw is a look into a table.

Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 2.1.

Lengths: what a padded microbatch costs follows from its longest sequence; what a packed one costs,
from the mean length of its documents, weighted by tokens, because a token attends to its own alone.

Routing: copies of tokens are spread over experts by a Dirichlet distribution about the load that
the plan says. Loads of a rank's experts add up, and sums of Dirichlet parts are Dirichlet again, so
one gamma variate per rank is drawn. Ranks wait for the busiest in every layer, so what an operation
of several layers takes follows from the mean of what the busiest rank of each receives.

Assumes that layers and microbatches of a step differ independently, about what they have in
common. Ignores that loads of a rank's experts differ among themselves, and that a load which many
layers share is kept to the tokens there are by cutting it off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.described.variation import ExpertVariation, Jitter, Lengths, SlowGpus
from simulator.program.grid.expert_tokens import rank_loads
from simulator.results.shorter_sequences import padded_multiple

Factors = NDArray[np.float32]

Floats = NDArray[np.float64]
PARTS = 65_536
"""Entries of a table: all that a draw of 16 bits can ask for."""
_REACH, _GRID = 9.0, 8192
"""Where the normal distribution is looked at, in standard deviations, and at how many places."""


@dataclass(frozen=True)
class Members:
    """Whose factors are drawn.

    Attributes:
        stages: Stages of a pipeline.
        ranks: GPUs that a pipeline has at each stage.
        pipelines: How many there are.
    """

    stages: int
    ranks: int
    pipelines: int


class FactorTables:
    """What factors are drawn from; made once for all samples.

    Args:
        jitter: How they spread; None where only slow GPUs differ.
        slow: GPUs that are slow for a step; None where none are.
        members: Who draws.
    """

    def __init__(self, jitter: Jitter | None, slow: SlowGpus | None, members: Members) -> None:
        sigma, lasting = (jitter.sigma, jitter.lasting) if jitter else (0.0, 0.0)
        self._lasting_sigma = sigma * math.sqrt(lasting)
        self._passing_sigma = sigma * math.sqrt(1 - lasting)
        self._slow = slow if slow is not None and slow.rate else None
        self.members = members

    @property
    def differ(self) -> bool:
        """Whether any factor is not 1."""
        return bool(self._lasting_sigma or self._passing_sigma or self._slow)

    @property
    def last(self) -> bool:
        """Whether any part of a factor stays for a step."""
        return bool(self._lasting_sigma or self._slow)

    @property
    def pass_by(self) -> bool:
        """Whether any part of a factor is drawn for each operation."""
        return bool(self._passing_sigma)

    @cached_property
    def of_one(self) -> Factors:
        """Equally likely factors of one GPU in one operation, shape (PARTS,)."""
        return self._passing(1)

    @cached_property
    def of_group(self) -> Factors:
        """The same of the slowest GPU of a pipeline's stage."""
        return self._passing(self.members.ranks)

    @cached_property
    def of_all(self) -> Factors:
        """The same of the slowest GPU of that stage in all pipelines."""
        return self._passing(self.members.ranks * self.members.pipelines)

    def _passing(self, count: int) -> Factors:
        factors = np.exp(self._passing_sigma * largest_of_normals(count))
        assert factors.shape == (PARTS,)
        return factors.astype(np.float32)

    def lasting(self, shape: tuple[int, ...], random: np.random.Generator) -> Factors:
        """Factors that GPUs keep for a step, in an array of a shape."""
        factors = np.ones(shape, dtype=np.float32)
        if self._lasting_sigma:
            normal = random.standard_normal(shape, dtype=np.float32)
            np.exp(np.float32(self._lasting_sigma) * normal, out=factors)
        if self._slow is not None:
            is_slow = random.random(shape, dtype=np.float32) < self._slow.rate
            factors[is_slow] *= np.float32(1 + self._slow.slowdown)
        return factors


class DrawnFactors:
    """The factors of some samples.

    Args:
        tables: What they are drawn from.
        pipelines: How many draw.
        samples: How many steps are drawn.
        random: What draws.
    """

    def __init__(
        self, tables: FactorTables, pipelines: int, samples: int, random: np.random.Generator
    ) -> None:
        self._tables, self._random = tables, random
        self._shape = (pipelines, samples)
        members = tables.members
        self._lasting: list[Factors] = []
        """By stage: of each GPU, or, where nothing else differs, of the slowest of a group."""
        if tables.last:
            ranks = (members.ranks, *self._shape)
            drawn = (tables.lasting(ranks, random) for _ in range(members.stages))
            self._lasting = list(drawn if tables.pass_by else (each.max(axis=0) for each in drawn))

    def of_operation(self, stage: int, *, of_all: bool) -> Factors | None:
        """Factors of an operation.

        Args:
            stage: Where it runs.
            of_all: Whether all pipelines run it as one.

        Returns:
            An array of shape (pipelines, samples), or of one row for all; None where all are 1.
        """
        tables = self._tables
        if not tables.differ:
            return None
        if not tables.last and of_all:
            return _drawn_from(tables.of_all, (1, self._shape[1]), self._random)
        if not tables.last:
            return _drawn_from(tables.of_group, self._shape, self._random)
        if not tables.pass_by:
            return self._lasting[stage]
        slowest = np.zeros(self._shape, dtype=np.float32)
        for lasting in self._lasting[stage]:
            factors = _drawn_from(tables.of_one, self._shape, self._random)
            np.maximum(slowest, np.multiply(factors, lasting, out=factors), out=slowest)
        return slowest


def largest_of_normals(count: int) -> Floats:
    """Equally likely values of the largest of so many standard normal numbers, shape (PARTS,)."""
    places = np.linspace(-_REACH, _REACH, _GRID)
    log_below = np.log([0.5 * math.erfc(-place / math.sqrt(2)) for place in places.tolist()])
    log_u = np.log((np.arange(PARTS) + 0.5) / PARTS)
    return np.interp(log_u / count, log_below, places)


def _drawn_from(
    table: NDArray[np.float32], shape: tuple[int, ...], random: np.random.Generator
) -> NDArray[np.float32]:
    """Entries of a table of :data:`PARTS`, each as likely, in an array of a shape."""
    return table[random.integers(0, PARTS, shape, dtype=np.uint16)]


class DrawnMicrobatches(NamedTuple):
    """Microbatches of some samples.

    Attributes:
        tokens: Length that decides what each costs, shape (microbatches, pipelines, samples).
    """

    tokens: Floats

    def of(self, microbatch: int, layers: tuple[int, int]) -> Floats:
        """Those of one microbatch, whatever the layers; shape (pipelines, samples) [tokens]."""
        del layers
        tokens: Floats = self.tokens[microbatch]
        return tokens

    def kept(self, in_flight: int) -> Floats:
        """Largest mean length of so many microbatches in a row, shape (samples,) [tokens]."""
        count = len(self.tokens)
        window = min(max(1, in_flight), count)
        sums = np.cumsum(self.tokens, axis=0)
        sums[window:] = sums[window:] - sums[:-window]
        largest: Floats = sums[window - 1 :].max(axis=(0, 1)) / window
        return largest


def drawn_microbatches(
    job: Job, lengths: Lengths, shape: tuple[int, int], random: np.random.Generator
) -> DrawnMicrobatches:
    """Microbatches of so many pipelines and samples."""
    micro, count = job.batch.micro_batch, job.microbatches
    if lengths.layout == "packed":
        return DrawnMicrobatches(
            np.stack([_packed(job, lengths, micro, shape, random) for _ in range(count)])
        )
    drawn = _lengths(job, lengths, (count * micro, *shape), random)
    if lengths.layout == "bucketed":
        drawn.sort(axis=0)
    longest = drawn.reshape(count, micro, *shape).max(axis=1)
    multiple = padded_multiple(job)
    padded = np.minimum(np.ceil(longest / multiple) * multiple, job.batch.seq_len)
    return DrawnMicrobatches(padded)


def _lengths(
    job: Job, lengths: Lengths, shape: tuple[int, ...], random: np.random.Generator
) -> Floats:
    """Lengths of sequences [tokens]."""
    of = lengths.lognormal
    if of is None:
        drawn = random.choice(np.asarray(lengths.values, dtype=float), shape)
    else:
        drawn = np.maximum(
            1.0, np.rint(of.median * np.exp(of.sigma * random.standard_normal(shape)))
        )
    lengths_of: Floats = np.minimum(drawn, job.batch.seq_len)
    return lengths_of


def _packed(
    job: Job, lengths: Lengths, micro: int, shape: tuple[int, int], random: np.random.Generator
) -> Floats:
    """Mean length of documents, weighted by tokens, of packed microbatches of a shape."""
    seq_len = job.batch.seq_len
    room = np.full((micro, *shape), float(seq_len))
    squares = np.zeros_like(room)
    while room.any():
        length = np.minimum(room, _lengths(job, lengths, room.shape, random))
        squares += length**2
        room -= length
    mean: Floats = squares.mean(axis=0) / seq_len
    return mean


_STEPS, _DRAWS = 64, 2048
"""Popularities of experts that steps are drawn from, and draws of microbatches for each."""
_ENDLESS = 1e9
"""Concentration at which nothing is left to chance."""


class RoutingTables:
    """Equally likely loads of the busiest rank over the mean, by row: one for each popularity.

    Args:
        job: With routed experts.
        variation: How their loads spread.
        seed: Of the tables.
    """

    def __init__(self, job: Job, variation: ExpertVariation, seed: int) -> None:
        experts = job.model.experts
        assert experts is not None
        self._most = experts.count / experts.top_k
        self.local = experts.count // job.plan.ep
        self._microbatch = variation.microbatch
        self._random = np.random.default_rng([seed, experts.count, job.plan.ep])
        mean = self._mean_loads(job)
        self.rows = 1 if variation.step is None else _STEPS
        self._popularity = np.tile(mean, (self.rows, 1))
        if variation.step is not None:
            self._popularity = self._spread(self._popularity, variation.step, 1)[:, 0]
        self.of_layers = cache(self._of_layers)
        self.kept = cache(self._kept)

    def _mean_loads(self, job: Job) -> Floats:
        """What each rank receives over the mean of all, shape (ep,)."""
        if job.plan.expert_load is None:
            return np.ones(job.plan.ep)
        return np.array([math.fsum(loads) / len(loads) for loads in rank_loads(job)])

    def _spread(self, mean: Floats, concentration: float, draws: int) -> Floats:
        """Loads of ranks about their means of shape (rows, ep); shape (rows, draws, ep)."""
        shapes = np.maximum(mean * concentration * self.local, 1e-12)
        gammas = self._random.standard_gamma(shapes[:, None], (len(mean), draws, mean.shape[1]))
        gammas = np.maximum(gammas, 1e-300)
        loads: Floats = gammas / gammas.mean(axis=-1, keepdims=True)
        return loads

    def _busiest(self, concentration: float | None) -> Floats:
        """Equally likely loads of the busiest rank, shape (rows, draws)."""
        if concentration is None:
            drawn = self._popularity.max(axis=1, keepdims=True)
        else:
            draws = _DRAWS if self.rows > 1 else _STEPS * _DRAWS
            drawn = np.concatenate(
                [self._spread(row[None], concentration, draws).max(axis=-1)
                 for row in self._popularity]
            )  # fmt: skip
        kept: Floats = np.minimum(drawn, self._most)
        return kept

    def _of_layers(self, layers: int) -> Floats:
        """Means over so many layers of what the busiest rank of each receives."""
        one = self._busiest(self._microbatch) if layers == 1 else self.of_layers(1)
        if layers == 1 or one.shape[1] == 1:
            return one
        total = np.zeros_like(one)
        for _ in range(layers):
            places = self._random.integers(0, one.shape[1], one.shape[1])
            total += one[:, places]
        return total / layers

    def _kept(self, passes: int) -> Floats:
        """What the busiest rank receives in the mean over so many passes of layers.

        The mean of independent Dirichlet parts is taken as Dirichlet with the same variance.
        """
        if self._microbatch is None:
            return self._busiest(None)
        experts = self.local * self._popularity.shape[1]
        total = passes * (self._microbatch * experts + 1) - 1
        return np.sort(self._busiest(min(total / experts, _ENDLESS)), axis=1)


class DrawnRouting:
    """The loads of some samples: the same in all passes of a microbatch through the same layers.

    Args:
        tables: What they are drawn from.
        shape: Pipelines and samples.
        random: What draws.
    """

    def __init__(
        self, tables: RoutingTables, shape: tuple[int, int], random: np.random.Generator
    ) -> None:
        self._tables, self._shape, self._random = tables, shape, random
        self.row = random.integers(0, tables.rows, shape[1])
        self._drawn: dict[tuple[int, int, int], Floats] = {}

    def of(self, microbatch: int, layers: tuple[int, int]) -> Floats:
        """Load of the busiest rank over the mean, shape (pipelines, samples)."""
        key = (microbatch, *layers)
        if key not in self._drawn:
            table = self._tables.of_layers(max(1, layers[1] - layers[0]))
            column = self._random.integers(0, table.shape[1], self._shape)
            self._drawn[key] = table[self.row[None], column]
        return self._drawn[key]

    def mean_load(self, passes: int, draws: float) -> Floats:
        """The largest of so many draws of the busiest rank's mean load, shape (samples,).

        Args:
            passes: Passes of layers that each is the mean over.
            draws: How many there are.
        """
        table = self._tables.kept(passes)
        quantile = self._random.random(self._shape[1]) ** (1 / max(1.0, draws))
        column = np.minimum((quantile * table.shape[1]).astype(np.int64), table.shape[1] - 1)
        largest: Floats = table[self.row, column]
        return largest
