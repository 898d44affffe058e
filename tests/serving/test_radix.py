"""The tree of prompts that begin alike: by hand, and against a list that is searched in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.serving.radix import RadixCache
from simulator.serving.requests import Request

PART_TOKENS = {"a": 10, "b": 20, "c": 30, "d": 5}
QUESTION_TOKENS = 3
"""What each prompt has of its own, behind the parts that others share."""


def request(number: int, parts: Sequence[str]) -> Request:
    """A prompt that begins with named parts."""
    ends, end = [], 0
    for part in parts:
        end += PART_TOKENS[part]
        ends.append((part, end))
    return Request(number, 0.0, end + QUESTION_TOKENS, 1, tuple(ends))


def computed(cache: RadixCache, asked: Request) -> float:
    """Run a prompt: lock what is found, take and compute the rest, keep it; its own tokens."""
    found = cache.found_tokens(asked)
    cache.lock(asked)
    assert cache.take(asked.prompt_tokens - found)
    before = cache.locked_tokens(asked)
    cache.keep(asked)
    return asked.prompt_tokens - found - (cache.locked_tokens(asked) - before)


def ended(cache: RadixCache, asked: Request, own_tokens: float) -> None:
    cache.give_back(own_tokens)
    cache.unlock(asked)


def test_whoever_begins_alike_finds_the_path_as_far_as_it_goes():
    cache = RadixCache(1000)
    computed(cache, request(0, "ab"))
    assert cache.found_tokens(request(1, "abc")) == 30
    assert cache.found_tokens(request(2, "ac")) == 10
    assert cache.found_tokens(request(3, "ba")) == 0


def test_the_last_token_of_a_prompt_is_always_computed():
    """Its logits are the first token of the answer."""
    cache = RadixCache(1000)
    computed(cache, request(0, "ab"))
    whole = Request(1, 0.0, 30, 1, (("a", 10), ("b", 30)))
    assert cache.found_tokens(whole) == 29


def test_nothing_is_found_where_prefixes_are_not_kept():
    cache = RadixCache(1000, keeps_prefixes=False)
    first = request(0, "ab")
    own = computed(cache, first)
    assert own == first.prompt_tokens
    assert cache.found_tokens(request(1, "ab")) == 0
    ended(cache, first, own)
    assert cache.free_tokens == cache.available_tokens == 1000


def test_two_who_compute_the_same_part_at_once_keep_it_once():
    cache = RadixCache(1000)
    first, second = request(0, "a"), request(1, "a")
    for each in (first, second):
        assert cache.found_tokens(each) == 0
        cache.lock(each)
        assert cache.take(each.prompt_tokens)
    cache.keep(first)
    assert cache.free_tokens == 1000 - 2 * 13
    cache.keep(second)
    assert cache.free_tokens == 1000 - 2 * 13 + 10
    assert cache.evictable_tokens == 0


def test_what_a_running_request_needs_is_not_thrown_out_for_another():
    cache = RadixCache(40)
    own = computed(cache, request(0, "ab"))
    assert own == QUESTION_TOKENS
    assert cache.available_tokens == 40 - 33
    assert not cache.take(8)
    assert cache.take(7)
    assert cache.found_tokens(request(1, "ab")) == 30


def test_the_longest_unused_part_is_thrown_out_first():
    cache = RadixCache(60)
    for number, part in enumerate("abc"):
        asked = request(number, part)
        if part == "c":
            again = request(9, "a")
            ended(cache, again, computed(cache, again))
            assert cache.take(20 - QUESTION_TOKENS)
            assert cache.found_tokens(request(8, "b")) == 20
            assert cache.take(QUESTION_TOKENS + 11)
            break
        ended(cache, asked, computed(cache, asked))
    assert cache.found_tokens(request(7, "b")) == 0
    assert cache.found_tokens(request(6, "a")) == 10


def test_the_end_of_a_path_goes_before_its_beginning():
    cache = RadixCache(33)
    asked = request(0, "ab")
    ended(cache, asked, computed(cache, asked))
    assert cache.take(4)
    assert cache.found_tokens(request(1, "ab")) == 10
    assert cache.take(20)
    assert cache.found_tokens(request(2, "ab")) == 0


@dataclass
class Listed:
    """The same cache as a plain list of paths, searched in full for every question."""

    tokens: int
    uses: dict[tuple[str, ...], int] = field(default_factory=dict)
    locks: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)
    taken: float = 0.0
    clock: int = 0

    def kept_tokens(self) -> int:
        return sum(PART_TOKENS[path[-1]] for path in self.uses)

    def beginning(self, parts: str) -> list[tuple[str, ...]]:
        paths = [tuple(parts[:end]) for end in range(1, len(parts) + 1)]
        return [path for path in paths if path in self.uses]

    def locked(self) -> set[tuple[str, ...]]:
        return {path for paths in self.locks.values() for path in paths}

    def touch(self, paths: Sequence[tuple[str, ...]]) -> None:
        for path in paths:
            self.uses[path] = self.clock

    def oldest_leaf(self) -> tuple[str, ...] | None:
        inner = {path[:-1] for path in self.uses}
        idle = [path for path in self.uses if path not in inner and path not in self.locked()]
        return min(idle, key=lambda path: self.uses[path], default=None)

    def begin(self, number: int, parts: str) -> bool:
        """Whether a prompt has room; then it is computed and kept."""
        found = self.beginning(parts)
        self.clock += 1
        self.locks[number] = found
        self.touch(found)
        wanted = QUESTION_TOKENS + sum(PART_TOKENS[part] for part in parts[len(found) :])
        idle = sum(PART_TOKENS[path[-1]] for path in self.uses if path not in self.locked())
        if wanted > self.tokens - self.taken - self.kept_tokens() + idle:
            return False
        while wanted > self.tokens - self.taken - self.kept_tokens():
            leaf = self.oldest_leaf()
            assert leaf is not None
            del self.uses[leaf]
        self.locks[number] = [tuple(parts[:end]) for end in range(1, len(parts) + 1)]
        self.touch(self.locks[number])
        self.taken += QUESTION_TOKENS
        return True

    def end(self, number: int, own_tokens: float) -> None:
        self.taken -= own_tokens
        self.clock += 1
        self.touch(self.locks.pop(number))


@given(
    st.integers(40, 120),
    st.lists(
        st.one_of(st.text("abcd", min_size=1, max_size=3), st.integers(0, 3)),
        min_size=1,
        max_size=25,
    ),
)
def test_any_traffic_finds_and_frees_what_a_list_that_is_searched_in_full_does(tokens, moves):
    """A text is a prompt of those parts; a number ends the one of that place among the running."""
    cache, listed = RadixCache(tokens), Listed(tokens)
    running: dict[int, tuple[Request, float]] = {}
    for number, move in enumerate(moves):
        if isinstance(move, int):
            if not running:
                continue
            place = list(running)[move % len(running)]
            asked, own = running.pop(place)
            ended(cache, asked, own)
            listed.end(place, own)
        else:
            parts = "".join(dict.fromkeys(move))
            asked = request(number, parts)
            found = cache.found_tokens(asked)
            assert found == sum(PART_TOKENS[path[-1]] for path in listed.beginning(parts))
            cache.lock(asked)
            has_room = listed.begin(number, parts)
            assert cache.take(asked.prompt_tokens - found) is has_room
            if has_room:
                cache.keep(asked)
                running[number] = (asked, QUESTION_TOKENS)
            else:
                cache.unlock(asked)
                listed.end(number, 0.0)
        assert cache.free_tokens == tokens - listed.taken - listed.kept_tokens()
        idle = [path for path in listed.uses if path not in listed.locked()]
        assert cache.evictable_tokens == sum(PART_TOKENS[path[-1]] for path in idle)


@pytest.mark.parametrize("tokens", [33, 34, 1000])
def test_every_token_is_free_or_evictable_once_everybody_has_gone(tokens):
    cache = RadixCache(tokens)
    for number, parts in enumerate(("ab", "ab", "a")):
        asked = request(number, parts)
        ended(cache, asked, computed(cache, asked))
    assert cache.available_tokens == tokens
    assert cache.evictable_tokens == 30
