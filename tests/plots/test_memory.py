"""The memory pictures: who holds what, and no peak is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from simulator.plots import style
from simulator.plots.memory import (
    build_memory_by_owner_figure,
    build_memory_over_time_figure,
    fullest,
    fullest_moments,
)
from simulator.plots.style import save
from simulator.program.ir import Owner
from simulator.results.step import ClassMemory
from tests.factories import GIB, Pipeline, step_result

PLAN = Pipeline(stages=4, microbatches=8)


def bars(figure: Figure) -> dict[str, list]:
    """Rectangles of each owner, by name."""
    containers = figure.axes[0].containers
    return {str(c.get_label()): list(c.patches) for c in containers}


def test_the_height_of_a_bar_is_what_its_owner_holds_at_the_peak() -> None:
    # 1F1B: stage s keeps the activations of p - s microbatches, 1 GiB each.
    activations = bars(build_memory_by_owner_figure(PLAN.result()))["activations"]
    assert [bar.get_height() for bar in activations] == pytest.approx([4, 3, 2, 1])


def test_bars_stack_up_to_what_the_device_shows() -> None:
    result = PLAN.result()
    tops = np.max(
        [
            [b.get_y() + b.get_height() for b in r]
            for r in bars(build_memory_by_owner_figure(result)).values()
        ],
        axis=0,
    )
    assert tops * GIB == pytest.approx([m.peak_device_bytes for m in result.memory])


def test_bars_have_the_colours_of_their_owners() -> None:
    found = bars(build_memory_by_owner_figure(PLAN.result()))
    for owner in (Owner.WEIGHTS, Owner.ACTIVATIONS, Owner.LOGITS, Owner.TEMPORARIES):
        assert to_hex(found[owner][0].get_facecolor()).upper() == style.OWNER_COLOR[owner]


def test_owners_of_nothing_are_not_in_the_legend() -> None:
    legend = build_memory_by_owner_figure(PLAN.result()).legends[0]
    names = {text.get_text() for text in legend.get_texts()}
    assert "activations" in names
    assert "gathered weights" not in names


@pytest.mark.parametrize("build", [build_memory_by_owner_figure, build_memory_over_time_figure])
@pytest.mark.parametrize("capacity_gib", [20, 80, 192])
def test_the_capacity_is_a_line_inside_the_picture(build, capacity_gib: float) -> None:
    result = step_result(PLAN.timeline(), capacity_bytes=capacity_gib * GIB)
    axes = build(result).axes[0]
    heights = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() != "-"]
    assert capacity_gib in heights
    assert axes.get_ylim()[0] < capacity_gib < axes.get_ylim()[1]


def test_the_fullest_stage_is_shown_by_owner_and_marked() -> None:
    result = PLAN.result()
    figure = build_memory_over_time_figure(result)
    assert fullest(result) == 0
    assert figure.axes[0].get_ylabel() == "memory of stage 0 [GiB]"
    peak = figure.axes[0].lines[0]
    assert peak.get_xdata()[0] == result.memory[0].peak_time_s
    assert peak.get_ydata()[0] * GIB == result.memory[0].peak_allocated_bytes
    assert figure.axes[1].lines[0].get_ydata()[0] == 0.5


def test_every_strip_reaches_its_peak_and_starts_at_what_is_resident() -> None:
    result = PLAN.result()
    shades = build_memory_over_time_figure(result).axes[1].images[0].get_array().data
    peaks = [100 * m.peak_allocated_bytes / result.capacity_bytes for m in result.memory]
    assert np.max(shades, axis=1) == pytest.approx(peaks)
    assert shades[3][0] == pytest.approx(100 * 32 / 80)


def test_a_peak_shorter_than_a_slice_is_not_lost() -> None:
    time_s = np.linspace(0, 1, 10_001)
    held = np.ones(10_001)
    held[4321] = 7.0
    memory = ClassMemory(0, 7.0, 7.0, 7.0, 7.0, time_s[4321], {}, time_s, {Owner.WEIGHTS: held})
    keep = fullest_moments(memory, 1.0, 100)
    assert keep.size == 100
    assert held[keep].max() == 7.0
    assert (np.diff(keep) > 0).all()


def test_few_moments_are_all_kept() -> None:
    memory = PLAN.result().memory[0]
    assert fullest_moments(memory, 33.0, 10_000).size == memory.time_s.size


@pytest.mark.parametrize("stages", [1, 4, 16, 64])
@pytest.mark.parametrize("build", [build_memory_by_owner_figure, build_memory_over_time_figure])
def test_nothing_is_clipped_and_the_legend_covers_no_panel(build, stages: int) -> None:
    figure = build(Pipeline(stages, 8).result())
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    legend = figure.legends[0].get_window_extent()
    assert legend.x1 <= width
    for axes in figure.axes:
        extent = axes.get_tightbbox()
        assert extent.x0 >= 0
        assert extent.x1 <= width
        assert extent.y1 <= height
        assert not extent.overlaps(legend)


def test_a_job_that_does_not_fit_is_drawn_beyond_the_line() -> None:
    result = replace(PLAN.result(), capacity_bytes=16 * GIB)
    axes = build_memory_by_owner_figure(result).axes[0]
    assert axes.get_ylim()[1] * GIB > max(m.peak_device_bytes for m in result.memory)


def test_both_pictures_are_written(tmp_path) -> None:
    save(build_memory_by_owner_figure(PLAN.result()), tmp_path / "owner.svg")
    save(build_memory_over_time_figure(PLAN.result()), tmp_path / "time.png")
    assert {p.name for p in tmp_path.iterdir()} == {"owner.svg", "time.png"}
