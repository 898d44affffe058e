"""What do the tiers of a search say about one plan?"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from math import inf
from typing import NamedTuple

from simulator.described.job import Job
from simulator.engine.des import Limit, LimitError, simulate_program
from simulator.errors import InputError
from simulator.planning.search.bound import ROUNDING
from simulator.processor import without_collection
from simulator.program.build import build_program, steps_around
from simulator.program.ir import Category
from simulator.results.shorter_sequences import shorter_programs
from simulator.results.summary import summarise


class Tier(IntEnum):
    """How well a plan's step time is known."""

    BOUND = 0
    REPLAY = 1
    STOPPED = 2
    """Simulated until it was known to be too long."""
    SIMULATION = 3


class Trial(NamedTuple):
    """What the last tier that a plan reached says about it; only the last of all what it holds."""

    tier: Tier
    step_time_s: float
    peak_device_bytes: float = 0.0
    fits_probability: float = 0.0
    breakdown_s: Mapping[Category, float] | None = None
    refused: str = ""
    """Field of the rule that the plan turned out to break; its other values mean nothing."""

    @property
    def least_s(self) -> float:
        """What the full simulation says at least [s]."""
        return self.step_time_s * (1.0 if self.tier is Tier.SIMULATION else ROUNDING)


def try_plan(job: Job, limit_s: float) -> Trial:
    """What the tiers say about a plan whose step is of interest up to a limit."""
    try:
        with without_collection():
            return _tried(job, limit_s / ROUNDING)
    except InputError as error:
        return Trial(Tier.SIMULATION, inf, refused=error.faults[0].path)


def _tried(job: Job, limit_s: float) -> Trial:
    steps = steps_around(job)
    program = build_program(job, steps=steps.total)
    limit = None
    # One step of several that overlap is a window, which contention may also shorten.
    if steps.total == 1 and limit_s < inf:
        limit = Limit.of(program, limit_s)
        replayed_s = max(limit.remaining_s, default=0.0)
        if replayed_s > limit_s:
            return Trial(Tier.REPLAY, replayed_s)
    try:
        timeline = simulate_program(program, limit=limit)
    except LimitError as error:
        return Trial(Tier.STOPPED, error.least_s)
    step = summarise(job, timeline, steps, shorter=shorter_programs(job))
    # A node without room for what leaves its GPUs makes the plan as useless as a full GPU.
    has_room = step.host is None or step.host.fits
    peak_bytes = step.peak_device_bytes if has_room else inf
    return Trial(
        Tier.SIMULATION, step.step_time_s, peak_bytes, step.fits_probability, step.breakdown_s
    )
