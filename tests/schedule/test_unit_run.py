"""A schedule run at unit costs: equal work, cut-off streams, activations over time."""

import pytest

from simulator.errors import InputError, UnsupportedError
from simulator.schedule import SCHEDULES
from simulator.schedule.unit_run import Level, phase_costs, run_schedule

NAMES = list(SCHEDULES)


def test_a_chunk_takes_its_share_of_the_ranks_time():
    """Megatron-LM (arXiv 2104.04473, section 2.2): bubble (p - 1)(tF + tB) / v."""
    bubbles = [run_schedule("interleaved-1f1b", 4, 8, v).bubble for v in (2, 4)]
    assert bubbles == [4.5, 2.25]


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_of_every_schedule_does_the_same_work(name):
    run = run_schedule(name, 4, 8)
    if run.info.synchronous:
        assert run.times.busy == pytest.approx([8 * (1 + 2)] * 4)
        assert run.bubble_share == pytest.approx(run.times.bubble_share)
    assert run.work == 8 * (1 + 2)


@pytest.mark.parametrize("name", NAMES)
def test_work_and_idle_time_fill_the_span_of_every_rank(name):
    run = run_schedule(name, 4, 8)
    for rank in range(4):
        idle = sum(end - start for start, end in run.idle(rank))
        busy = sum(box.end - box.start for box in run.boxes(rank))
        assert idle + busy == pytest.approx(run.span)


def test_a_pipeline_that_never_drains_has_no_bubble_once_it_is_full():
    run = run_schedule("pipedream", 4, 8)
    assert (run.span, run.step_time, run.bubble) == (33, 24, 0)
    assert max(box.slot.microbatch for box in run.boxes(0)) == 10
    assert all(run.boxes(rank)[-1].end == run.span for rank in range(4))


def test_weight_sets_are_versions_times_copies_of_the_model():
    copies = {name: run_schedule(name, 4, 8).weight_copies for name in NAMES}
    more = {name: count for name, count in copies.items() if count > 1}
    assert more == {"pipedream": 4, "pipedream-2bw": 2, "dualpipe": 2, "chimera": 2}


def test_activations_come_with_the_forward_and_go_with_the_end_of_the_backward():
    # Rank 0 runs F0 0..1, F1 1..2, B0 4..6, B1 7..9.
    assert run_schedule("1f1b", 2, 2).levels(0) == [
        Level(0, 1), Level(1, 2), Level(6, 1), Level(9, 0),
    ]  # fmt: skip


def test_a_backward_that_the_end_of_the_span_cuts_still_holds_its_activations():
    run = run_schedule("pipedream", 4, 8)
    assert run.boxes(1)[-1].end - run.boxes(1)[-1].start == 1  # half of a backward
    assert run.levels(1)[-1] == Level(31, 3)


@pytest.mark.parametrize("name", NAMES)
def test_the_highest_level_is_the_peak_and_all_is_given_back(name):
    run = run_schedule(name, 4, 8)
    for rank, peak in enumerate(run.peaks):
        held = [level.held for level in run.levels(rank)]
        assert max(held) == peak
        assert held[-1] == 0 or not run.info.synchronous


def test_peaks_are_counted_in_microbatches_of_a_whole_rank():
    """What 1F1B holds on its first rank, on every rank (arXiv 2401.10241, section 6)."""
    assert run_schedule("zb-v", 4, 8).peaks == [4, 4, 4, 4]
    assert run_schedule("1f1b", 4, 8).peaks == [4, 3, 2, 1]


def test_waits_are_what_a_rank_idles_between_its_own_start_and_end():
    assert [run_schedule("1f1b", 2, 2).waits(rank) for rank in (0, 1)] == [3, 0]
    assert run_schedule("zb-h2", 4, 8).waits(0) == 0


def test_chunks_are_the_fewest_unless_they_are_given():
    assert [run_schedule(name, 4, 8).chunks for name in ("1f1b", "zb-v", "looped-bfs")] == [1, 2, 1]
    with pytest.raises(UnsupportedError, match="runs with 1 chunk per rank"):
        run_schedule("1f1b", 4, 8, chunks=2)


@pytest.mark.parametrize(
    ("costs", "path"),
    [
        ((0, 2), "--forward"),
        ((1, -1), "--backward"),
        ((1, float("inf")), "--backward"),
        ((float("nan"), 2), "--forward"),
        ((1, 2, 0), "--weight"),
        ((1, 2, 2), "--weight"),
    ],
)
def test_a_phase_that_takes_no_time_is_refused(costs, path):
    with pytest.raises(InputError, match=path):
        phase_costs(*costs)


def test_an_order_that_is_searched_is_searched_for_the_costs_given():
    """Short weight gradients leave gaps that other forwards ahead fill."""
    costs = phase_costs(1.0, 1.5, 0.5)
    searched, fixed = (run_schedule(name, 4, 12, costs=costs) for name in ("zb-2p", "zb-h2"))
    assert searched.order != run_schedule("zb-2p", 4, 12).order
    assert max(searched.times.idle_between) < max(fixed.times.idle_between)
    assert max(searched.peaks) <= 2 * 4


def test_varunas_ranks_take_backwards_as_they_come_at_the_costs_given():
    slow = run_schedule("varuna", 4, 8, costs=phase_costs(1.0, 6.0))
    assert slow.order != run_schedule("varuna", 4, 8).order
    assert max(slow.peaks) == 8


def test_a_backward_takes_twice_a_forward_and_its_weight_gradients_half_of_it_unless_said():
    assert phase_costs() == phase_costs(1.0, 2.0, 1.0)
