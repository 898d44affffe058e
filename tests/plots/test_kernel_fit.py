"""Does the picture of a kernel fit show every kernel once, and its error?"""

from __future__ import annotations

import pytest

from simulator.plots.kernel_fit import (
    KernelPoint,
    build_kernel_fit_figure,
)
from simulator.plots.style import save

POINTS = [
    KernelPoint("products", "fwd", 1e-3, 1.1e-3),
    KernelPoint("products", "bwd", 1e-4, 1e-4),
    KernelPoint("memory-bound", "fwd", 1e-5, 4e-5),
]


def test_each_kind_has_its_panel_and_each_kernel_its_dot():
    figure = build_kernel_fit_figure(POINTS, "kernels")
    squares = figure.axes[::2]
    assert [axes.get_title(loc="left") for axes in squares] == ["products", "memory-bound"]
    dots = [line for axes in squares for line in axes.lines if line.get_marker() == "o"]
    assert sum(len(line.get_xdata()) for line in dots) == len(POINTS)


def test_errors_off_the_scale_stand_at_its_edge():
    strip = build_kernel_fit_figure(POINTS, "kernels").axes[3]
    (dots,) = [line for line in strip.lines if line.get_marker() == "o"]
    assert list(dots.get_ydata()) == [100.0]
    assert POINTS[2].error_pct == pytest.approx(300)


def test_the_same_points_give_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        save(build_kernel_fit_figure(POINTS, "kernels"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
