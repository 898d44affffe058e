"""What is passed over, counted or not replayed changes no byte of what an allocator reserves."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.plan.plan_blocks import AllocatorSettings
from simulator.results.allocator.exchanges import Exchange
from tests.results.plain_allocator import MIB, PlainAllocator, reserved_bytes

KIB = 2**10
several = settings(max_examples=150, deadline=None)


def plain_reserved(exchanges, allocator, *, steps=1, started=None, first=(), has_room=True):
    """One block at a time, every step."""
    taken = {}
    orders = [[started] if started else [], first or exchanges, *[exchanges] * (steps - 1)]
    for each in (each for order in orders for each in order):
        lingers = each.lingers if has_room else ()
        for stream, sizes in enumerate((lingers + each.takes, each.own_stream_takes, each.buffers)):
            for size in sizes:
                taken.setdefault((size, stream), []).append(allocator.take(size, stream))
        for stream, sizes in enumerate((lingers + each.gives, each.own_stream_gives, each.buffers)):
            for size in sizes:
                allocator.give(taken[size, stream].pop())
    return allocator.most


sizes = st.sampled_from(
    [4 * KIB, 100 * KIB, 256 * KIB, 512 * KIB, MIB, 1.5 * MIB, 2 * MIB, 3 * MIB, 8 * MIB, 10 * MIB,
     11 * MIB, 12.5 * MIB, 16 * MIB, 16 * MIB - 100, 20 * MIB, 21 * MIB, 24 * MIB, 32 * MIB,
     36 * MIB, 40 * MIB, 56 * MIB, 64 * MIB, 100 * MIB]
)  # fmt: skip
layers = st.lists(sizes, min_size=1, max_size=8).map(tuple)


@st.composite
def steps_of_layers(draw):
    """Warm-up, microbatches and the rest, with working blocks, other streams and updates."""
    layer, working, again = draw(layers), draw(layers), draw(layers)
    many, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    lingers = draw(st.just(()) | layers.map(lambda each: each[:1]))
    loss = draw(st.just(()) | layers)
    temporary = Exchange(working, working)
    forward = Exchange(layer * many, (), lingers=lingers)
    backward = Exchange(again, (*again, *layer * many))
    head = Exchange((*loss, *again), (*again, *loss))
    gather = Exchange((), (), buffers=draw(st.just(()) | layers))
    shards = Exchange((), (), *[draw(st.just(()) | layers)] * 2)
    forwards = [gather, forward, temporary] * chunks
    backwards = [gather, backward, shards] * chunks
    warm_up, microbatches = draw(st.integers(0, 4)), draw(st.integers(1, 7))
    rounds = draw(st.integers(1, 3))
    step = [*forwards * warm_up, *[*forwards, head, *backwards] * microbatches]
    step = step * rounds + backwards * warm_up
    if draw(st.booleans()) and warm_up == 0 and rounds == 1:
        step = [*forwards * microbatches, *backwards * microbatches] * 2
    if warm_up and rounds > 1:
        step += backwards * (warm_up * (rounds - 1))
    update = Exchange(draw(layers), ())
    first = draw(st.just(()) | st.just((*step, update)))
    return step, first, draw(st.integers(1, 4))


@given(steps_of_layers(), st.booleans(), st.sampled_from([math.inf, math.inf, 24 * MIB, 64 * MIB]))
@several
def test_every_byte_is_as_if_each_block_of_each_step_were_asked_for(step, expandable, max_split):
    exchanges, first, steps = step
    asked = AllocatorSettings(expandable, max_split_bytes=max_split)
    plain = PlainAllocator(expandable, max_split)
    expected = plain_reserved(exchanges, plain, steps=steps, first=first)
    assert reserved_bytes(exchanges, asked, steps=steps, first=first) == expected


@given(
    steps_of_layers(),
    st.sampled_from([math.inf, math.inf, 24 * MIB]),
    st.floats(0.3, 1.1),
    st.none() | st.floats(0.2, 1.0),
)
@several
def test_every_byte_is_as_if_each_were_asked_of_a_device_that_is_full(
    step, max_split, share, collects
):
    exchanges, first, steps = step
    asked = AllocatorSettings(max_split_bytes=max_split)
    room = share * reserved_bytes(exchanges, asked, steps=steps, first=first)
    above = math.inf if collects is None else collects * room
    plain = PlainAllocator(max_split=max_split, room=room, collects_above=above)
    expected = plain_reserved(exchanges, plain, steps=steps, first=first, has_room=False)
    found = reserved_bytes(
        exchanges, asked, steps=steps, first=first, room_bytes=room, collects_above_bytes=above
    )
    assert found == expected


@st.composite
def anything(draw):
    """Exchanges that take what they like and give back some of what is there."""
    known = draw(st.lists(sizes, min_size=1, max_size=6))
    there, step = [], []
    for _ in range(draw(st.integers(1, 12))):
        takes = draw(st.lists(st.sampled_from(known), max_size=20))
        there += takes
        gives = draw(st.permutations(there))[: draw(st.integers(0, len(there)))]
        for size in gives:
            there.remove(size)
        step.append(Exchange(tuple(takes), tuple(gives)))
    return [*step, Exchange((), tuple(there))]


@given(anything(), st.integers(1, 4))
@several
def test_blocks_that_come_and_go_in_any_order_lie_where_they_would_one_by_one(step, steps):
    expected = plain_reserved(step, PlainAllocator(), steps=steps)
    assert reserved_bytes(step, AllocatorSettings(), steps=steps) == expected


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_blocks_that_an_update_keeps_move_those_of_later_steps(steps):
    kept = (16 * MIB, 2 * MIB, 58 * MIB)
    forward, backward = Exchange(kept * 3, ()), Exchange((60 * MIB,), (60 * MIB, *kept * 3))
    step = [*[forward] * 3, *[forward, backward] * 6, *[backward] * 3]
    first = [*step, Exchange((30 * MIB, 3 * MIB, 100 * MIB), ())]
    expected = plain_reserved(step, PlainAllocator(), steps=steps, first=first)
    assert reserved_bytes(step, AllocatorSettings(), steps=steps, first=first) == expected


@pytest.mark.parametrize("gives", [(31, 32), (32, 31)])
def test_of_equal_blocks_the_first_given_back_is_first_whether_or_not_a_segment(gives):
    """Half of 64 MiB and 32 MiB of their own are free: whichever is cut, 64 fit or do not."""
    large = Exchange((64 * MIB,), (64 * MIB,))
    step = [
        large,
        Exchange((32 * MIB, 31.5 * MIB, 31 * MIB), tuple(size * MIB for size in gives)),
        Exchange((32 * MIB,), (31.5 * MIB,)),
        Exchange((64 * MIB,), (64 * MIB, 32 * MIB)),
    ]
    reserved = reserved_bytes(step, AllocatorSettings())
    assert reserved == plain_reserved(step, PlainAllocator())
    assert reserved == (96 * MIB if gives[0] == 31 else 160 * MIB)


def test_what_only_gives_back_still_makes_segments_for_two_sizes_that_round_to_one():
    """One segment of 32 MiB lies ready, and two blocks are asked for that need as much each."""
    sizes = (32 * MIB, 32 * MIB - 100)
    step = [
        Exchange(sizes[:1], sizes[:1]),
        Exchange((40 * MIB,), ()),
        Exchange(sizes, (*sizes, 40 * MIB)),
    ]
    assert plain_reserved(step, PlainAllocator(), steps=2) == 104 * MIB
    assert reserved_bytes(step, AllocatorSettings(), steps=2) == 104 * MIB


@pytest.mark.parametrize("seed", range(60))
def test_programs_of_few_sizes_reserve_what_they_would_one_by_one(seed):
    """Sizes that round to the same, and devices that are full."""
    random = Random(seed)
    some = [2, 3, 12, 16, 16 - 2**-14, 20, 22, 24, 32, 36, 40]
    known = [size * MIB for size in random.sample(some, random.randint(2, 4))]
    there, step = [], []
    for _ in range(random.randint(2, 8)):
        takes = random.choices(known, k=random.randint(0, 8))
        there += takes
        random.shuffle(there)
        count = random.choice([0, len(there), len(there) // 2])
        step.append(Exchange(tuple(takes), tuple(there[:count])))
        there = there[count:]
    rest = Exchange((), tuple(there))
    first = (*step, rest, Exchange(tuple(random.choices(known, k=2)), ()))
    step, steps = [*step, rest], random.randint(1, 4)
    expected = plain_reserved(step, PlainAllocator(), steps=steps, first=first)
    assert reserved_bytes(step, AllocatorSettings(), steps=steps, first=first) == expected
    for room in (0.4 * expected, 0.7 * expected):
        full = PlainAllocator(room=room)
        squeezed = plain_reserved(step, full, steps=steps, first=first, has_room=False)
        asked = AllocatorSettings()
        assert squeezed == reserved_bytes(step, asked, steps=steps, first=first, room_bytes=room)
