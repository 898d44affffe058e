"""Waterfalls of differences: bars that lead from one step to the other."""

from __future__ import annotations

import pytest

from simulator.plots.comparison import build_differences_figure, falls
from simulator.plots.style import save
from simulator.program.ir import Category
from simulator.results.views.difference import Cause, Difference, difference
from tests.factories import Pipeline

FIRST = Pipeline(stages=4, microbatches=8, tensor_parallel_s=0.1).result()
SECOND = Pipeline(stages=4, microbatches=8, recompute_s=0.2).result()
FOUND = difference(FIRST, SECOND)


def test_bars_lead_from_the_first_step_to_the_second():
    figure = build_differences_figure([FOUND], ["a", "b"])
    bars = [(patch.get_x(), patch.get_width()) for patch in figure.axes[0].patches]
    assert len(bars) == 2 + len(falls(FOUND))
    totals = [width for x, width in bars if x == 0]
    assert totals == pytest.approx([FIRST.step_time_s, SECOND.step_time_s])
    moved_s = sum(width for x, width in bars if x != 0)
    assert moved_s == pytest.approx(SECOND.step_time_s - FIRST.step_time_s)


def test_the_largest_cause_comes_first_and_small_ones_are_one_bar():
    causes = (
        Cause(Category.FORWARD, 1.0, 1.2),
        Cause(Category.BACKWARD, 2.0, 1.5),
        Cause(Category.OPTIMIZER, 0.1, 0.1001),
        Cause(Category.HOST, 0.1, 0.1002),
    )
    found = Difference(causes, 3.2, 2.9003, 1.0)
    assert [name for name, _ in falls(found)] == ["backward", "forward", "everything else"]
    assert sum(seconds for _, seconds in falls(found)) == pytest.approx(found.difference_s)
    assert falls(found)[-1][1] == pytest.approx(0.0003)


def test_an_axis_that_leaves_out_what_is_common_says_so():
    near = Difference((Cause(Category.FORWARD, 1.0, 1.1),), 10.0, 10.1, 1.0)
    far = Difference((Cause(Category.FORWARD, 0.0, 10.0),), 0.1, 10.1, 1.0)
    labels = [build_differences_figure([each], ["a", "b"]).axes[0] for each in (near, far)]
    assert [axes.get_xlim()[0] > 0 for axes in labels] == [True, False]
    assert ["not from zero" in axes.get_xlabel() for axes in labels] == [True, False]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_panel_per_other_step_is_written(tmp_path, suffix):
    path = tmp_path / f"difference{suffix}"
    save(build_differences_figure([FOUND, FOUND], ["a", "b", "c"]), path)
    assert path.stat().st_size > 5000
    assert len(build_differences_figure([FOUND, FOUND], ["a", "b", "c"]).axes) == 2


def test_equal_steps_are_drawn_too(tmp_path):
    save(
        build_differences_figure([difference(FIRST, FIRST)], ["a", "a again"]),
        tmp_path / "same.png",
    )


def test_no_bar_stands_for_causes_that_changed_nothing():
    causes = (Cause(Category.FORWARD, 1.0, 1.2), Cause(Category.OPTIMIZER, 0.1, 0.1))
    found = Difference(causes, 1.1, 1.3, 1.0)
    assert [name for name, _ in falls(found)] == ["forward"]


def test_a_bar_of_changed_fields_is_named_by_their_last_words_below_a_heading_with_all():
    change = "plan.precision=fp8 cluster.network.fabric.nic=x"
    axes = build_differences_figure([FOUND], ["job.a", change]).axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert (names[0], names[-1]) == ("job.a", "precision=fp8 nic=x")
    assert axes.get_title(loc="left").startswith(f"{change}: ")
