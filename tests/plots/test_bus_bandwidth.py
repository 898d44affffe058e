"""Bus bandwidth over size: a panel per label, dots as measured, a line as predicted."""

from __future__ import annotations

import pytest

from simulator.plots.bus_bandwidth import (
    BusBandwidth,
    build_bus_bandwidth_figure,
    median_error_pct,
    size_name,
)
from simulator.plots.style import save

SIZES = [2.0**power for power in range(10, 31, 2)]


def rows_of(label: str, error: float = 0.1) -> list[BusBandwidth]:
    return [BusBandwidth(label, size, 1e9 * (1 + error), 1e9) for size in SIZES]


def test_every_label_has_a_panel_with_all_its_points():
    figure = build_bus_bandwidth_figure([*rows_of("ring"), *rows_of("tree")], "two systems")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ring", "tree"]
    for axes in figure.axes:
        line, points = axes.lines
        assert list(points.get_xdata()) == list(line.get_xdata()) == SIZES
        assert list(points.get_ydata()) == pytest.approx([1.1] * len(SIZES))


def test_the_error_is_that_of_time_in_the_median():
    """A tenth more bandwidth was measured, so the predicted time is a tenth too long."""
    assert median_error_pct(rows_of("ring")) == pytest.approx(10)
    assert median_error_pct([BusBandwidth("ring", 1.0, None, 1e9)]) is None


def test_rows_that_nobody_measured_shape_the_curve_only():
    rows = [*rows_of("ring"), BusBandwidth("ring", 2.0**31, None, 2e9)]
    line, points = build_bus_bandwidth_figure(rows, "").axes[0].lines
    assert len(line.get_xdata()) == len(points.get_xdata()) + 1


@pytest.mark.parametrize("panels", [0, 1, 5, 40])
def test_any_number_of_panels_is_drawn(panels, tmp_path):
    rows = [row for panel in range(panels) for row in rows_of(f"collective {panel}")]
    save(build_bus_bandwidth_figure(rows, "many"), tmp_path / "bus.svg")
    assert (tmp_path / "bus.svg").exists()


def test_sizes_are_named_in_binary_units():
    assert [size_name(2.0**power) for power in (3, 15, 20, 34)] == [
        "8 B", "32 KiB", "1 MiB", "16 GiB",
    ]  # fmt: skip
