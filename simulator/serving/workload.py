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
    """Mean requests per second of ``poisson`` and ``gamma``, and at most of ``closed-loop``. The
    last request comes when it is due at this rate, as with vLLM's client, whatever the engine;
    other clients do not see to it, so that runs of few requests are faster or slower by chance."""
    burstiness: Ratio = 1.0
    """Squared coefficient of variation of the gaps of ``gamma``; 1 is Poisson."""
    users: CountOrZero = Field(default=0, validate_default=True)
    """Users of ``closed-loop``."""

    @field_validator("burstiness")
    @classmethod
    def _belongs_to_gamma(cls, burstiness: float, info: ValidationInfo) -> float:
        kind = info.data.get("kind")
        if burstiness != 1 and kind != "gamma":
            raise ValueError(f"does not apply to {kind} arrivals; remove it, or use gamma")
        return burstiness

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
    """Longer ones are cut to it [token]; 0 cuts none."""

    @field_validator("variation")
    @classmethod
    def _have_one_distribution(cls, variation: float, info: ValidationInfo) -> float:
        if variation and info.data.get("least_share", 1) < 1:
            raise ValueError("makes lengths log-normal, least_share uniform; remove one of them")
        return variation


class SharedPrefix(Spec):
    """Beginnings that prompts have in common, such as system prompts; part of the prompt."""

    tokens: CountOrZero = 0
    """Tokens of each."""
    distinct: Count = 1
    """How many there are; each request has one of them by chance."""
    cached: Flag = False
    """Whether they are in the cache when the first request comes."""

    @field_validator("distinct", "cached")
    @classmethod
    def _have_some_length(cls, value: int, info: ValidationInfo) -> int:
        if value > cls.model_fields[str(info.field_name)].default and not info.data.get("tokens"):
            raise ValueError("says something of beginnings without a length; give tokens")
        return value


class AdapterTraffic(Spec):
    """Which requests want an adapter; each of them has one by chance."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the requests."""
    distinct: Count = 1
    """Adapters that they want."""

    @field_validator("distinct")
    @classmethod
    def _are_wanted(cls, distinct: int, info: ValidationInfo) -> int:
        if distinct > 1 and not info.data.get("share"):
            raise ValueError("counts adapters that no request wants; give a share above 0")
        return distinct


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

    @field_validator("trace")
    @classmethod
    def _determines_what_requests_share(cls, trace: str, info: ValidationInfo) -> str:
        prefix, adapters = info.data.get("shared_prefix"), info.data.get("adapters")
        if trace and prefix and prefix.tokens:
            raise ValueError("determines what prompts have in common; remove shared_prefix")
        if trace and adapters and adapters.share:
            raise ValueError("names no adapters; remove adapters")
        return trace

    @field_validator("speed")
    @classmethod
    def _belongs_to_a_trace(cls, speed: float, info: ValidationInfo) -> float:
        if speed != 1 and info.data.get("trace") == "":
            raise ValueError("is that of a trace, and there is none; remove it")
        return speed

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
