"""The page of several steps: causes that sum, timelines of each, names escaped."""

from __future__ import annotations

from simulator.exporters.html.run_report import Run
from tests.exporters.pages import HOSTILE, column, compare_page, data_in, result_of

FIRST = result_of(layers=4, gpus=8, pp=4, microbatches=8)
SECOND = result_of(layers=4, gpus=8, pp=2, microbatches=8)
RUNS = [Run("a", FIRST, FIRST.job), Run(HOSTILE, SECOND, SECOND.job)]


def test_a_page_has_the_timeline_of_every_step():
    runs = data_in(compare_page(RUNS))["runs"]
    assert [run["timeline"]["step_s"] for run in runs] == [r.result.step_time_s for r in RUNS]
    for run, given in zip(runs, RUNS, strict=True):
        waits = given.result.waits.start_s.size
        rows = given.result.timeline.operation.size + waits
        assert column(run["timeline"], "start_s").size == rows


def test_names_of_runs_are_only_names():
    page = compare_page(RUNS)
    assert "<script>alert" not in page
    assert page.count("<script") == 2


def test_a_page_says_what_differs_in_the_jobs():
    page = compare_page(RUNS)
    assert "<code>plan.pp</code></th><td>4</td><td>2</td>" in page


def test_three_steps_are_two_comparisons():
    page = compare_page([*RUNS, Run("c", FIRST, FIRST.job)])
    assert page.count('<h2 id="difference-') == 2
    assert "The jobs are the same." in page
