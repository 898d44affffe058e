"""Who holds what after each step: collectives do what their names say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.collectives.closed_forms import tree_depth
from simulator.engine.chunk_algorithms import contents

sizes, pieces = st.integers(2, 9), st.integers(1, 3)


@given(st.sampled_from(["ring_all_reduce", "tree_all_reduce"]), sizes, pieces)
def test_after_an_all_reduce_everybody_holds_every_sum(algorithm, ranks, chunks):
    assert contents(algorithm, ranks, chunks).held[-1].all()


@given(sizes, pieces)
def test_after_a_reduce_scatter_each_segment_is_complete_on_one_rank(ranks, chunks):
    counts = contents("ring_reduce_scatter", ranks, chunks).counts[-1]
    assert ((counts == ranks).sum(axis=0) == 1).all()
    assert ((counts == ranks).sum(axis=1) == chunks).all()


@given(
    st.sampled_from(["ring_all_gather", "chain_broadcast", "pairwise_all_to_all"]), sizes, pieces
)
def test_after_a_gather_a_broadcast_or_an_exchange_nothing_is_missing(algorithm, ranks, chunks):
    assert (contents(algorithm, ranks, chunks).counts[-1] == 1).all()


def test_a_ring_of_four_adds_one_contribution_per_step_and_then_copies():
    """Segment 0 goes 0 to 1 to 2 to 3, where it is complete, and on to 0 and 1."""
    counts = contents("ring_all_reduce", 4).counts
    assert counts[:, 1, 0].tolist() == [1, 2, 2, 2, 2, 4, 4]
    assert counts[3, 3, 0] == 4
    assert (counts[3] == 4).sum() == 4


@given(st.sampled_from(["ring_all_reduce", "tree_all_reduce", "ring_all_gather"]), sizes)
def test_nothing_is_ever_lost(algorithm, ranks):
    held = contents(algorithm, ranks).held
    assert not (held[:-1] & ~held[1:]).any()


@pytest.mark.parametrize("algorithm", ["ring_all_reduce", "pairwise_all_to_all"])
def test_in_every_step_every_rank_receives_one_piece(algorithm):
    start, *steps = contents(algorithm, 5).moves
    assert start == []
    for moves in steps:
        assert sorted(receiver for _, receiver, _ in moves) == list(range(5))


@given(sizes)
def test_a_tree_goes_up_and_down_in_as_many_rounds_as_it_has_levels(ranks):
    deepest = tree_depth(ranks)
    assert contents("tree_all_reduce", ranks).steps <= 2 * deepest


def test_one_rank_holds_everything_from_the_start():
    alone = contents("ring_all_reduce", 1)
    assert (alone.steps, bool(np.all(alone.held))) == (0, True)
