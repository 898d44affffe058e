"""Which places stay alike, worked out by hand?"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.model import Experts
from simulator.program.grid.rank_groups import rank_grid, scope_labels
from simulator.program.ir import Scope
from simulator.program.unlike.unfold import refined
from tests.jobs import small_job, small_model


def labels(text: str) -> np.ndarray:
    """One label per digit."""
    return np.asarray([int(digit) for digit in text])


def test_places_that_nothing_tells_apart_are_one():
    assert refined(labels("0000"), [labels("0011"), labels("0101")]).tolist() == [0, 0, 0, 0]


def test_a_place_of_its_own_colour_splits_its_group_and_those_who_meet_the_group():
    """Pairs 01, 23, 45 in a row, and 024, 135 across; place 1 is special."""
    found = refined(labels("010000"), [labels("001122"), labels("010101")])
    assert found.tolist() == [0, 1, 2, 3, 2, 3]


def test_groups_split_by_how_many_of_a_colour_they_have():
    assert refined(labels("110100"), [labels("000111")]).tolist() == [0, 0, 1, 2, 3, 3]


@given(st.integers(2, 4), st.integers(2, 4), st.data())
def test_two_places_of_one_colour_see_the_same_colours_in_their_groups(rows, columns, data):
    places = np.arange(rows * columns)
    partitions = [places // columns, places % columns]
    given_colours = data.draw(
        st.lists(st.integers(0, 1), min_size=len(places), max_size=len(places))
    )
    colours = refined(np.asarray(given_colours), partitions)
    for partition in partitions:
        seen = [tuple(sorted(colours[partition == label].tolist())) for label in partition]
        for one in places:
            for other in places:
                if colours[one] == colours[other]:
                    assert given_colours[one] == given_colours[other]
                    assert seen[one] == seen[other]


def test_tensor_ranks_run_a_pass_together_and_equal_weights_are_reduced_together():
    found = scope_labels(small_job(gpus=8, tp=2, pp=2, zero=0))
    assert found[Scope.PASS].tolist() == [0, 0, 2, 2]
    assert found[Scope.COPIES].tolist() == [0, 1, 0, 1]
    assert found[Scope.RANK].tolist() == [0, 1, 2, 3]
    assert found[Scope.WORLD].tolist() == [0, 0, 0, 0]


def test_ranks_of_a_stage_need_not_be_neighbours():
    """With pp fastest stage 0 has the even ranks, and pairs of them share weights."""
    job = small_job(gpus=8, tp=2, pp=2, zero=0, rank_order="pp-tp-cp-ep-dp")
    assert rank_grid(job).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert scope_labels(job)[Scope.PASS].tolist() == [0, 0, 2, 2]


def test_shards_may_span_part_of_the_copies():
    found = scope_labels(small_job(gpus=8, tp=2, zero=3, zero_group=2))
    assert found[Scope.SHARDS].tolist() == [0, 1, 0, 1, 4, 5, 4, 5]
    assert found[Scope.COPIES].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]


def test_experts_spread_over_replicas_make_them_run_a_pass_together():
    """Tp 2, dp 4, ep 4 of one rank each: two replicas share their experts."""
    model = small_model(experts=Experts(count=4, top_k=2, ffn_hidden=128))
    job = small_job(model, gpus=8, tp=2, ep=4, etp=1, sequence_parallel=True)
    assert scope_labels(job)[Scope.PASS].tolist() == [0, 0, 0, 0, 4, 4, 4, 4]
