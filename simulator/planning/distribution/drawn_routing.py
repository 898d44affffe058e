"""How much more than the mean does the busiest rank of an expert-parallel group receive?

Copies of tokens are spread over experts by a Dirichlet distribution about the load that the plan
says. Loads of a rank's experts add up, and sums of Dirichlet parts are Dirichlet again, so one
gamma variate per rank is drawn. Ranks wait for the busiest in every layer, so what an operation
of several layers takes follows from the mean of what the busiest rank of each receives.

Assumes that layers and microbatches of a step differ independently, about what they have in
common. Ignores that loads of a rank's experts differ among themselves, and that a load which many
layers share is kept to the tokens there are by cutting it off.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.described.variation import ExpertVariation
from simulator.program.grid.expert_tokens import rank_loads

Floats = NDArray[np.float64]

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
