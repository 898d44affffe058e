"""The picture of a fit shows every row once as measured and once as error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.calibrate.network.measured_network import Point
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.plots.bus_bandwidth import build_collective_fit_figure

ROW = CollectiveRow(
    id="x", gpu="", kind="all_gather", num_bytes=2.0**20, ranks=8, nodes=1, gpus_per_node=8,
    nics_per_node=None, nic_bytes_per_s=None, fabric=None, algorithm="", one_process=False,
    calls=1, links="", seconds=1e-5,
)  # fmt: skip


def point(power: int, ranks: int = 8, kind: str = "all_gather", before: float = 1.3) -> Point:
    row = replace(ROW, num_bytes=2.0**power, ranks=ranks, nodes=ranks // 8, kind=kind)
    return Point(row, base_s=before * row.seconds, fitted_s=1.1 * row.seconds)


POINTS = [point(power, ranks) for power in range(10, 31, 4) for ranks in (8, 16)]


def test_dots_are_at_the_measured_bus_bandwidth_and_lines_at_the_predicted() -> None:
    curves, strip = build_collective_fit_figure([point(20)], "title").axes
    measured, fitted, before = curves.lines
    bus_gb_per_s = 7 / 8 * 2**20 / 1e-5 * 1e-9
    assert measured.get_ydata() == pytest.approx([bus_gb_per_s])
    assert fitted.get_ydata() == pytest.approx([bus_gb_per_s / 1.1])
    assert before.get_ydata() == pytest.approx([bus_gb_per_s / 1.3])
    assert strip.lines[0].get_ydata() == pytest.approx([10.0])


def test_every_row_is_drawn_once_in_the_colour_of_its_group() -> None:
    curves, strip = build_collective_fit_figure(POINTS, "title").axes
    dots = [line for line in curves.lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [6, 6]
    assert len({line.get_markerfacecolor() for line in dots}) == 2
    assert sum(len(line.get_xdata()) for line in strip.lines if line.get_marker() == "o") == 12


def test_each_collective_has_a_panel_and_a_strip() -> None:
    points = [*POINTS, point(20, kind="all_reduce"), point(24, kind="all_to_all")]
    figure = build_collective_fit_figure(points, "title")
    assert [axes.get_title(loc="left") for axes in figure.axes[::2]] == [
        "all gather", "all reduce", "all to all",
    ]  # fmt: skip


def test_without_a_fit_there_are_no_dashes() -> None:
    curves, _ = build_collective_fit_figure([point(20, before=1.1)], "title").axes
    assert len(curves.lines) == 2


def test_many_groups_keep_colours_of_their_own() -> None:
    points = [point(20, 8 * nodes) for nodes in range(1, 12)]
    curves, _ = build_collective_fit_figure(points, "title").axes
    dots = [line for line in curves.lines if line.get_marker() == "o"]
    assert len({line.get_markerfacecolor() for line in dots}) == 11


def test_errors_beyond_the_strip_stand_at_its_edge() -> None:
    far = replace(point(20), fitted_s=1.0)
    _, strip = build_collective_fit_figure([far], "title").axes
    assert list(strip.lines[0].get_ydata()) == [100.0]


@pytest.mark.parametrize(("powers", "most"), [((20, 22), 6), ((10, 30), 9)])
def test_bandwidths_are_numbered_so_that_their_numbers_have_room(powers, most) -> None:
    figure = build_collective_fit_figure([point(power) for power in powers], "title")
    figure.canvas.draw()
    low, high = figure.axes[0].get_ylim()
    numbers = [
        label.get_text()
        for label, tick in zip(
            figure.axes[0].get_yticklabels(), figure.axes[0].get_yticks(), strict=True
        )
        if low <= tick <= high
    ]
    assert 2 <= len(numbers) <= most
    assert not any("10^" in text for text in numbers)
    assert not any(text.get_text() for text in figure.axes[0].get_yticklabels(minor=True))
