"""Which GPUs or links of the cluster are slower than their profile says?

A job may list perturbations: a slow GPU, a slow node, a network card at part of its rate,
or a spread between all GPUs. Those that meet on one GPU multiply.
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from simulator.described.base import CountOrZero, Spec

_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")


def _range(given: object) -> tuple[int, int]:
    """First and last index of a number or of a text such as ``0-7``."""
    if type(given) is int and given >= 0:
        return given, given
    if isinstance(given, tuple) and len(given) == 2:
        return given
    match = _RANGE.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None:
        raise ValueError("must be a number, counted from 0, or a range such as 0-7")
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise ValueError(f"must start with the smaller number; write {last}-{first}")
    return first, last


def _range_text(bounds: tuple[int, int] | None) -> int | str | None:
    if bounds is None:
        return None
    first, last = bounds
    return first if first == last else f"{first}-{last}"


_OneOrMany = Annotated[
    tuple[int, int],
    BeforeValidator(_range),
    PlainSerializer(_range_text, return_type=int | str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\s*\d+\s*-\s*\d+\s*$"},
            ]
        }
    ),
]
_SlowDown = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
_Left = Annotated[float, Field(gt=0, le=1)]

_CHANGES = ("slowdown", "nic_share", "scale_up_share", "jitter")


class Perturbation(Spec):
    """How some GPUs fall behind the profile."""

    gpu: _OneOrMany | None = None
    """Which GPUs, by rank: 4711, or 0-511."""
    node: _OneOrMany | None = None
    """Which nodes, counted from 0: 12, or 0-3; all their GPUs are meant."""
    slowdown: _SlowDown = 0.0
    """By what share everything that they compute takes longer: 0.2 is 20 %."""
    nic_share: _Left = 1.0
    """Share of its network cards' rate that each GPU has left."""
    scale_up_share: _Left = 1.0
    """Share of its links' rate inside the scale-up domain that each GPU has left."""
    jitter: _SlowDown = 0.0
    """Largest slow-down of a spread: each GPU gets its own, drawn evenly from 0 up to this
    and kept for the whole step. Without gpu and node all GPUs are meant."""
    seed: CountOrZero = 0
    """Which draw of the spread; the same seed draws the same."""

    @model_validator(mode="after")
    def _says_who_and_what(self) -> Self:
        given = self.model_fields_set
        if not given.intersection(_CHANGES):
            raise ValueError(f"must change something: give {', '.join(_CHANGES[:-1])} or jitter")
        if self.gpu is not None and self.node is not None:
            raise ValueError("must name gpu or node, not both; write two perturbations")
        if self.gpu is None and self.node is None and given.intersection(_CHANGES[:-1]):
            raise ValueError("must name what is slower; give gpu or node")
        if "seed" in given and "jitter" not in given:
            raise ValueError("has a seed but no jitter; the seed is for jitter only")
        return self
