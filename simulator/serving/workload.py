"""What does a user say about traffic: when requests come, and how long they are?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from simulator.described.base import (
    Count,
    CountOrZero,
    Flag,
    PositiveFraction,
    Ratio,
    Seconds,
    Spec,
)

ArrivalKind = Literal["poisson", "gamma", "closed-loop", "all-at-once"]
_MOST_REQUESTS = 10_000_000


class Arrivals(Spec):
    """When requests come."""

    kind: ArrivalKind = "poisson"
    """``closed-loop``: so many users, each asks again as soon as it is answered."""
    rate: Ratio | None = None
    """Mean requests per second of ``poisson`` and ``gamma``, and at most of ``closed-loop``."""
    burstiness: Ratio = 1.0
    """Squared coefficient of variation of the gaps of ``gamma``; 1 is Poisson."""
    users: CountOrZero = Field(default=0, validate_default=True)
    """Users of ``closed-loop``."""

    @field_validator("rate")
    @classmethod
    def _has_a_pace(cls, rate: float | None, info: ValidationInfo) -> float | None:
        if rate is not None and info.data.get("kind") == "all-at-once":
            raise ValueError("does not apply to all-at-once arrivals; remove it, or use poisson")
        return rate

    @field_validator("users")
    @classmethod
    def _fit_the_kind(cls, users: int, info: ValidationInfo) -> int:
        kind, rate = info.data.get("kind"), info.data.get("rate")
        if kind == "closed-loop" and not users:
            raise ValueError("closed-loop arrivals need users, for example 64")
        if kind in ("poisson", "gamma") and rate is None:
            raise ValueError(f"{kind} arrivals need a rate, for example 2.0")
        if users and kind != "closed-loop":
            raise ValueError(f"does not apply to {kind} arrivals; remove it, or use closed-loop")
        return users


class Lengths(Spec):
    """How long prompts or answers are."""

    mean: Count
    """Mean tokens; with ``least_share``, the longest."""
    least_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Below 1, lengths are uniform from this share of ``mean`` to all of it."""
    variation: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Above 0, lengths are log-normal with this standard deviation over mean."""
    longest: CountOrZero = 0
    """Lengths drawn beyond are cut; 0 cuts none."""


class SharedPrefix(Spec):
    """Beginnings that prompts have in common, such as system prompts; part of the prompt."""

    tokens: CountOrZero = 0
    """Tokens of each."""
    distinct: Count = 1
    """How many there are; each request has one of them by chance."""
    cached: Flag = False
    """Whether they are in the cache when the first request comes."""


class AdapterTraffic(Spec):
    """Which requests want an adapter; each of them has one by chance."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the requests."""
    distinct: Count = 1
    """Adapters that they want."""


class Objective(Spec):
    """What counts as served well."""

    ttft_s: Seconds | None = None
    """Longest time to the first token."""
    tpot_s: Seconds | None = None
    """Longest mean time of further tokens."""
    end_to_end_s: Seconds | None = None
    """Longest time to the last token."""
    share: PositiveFraction = 0.95
    """Share of the requests that must keep to it."""

    @property
    def is_asked(self) -> bool:
        """Whether there is any limit to keep to."""
        return any(limit is not None for limit in (self.ttft_s, self.tpot_s, self.end_to_end_s))


class Workload(Spec):
    """The traffic of a run."""

    requests: Annotated[int, Field(strict=True, ge=1, le=_MOST_REQUESTS)] = 1000
    """How many come; of a trace its first ones, and by default all."""
    arrivals: Arrivals = Arrivals(kind="all-at-once")
    """When."""
    prompt: Lengths = Lengths(mean=1024)
    """How long their prompts are."""
    answer: Lengths = Lengths(mean=256)
    """How long their answers are; the engine knows none of them before."""
    shared_prefix: SharedPrefix = SharedPrefix()
    """What prompts have in common."""
    adapters: AdapterTraffic = AdapterTraffic()
    """Which of them want an adapter."""
    trace: str = ""
    """A CSV with ``arrival_s, input_tokens, output_tokens``, or a JSONL of Mooncake's kind, in
    place of arrivals and lengths."""
    speed: Ratio = 1.0
    """Times as fast as the trace."""
    seed: CountOrZero = 0
    """Draws of the same seed are the same."""
    objective: Objective = Objective()
    """What counts as served well."""
    warm_up_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """First requests that latencies leave out."""

    @property
    def title(self) -> str:
        """One line that describes the traffic."""
        if self.trace:
            return f"requests of {Path(self.trace).name}"
        came = self.arrivals
        how = "all at once" if came.kind == "all-at-once" else f"from {came.users} users at a time"
        if came.rate is not None:
            pace = f"at {came.rate:g} per second"
            how = f"{how}, {pace}" if came.users else f"{pace} ({came.kind})"
        lengths = f"prompts of {self.prompt.mean:,} tokens, answers of {self.answer.mean:,}"
        return f"{self.requests:,} requests {how}, {lengths}"
