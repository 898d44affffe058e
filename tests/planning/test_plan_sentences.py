"""Which plans are named as possibly faster, against odds that are made up."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.api.plan_sentences import rivals_text
from tests.planning.test_limits import small_job


def test_the_likeliest_three_plans_are_named_with_their_odds():
    text = rivals_text([None, 0.31, 0.47, 0.26, 0.4, 0.1])
    assert text.endswith(": plan 3 (47 % likely to be faster), plan 5 (40 %) and plan 2 (31 %).")


def test_one_plan_is_named_alone_and_unlikely_ones_not_at_all():
    assert rivals_text([None, 0.3, 0.2]).endswith(": plan 2 (30 % likely to be faster).")
    assert rivals_text([None, 0.24]) == ""
    assert rivals_text([None]) == ""


def test_a_found_plan_is_no_likelier_to_be_faster_the_slower_it_is_predicted():
    answer = sim.plan(small_job(), top=4, why=False, own=False, workers=1)
    first, *others = answer.to_dict()["choices"]
    assert first["faster_probability"] is None
    assert all(0.0 < choice["faster_probability"] <= 0.5 for choice in others)
    assert others[0]["faster_probability"] == pytest.approx(0.5, abs=0.2)
