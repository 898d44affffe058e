"""What a caching allocator reserves, by the rules of PyTorch's."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.caching_allocator import CachingAllocator, request
from simulator.results.allocator.exchanges import Exchange
from tests.results.plain_allocator import reserved_bytes

KIB, MIB = 2**10, 2**20
few = settings(max_examples=60, deadline=None)


class Taker:
    """An allocator that is asked for one block after another.

    Those that it gives are stacks of one.
    """

    def __init__(self, *arguments, **options):
        self.allocator = CachingAllocator(*arguments, **options)

    def take(self, num_bytes):
        stack = self.allocator.stack(request(num_bytes))
        self.allocator.take([stack])
        return stack

    def give(self, stack):
        self.allocator.give([stack])

    def size(self, stack):
        return self.allocator.blocks.size_bytes[stack.taken[-1]]

    def __getattr__(self, name):
        return getattr(self.allocator, name)


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes", "segment_bytes"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (1 * MIB, 1 * MIB, 2 * MIB),
        (1 * MIB + 1, 1 * MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
    ],
)
def test_requests_are_rounded_and_segments_have_the_sizes_of_their_class(
    request_bytes, block_bytes, segment_bytes
):
    allocator = Taker()
    size = allocator.size(allocator.take(request_bytes))
    assert allocator.reserved_bytes == segment_bytes
    assert size in (block_bytes, segment_bytes)


def test_a_segment_of_two_mib_serves_four_thousand_small_tensors():
    allocator = Taker()
    for _ in range(4096):
        allocator.take(300)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.take(300)
    assert allocator.reserved_bytes == 4 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    allocator = Taker()
    sizes = [100 * MIB, 40 * MIB, 60 * MIB]
    for block in [allocator.take(size) for size in sizes]:
        allocator.give(block)
    assert allocator.size(allocator.take(50 * MIB)) == 50 * MIB
    assert allocator.size(allocator.take(40 * MIB)) == 40 * MIB
    assert allocator.size(allocator.take(10 * MIB)) == 10 * MIB
    assert allocator.reserved_bytes == sum(sizes)


def test_a_large_block_is_not_split_for_a_rest_of_one_mib():
    allocator = Taker()
    allocator.give(allocator.take(20 * MIB))
    assert allocator.size(allocator.take(19 * MIB)) == 20 * MIB


def test_free_neighbours_are_joined_but_segments_never_are():
    allocator = Taker()
    blocks = [allocator.take(5 * MIB) for _ in range(4)]
    assert allocator.reserved_bytes == 20 * MIB
    for block in blocks:
        allocator.give(block)
    allocator.take(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    others = [allocator.take(30 * MIB) for _ in range(2)]
    for block in others:
        allocator.give(block)
    allocator.take(60 * MIB)
    assert allocator.reserved_bytes == (20 + 60 + 60) * MIB


def test_growing_sequences_fragment_and_expandable_segments_do_not():
    """Each pass needs a little more than the last; nothing cached is large enough."""
    steps = [Exchange((size * MIB,), (size * MIB,)) for size in range(100, 200, 10)]
    assert reserved_bytes(steps, AllocatorSettings(False)) == sum(range(100, 200, 10)) * MIB
    grown = reserved_bytes(steps, AllocatorSettings(True))
    assert 190 * MIB <= grown < 210 * MIB


def test_expandable_segments_whose_large_blocks_serve_nothing_smaller_grow_as_published():
    """Reserved after every twentieth cycle of pytorch/pytorch, pull request 193400.

    Each takes 91 and 45.5 MiB, and 2 MiB that stay behind them; 64 MiB are there before.
    """
    allocator = Taker(AllocatorSettings(True, max_split_bytes=128 * MIB))
    allocator.take(64 * MIB)
    found = []
    for cycle in range(101):
        pair = [allocator.take(size * MIB) for size in (91, 45.5)]
        allocator.take(2 * MIB)
        for block in pair:
            allocator.give(block)
        if cycle % 20 == 0:
            found.append(allocator.reserved_bytes / MIB)
    assert found == pytest.approx([220, 2980, 5760, 8520, 11300, 14060], rel=0.01)


@given(
    st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
    st.booleans(),
)
@few
def test_books_balance_whatever_comes_and_goes(sizes, random, expandable):
    allocator = Taker(AllocatorSettings(expandable))
    alive, most = [], 0
    for size in sizes:
        alive.append(allocator.take(size))
        most = max(most, sum(allocator.size(block) for block in alive))
        assert allocator.reserved_bytes >= most
        if random.random() < 0.5:
            allocator.give(alive.pop(random.randrange(len(alive))))
    for block in alive:
        allocator.give(block)
    before = allocator.reserved_bytes
    if expandable:
        return
    for size in sorted(sizes, reverse=True)[:1]:
        allocator.take(size)
    assert allocator.reserved_bytes == before


@given(st.integers(1, 40 * MIB), st.integers(1, 30))
@few
def test_a_second_step_of_equal_blocks_reserves_nothing_more(size, count):
    step = [Exchange((size,) * count, (size,) * count)]
    once = reserved_bytes(step, AllocatorSettings(False))
    assert reserved_bytes(step * 3, AllocatorSettings(False)) == once


def reserved_one_by_one(exchanges, *, expandable):
    """Nothing is passed over."""
    allocator, taken = Taker(AllocatorSettings(expandable)), {}
    for takes, gives, *_ in exchanges:
        for size in takes:
            taken.setdefault(size, []).append(allocator.take(size))
        for size in gives:
            allocator.give(taken[size].pop())
    return allocator.reserved_bytes


@given(
    st.lists(st.lists(st.integers(1, 30 * MIB), min_size=1, max_size=5), min_size=1, max_size=4),
    st.integers(1, 30 * MIB),
    st.integers(0, 4),
    st.integers(1, 12),
    st.integers(1, 3),
    st.booleans(),
)
@few
def test_passing_over_repeats_reserves_what_running_them_would(
    kept, held, warm_up, repeats, steps, expandable
):
    forward = [Exchange((held, *sizes), (held,)) for sizes in kept]
    backward = [Exchange((2 * held,), (2 * held, *sizes)) for sizes in reversed(kept)]
    step = forward * warm_up + (forward + backward) * repeats + backward * warm_up
    step = [*step, Exchange((50 * MIB,), (50 * MIB,)), *(forward + backward) * repeats]
    expected = reserved_one_by_one(step * steps, expandable=expandable)
    assert reserved_bytes(step, AllocatorSettings(expandable), steps=steps) == expected


@pytest.fixture
def served(monkeypatch):
    """Every request that is served, not counting those that are passed over."""
    requests = []
    take = CachingAllocator.take

    def taken(self, stacks):
        requests.extend(stack.size for stack in stacks)
        take(self, stacks)

    monkeypatch.setattr(CachingAllocator, "take", taken)
    return requests


def test_microbatches_that_repeat_themselves_are_not_replayed(served):
    forward, backward = Exchange((5 * MIB, MIB), (MIB,)), Exchange((2 * MIB,), (2 * MIB, 5 * MIB))
    reserved_bytes([forward, backward] * 1000, AllocatorSettings(False))
    assert len(served) < 20


def test_a_full_device_gets_unused_segments_back_before_a_new_one_is_made():
    """Without room for both, what the first pass left has to go; what is in use stays."""
    allocator = Taker(room_bytes=100 * MIB)
    allocator.take(20 * MIB)
    allocator.give(allocator.take(50 * MIB))
    allocator.take(60 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    assert allocator.most_reserved_bytes == 80 * MIB


def test_a_segment_that_is_in_use_in_part_is_never_returned():
    allocator = Taker(room_bytes=100 * MIB)
    allocator.give(allocator.take(60 * MIB))
    allocator.take(20 * MIB)
    allocator.take(50 * MIB)
    assert allocator.reserved_bytes == 110 * MIB


def test_more_than_there_is_is_reserved_where_nothing_can_be_returned():
    steps = [Exchange((80 * MIB, 40 * MIB), ())]
    reserved = reserved_bytes(steps, AllocatorSettings(False), room_bytes=100 * MIB)
    assert reserved == 120 * MIB


@given(st.lists(st.integers(1, 40 * MIB), min_size=1, max_size=20), st.integers(0, 400 * MIB))
@few
def test_a_small_device_holds_no_more_than_its_room_or_what_one_block_needs(sizes, room):
    steps = [Exchange((size,), (size,)) for size in sizes]
    free = reserved_bytes(steps, AllocatorSettings(False))
    squeezed = reserved_bytes(steps, AllocatorSettings(False), room_bytes=room)
    assert squeezed <= max(room, reserved_bytes(steps, AllocatorSettings(False), room_bytes=0))
    if room >= free:
        assert squeezed == free


def test_what_a_small_device_got_back_may_return_in_a_larger_segment():
    steps = [Exchange((size,), (size,)) for size in (10 * MIB, 1, MIB + 1)]
    assert reserved_bytes(steps, AllocatorSettings(False)) == 12 * MIB
    assert reserved_bytes(steps, AllocatorSettings(False), room_bytes=0) == 20 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_what_one_stream_has_freed_serves_no_other(expandable):
    compute, gathers = (Exchange((40 * MIB,), (40 * MIB,)), Exchange((), (), *[(40 * MIB,)] * 2))
    assert reserved_bytes([compute] * 2, AllocatorSettings(expandable)) == 40 * MIB
    assert reserved_bytes([compute, gathers], AllocatorSettings(expandable)) == 80 * MIB


def test_repeats_are_passed_over_wherever_in_memory_they_lie(served):
    """Blocks of equal segments change places from pass to pass, and nothing depends on it."""
    kept, temporary = (20 * MIB, 30 * MIB), (30 * MIB,)
    forward, backward = (
        Exchange((*kept, *temporary), temporary),
        Exchange(temporary, (*temporary, *kept)),
    )
    steps = [forward] + [forward, backward] * 200
    expected = reserved_one_by_one(steps, expandable=False)
    served.clear()
    assert reserved_bytes(steps, AllocatorSettings(False)) == expected
    assert len(served) < 40


def test_repeats_are_passed_over_whichever_blocks_stay_beside_them(served):
    """Free blocks rotate between those that the first microbatches hold until the end."""
    kept, working, again = (3 * MIB, 16 * MIB, 16 * MIB, 40 * MIB), (30 * MIB,) * 2, (12 * MIB,)
    forward = Exchange((*kept, *working), working)
    backward = Exchange(again, (*again, *kept))
    step = [forward] * 6 + [forward, backward] * 100 + [backward] * 6
    expected = reserved_one_by_one(step * 2, expandable=False)
    served.clear()
    assert reserved_bytes(step, AllocatorSettings(False), steps=2) == expected
    assert len(served) < 200


def test_rounds_of_microbatches_that_repeat_themselves_are_not_replayed(served):
    """Two chunks take turns: four microbatches of one, four of the other, and so on."""
    forward, backward = Exchange((30 * MIB, 12 * MIB), ()), Exchange((), (30 * MIB, 12 * MIB))
    other = Exchange((16 * MIB, 3 * MIB) * 2, ()), Exchange((), (16 * MIB, 3 * MIB) * 2)
    a_round = [forward, backward] * 8 + [*other] * 8
    expected = reserved_one_by_one(a_round * 50, expandable=False)
    served.clear()
    assert reserved_bytes(a_round * 50, AllocatorSettings(False)) == expected
    assert len(served) < 150


def calls_of(function, *arguments, **options):
    """How many functions, of Python and of C, are called meanwhile; no clock says that as well."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        function(*arguments, **options)
    finally:
        sys.setprofile(None)
    return calls


def test_work_grows_with_the_layers_even_where_a_full_device_gives_segments_back_for_each():
    def forward_and_backward(layers):
        kept = [Exchange((30 * MIB, 50 * MIB), (50 * MIB,)) for _ in range(layers)]
        freed = [Exchange((70 * MIB,), (70 * MIB, 30 * MIB)) for _ in range(layers)]
        return kept + freed

    few_calls, many_calls = (
        calls_of(
            reserved_bytes,
            forward_and_backward(layers),
            AllocatorSettings(False),
            room_bytes=100 * MIB,
        )
        for layers in (200, 800)
    )
    assert many_calls < 4.2 * few_calls


SPLITS_TO_64_MIB = AllocatorSettings(max_split_bytes=64 * MIB)


def test_a_block_that_is_never_split_serves_only_requests_about_as_large():
    """100 MiB are free, but not for 30; for 90 they are, as less than 20 MiB would be lost."""
    large, small, similar = (Exchange((n * MIB,), (n * MIB,)) for n in (100, 30, 90))
    assert reserved_bytes([large, small], SPLITS_TO_64_MIB) == 130 * MIB
    assert reserved_bytes([large, small], AllocatorSettings()) == 100 * MIB
    assert reserved_bytes([large, similar], SPLITS_TO_64_MIB) == 100 * MIB


def test_a_full_device_gets_back_one_large_block_and_keeps_the_others():
    steps = [Exchange((100 * MIB,), (100 * MIB,)), Exchange((30 * MIB,), (30 * MIB,)),
             Exchange((80 * MIB,), (80 * MIB,)), Exchange((30 * MIB,), (30 * MIB,))]  # fmt: skip
    assert reserved_bytes(steps, SPLITS_TO_64_MIB, room_bytes=130 * MIB) == 130 * MIB
    assert reserved_bytes(steps, SPLITS_TO_64_MIB) == 210 * MIB


def test_what_is_unused_for_longest_is_returned_above_a_threshold():
    """80 MiB are asked for beside 2, and 50 and 60 that are free, where 145 may be: 50 go."""
    take = [Exchange((n * MIB,), ()) for n in (50, 60)]
    give = [Exchange((), (n * MIB,)) for n in (50, 60)]
    steps = [*take, give[0], Exchange((MIB,), (MIB,)), give[1], Exchange((80 * MIB,), ())]
    allocator_bytes = reserved_bytes(steps, AllocatorSettings(), collects_above_bytes=145 * MIB)
    assert allocator_bytes == 142 * MIB
    assert reserved_bytes(steps, AllocatorSettings()) == 192 * MIB


def test_what_lingers_serves_nothing_else_but_on_a_full_device():
    """The loss could be made of what the sum left, but for the stream that reads it."""
    size = 40 * MIB
    layer, loss = Exchange((), (), lingers=(size,)), Exchange((size,), (size,), lingers=(size,))
    settings = AllocatorSettings()
    assert reserved_bytes([layer, layer], settings) == size
    assert reserved_bytes([layer, loss], settings) == 2 * size
    assert reserved_bytes([layer, loss], settings, room_bytes=2 * size) == size


@pytest.mark.parametrize(("kept", "reserved"), [(20, 80), (40, 80), (60, 100)])
def test_what_the_first_step_keeps_lies_where_others_were_which_then_lie_elsewhere(kept, reserved):
    """Half a block is of no use to the next step's; what no free block holds gets its own."""
    layer = Exchange((40 * MIB,), (40 * MIB,))
    first = [layer, Exchange((kept * MIB,), ())]
    settings = AllocatorSettings()
    assert reserved_bytes([layer], settings, steps=3, first=first) == reserved * MIB


def test_what_is_gathered_into_serves_neither_the_compute_stream_nor_that_of_reductions():
    size = 40 * MIB
    layer, shards = Exchange((size,), (size,)), Exchange((), (), (size,), (size,))
    gather = Exchange((), (), buffers=(size,))
    assert reserved_bytes([gather, layer, shards, gather], AllocatorSettings()) == 3 * size
