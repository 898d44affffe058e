"""What differs from the profile: slow GPUs and links always; jitter, experts, lengths by the step?

A job may list perturbations: a slow GPU, a slow node, a network card at part of its rate, or a
spread between all GPUs. Those that meet on one GPU multiply.

The profile says what a typical step takes; a job may say how steps spread about it. Lengths of
sequences are said in ``batch.lengths``, where not all are as long as the longest.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from simulator.described.base import Count, CountOrZero, Ratio, Spec

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


_Sigma = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Concentration = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class Jitter(Spec):
    """How times spread from operation to operation: lognormal, with the profile's as median."""

    sigma: _Sigma
    """Standard deviation of the logarithm of a time, of one GPU."""
    lasting: _Share = 0.0
    """Share of that variance that stays with a GPU for a whole step; the rest is drawn anew for
    every operation. It is the correlation between two operations of one GPU in a step."""


class SlowGpus(Spec):
    """GPUs that are slow for a whole step."""

    rate: _Share
    """Probability that a GPU is slow in a step, each by itself."""
    slowdown: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)]
    """By what share everything that it computes takes longer then: 0.2 is 20 %."""


class ExpertVariation(Spec):
    """How loads of experts spread about ``plan.expert_load``, or about even ones: Dirichlet.

    A load has a standard deviation of about its mean over the root of mean times concentration.
    """

    microbatch: _Concentration | None = None
    """Concentration per expert of what is drawn anew for every layer and microbatch."""
    step: _Concentration | None = None
    """Concentration per expert of what drifts from step to step: a popularity that holds for all
    layers and microbatches of a step."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.microbatch is None and self.step is None:
            raise ValueError("needs microbatch, step, or both")
        return self


class Variation(Spec):
    """How steps of the job differ; nothing in it changes the step that ``run`` simulates."""

    compute: Jitter | None = None
    """Of what GPUs compute. For example ``{sigma: 0.02, lasting: 0.3}``."""
    links: Jitter | None = None
    """Of what is exchanged: every rank's link by itself; an exchange is as slow as its slowest."""
    slow: SlowGpus | None = None
    """For example ``{rate: 0.001, slowdown: 0.2}``."""
    experts: ExpertVariation | None = None
    """For example ``{microbatch: 20}``, ``{step: 50, microbatch: 200}``."""
    seed: CountOrZero = 0
    """Of all draws: the same seed gives the same steps."""

    @property
    def is_any(self) -> bool:
        """Whether anything differs."""
        return any((self.compute, self.links, self.slow, self.experts))


class LogNormal(Spec):
    """Lengths whose logarithm is normally distributed."""

    median: Ratio
    """Half of the sequences are longer [tokens]."""
    sigma: Annotated[float, Field(ge=0, le=5)]
    """Standard deviation of the logarithm."""


class Lengths(Spec):
    """Where lengths come from, and what is done with sequences of several."""

    values: tuple[Count, ...] = ()
    """Lengths that are drawn from, each as likely [tokens]. A job may name a ``file`` that holds
    one per line instead."""
    lognormal: LogNormal | None = None
    """A distribution that they are drawn from; those above ``batch.seq_len`` are cut to it."""
    layout: Literal["padded", "bucketed", "packed"] = "padded"
    """``padded``: every sequence of a microbatch is as long as its longest. ``bucketed``: the same,
    but a rank sorts the sequences of a step by length before. ``packed``: sequences are joined
    until they fill ``batch.seq_len``, and attention stays inside each."""
    seed: CountOrZero = 0
    """Of the draws: the same seed gives the same steps."""

    @model_validator(mode="after")
    def _is_said_once(self) -> Self:
        if bool(self.values) == (self.lognormal is not None):
            raise ValueError("needs exactly one of values, file and lognormal")
        return self
