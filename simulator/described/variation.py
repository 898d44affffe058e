"""What differs from step to step: jitter, slow GPUs, loads of experts, lengths of sequences?

The profile says what a typical step takes; a job may say how steps spread about it. Lengths of
sequences are said in ``batch.lengths``, where not all are as long as the longest.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simulator.described.base import Count, CountOrZero, Ratio, Spec

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
