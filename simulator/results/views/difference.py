"""Why is one step faster than another?

Both breakdowns sum to their steps, so the differences by cause sum to the difference of the
steps. Where the jobs train different numbers of tokens per GPU, the second is brought to the
tokens of the first, because a longer step that trains more is not slower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.program.ir import Category
from simulator.results.step import StepResult

_USEFUL = (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)


@dataclass(frozen=True)
class Cause:
    """One category of both breakdowns.

    Attributes:
        second_s: Time in the second, scaled to the same tokens per GPU [s].
    """

    category: Category
    first_s: float
    second_s: float

    @property
    def difference_s(self) -> float:
        """How much longer the second takes; negative where shorter [s]."""
        return self.second_s - self.first_s


@dataclass(frozen=True)
class Difference:
    """How the second of two steps differs from the first.

    Attributes:
        causes: Categories of either breakdown, in their order.
        first_s: The first step [s].
        second_s: The second step, scaled to the same tokens per GPU [s].
        tokens_ratio: Tokens per GPU and step of the second over those of the first.
    """

    causes: tuple[Cause, ...]
    first_s: float
    second_s: float
    tokens_ratio: float

    @property
    def difference_s(self) -> float:
        """How much longer the second takes; negative where shorter [s]."""
        return self.second_s - self.first_s

    @property
    def gain(self) -> float:
        """Relative gain of the second in tokens per second and GPU."""
        return self.first_s / self.second_s - 1


def difference(first: StepResult, second: StepResult) -> Difference:
    """The difference of two steps, cause by cause."""
    ratio = _tokens_per_gpu(second) / _tokens_per_gpu(first)
    if math.isclose(ratio, 1.0, rel_tol=1e-9):
        ratio = 1.0
    causes = (
        Cause(
            category,
            first.breakdown_s.get(category, 0.0),
            second.breakdown_s.get(category, 0.0) / ratio,
        )
        for category in Category
    )
    return Difference(
        causes=tuple(cause for cause in causes if cause.first_s or cause.second_s),
        first_s=first.step_time_s,
        second_s=second.step_time_s / ratio,
        tokens_ratio=ratio,
    )


def _tokens_per_gpu(result: StepResult) -> float:
    return result.tokens_per_s_per_gpu * result.step_time_s


def difference_s(
    slow: Mapping[Category, float], fast: Mapping[Category, float]
) -> dict[Category, float]:
    """What one breakdown spends more than another, by cause; adds up to the difference [s]."""
    return {
        category: slow.get(category, 0.0) - fast.get(category, 0.0)
        for category in Category
        if category in slow or category in fast
    }


def losses(breakdown_s: Mapping[Category, float]) -> list[tuple[Category, float]]:
    """Shares of a step that compute nothing new, the largest first."""
    step_s = math.fsum(breakdown_s.values())
    lost = [(each, s / step_s) for each, s in breakdown_s.items() if each not in _USEFUL]
    return sorted(lost, key=lambda item: -item[1])
