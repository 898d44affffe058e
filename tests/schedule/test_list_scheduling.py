import pytest

from simulator.schedule import Phase, Placement
from simulator.schedule.orders.order_tools import list_schedule
from simulator.schedule.slots import slots_of


def _queues(stages: int, microbatches: int, *urgency: Phase):
    return [
        [slots_of(phase, rank, range(microbatches)) for phase in urgency] for rank in range(stages)
    ]


def _text(order):
    return [" ".join(map(str, row)) for row in order]


def test_the_most_urgent_ready_queue_goes_first():
    queues = _queues(1, 2, Phase.BACKWARD_INPUT, Phase.FORWARD, Phase.BACKWARD_WEIGHT)
    order = list_schedule(queues, 1, Placement.LOOP, limit=2)
    assert _text(order) == ["0F0 0I0 0F1 0I1 0W0 0W1"]


def test_a_forward_waits_until_there_is_room():
    queues = _queues(1, 2, Phase.BACKWARD_INPUT, Phase.FORWARD, Phase.BACKWARD_WEIGHT)
    order = list_schedule(queues, 1, Placement.LOOP, limit=1)
    assert _text(order) == ["0F0 0I0 0W0 0F1 0I1 0W1"]


def test_a_rank_is_busy_for_as_many_ticks_as_its_slot_takes():
    queues = _queues(2, 3, Phase.BACKWARD, Phase.FORWARD)
    quick = list_schedule(queues, 1, Placement.LOOP, limit=3)
    slow = list_schedule(
        queues, 1, Placement.LOOP, limit=3, duration=lambda s: 3 if s.phase is Phase.FORWARD else 1
    )
    # Rank 1 answers 0F0 at tick 3, or, slowed down, at tick 7: between 0F2 and 0F3 both times.
    assert _text(quick)[0] == "0F0 0F1 0F2 0B0 0B1 0B2"
    assert _text(slow)[0] == "0F0 0F1 0F2 0B0 0B1 0B2"
    assert _text(slow)[1] == "1F0 1B0 1F1 1B1 1F2 1B2"


def test_queues_that_can_never_run_are_a_fault():
    queues = [[slots_of(Phase.BACKWARD, 0, [0])]]
    with pytest.raises(RuntimeError, match="the queues block each other"):
        list_schedule(queues, 1, Placement.LOOP, limit=1)
