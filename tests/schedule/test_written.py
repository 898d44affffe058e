"""Is an order from a file the schedule it describes, and is one that cannot run refused?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError, UnsupportedError
from simulator.schedule import SCHEDULES, Placement, ScheduleInfo, schedule_order
from simulator.schedule.written import write_order, written_schedule


def faults_of(text: str) -> dict[str, str]:
    """Faults of a file by place, as ``value rule; hint``."""
    with pytest.raises(InputError) as caught:
        written_schedule(text, "mine.csv")
    assert {fault.file for fault in caught.value.faults} == {"mine.csv"}
    return {
        fault.path: f"{fault.value} {fault.rule}; {fault.hint}" for fault in caught.value.faults
    }


@pytest.mark.parametrize("info", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8)])
def test_a_written_order_is_read_as_the_schedule_it_was(info, stages, microbatches):
    sizes = (stages, info.chunks[0], microbatches)
    order = schedule_order(info.name, *sizes)
    read = written_schedule(write_order(order), "mine.csv")
    assert read.order(*sizes) == order
    assert (read.sizes, read.chunks) == (sizes, (info.chunks[0],) * 2)
    assert (read.placement, read.splits_backward) == (info.placement, info.splits_backward)
    assert all(read.in_flight(r, *sizes) <= info.in_flight(r, *sizes) for r in range(stages))


@given(st.data())
def test_an_order_that_lacks_any_one_cell_is_refused_by_its_name(data):
    info: ScheduleInfo = data.draw(st.sampled_from([*SCHEDULES.values()]))
    joint = schedule_order(info.name, 4, info.chunks[0], 8)
    order = [[slot._replace(overlaps_next=False) for slot in slots] for slots in joint]
    rank = data.draw(st.integers(0, 3))
    gone = order[rank].pop(data.draw(st.integers(0, len(order[rank]) - 1)))
    with pytest.raises(InputError) as caught:
        written_schedule(write_order(order), "mine.csv")
    assert f"lacks {gone}" in str(caught.value)


@given(st.data())
def test_an_order_with_two_cells_of_a_rank_exchanged_runs_or_says_who_waits_where(data):
    info: ScheduleInfo = data.draw(st.sampled_from([SCHEDULES["1f1b"], SCHEDULES["zb-h1"]]))
    row = data.draw(st.integers(0, 3))
    order = schedule_order(info.name, 4, 1, 8)
    places = st.integers(0, len(order[row]) - 1)
    one, other = data.draw(places), data.draw(places)
    order[row][one], order[row][other] = order[row][other], order[row][one]
    try:
        rules = written_schedule(write_order(order), "mine.csv").order() != order
    except InputError as error:
        rules = [fault.rule for fault in error.faults if "waits forever for" not in fault.rule]
    assert not rules


def test_two_copies_are_told_from_a_v_by_their_microbatches():
    both_ways = written_schedule("0F0,0B0,3F1,3B1\n2F1,1F0,1B0,2B1\n", "mine.csv")
    assert both_ways.placement is Placement.BIDIRECTIONAL
    v = written_schedule("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "mine.csv")
    assert v.placement is Placement.V


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("0F0,0B0\n1F0,1F0,1B0", "row 2, column 2", "1F0 appears twice"),
        ("0F0,0B0\n1F0", "row 2", "lacks 1B0"),
        ("0F0,0I0\n1F0,1I0,1W0", "row 1", "lacks 0W0"),
        ("0F0,0I0,0W0,0B0\n1F0,1B0", "row 1, column 4", "0B0 is part of a backward that also"),
        ("0F0,1B0\n1F0,0B0", "row 1, column 2", "1B0 stage 1 belongs in row 2"),
        ("0F0,0B0\n1F0,1B0\n2F0,2B0,4F0,4B0", "", "has 5 stages for 3 ranks"),
        ("0F0,0B0,0F2,0B2\n1F0,1B0,1F2,1B2", "", "lacks microbatch 1"),
        ("0F0,0B0\n1B0,1F0", "row 2, column 1", "waits forever for 1F0 (row 2, column 2)"),
        ("0F1,0F0,0B0,0B1\n1F0,1B1,1F1,1B0", "row 2, column 2", "waits forever for 1F1"),
        ("0F0,0SEND_F0,0B0\n1F0,1B0", "row 1, column 2", "format='compute_only'"),
        ("0F0,0B0,0F999999999999,0B999999999999", "", "lacks microbatch 1"),
    ],
)
def test_what_cannot_run_is_refused_by_row_and_cell(text, place, said):
    assert said in faults_of(text)[place]


def test_a_cell_that_waits_forever_comes_with_the_way_out():
    with pytest.raises(InputError) as caught:
        written_schedule("0F0,0B0\n1B0,1F0", "mine.csv")
    (fault, *_) = (each for each in caught.value.faults if each.path == "row 2, column 1")
    assert fault.rule == "waits forever for 1F0 (row 2, column 2)"
    assert fault.hint == "the rows wait for each other; change their order"


def test_a_mistake_that_repeats_is_told_a_dozen_times():
    doubled = "\n".join(
        f"{row},{row}" for row in write_order(schedule_order("1f1b", 4, 1, 8)).split()
    )
    assert len(faults_of(doubled)) == 12


@pytest.mark.parametrize(
    ("sizes", "path"),
    [((3, 1, 4), "plan.pp"), ((2, 2, 4), "plan.vpp"), ((2, 1, 5), "microbatches")],
)
def test_a_written_order_runs_with_its_own_sizes_only(sizes, path):
    read = written_schedule(write_order(schedule_order("1f1b", 2, 1, 4)), "mine.csv")
    read.check(2, 1, 4)
    with pytest.raises(UnsupportedError) as caught:
        read.check(*sizes)
    assert [fault.path for fault in caught.value.faults] == [path]


def test_a_cell_that_csv_does_not_read_is_a_fault_of_the_file():
    assert "is not CSV: field larger" in faults_of("0" * 131_073)[""]


def test_a_microbatch_that_only_later_chunks_run_is_missed_where_it_would_begin():
    """Two ranks hold chunks 0 and 2, and 1 and 3; microbatch 1 never enters stage 0."""
    order = schedule_order("interleaved-1f1b", 2, 2, 2)
    order[0] = [slot for slot in order[0] if (slot.stage, slot.microbatch) != (0, 1)]
    with pytest.raises(InputError) as caught:
        written_schedule(write_order(order), "mine.csv")
    assert [f"{fault.path} {fault.rule}" for fault in caught.value.faults] == [
        "row 1 lacks 0B1", "row 1 lacks 0F1",
    ]  # fmt: skip
