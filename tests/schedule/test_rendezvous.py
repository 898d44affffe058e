from simulator.schedule import Placement, schedule_order
from simulator.schedule.csv import read_order
from simulator.schedule.rendezvous import blocked_ranks


def test_send_and_next_receive_are_posted_together():
    order = read_order("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert blocked_ranks(order, 1, Placement.LOOP) == []


def test_two_ranks_that_both_send_what_the_other_is_not_ready_for_block():
    # After 0F2 rank 0 has nothing to receive and waits until 0F2 is taken; rank 1, after 1B0,
    # waits until that gradient is taken, which is before it asks for 0F2.
    order = read_order("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    assert blocked_ranks(order, 1, Placement.LOOP) == [0, 1]


def test_looping_orders_block_where_the_last_rank_sends_back_to_a_busy_first():
    order = schedule_order("looped-bfs", 2, 2, 4)
    assert blocked_ranks(order, 2, Placement.LOOP) == [0, 1]


def test_messages_inside_a_rank_need_no_rendezvous():
    order = read_order("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    assert blocked_ranks(order, 2, Placement.V) == []


def test_an_order_whose_message_is_never_received_blocks_its_sender():
    order = read_order("0F0,0B0\n,\n")
    assert blocked_ranks(order, 1, Placement.LOOP) == [0]
