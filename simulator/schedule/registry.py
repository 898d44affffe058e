"""Which pipeline schedules are there?

To add one, write its order function and its entry in a file of ``orders``, and name the entry
here.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.errors import InputError
from simulator.schedule.info import ScheduleInfo
from simulator.schedule.orders.fill_drain import GPIPE, LOOPED_BFS, NAIVE, SAGEMAKER_SIMPLE
from simulator.schedule.orders.one_f_one_b import (
    DAPPLE,
    INTERLEAVED_1F1B,
    ONE_F_ONE_B,
    PIPEDREAM,
    PIPEDREAM_2BW,
    SAGEMAKER_INTERLEAVED,
)
from simulator.schedule.orders.two_ends import CHIMERA, DUALPIPE, DUALPIPEV
from simulator.schedule.orders.v_shape import V_HALF, V_MIN, ZB_V
from simulator.schedule.orders.varuna import VARUNA
from simulator.schedule.orders.zero_bubble import ZB_1P, ZB_2P, ZB_H1, ZB_H2
from simulator.schedule.slots import Order

_ENTRIES = (
    NAIVE,
    GPIPE,
    PIPEDREAM,
    PIPEDREAM_2BW,
    ONE_F_ONE_B,
    DAPPLE,
    INTERLEAVED_1F1B,
    LOOPED_BFS,
    ZB_H1,
    ZB_H2,
    ZB_1P,
    ZB_2P,
    ZB_V,
    V_HALF,
    V_MIN,
    DUALPIPE,
    DUALPIPEV,
    CHIMERA,
    VARUNA,
    SAGEMAKER_SIMPLE,
    SAGEMAKER_INTERLEAVED,
)

SCHEDULES: Mapping[str, ScheduleInfo] = {info.name: info for info in _ENTRIES}
"""Every schedule by the name that ``plan.schedule`` uses."""


def implied_schedule(chunks: int) -> ScheduleInfo:
    """The schedule of a plan that names none, with so many chunks per rank."""
    return INTERLEAVED_1F1B if chunks > 1 else ONE_F_ONE_B


def schedule_info(name: str) -> ScheduleInfo:
    """The schedule of that name.

    Raises:
        InputError: There is none.
    """
    if name not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise InputError.single("plan.schedule", "no such schedule", name, f"use one of {known}")
    return SCHEDULES[name]


def schedule_order(name: str, stages: int, chunks: int, microbatches: int) -> Order:
    """What every rank runs, in order: one list of slots per rank.

    Args:
        name: A key of :data:`SCHEDULES`.
        stages: Ranks of the pipeline, ``plan.pp``.
        chunks: Model chunks per rank, ``plan.vpp``.
        microbatches: Microbatches per step and pipeline.

    Raises:
        InputError: Unknown name, or a size below 1.
        UnsupportedError: The schedule has no order for these sizes.

    Example:
        >>> [" ".join(map(str, rank)) for rank in schedule_order("1f1b", 2, 1, 3)]
        ['0F0 0F1 0B0 0F2 0B1 0B2', '1F0 1B0 1F1 1B1 1F2 1B2']
    """
    info = schedule_info(name)
    info.check(stages, chunks, microbatches)
    return info.order(stages, chunks, microbatches)
