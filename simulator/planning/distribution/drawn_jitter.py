"""By what factor does each operation take longer, in each pipeline and sample?

Every GPU of a pipeline's stage draws its own factor and the operation waits for the largest. What
is drawn anew for each operation needs one draw per group; what lasts for a step is drawn for every
GPU.

A group waits for the slowest of its n ranks. The largest of n independent draws has the
distribution function F^n, so it lies at quantile U^(1/n) of F, with U drawn evenly from 0 to 1.
Here U takes the midpoints of 65,536 equal parts: one draw is a look into a table.

Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.described.variation import Jitter, SlowGpus

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
