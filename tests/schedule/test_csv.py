import pytest

from simulator.errors import InputError
from simulator.schedule import Phase, Slot
from simulator.schedule.written import read_order, write_order


def test_rows_are_ranks_and_cells_are_slots():
    assert read_order("0F0,0I0,0W0\n12F3,12B3\n") == [
        [
            Slot(Phase.FORWARD, 0, 0),
            Slot(Phase.BACKWARD_INPUT, 0, 0),
            Slot(Phase.BACKWARD_WEIGHT, 0, 0),
        ],
        [Slot(Phase.FORWARD, 12, 3), Slot(Phase.BACKWARD, 12, 3)],
    ]


def test_empty_cells_are_idle_and_dropped():
    assert read_order("0F0,,,0B0\n,1F0, 1B0,\n") == read_order("0F0,0B0\n1F0,1B0\n")


def test_a_rank_that_only_idles_keeps_its_row():
    assert read_order("0F0,0B0\n,,\n") == [read_order("0F0,0B0")[0], []]


def test_joint_cell_is_two_slots_that_overlap():
    order = [[Slot(Phase.FORWARD, 0, 3, overlaps_next=True), Slot(Phase.BACKWARD, 7, 1)]]
    assert read_order("(0F3;7B1)OVERLAP_F_B\n") == order
    assert write_order(order) == "(0F3;7B1)OVERLAP_F_B\n"


@pytest.mark.parametrize(
    "cell", ["F0", "0F", "0X1", "0f1", "-1F0", "0F0 0B0", "0F1.5", "(0F3;7B1)", "0SEND_F1", "٣F0"]
)
def test_bad_cell_is_refused_with_row_column_and_content(cell):
    with pytest.raises(InputError) as caught:
        read_order(f"0F0\n1F0,{cell}\n", file="order.csv")
    (fault,) = caught.value.faults
    assert (fault.path, fault.value, fault.file) == ("row 2, column 2", cell, "order.csv")


def test_all_bad_cells_are_listed():
    with pytest.raises(InputError) as caught:
        read_order("a,0F0,b\nc\n")
    assert [fault.value for fault in caught.value.faults] == ["a", "b", "c"]


def test_an_order_without_slots_is_refused():
    with pytest.raises(InputError, match="has no slots"):
        read_order(" \n,,\n")
