"""Earliest-start execution, on orders small enough to follow by eye."""

import pytest

from simulator.errors import InputError
from simulator.schedule import Phase, Placement
from simulator.schedule.unit_time import peak_in_flight, slot_times
from simulator.schedule.written import read_order


def test_two_ranks_of_1f1b_step_by_step():
    order = read_order("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    times = slot_times(order, 1, Placement.LOOP)
    assert times.start == [[0, 1, 4, 7], [1, 2, 4, 5]]
    assert times.end == [[1, 2, 6, 9], [2, 4, 5, 7]]
    assert times.busy == [6, 6]
    assert times.makespan == 9
    assert times.bubble_share == pytest.approx(1 / 3)
    assert times.idle_between == [3, 0]
    assert times.in_flight == [2, 1]


def test_gradients_leave_after_the_input_gradient_alone_where_the_backward_is_split():
    whole = slot_times(read_order("0F0,0B0\n1F0,1B0\n"), 1, Placement.LOOP)
    split = slot_times(read_order("0F0,0I0,0W0\n1F0,1I0,1W0\n"), 1, Placement.LOOP)
    assert whole.start[0][1] == 4
    assert split.start[0][1] == 3


def test_costs_scale_the_slots_of_their_phase():
    costs = {
        Phase.FORWARD: 2,
        Phase.BACKWARD: 0,
        Phase.BACKWARD_INPUT: 5,
        Phase.BACKWARD_WEIGHT: 7,
    }
    times = slot_times(read_order("0F0,0I0,0W0\n"), 1, Placement.LOOP, costs)
    assert times.end == [[2, 7, 14]]


def test_joint_slots_start_on_the_inputs_of_both():
    alone = slot_times(read_order("0F0,0F1,1F0,1B0,0B0,1F1,1B1,0B1\n"), 2, Placement.LOOP)
    assert alone.makespan == 12
    # Rank 0 must not start the forward of microbatch 1 before the gradient of 0 is there.
    joined = slot_times(read_order("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"), 1,
                        Placement.LOOP)  # fmt: skip
    assert joined.start[0] == [0, 4, 5, 8]


def test_v_placement_hands_over_inside_the_turning_rank():
    times = slot_times(read_order("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"), 2, Placement.V)
    assert times.start == [[0, 3, 4, 10], [1, 2, 6, 8]]


def test_the_second_copy_of_a_bidirectional_pipeline_waits_for_nobody():
    order = read_order("0F0,3F1,3B1,0B0\n2F1,1F0,1B0,2B1\n")
    times = slot_times(order, 1, Placement.BIDIRECTIONAL)
    assert times.start == [[0, 1, 2, 4], [0, 1, 2, 4]]


def test_activations_are_held_from_forward_to_weight_gradient():
    (slots,) = read_order("0F0,0F1,0I0,0F2,0W0,0I1,0W1,0I2,0W2")
    assert peak_in_flight(slots) == 3


def test_an_order_that_waits_for_itself_is_refused_with_the_blocked_slots():
    order = read_order("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n")
    with pytest.raises(InputError, match="rank 0 at 0B0, rank 1 at 1F1"):
        slot_times(order, 1, Placement.LOOP)


def test_a_backward_before_its_own_forward_is_refused():
    with pytest.raises(InputError, match="rank 0 at 0B0"):
        slot_times(read_order("0B0,0F0\n"), 1, Placement.LOOP)


def test_a_weight_gradient_needs_its_input_gradient():
    with pytest.raises(InputError, match="rank 0 at 0W0"):
        slot_times(read_order("0F0,0W0,0I0\n"), 1, Placement.LOOP)
