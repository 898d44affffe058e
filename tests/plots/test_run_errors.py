"""Does the picture of real runs show every error of every run?"""

from __future__ import annotations

from reports.make.torch_runs.run_errors import RowErrors, build_run_errors_figure, draw_run_errors

ROWS = [
    RowErrors("dense", {"step": 3.0, "memory": -1.0}),
    RowErrors("experts", {"step": -400.0}),
]


def dots(figure):
    (axes,) = figure.axes
    return [list(line.get_xdata()) for line in axes.lines if line.get_marker() in ("o", "s")]


def test_every_run_has_a_row_and_every_error_a_dot():
    figure = build_run_errors_figure(ROWS, "runs", (5, 10))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["dense", "experts"]
    assert dots(figure) == [[3.0, -100.0], [-1.0]]


def test_small_errors_leave_the_bands_in_sight():
    figure = build_run_errors_figure([ROWS[0]], "runs", (5, 10))
    assert figure.axes[0].get_xlim() == (-15.0, 15.0)


def test_the_same_runs_give_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_run_errors(ROWS, tmp_path / name, "runs", (5, 10))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
