"""What must hold for every order, whatever the sizes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import UnsupportedError
from simulator.schedule import SCHEDULES, Phase, schedule_order
from simulator.schedule.rendezvous import blocked_ranks
from simulator.schedule.unit_time import slot_times
from simulator.schedule.written import read_order, write_order

every_schedule = pytest.mark.parametrize("name", list(SCHEDULES))
enough = settings(max_examples=40, deadline=None)


@st.composite
def allowed_sizes(draw, name):
    """(stages, chunks, microbatches) that the schedule runs with."""
    info = SCHEDULES[name]
    least, most = info.chunks
    stages = draw(st.integers(1, 9))
    chunks = draw(st.integers(least, most or 4))
    microbatches = draw(st.integers(1, 24))
    if info.placement.copies == 2:
        stages, microbatches = 2 * -(-stages // 2), 2 * microbatches
    if name == "pipedream-2bw":
        microbatches += stages
    if name in {"dualpipe", "dualpipev"}:
        microbatches += 2 * stages
    if name in {"interleaved-1f1b", "zb-1p"} and microbatches > stages:
        microbatches -= microbatches % (microbatches // stages)
    return stages, chunks, microbatches


@every_schedule
@enough
@given(data=st.data())
def test_each_stage_runs_each_of_its_microbatches_forward_and_backward_once(name, data):
    stages, chunks, microbatches = data.draw(allowed_sizes(name))
    info = SCHEDULES[name]
    order = schedule_order(name, stages, chunks, microbatches)
    ran = Counter((slot.stage, slot.microbatch, slot.phase) for row in order for slot in row)
    assert set(ran.values()) == {1}
    phases: dict[tuple[int, int], set[Phase]] = {}
    for stage, microbatch, phase in ran:
        phases.setdefault((stage, microbatch), set()).add(phase)
    whole = {Phase.FORWARD, Phase.BACKWARD}
    split = {Phase.FORWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}
    allowed = [whole] if not info.splits_backward else [whole, split]
    assert all(did in allowed for did in phases.values())
    for model_stage in range(stages * chunks):
        copies = [model_stage + copy * stages * chunks for copy in range(info.placement.copies)]
        seen = sorted(m for stage, m in phases if stage in copies)
        assert seen == list(range(microbatches))


@every_schedule
@enough
@given(data=st.data())
def test_each_rank_runs_the_stages_placed_on_it(name, data):
    stages, chunks, microbatches = data.draw(allowed_sizes(name))
    placement = SCHEDULES[name].placement
    order = schedule_order(name, stages, chunks, microbatches)
    assert len(order) == stages
    for rank, row in enumerate(order):
        assert {placement.rank(slot.stage, stages) for slot in row} == {rank}


@every_schedule
@enough
@given(data=st.data(), costs=st.tuples(*[st.integers(1, 5)] * 3))
def test_order_ends_and_no_slot_starts_before_its_inputs(name, data, costs):
    stages, chunks, microbatches = data.draw(allowed_sizes(name))
    placement = SCHEDULES[name].placement
    order = schedule_order(name, stages, chunks, microbatches)
    forward, backward_input, backward_weight = costs
    times = slot_times(
        order,
        chunks,
        placement,
        {
            Phase.FORWARD: forward,
            Phase.BACKWARD_INPUT: backward_input,
            Phase.BACKWARD_WEIGHT: backward_weight,
            Phase.BACKWARD: backward_input + backward_weight,
        },
    )
    when = {
        (slot.phase.replace("B", "I"), slot.stage, slot.microbatch): (begin, end)
        for row, begins, ends in zip(order, times.start, times.end, strict=True)
        for slot, begin, end in zip(row, begins, ends, strict=True)
    }
    for (phase, stage, microbatch), (begin, _) in when.items():
        if phase == "F":
            if not placement.is_first(stage, stages, chunks):
                assert begin >= when["F", stage - 1, microbatch][1]
        elif phase == "I":
            assert begin >= when["F", stage, microbatch][1]
            if not placement.is_last(stage, stages, chunks):
                assert begin >= when["I", stage + 1, microbatch][1]
        else:
            assert begin >= when["I", stage, microbatch][1]


@every_schedule
@enough
@given(data=st.data())
def test_activations_in_flight_stay_within_the_stated_bound(name, data):
    stages, chunks, microbatches = data.draw(allowed_sizes(name))
    info = SCHEDULES[name]
    order = schedule_order(name, stages, chunks, microbatches)
    held = slot_times(order, chunks, info.placement).in_flight
    bounds = [info.in_flight(rank, stages, chunks, microbatches) for rank in range(stages)]
    assert all(peak <= bound for peak, bound in zip(held, bounds, strict=True)), (held, bounds)


@every_schedule
@enough
@given(data=st.data())
def test_order_survives_blocking_sends_with_its_stated_buffers(name, data):
    stages, chunks, microbatches = data.draw(allowed_sizes(name))
    info = SCHEDULES[name]
    order = schedule_order(name, stages, chunks, microbatches)
    buffers = info.buffers(stages, chunks, microbatches)
    assert blocked_ranks(order, chunks, info.placement, buffers) == []


@every_schedule
@enough
@given(data=st.data())
def test_order_survives_writing_and_reading(name, data):
    order = schedule_order(name, *data.draw(allowed_sizes(name)))
    assert read_order(write_order(order)) == order


@every_schedule
@enough
@given(sizes=st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 20)))
def test_sizes_are_either_refused_or_run(name, sizes):
    try:
        SCHEDULES[name].check(*sizes)
    except UnsupportedError:
        return
    _, chunks, microbatches = sizes
    order = schedule_order(name, *sizes)
    done = slot_times(order, chunks, SCHEDULES[name].placement)
    assert done.makespan >= 3 * microbatches * chunks
