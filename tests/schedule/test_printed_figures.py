"""Orders as their papers print them, at the sizes of the figures, written down by hand.

F, B, I, W are forward, whole backward, input gradient and weight gradient; capital letters
belong to the direction that starts at the near end, small ones to the other; brackets join
two slots that run together.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from simulator.schedule import Phase, schedule_order
from simulator.schedule.orders.v_shape import PERIOD, v_half_block, v_min_block
from simulator.schedule.slots import joint_groups

DUALPIPE = {
    0: "F F F F F F | F f | i w f i w f i w f | (Fb)(fB) (Fb)(fB) (Fb)(fB) "
    "| b (fB) b (fB) b (fB) | b I | W I W I W I | W",
    1: "F F F F | F f F f | i w f i w f | (Fb)(fB) (Fb)(fB) (Fb)(fB) (Fb)(fB) "
    "| b (fB) b (fB) | b B i I | w I W I | W W",
    2: "F F | F f F f F f | i w f | (Fb)(fB) (Fb)(fB) (Fb)(fB) (Fb)(fB) (Fb)(fB) "
    "| b (fB) | b B b I i I | W I | w W W",
    3: "| F f F f F f F f | | F b (fB) (Fb)(fB) (Fb)(fB) (Fb)(fB) (Fb)(fB) (Fb)(fB) "
    "| | b B b B i I i I | | w W w W",
}
"""8 ranks, 20 microbatches: figure 5 of DeepSeek-V3 (arXiv 2412.19437), its eight parts kept
apart by bars; lengths of the parts as DeepSeek's DualPipe repository documents them. Ranks 4
to 7 mirror 3 to 0."""


def _letters(text: str) -> list[str]:
    return re.findall(r"\([A-Za-z]{2}\)|[A-Za-z]", text)


@pytest.mark.parametrize("rank", range(8))
def test_dualpipe_is_the_printed_one_on_8_ranks_with_20_microbatches(rank):
    slots = schedule_order("dualpipe", 8, 1, 20)[rank]
    near = rank if rank < 4 else 15 - rank

    def letter(slot) -> str:
        return slot.phase.value if slot.stage == near else slot.phase.value.lower()

    found = [
        f"({''.join(map(letter, group))})" if len(group) > 1 else letter(group[0])
        for group in joint_groups(slots)
    ]
    assert found == _letters(DUALPIPE[min(rank, 7 - rank)])
    for phases in ((Phase.FORWARD,), (Phase.BACKWARD, Phase.BACKWARD_INPUT)):
        for stage in {slot.stage for slot in slots}:
            seen = [s.microbatch for s in slots if s.stage == stage and s.phase in phases]
            assert seen == list(range(10 * (stage >= 8), 10 * (stage >= 8) + 10))


ZB_H1 = (
    "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 "
    "0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
    "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 "
    "1I5 1W4 1I6 1W5 1I7 1W6 1W7",
    "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 "
    "2I6 2W4 2I7 2W5 2W6 2W7",
    "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 "
    "3I7 3W4 3W5 3W6 3W7",
)
"""4 ranks, 8 microbatches: as 1F1B, every weight gradient put off by as many microbatches as
the rank has ranks before it (arXiv 2401.10241, section 2.1)."""

ZB_H2 = (
    "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5 "
    "0I6 0W6 0I7 0W7",
    "1F0 1F1 1F2 1F3 1F4 1I0 1F5 1I1 1F6 1I2 1W0 1F7 1I3 1W1 1I4 1W2 1I5 1W3 1I6 1W4 "
    "1I7 1W5 1W6 1W7",
    "2F0 2F1 2F2 2I0 2F3 2I1 2F4 2I2 2F5 2I3 2F6 2I4 2W0 2F7 2I5 2W1 2I6 2W2 2I7 2W3 "
    "2W4 2W5 2W6 2W7",
    "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 "
    "3W4 3W5 3W6 3W7",
)
"""The same with 2p - 1 - 2r forwards ahead on rank r (section 2.2)."""


@pytest.mark.parametrize(("name", "rows"), [("zb-h1", ZB_H1), ("zb-h2", ZB_H2)])
def test_handcrafted_zero_bubble_orders_are_the_described_ones_on_4_ranks(name, rows):
    order = schedule_order(name, 4, 1, 8)
    assert [" ".join(map(str, slots)) for slots in order] == list(rows)


def _in_columns(rank: int, stages: int, microbatches: int, lag: int) -> str:
    """Column x of a rank is Fx, I(x - lag (p-1-r)) and W(x - lag (p-1)), as far as they exist."""
    behind = {"F": 0, "I": lag * (stages - 1 - rank), "W": lag * (stages - 1)}
    return " ".join(
        f"{rank}{phase}{column - behind[phase]}"
        for column in range(microbatches + behind["W"])
        for phase in "FIW"
        if 0 <= column - behind[phase] < microbatches
    )


@pytest.mark.parametrize(("name", "lag"), [("zb-h1", 1), ("zb-h2", 2)])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (4, 18), (6, 12), (8, 20)])
def test_handcrafted_zero_bubble_orders_stand_in_the_columns_of_their_figures(
    name, lag, stages, microbatches
):
    """Figures 2 and 3 of arXiv 2401.10241, read column by column.

    In figure 2 a rank runs Fx, Ix-(p-1-r) and Wx-(p-1); in figure 3 both lag twice as far behind.
    """
    order = schedule_order(name, stages, 1, microbatches)
    assert [" ".join(map(str, slots)) for slots in order] == [
        _in_columns(rank, stages, microbatches, lag) for rank in range(stages)
    ]


def test_in_the_figure_of_zb_h1_f4_stands_above_i1_to_i4_and_w1():
    rows = (" ".join(map(str, slots)) for slots in schedule_order("zb-h1", 4, 1, 8))
    columns = [re.search(r"\dF4 \dI(\d) \dW(\d)", row) for row in rows]
    assert [found.groups() for found in columns if found] == [
        ("1", "1"), ("2", "1"), ("3", "1"), ("4", "1"),
    ]  # fmt: skip


V_MIN_BLOCK = ((0, 7, 8, 15), (1, 6, 9, 14), (2, 5, 10, 13), (3, 4, 11, 12))
V_HALF_BLOCK = ((0, 10, 14, 25), (2, 9, 16, 24), (4, 8, 18, 23), (6, 7, 20, 22))
"""Ticks of the first microbatch on 4 ranks: forward down, forward up, input gradient down, input
gradient up (the authors' scheduler of arXiv 2405.15362, ``zbv_greedy.py``)."""


@pytest.mark.parametrize(
    ("block", "ticks"), [(v_min_block, V_MIN_BLOCK), (v_half_block, V_HALF_BLOCK)]
)
def test_building_blocks_of_controllable_memory_are_the_authors_on_4_ranks(block, ticks):
    assert tuple(block(rank, 4) for rank in range(4)) == ticks


@pytest.mark.parametrize("block", [v_min_block, v_half_block])
@pytest.mark.parametrize("stages", range(2, 33))
def test_a_building_block_repeats_without_collision_and_the_wave_never_overtakes_itself(
    block, stages
):
    rows = [block(rank, stages) for rank in range(stages)]
    assert all(len({tick % PERIOD for tick in row}) == 4 for row in rows)
    assert all(row == tuple(sorted(row)) for row in rows)
    for above, below in pairwise(rows):
        steps = [after - before for before, after in zip(above, below, strict=True)]
        assert [step > 0 for step in steps] == [True, False, True, False]


@pytest.mark.parametrize("rank", range(4))
def test_zb_v_is_the_drawn_one_on_4_ranks(rank):
    """Figure 8 of arXiv 2401.10241 and its three phases, with 8 microbatches.

    Worker i = rank + 1 warms up with 2p - i forwards of the first chunk and i - 1 of the second,
    goes on with p - i groups of the second chunk and then with groups of both in turn, until
    forwards run out; what is left puts input gradients first.
    """
    p, microbatches = 4, 8
    slots = schedule_order("zb-v", p, 2, microbatches)[rank]
    shown = [slot.phase.value if slot.stage == rank else slot.phase.value.lower() for slot in slots]
    worker = rank + 1
    warm_up, rest = shown[: 2 * p - 1], "".join(shown[2 * p - 1 :])
    assert (warm_up.count("F"), warm_up.count("f")) == (2 * p - worker, worker - 1)
    groups = re.fullmatch(f"(fiw){{{p - worker}}}(fiwF?IW)+(?P<fiw>fiw)?(?P<drain>[IiWw]+)", rest)
    assert groups is not None
    drain = groups["drain"]
    assert all(drain[:n].upper().count("W") <= drain[:n].upper().count("I") for n in range(9))
    assert set(drain[drain.rindex("I") + 1 :].upper()) == {"W"}


def test_sagemakers_pipelines_order_passes_as_its_documentation_says():
    """Interleaved: B0 before F2 on the first of two GPUs, then in turn; simple: forwards first."""
    interleaved = schedule_order("sagemaker-interleaved", 2, 1, 4)[0]
    assert " ".join(map(str, interleaved)) == "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"
    for slots in schedule_order("sagemaker-simple", 2, 1, 4):
        assert "".join(slot.phase for slot in slots) == "FFFFBBBB"
