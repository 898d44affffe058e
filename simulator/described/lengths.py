"""How long are the sequences of a batch, where not all are as long as the longest?"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simulator.described.base import Count, CountOrZero, Ratio, Spec


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
