"""The picture of a schedule in plain text, on examples small enough to draw by hand."""

import pytest

from simulator.schedule import SCHEDULES, Phase
from simulator.schedule.terminal_text import (
    Cell,
    Mark,
    Row,
    cell_time,
    costs_text,
    legend,
    lines_text,
    picture_lines,
    row_lines,
    sizes_text,
)
from simulator.schedule.unit_run import phase_costs, run_schedule


def picture_text(run, width=None):
    return lines_text(picture_lines(run, width))


def test_two_ranks_of_1f1b_with_two_microbatches():
    assert picture_text(run_schedule("1f1b", 2, 2)) == "\n".join(
        [
            "time    0           4           8",
            "rank 0  F0 F1 .  .  B0 -- .  B1 --",
            "rank 1  .  F0 B0 -- F1 B1 -- .  .",
        ]
    )


def test_input_and_weight_gradients_have_letters_of_their_own():
    assert picture_text(run_schedule("zb-h1", 2, 2)).splitlines()[1:] == [
        "rank 0  F0 F1 .  I0 W0 I1 W1",
        "rank 1  .  F0 I0 F1 I1 W0 W1",
    ]


def test_a_second_chunk_has_small_letters_and_half_the_time():
    run = run_schedule("interleaved-1f1b", 2, 2)
    assert cell_time(run) == 0.5
    assert picture_text(run).splitlines()[1] == (
        "rank 0  F0 F1 f0 f1 .  .  b0 -- .  b1 -- B0 -- B1 --"
    )
    assert "lower case: second chunk" in legend(run)


def test_more_chunks_are_numbered():
    run = run_schedule("interleaved-1f1b", 1, 1, 3)
    assert picture_text(run).splitlines()[1] == (
        "rank 0  F0.0 F0.1 F0.2 B0.2 --   B0.1 --   B0.0 --"
    )


def test_slots_that_run_together_are_joined_by_a_plus():
    run = run_schedule("dualpipe", 2, 4)
    assert "F1 +b2" in picture_text(run)
    assert "+ run together, lower case: the copy that goes up" in legend(run)


def test_a_schedule_that_never_drains_is_busy_to_the_end():
    last_rank = picture_text(run_schedule("pipedream", 2, 2)).splitlines()[-1]
    assert last_rank == "rank 1  .  F0 B0 -- F1 B1 -- F2 B2"


@pytest.mark.parametrize(
    ("costs", "time"),
    [
        (phase_costs(1, 2), 1),
        (phase_costs(2, 3), 1),
        (phase_costs(1.5, 2), 0.5),
        (phase_costs(1, 2.37), 1),  # one hundredth divides both; too fine to draw
    ],
)
def test_a_cell_is_the_longest_time_that_divides_all_phases_if_that_is_not_too_fine(costs, time):
    assert cell_time(run_schedule("1f1b", 2, 2, costs=costs)) == time


@pytest.mark.parametrize("costs", [phase_costs(1, 2.37), phase_costs(1, 3.1, 1.7)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_whole_slot_is_lost_where_no_cell_divides_all_phases(name, costs):
    run = run_schedule(name, 4, 8, costs=costs)
    for rank, line in enumerate(picture_lines(run)[1:]):
        letters = "".join(cell.text for cell in line[1:] if cell.text[0] not in ".-")
        drawn = letters.replace("--", "").replace("+", " ").split()
        whole = [box for box in run.boxes(rank) if box.end - box.start > cell_time(run) - 1e-9]
        assert len(whole) <= len(drawn) <= len(run.boxes(rank))
        assert run.info.synchronous <= (len(whole) == len(run.boxes(rank)))


def test_the_last_cell_shows_what_fills_the_rest_of_the_time():
    """A rest of 0.4 cells, of which the middle of a whole cell would tell nothing."""
    row = Row("rank 0", [Mark(Cell("F0"), 0.0, 2.0), Mark(Cell("~"), 2.0, 2.4)])
    assert lines_text(row_lines([row], span=2.4, cell=1.0)).splitlines()[1] == "rank 0  F0 -- ~"


def test_every_cell_knows_its_phase():
    first, *cells = picture_lines(run_schedule("1f1b", 2, 1))[1]
    assert (first.text, first.phase) == ("rank 0  ", None)
    assert [cell.phase for cell in cells] == [
        Phase.FORWARD, None, None, None, Phase.BACKWARD, Phase.BACKWARD,
    ]  # fmt: skip


def test_a_picture_wider_than_the_terminal_is_folded_at_a_mark_of_the_ruler():
    run = run_schedule("1f1b", 2, 2)
    assert picture_text(run, width=28).splitlines() == [
        "time    0",
        "rank 0  F0 F1 .  .",
        "rank 1  .  F0 B0 --",
        "",
        "time    4",
        "rank 0  B0 -- .  B1",
        "rank 1  F1 B1 -- .",
        "",
        "time    8",
        "rank 0  --",
        "rank 1  .",
    ]


@pytest.mark.parametrize("width", [1, 9, 20, 47])
def test_folding_loses_no_cell(width):
    run = run_schedule("zb-v", 3, 6)
    lines = [line for line in picture_text(run, width).splitlines() if "rank 1" in line]
    cells = [cell for line in lines for cell in line.split()[2:]]
    assert cells == picture_text(run).splitlines()[2].split()[2:]


def test_sizes_and_costs_in_words():
    assert sizes_text(1, 1) == "1 stage, 1 microbatch"
    assert sizes_text(4, 8, 2) == "4 stages of 2 chunks, 8 microbatches"
    assert costs_text(phase_costs(1, 2.5, 1)) == (
        "forward 1, backward 2.5 = input gradient 1.5 + weight gradient 1"
    )
