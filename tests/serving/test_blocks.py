"""Are blocks conserved, and is a prefix found as long as nobody needed its place?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.serving import block_cache
from simulator.serving.block_cache import BlockCache
from simulator.serving.requests import Request
from tests.serving.workloads import scheduler_of


def shared(number, prompt, prefix):
    return Request(number, 0.0, prompt, 1, (("system", prefix),))


@given(moves=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.booleans()), max_size=60))
def test_no_block_has_two_owners_unless_they_share_its_name(moves):
    cache = BlockCache(20, 4, keeps_prefixes=True)
    holders = {}
    for number, tokens, drops in moves:
        request = holders.get(number)
        if request is None:
            request = shared(number, tokens, min(tokens, 16))
            found = cache.found(request)
            if cache.missing_blocks(request, tokens, found) > cache.free_blocks:
                continue
            cache.share(request, found)
            cache.grow(request, tokens)
            request.named_tokens = tokens
            cache.name_full(request, min(tokens, 16))
            holders[number] = request
        elif drops:
            cache.release(holders.pop(number))
        held = [block for other in holders.values() for block in set(other.blocks)]
        twice = {block for block in held if held.count(block) > 1}
        first_blocks = {b for other in holders.values() for b in other.blocks[:4]}
        assert twice <= first_blocks
        assert cache.free_blocks == cache.blocks - len(set(held))
    for request in list(holders.values()):
        cache.release(request)
    assert cache.free_blocks == cache.blocks


@given(moves=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.booleans()), max_size=60))
def test_blocks_are_taken_in_the_same_order_however_many_untouched_ones_are_queued_at_once(moves):
    tables = []
    for queued_at_once in (1, 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(block_cache, "_QUEUED_AT_ONCE", queued_at_once)
            tables.append(blocks_taken(BlockCache(20, 4, keeps_prefixes=True), moves))
    assert tables[0] == tables[1]


def blocks_taken(cache, moves):
    taken, holders = [], {}
    for number, tokens, drops in moves:
        request = holders.get(number)
        if request is not None and drops:
            cache.release(holders.pop(number))
            continue
        if request is None:
            request = shared(number, tokens, min(tokens, 16))
            found = cache.found(request)
            if cache.missing_blocks(request, tokens, found) <= cache.free_blocks:
                holders[number] = request
                cache.share(request, found)
                cache.grow(request, tokens)
                request.named_tokens = tokens
                cache.name_full(request, min(tokens, 16))
        elif cache.free_blocks:
            cache.grow_by_block(request)
        taken.append(list(request.blocks))
    return taken


def test_a_shared_beginning_is_found_but_for_the_last_token():
    cache = BlockCache(10, 4, keeps_prefixes=True)
    first = shared(0, 8, 8)
    cache.grow(first, 8)
    cache.name_full(first, 8)
    second = shared(1, 8, 8)
    assert cache.found(second) == first.blocks[:1]
    third = shared(2, 9, 8)
    assert cache.found(third) == first.blocks[:2]


def test_the_longest_unused_prefix_is_thrown_out_first_and_its_end_before_its_beginning():
    cache = BlockCache(4, 4, keeps_prefixes=True)
    first = Request(0, 0.0, 8, 1, (("a", 8),))
    second = Request(1, 0.0, 8, 1, (("b", 8),))
    for request in (first, second):
        cache.grow(request, 8)
        request.named_tokens = 8
        cache.name_full(request, 8)
    for request in (first, second):
        cache.release(request)
    cache.grow(Request(2, 0.0, 4, 1), 4)
    assert len(cache.found(Request(3, 0.0, 12, 1, (("a", 8),)))) == 1
    assert len(cache.found(Request(4, 0.0, 12, 1, (("b", 8),)))) == 2


def test_nothing_is_found_where_prefixes_are_not_kept():
    cache = BlockCache(10, 4, keeps_prefixes=False)
    first = shared(0, 8, 8)
    cache.grow(first, 8)
    cache.name_full(first, 8)
    assert list(cache.found(shared(1, 12, 8))) == []


def test_the_block_that_an_answer_fills_as_it_ends_is_taken_after_those_that_were_free():
    """At the end nothing is under way, so the block has its name (vLLM 0.33.0, AsyncScheduler)."""
    scheduler = scheduler_of(
        "vllm-v1", blocks=8, block_tokens=4, keeps_prefixes=True, plans_ahead=True
    )
    # Keys and values of 5 + 4 - 1 tokens fill two blocks of four.
    first = Request(0, 0.0, 5, 4)
    scheduler.arrive(first)
    held = set()
    while (batch := scheduler.schedule()) is not None:
        held |= set(first.blocks)
        scheduler.complete(batch, 1.0)
    later = Request(1, 0.0, 24, 1)
    scheduler.arrive(later)
    scheduler.schedule()
    assert len(held) == 2
    assert not held & set(later.blocks)
