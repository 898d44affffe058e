"""Pictures of sweeps: the best of each cell, and a front that nothing beats."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.plots.style import save
from simulator.plots.sweep import build_pareto_figure, build_sweep_figure, pareto_front

GIB = 1024.0**3


def row(tp: int, pp: int, rate: float, peak_gib: float, **more) -> dict:
    return {
        "plan.tp": tp,
        "plan.pp": pp,
        **more,
        "tokens_per_s_per_gpu": rate,
        "peak_device_bytes": peak_gib * GIB,
        "fits": peak_gib <= 80,
        "error": "",
    }


FAILED = {"plan.tp": 4, "plan.pp": 2, "error": "cluster.gpus: too few"}
TABLE = pd.DataFrame([row(2, 1, 900, 90), row(2, 2, 800, 60), row(4, 1, 700, 50), FAILED])
PATHS = ["plan.tp", "plan.pp"]


def cells(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_cell_per_combination_that_ran():
    assert cells(build_sweep_figure(TABLE, PATHS, "x")) == ["900", "700", "800"]


def test_what_does_not_fit_is_hatched():
    patches = build_sweep_figure(TABLE, PATHS, "x").axes[0].patches
    assert [bool(patch.get_hatch()) for patch in patches] == [True, False, False]


def test_a_cell_shows_the_best_that_fits_of_the_other_fields():
    faster_but_too_large = row(2, 2, 950, 99, zero=0)
    table = pd.DataFrame(
        [
            row(2, 2, 800, 60, zero=1),
            faster_but_too_large,
            row(2, 2, 820, 70, zero=3),
            row(4, 1, 700, 50, zero=1),
        ]
    )
    figure = build_sweep_figure(table, [*PATHS, "zero"], "x")
    assert cells(figure) == ["820", "700"]


@pytest.mark.parametrize(
    ("peaks_gib", "names"),
    [((60, 50), ["fits"]), ((90, 99), ["does not fit"]), ((90, 50), ["does not fit", "fits"])],
)
def test_the_legend_names_what_there_is(peaks_gib, names):
    table = pd.DataFrame([row(2 * tp, 1, 900, gib) for tp, gib in enumerate(peaks_gib, start=1)])
    legend = build_sweep_figure(table, PATHS, "x").axes[1].get_legend()
    assert [text.get_text().partition(" (")[0] for text in legend.get_texts()] == names


def test_one_field_alone_is_one_row():
    table = pd.DataFrame([row(2, 1, 900, 70), row(4, 1, 700, 50)])
    assert cells(build_sweep_figure(table, ["plan.tp"], "x")) == ["900", "700"]


POINTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=30)


@given(points=POINTS)
def test_nothing_beats_the_front_and_the_front_beats_all_others(points):
    peak, rate = (np.asarray(column, dtype=float) for column in zip(*points, strict=True))
    front = pareto_front(peak, rate).tolist()

    def beaten(a: int) -> bool:
        no_worse = (peak <= peak[a]) & (rate >= rate[a])
        return bool(np.any(no_worse & ((peak < peak[a]) | (rate > rate[a]))))

    kept = {points[i] for i in front}
    assert not any(beaten(i) for i in front)
    assert kept == {points[i] for i in range(len(points)) if not beaten(i)}
    assert list(peak[front]) == sorted(peak[front])


def test_a_sweep_of_which_nothing_ran_has_no_picture(tmp_path):
    with pytest.raises(InputError, match="nothing to draw"):
        save(build_sweep_figure(pd.DataFrame([FAILED]), PATHS, "x"), tmp_path / "x.png")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture_is_written(tmp_path, suffix):
    path = tmp_path / f"sweep{suffix}"
    save(build_sweep_figure(TABLE, PATHS, "a job"), path)
    assert path.stat().st_size > 5000


FRONTS = {
    8: [(1.0, 70 * GIB, "tp 1"), (1.5, 40 * GIB, "tp 2"), (2.0, 20 * GIB, "tp 4")],
    16: [(0.6, 30 * GIB, "alone")],
    32: [],
}


def test_a_search_is_a_front_per_number_of_gpus_whose_ends_are_named():
    figure = build_pareto_figure("job", FRONTS, 80 * GIB)
    (axes,) = figure.axes
    fronts = [line for line in axes.lines if line.get_marker() not in (None, "None", "")]
    assert [list(line.get_xdata()) for line in fronts] == [[1.0, 1.5, 2.0], [0.6]]
    assert list(fronts[0].get_ydata()) == [70.0, 40.0, 20.0]
    assert sorted(text.get_text() for text in axes.texts) == ["alone", "tp 1", "tp 4"]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["8 GPUs", "16 GPUs", "32 GPUs"]
    (dashed,) = (line for line in axes.lines if line.get_linestyle() == "--")
    assert set(dashed.get_ydata()) == {80.0}


def test_the_memory_of_a_device_is_said_in_numbers():
    figure = build_pareto_figure("job", FRONTS, 79.6 * GIB)
    said = " ".join(text.get_text() for text in figure.texts)
    assert "a device has 79.6 GiB (dashed)" in said
    assert "{" not in said


def test_a_capacity_far_above_all_plans_is_left_out_of_sight():
    low = {8: [(1.0, 2 * GIB, "a"), (2.0, 1 * GIB, "b")]}
    figure = build_pareto_figure("job", low, 80 * GIB)
    (axes,) = figure.axes
    assert axes.get_ylim()[1] == pytest.approx(2.7)
    assert not any(line.get_linestyle() == "--" for line in axes.lines)
    assert "dashed" not in " ".join(text.get_text() for text in figure.texts)


def test_names_of_plans_stay_inside_the_frame():
    name = "tp1 dp64, ZeRO 3, micro 8, full recompute"
    figure = build_pareto_figure(
        "job", {64: [(1.0, 30 * GIB, name), (2.0, 8 * GIB, name)]}, 80 * GIB
    )
    figure.canvas.draw()
    (axes,) = figure.axes
    frame = axes.get_window_extent()
    for text in axes.texts:
        box = text.get_window_extent()
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert frame.y0 <= box.y0
