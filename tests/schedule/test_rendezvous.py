import pytest

from simulator.schedule import SCHEDULES, Placement, schedule_order
from simulator.schedule.orders.one_f_one_b import paired_interleaved
from simulator.schedule.rendezvous import blocked_ranks, buffers_needed
from simulator.schedule.written import read_order

RENDEZVOUS = {
    "naive", "gpipe", "pipedream", "pipedream-2bw", "1f1b", "dapple", "zb-h1", "v-min", "chimera",
    "sagemaker-simple", "sagemaker-interleaved",
}  # fmt: skip


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


def test_a_buffer_for_one_message_frees_two_ranks_that_send_to_each_other():
    order = read_order("0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    assert blocked_ranks(order, 1, Placement.LOOP, buffers=1) == []
    assert buffers_needed(order, 1, Placement.LOOP) == 1


def test_a_receive_takes_its_message_though_others_lie_before_it():
    order = read_order("0F0,0F1,0B1,0B0\n1F1,1F0,1B1,1B0\n")
    assert buffers_needed(order, 1, Placement.LOOP) == 1


@pytest.mark.parametrize(
    ("name", "sizes", "messages"),
    [
        ("zb-h2", (4, 1, 12), 1),
        ("zb-2p", (4, 1, 12), 1),
        ("zb-v", (4, 2, 12), 1),
        ("v-half", (4, 2, 12), 1),
        ("dualpipe", (4, 1, 12), 1),
        ("dualpipev", (4, 2, 12), 1),
        ("varuna", (4, 1, 12), 2),
        ("interleaved-1f1b", (8, 3, 32), 1),
        ("looped-bfs", (4, 2, 32), 7),
        ("interleaved-1f1b", (7, 2, 20), 3),
        ("zb-1p", (5, 3, 20), 3),
        *((name, (4, SCHEDULES[name].chunks[0], 12), 0) for name in sorted(RENDEZVOUS)),
    ],
)
def test_stated_buffers_are_the_fewest(name, sizes, messages):
    info = SCHEDULES[name]
    order = schedule_order(name, *sizes)
    assert buffers_needed(order, sizes[1], info.placement) == info.buffers(*sizes) == messages


@pytest.mark.parametrize(("stages", "chunks", "rounds"), [(2, 2, 1), (4, 2, 4), (8, 3, 2)])
def test_interleaved_passes_that_exchange_in_one_call_need_no_buffers(stages, chunks, rounds):
    """Megatron-LM runs them with blocking exchanges."""
    order = paired_interleaved(stages, chunks, rounds * stages)
    assert buffers_needed(order, chunks, Placement.LOOP) == 0
