"""Bubble and memory of every schedule against the formulas of its paper.

p ranks, v chunks, m microbatches; tF, tI, tW are the times of forward, input gradient and
weight gradient of one slot; a whole backward takes tI + tW.
"""

import pytest

from simulator.schedule import SCHEDULES, Phase, schedule_order
from simulator.schedule.unit_time import SlotTimes, slot_times


def costs_of(t_f: float, t_i: float, t_w: float) -> dict[Phase, float]:
    return {
        Phase.FORWARD: t_f,
        Phase.BACKWARD_INPUT: t_i,
        Phase.BACKWARD_WEIGHT: t_w,
        Phase.BACKWARD: t_i + t_w,
    }


EQUAL = costs_of(1, 1, 1)


def times_of(name: str, p: int, v: int, m: int, costs=EQUAL) -> SlotTimes:
    return slot_times(schedule_order(name, p, v, m), v, SCHEDULES[name].placement, costs)


def bubble_of(times: SlotTimes) -> float:
    """Idle time of the rank that idles least, which is what the step is longer by."""
    return times.makespan - max(times.busy)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 4), (4, 8), (8, 32)])
def test_naive_keeps_one_rank_of_p_busy(p, m):
    times = times_of("naive", p, 1, m)
    assert times.bubble_share == pytest.approx((p - 1) / p)
    assert times.in_flight == [1] * p


@pytest.mark.parametrize("costs", [EQUAL, costs_of(2, 3, 4)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "dapple", "pipedream", "pipedream-2bw"])
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 2), (4, 4), (4, 8), (8, 32)])
def test_bubble_share_of_gpipe_and_1f1b_is_p_minus_1_over_m_plus_p_minus_1(name, p, m, costs):
    """GPipe section 2.3; arXiv 2006.09503 section 2.1."""
    if name == "pipedream-2bw" and m < p:
        pytest.skip("refused: an update needs p microbatches")
    assert times_of(name, p, 1, m, costs).bubble_share == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs"])
@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 4), (4, 2, 8), (4, 4, 8), (8, 2, 16)])
def test_bubble_share_of_looped_schedules_is_p_minus_1_over_vm_plus_p_minus_1(name, p, v, m):
    """Section 2.2 of arXiv 2104.04473; arXiv 2211.05953."""
    share = times_of(name, p, v, m).bubble_share
    assert share == pytest.approx((p - 1) / (v * m + p - 1))


def test_1f1b_holds_p_minus_r_microbatches_where_gpipe_holds_all():
    assert times_of("1f1b", 4, 1, 16).in_flight == [4, 3, 2, 1]
    assert times_of("gpipe", 4, 1, 16).in_flight == [16] * 4


def test_interleaving_raises_first_rank_memory_by_the_published_factor():
    """Korthikanti et al. (arXiv 2205.05198, section 4.2.3): 1 + (p - 1)/(p v) times 1F1B."""
    p, v = 8, 4
    chunks_held = times_of("interleaved-1f1b", p, v, 4 * p).in_flight[0]
    assert chunks_held / v == pytest.approx(p * (1 + (p - 1) / (p * v)))


@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1, 0.5), (2, 3, 2), (4, 4, 3)])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_h1_bubble_is_p_minus_1_times_f_plus_i_minus_w(p, costs):
    """Section 2.1 of arXiv 2401.10241, for tW <= tI."""
    t_f, t_i, t_w = costs
    times = times_of("zb-h1", p, 1, 4 * p, costs_of(*costs))
    assert bubble_of(times) == pytest.approx((p - 1) * (t_f + t_i - t_w))
    assert times.in_flight == [p] * p


def test_zb_h1_bubble_is_a_third_of_1f1b_at_equal_times():
    assert 3 * bubble_of(times_of("zb-h1", 8, 1, 24)) == bubble_of(times_of("1f1b", 8, 1, 24))


@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1, 0.5), (2, 3, 2), (4, 4, 3)])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_h2_bubble_is_p_minus_1_times_f_plus_i_minus_2w_with_twice_the_memory(p, costs):
    """Section 2.2 of arXiv 2401.10241, between a rank's own start and end, for tW <= tI."""
    t_f, t_i, t_w = costs
    times = times_of("zb-h2", p, 1, 4 * p, costs_of(*costs))
    assert max(times.idle_between) == pytest.approx((p - 1) * (t_f + t_i - 2 * t_w))
    assert times.in_flight == [2 * p - 1] * p


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_zb_2p_and_zb_v_have_no_bubble_at_equal_times(p):
    """Zero bubble with the memory of 2p and of p microbatches (arXiv 2401.10241)."""
    two_p = times_of("zb-2p", p, 1, 4 * p)
    assert two_p.idle_between == [0] * p
    assert max(two_p.in_flight) == 2 * p
    zb_v = times_of("zb-v", p, 2, 4 * p)
    assert zb_v.makespan - zb_v.busy[0] == p - 1  # the stagger of the first forwards
    assert zb_v.in_flight == [2 * p] * p  # of two chunks, so p microbatches


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_1p_with_one_chunk_is_zb_h1(p):
    assert schedule_order("zb-1p", p, 1, 4 * p) == schedule_order("zb-h1", p, 1, 4 * p)


def bubble_of_1f1b_on_two_chunks(p: int, m: int) -> float:
    """What 1F1B idles where its one stage holds both chunks."""
    return bubble_of(times_of("1f1b", p, 1, m, costs_of(2, 2, 2)))


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 16])
def test_v_half_holds_p_plus_2_over_2_microbatches_and_idles_half_of_1f1b(p):
    """The table on the project page of arXiv 2405.15362: (p + 2) // 2, about p / 2m."""
    times = times_of("v-half", p, 2, 4 * p)
    assert max(times.in_flight) == 2 * ((p + 2) // 2)
    assert bubble_of(times) <= 1 / 2 * bubble_of_1f1b_on_two_chunks(p, 4 * p)


@pytest.mark.parametrize(("p", "microbatches"), [(2, 2), (4, 2), (5, 3), (7, 3), (8, 4), (16, 6)])
def test_v_min_holds_p_plus_4_over_3_microbatches_and_idles_two_thirds_of_1f1b(p, microbatches):
    """The table on the project page of arXiv 2405.15362: (p + 4) // 3, about 2p / 3m."""
    times = times_of("v-min", p, 2, 4 * p)
    assert max(times.in_flight) == 2 * microbatches == 2 * ((p + 4) // 3)
    assert bubble_of(times) <= 2 / 3 * bubble_of_1f1b_on_two_chunks(p, 4 * p)


@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1, 0.5), (4, 4, 3)])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_dualpipe_bubble_is_half_p_minus_1_times_joint_plus_backward_minus_3w(p, costs):
    """Table 2 of arXiv 2412.19437, for tF = tI, where a joint slot takes the sum of its halves."""
    t_f, t_i, t_w = costs
    per_step = (t_f + t_i + t_w) + (t_i + t_w) - 3 * t_w
    times = times_of("dualpipe", p, 1, 4 * p, costs_of(*costs))
    assert bubble_of(times) == pytest.approx((p / 2 - 1) * per_step)
    assert times.in_flight == [p + 1] * p
    cut_in_half = times_of("dualpipev", p, 2, 4 * p, costs_of(*costs))
    assert bubble_of(cut_in_half) == pytest.approx((p - 1) * per_step)
    assert cut_in_half.in_flight == [2 * p + 1] * p


@pytest.mark.parametrize("units", [1, 2, 4])
@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_chimera_idles_p_minus_2_of_2m_plus_p_minus_2(p, units):
    """Section 3 of arXiv 2107.06925, with forward and backward of equal time."""
    m = units * p
    times = times_of("chimera", p, 1, m, {Phase.FORWARD: 1, Phase.BACKWARD: 1})
    assert times.bubble_share == pytest.approx((p - 2) / (2 * m + p - 2))
    assert times.in_flight == [p // 2 + 1 + min(r, p - 1 - r) for r in range(p)]


@pytest.mark.parametrize("p", [4, 6, 8])
def test_chimera_unit_idles_p_minus_2_of_three_halves_p_plus_p_minus_2_with_real_backwards(p):
    """Section 3 of arXiv 2107.06925: a backward that takes twice the forward, m = p."""
    times = times_of("chimera", p, 1, p)
    assert times.bubble_share == pytest.approx((p - 2) / (1.5 * p + p - 2))


def test_varuna_is_what_the_precedence_of_its_generator_gives():
    """Weight gradient, input gradient, recomputation, forward; followed tick by tick."""
    assert [" ".join(map(str, row)) for row in schedule_order("varuna", 4, 1, 8)] == [
        "0F0 0F1 0F2 0F3 0F4 0F5 0F6 0F7 0B0 0B1 0B2 0B3 0B4 0B5 0B6 0B7",
        "1F0 1F1 1F2 1F3 1F4 1F5 1B0 1B1 1B2 1F6 1F7 1B3 1B4 1B5 1B6 1B7",
        "2F0 2F1 2F2 2B0 2B1 2B2 2F3 2F4 2F5 2B3 2B4 2B5 2F6 2F7 2B6 2B7",
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7",
    ]
