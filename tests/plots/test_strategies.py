"""Bars of strategies: as long as their figures, and readable where there is no bar."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from reports.make.strategies.zero_in_pipeline_picture import (
    ZeroCurve,
    build_zero_in_pipeline_figure,
)
from simulator.plots import style
from simulator.plots.style import save
from simulator.plots.variant_comparison import Bar, build_strategies_figure
from simulator.program.ir import Category, Owner

GIB = 1024.0**3
STEP = {Category.FORWARD: 1.0, Category.BACKWARD: 2.0, Category.DATA_PARALLEL: 0.5}
HELD = {Owner.WEIGHTS: 10 * GIB, Owner.ACTIVATIONS: 30 * GIB}
ROWS = {
    "DP": [Bar("1 node", STEP, HELD, 90 * GIB), Bar("8 nodes", remark="one node only")],
    "DDP": [Bar("1 node", STEP, HELD, 45 * GIB), Bar("8 nodes", STEP, HELD, 46 * GIB)],
}


@pytest.fixture
def figure() -> Figure:
    return build_strategies_figure("title", "subtitle", ROWS, 80 * GIB)


def texts(figure: Figure, panel: int) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def test_bars_are_as_long_as_steps_and_memory(figure):
    time, memory = figure.axes
    ends = [patch.get_x() + patch.get_width() for patch in time.patches]
    assert max(ends) == pytest.approx(3.5)
    assert max(p.get_x() + p.get_width() for p in memory.patches) == pytest.approx(90)


def test_figures_stand_beside_the_bars(figure):
    assert texts(figure, 0).count("3.50 s") == 3
    assert {"90.0 GiB", "45.0 GiB", "46.0 GiB"} <= set(texts(figure, 1))


def test_figures_of_memory_do_not_lie_on_the_line_of_the_capacity(figure):
    rows = ROWS | {"ZeRO": [Bar("1 node", STEP, HELD, 78 * GIB)]}
    for each in (figure, build_strategies_figure("title", "", rows, 80 * GIB)):
        each.draw_without_rendering()
        memory = each.axes[1]
        line = memory.transData.transform((80.0, 0.0))[0]
        for text in memory.texts:
            box = text.get_window_extent()
            assert not box.x0 < line < box.x1


def test_what_does_not_fit_is_marked(figure):
    colors = {text.get_text(): text.get_color() for text in figure.axes[1].texts}
    assert colors["90.0 GiB"] == style.VERMILLION
    assert colors["45.0 GiB"] == style.INK


def test_what_nothing_runs_says_so_in_place_of_a_bar(figure):
    assert "one node only" in texts(figure, 0)


def test_waiting_is_hatched_and_work_is_not(figure):
    hatches = {patch.get_width(): bool(patch.get_hatch()) for patch in figure.axes[0].patches}
    assert hatches[1.0] is hatches[2.0] is False
    assert hatches[0.5] is True


def test_each_panel_explains_its_own_colours(figure):
    names = [[t.get_text() for t in axes.get_legend().get_texts()] for axes in figure.axes]
    assert names[0] == ["forward", "backward", "data parallel, exposed"]
    assert names[1] == ["weights", "activations", "allocator, context, NCCL"]


def test_the_picture_is_written(tmp_path):
    path = tmp_path / "strategies.png"
    save(build_strategies_figure("title", "subtitle", ROWS, 80 * GIB), path)
    assert path.stat().st_size > 10_000


def test_steps_in_a_pipeline_are_drawn_over_that_of_zero_1():
    curves = [
        ZeroCurve(zero, [4, 8], [1.0 + 0.1 * zero, 2.0 + 0.1 * zero], [1e9, 2e9], [3e9, 3e9])
        for zero in range(4)
    ]
    figure = build_zero_in_pipeline_figure("title", "subtitle", curves)
    lines = figure.axes[1].lines
    assert [line.get_ydata()[0] for line in lines] == pytest.approx(
        [100 * (1.0 / 1.1 - 1), 0, 100 * (1.2 / 1.1 - 1), 100 * (1.3 / 1.1 - 1)]
    )


def test_a_stage_that_is_quicker_than_the_one_compared_with_is_drawn_whole():
    curves = [
        ZeroCurve(zero, [4, 8], step_s, [1.0, 2.0], [GIB, GIB])
        for zero, step_s in ((1, [1.0, 2.0]), (3, [0.9, 1.9]))
    ]
    axes = build_zero_in_pipeline_figure("title", "subtitle", curves).axes[1]
    lowest = min(value for line in axes.lines for value in line.get_ydata())
    assert lowest < 0
    assert axes.get_ylim()[0] < lowest
