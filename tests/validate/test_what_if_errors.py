"""Ratios and regrets of layouts against numbers that can be computed by eye."""

from __future__ import annotations

import pytest

from simulator.cells import Row
from simulator.validate.published.published_runs import PublishedResult
from simulator.validate.published.what_if_errors import (
    Layout,
    ratio_errors_pct,
    regret_pct,
    what_if_errors,
)
from tests.validate.published_jobs import ROW


def runs(
    *steps: tuple[float, float], source: str = "source", **columns: str
) -> tuple[list[PublishedResult], list[Row]]:
    """Results and rows of layouts that differ in their microbatch, from measured and predicted."""
    results = [
        PublishedResult(f"{source}-{i}", "A", "p", measured, predicted)
        for i, (measured, predicted) in enumerate(steps, start=1)
    ]
    rows: list[Row] = [
        {**ROW, "id": result.id, "micro_batch": str(i), **columns}
        for i, result in enumerate(results, start=1)
    ]
    return results, rows


def test_what_all_runs_of_a_source_share_is_no_error_of_a_ratio() -> None:
    assert ratio_errors_pct([Layout(1.0, 2.0), Layout(3.0, 6.0)]) == pytest.approx([0.0])


def test_the_error_of_a_ratio_is_the_same_either_way_round() -> None:
    one, other = Layout(1.0, 1.0), Layout(2.0, 2.5)
    assert ratio_errors_pct([one, other]) == pytest.approx([25.0])
    assert ratio_errors_pct([other, one]) == pytest.approx([25.0])


def test_regret_is_what_the_layout_takes_longer_that_is_predicted_fastest() -> None:
    layouts = [Layout(1.0, 3.0), Layout(1.2, 2.0), Layout(4.0, 2.5)]
    assert regret_pct(layouts) == pytest.approx(20.0)


def test_sources_and_networks_make_no_pairs_with_each_other() -> None:
    one, two, wide = (
        runs((1.0, 1.0), source="a"),
        runs((1.0, 2.0), source="b"),
        runs((1.0, 3.0), source="b", hidden="1536"),
    )
    found = what_if_errors(one[0] + two[0] + wide[0], one[1] + two[1] + wide[1])
    assert found["ratios"]["pairs"] == 0
    assert found["sweeps"] == []


def test_runs_on_two_clusters_of_a_source_make_no_pairs_with_each_other() -> None:
    # One job takes 4.10 s on one cluster and 3.37 s on the other (AI Singapore's course).
    results, rows = runs((4.10, 3.0), (3.37, 3.0), (2.0, 1.8))
    on = ("first cluster", "a second cluster (4.10 s on the first)", "of the second cluster, too")
    rows = [{**row, "notes": notes} for row, notes in zip(rows, on, strict=True)]
    assert what_if_errors(results, rows)["ratios"]["pairs"] == 1


def test_a_sweep_is_of_one_batch_but_pairs_are_not() -> None:
    results, rows = runs((1.0, 1.0), (2.0, 2.2))
    rows[1] = {**rows[1], "global_batch": "128"}
    found = what_if_errors(results, rows)
    assert found["ratios"]["median_pct"] == pytest.approx(10.0)
    assert found["sweeps"] == []


def test_runs_of_one_job_are_one_layout_of_their_mean_time() -> None:
    results, rows = runs((1.0, 2.0), (3.0, 2.0), (4.0, 4.0))
    rows[1] = {**rows[1], "micro_batch": rows[0]["micro_batch"]}
    found = what_if_errors(results, rows)
    assert found["ratios"]["pairs"] == 1
    assert found["ratios"]["median_pct"] == pytest.approx(0.0)


def test_anchors_and_runs_of_lower_grade_do_not_count() -> None:
    results, rows = runs((1.0, 1.0), (1.0, 2.0))
    lower = PublishedResult("source-2", "B", "p", 1.0, 2.0)
    anchor = PublishedResult("source-2", "A", "p", 1.0, 2.0, anchor=True)
    assert what_if_errors([results[0], lower], rows)["ratios"]["pairs"] == 0
    assert what_if_errors([results[0], anchor], rows)["ratios"]["pairs"] == 0
