"""Does the search give orders that run, within their memory, as good as those made by hand?

The bubbles that its authors print are in ``test_zero_bubble_rates.py``.
"""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.schedule import Phase, Placement, schedule_order
from simulator.schedule.info import PassCosts
from simulator.schedule.orders.zero_bubble_search import searched_order
from simulator.schedule.unit_time import slot_times

F, I, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT  # noqa: E741


def pass_costs(stages, seconds, saved=1.0, pending=1.0, transfer=0.0) -> PassCosts:
    """Every stage alike."""
    by_stage = {(phase, s): time for phase, time in seconds.items() for s in range(stages)}
    return PassCosts(by_stage, lambda *_: transfer, [saved] * stages, [pending] * stages)


@pytest.mark.parametrize("costs", [(1, 1, 1), (2, 2, 1), (3, 4, 2)])
def test_within_the_memory_of_1f1b_no_more_is_idle_than_in_zb_h1(costs):
    """ZB-1p of the paper does as well as ZB-H1, its hand-made equal."""
    seconds = dict(zip((F, I, W), costs, strict=True))
    found = searched_order(4, 12, pass_costs(4, seconds), [4.0] * 4)
    by_hand = slot_times(schedule_order("zb-h1", 4, 1, 12), 1, Placement.LOOP, seconds)
    idle = slot_times(found, 1, Placement.LOOP, seconds).idle_between
    assert max(idle) <= max(by_hand.idle_between)


@given(
    stages=st.integers(1, 6),
    microbatches=st.integers(1, 12),
    seconds=st.tuples(*[st.integers(1, 9)] * 3),
    pending=st.integers(0, 3),
    room=st.integers(1, 12),
    transfer=st.integers(0, 3),
)
def test_any_passes_give_an_order_that_runs_within_its_memory(
    stages, microbatches, seconds, pending, room, transfer
):
    saved = 3.0
    costs = pass_costs(stages, dict(zip((F, I, W), seconds, strict=True)), saved, pending, transfer)
    limit = room * saved
    order = searched_order(stages, microbatches, costs, [limit] * stages)
    slot_times(order, 1, Placement.LOOP)
    change = {F: saved, I: pending - saved, W: -pending}
    for rank, slots in enumerate(order):
        wanted = {(phase, rank, m) for phase in (F, I, W) for m in range(microbatches)}
        assert len(slots) == len(wanted)
        assert {(slot.phase, slot.stage, slot.microbatch) for slot in slots} == wanted
        assert max(accumulate(change[slot.phase] for slot in slots)) <= limit


@st.composite
def uneven_stages(draw):
    stages, microbatches = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    times = st.sampled_from([1, 2, 5, 30])
    seconds = {(phase, stage): draw(times) for stage in range(stages) for phase in (F, I, W)}
    saved = [draw(st.sampled_from([1.0, 3.0])) for _ in range(stages)]
    limits = [held * draw(st.integers(1, 2 * stages)) for held in saved]
    return microbatches, PassCosts(seconds, lambda *_: 1.0, saved, saved), limits


@given(uneven_stages())
def test_stages_of_any_length_give_an_order_that_runs(case):
    microbatches, costs, limits = case
    order = searched_order(len(limits), microbatches, costs, limits)
    slot_times(order, 1, Placement.LOOP)
    assert [len(slots) for slots in order] == [3 * microbatches] * len(limits)
