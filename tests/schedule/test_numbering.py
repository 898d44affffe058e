from simulator.schedule import Phase
from simulator.schedule.orders.order_tools import joint, numbered, step

F, B, BI, W = (step(phase, 5) for phase in Phase)


def _text(pattern, microbatches):
    return " ".join(map(str, numbered(pattern, microbatches)))


def test_forwards_and_backwards_of_a_stage_count_up():
    assert _text([F, F, B, F, B, B], 3) == "5F0 5F1 5B0 5F2 5B1 5B2"


def test_a_weight_gradient_takes_the_oldest_open_microbatch():
    assert _text([F, F, F, BI, B, BI, W, W], 3) == "5F0 5F1 5F2 5I0 5B1 5I2 5W0 5W2"


def test_slots_beyond_the_last_microbatch_are_dropped():
    assert _text([F, F, F, BI, BI, W, W, BI, W], 2) == "5F0 5F1 5I0 5I1 5W0 5W1"


def test_stages_count_apart():
    assert _text([F, step(Phase.FORWARD, 6), F], 2) == "5F0 6F0 5F1"


def test_joint_slots_stay_joint():
    assert [slot.overlaps_next for slot in numbered([F, *joint(F, B)], 2)] == [False, True, False]
