"""How unevenly does a router spread tokens over the routed experts?

Balance is an input: it depends on the data and on how the router was trained, which no
simulation of time and memory knows.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from simulator.described.base import Ratio, Spec

_Load = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ExpertLoad(Spec):
    """One of three ways to say it; every expert layer is loaded alike."""

    hot: Ratio | None = None
    """One expert receives this many times its share, the others share the rest evenly."""
    zipf: Ratio | None = None
    """The r-th most popular expert receives a share of 1 / r to this power. Popular experts
    are dealt to the ranks in turn (assumption)."""
    loads: tuple[_Load, ...] | None = None
    """Copies that each expert of a layer received, in any unit, in order of the experts. A
    job may name a ``file`` that holds them instead."""

    @model_validator(mode="after")
    def _is_said_once(self) -> Self:
        given = [name for name in ("hot", "zipf", "loads") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of hot, zipf, loads and file")
        if self.loads is not None and not sum(self.loads):
            raise ValueError("some expert must receive something")
        return self

    def over_mean(self, experts: int) -> tuple[float, ...]:
        """Copies of each of so many experts over the mean, the most popular first if made up."""
        if self.hot is not None:
            rest = (experts - self.hot) / max(1, experts - 1)
            return (self.hot, *[rest] * (experts - 1))
        if self.zipf is not None:
            given = [rank**-self.zipf for rank in range(1, experts + 1)]
        else:
            given = list(self.loads or ())
        mean = sum(given) / len(given)
        return tuple(load / mean for load in given)
