"""Does the search fill bubbles as far as its authors' does?"""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.schedule import Phase, Placement, schedule_order
from simulator.schedule.pass_costs import PassCosts
from simulator.schedule.unit_time import slot_times
from simulator.schedule.zero_bubble_search import searched_order

F, I, W = Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT  # noqa: E741

HEADS = {2304: 24, 4096: 32, 5120: 40, 6144: 48}


def pass_costs(stages, seconds, saved=1.0, pending=1.0, transfer=0.0) -> PassCosts:
    """Every stage alike."""
    by_stage = {(phase, s): time for phase, time in seconds.items() for s in range(stages)}
    return PassCosts(by_stage, lambda *_: transfer, [saved] * stages, [pending] * stages)


def span(order, costs: PassCosts) -> float:
    """Longest time between a rank's own first start and last end."""
    ended: dict[tuple[Phase, int, int], float] = {}
    clock, started = [0.0] * len(order), [-1.0] * len(order)
    todo = [list(reversed(slots)) for slots in order]
    sender = {F: -1, I: 1}
    while any(todo):
        before = sum(map(len, todo))
        for rank, slots in enumerate(todo):
            while slots:
                phase, _, microbatch, _ = slots[-1]
                other = rank + sender.get(phase, 0)
                travels = other != rank and 0 <= other < len(order)
                if travels and (phase, other, microbatch) not in ended:
                    break
                arrives = (
                    ended[phase, other, microbatch] + costs.transfer_s(other, rank)
                    if travels
                    else 0
                )
                start = max(clock[rank], arrives)
                started[rank] = start if started[rank] < 0 else started[rank]
                clock[rank] = start + costs.slot_s(slots.pop())
                ended[phase, rank, microbatch] = clock[rank]
        assert sum(map(len, todo)) < before
    return max(end - start for start, end in zip(started, clock, strict=True))


@pytest.mark.parametrize(
    (
        "stages",
        "microbatches",
        "hidden",
        "forward",
        "inputs",
        "weights",
        "transfer",
        "one_p",
        "two_p",
    ),
    [
        (8, 24, 2304, 18522, 18086, 9337, 601, 0.1585, 0.0433),
        (8, 32, 2304, 18513, 18086, 9331, 626, 0.1242, 0.0039),
        (8, 64, 2304, 18546, 18097, 9321, 762, 0.0674, 0.0026),
        (8, 24, 4096, 29718, 29444, 19927, 527, 0.1323, 0.0029),
        (16, 48, 5120, 11347, 11248, 8132, 377, 0.1397, 0.0066),
    ],
)
def test_bubble_rates_are_the_printed_ones_at_the_profiled_pass_times(
    stages, microbatches, hidden, forward, inputs, weights, transfer, one_p, two_p
):
    """Table of bubble rates (ZB-1p, ZB-2p) and of pass times [us] in arXiv 2401.10241.

    Activations per token: 34 h + 5 a s bytes, of which 32 h wait for the weight gradient.
    """
    saved = 34 * hidden + 5 * HEADS[hidden] * 1024
    seconds = {F: forward, I: inputs, W: weights}
    costs = pass_costs(stages, seconds, saved, 32 * hidden, transfer)
    for multiple, printed in ((1, one_p), (2, two_p)):
        limits = [multiple * stages * saved] * stages
        longest = span(searched_order(stages, microbatches, costs, limits), costs)
        assert 1 - microbatches * sum(seconds.values()) / longest == pytest.approx(
            printed, abs=5e-5
        )


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
