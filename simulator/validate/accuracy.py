"""How far is a set of predictions from what was measured?"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

_Key = TypeVar("_Key", tuple[str, str], tuple[str, str, str])
CLOSE_PCT = 15.0
"""Errors up to this one count as close [%]."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Absolute errors of a set of predictions [%]; None where nothing was predicted.

    Attributes:
        n: Predictions.
        mape, median_ape, worst_ape: Mean, median and largest absolute error.
        bias: Mean signed error; positive where predictions are too large.
        close_share: Share of the predictions that are close.
        skipped: Rows without a prediction.
    """

    n: int
    mape: float | None
    median_ape: float | None
    worst_ape: float | None
    bias: float | None
    close_share: float | None
    skipped: int

    @classmethod
    def of(cls, errors_pct: Iterable[float | None], close_pct: float = CLOSE_PCT) -> Accuracy:
        """Accuracy of signed errors [%]; None stands for a row that was skipped."""
        everything = list(errors_pct)
        errors = [error for error in everything if error is not None]
        skipped = len(everything) - len(errors)
        if not errors:
            return cls(0, None, None, None, None, None, skipped)
        sizes = [abs(error) for error in errors]
        return cls(
            n=len(errors),
            mape=statistics.fmean(sizes),
            median_ape=statistics.median(sizes),
            worst_ape=max(sizes),
            bias=statistics.fmean(errors),
            close_share=sum(size <= close_pct for size in sizes) / len(sizes),
            skipped=skipped,
        )


def accuracy_by(
    errors_pct: Iterable[tuple[_Key, float | None]], close_pct: float = CLOSE_PCT
) -> dict[_Key, Accuracy]:
    """Accuracy of signed errors [%] by what they are of, sorted."""
    members: dict[_Key, list[float | None]] = {}
    for key, error in errors_pct:
        members.setdefault(key, []).append(error)
    return {key: Accuracy.of(members[key], close_pct) for key in sorted(members)}


def error_pct(predicted: float | None, measured: float | None) -> float | None:
    """Signed error [%], positive where the prediction is too large; None if one is missing."""
    if predicted is None or not measured:
        return None
    return 100.0 * (predicted / measured - 1.0)
