import pytest

from simulator.schedule import Phase, Placement, Slot


@pytest.mark.parametrize(
    ("placement", "ranks"),
    [
        (Placement.LOOP, [0, 1, 2, 0, 1, 2]),
        (Placement.V, [0, 1, 2, 2, 1, 0]),
        (Placement.BIDIRECTIONAL, [0, 1, 2, 2, 1, 0]),
    ],
)
def test_ranks_of_the_six_virtual_stages_of_three_ranks(placement, ranks):
    assert [placement.rank(stage, 3) for stage in range(6)] == ranks


@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.V])
def test_one_copy_has_one_first_and_one_last_stage(placement):
    assert placement.num_virtual_stages(3, 2) == 6
    assert [s for s in range(6) if placement.is_first(s, 3, 2)] == [0]
    assert [s for s in range(6) if placement.is_last(s, 3, 2)] == [5]


def test_two_copies_have_two_first_and_two_last_stages():
    placement = Placement.BIDIRECTIONAL
    assert placement.num_virtual_stages(3, 1) == 6
    assert [placement.model_stage(s, 3, 1) for s in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [s for s in range(6) if placement.is_first(s, 3, 1)] == [0, 3]
    assert [s for s in range(6) if placement.is_last(s, 3, 1)] == [2, 5]


@pytest.mark.parametrize(
    ("phase", "stage", "fed"),
    [("F", 0, 1), ("F", 3, None), ("B", 3, 2), ("I", 1, 0), ("I", 0, None), ("W", 2, None)],
)
def test_forwards_feed_the_next_stage_and_gradients_the_one_before(phase, stage, fed):
    assert Placement.LOOP.feeds(Slot(Phase(phase), stage, 0), stages=2, chunks=2) == fed


def test_chunk_counts_the_laps_over_the_ranks():
    assert [Placement.V.chunk(stage, 3) for stage in range(6)] == [0, 0, 0, 1, 1, 1]


def test_slot_is_written_as_torch_writes_it():
    assert str(Slot(Phase.BACKWARD_INPUT, 12, 3)) == "12I3"
