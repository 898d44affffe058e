"""Do pictures of steps, checkpoints, numbers, offers and replicas show what they are given?"""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import same_color, to_hex

from simulator.plots import style
from simulator.plots.distribution import build_distribution_figure
from simulator.plots.goodput import build_goodput_figure, build_tornado_figure
from simulator.plots.offer_intervals import OfferBar, build_offers_figure
from simulator.plots.serving import draw_serving
from simulator.serving.engine import Step
from tests.plots.drawn import texts

STEPS_S = np.array([1.0, 1.1, 1.1, 1.2, 1.2, 1.2, 1.3, 1.3, 1.4, 2.0])
GROWTH = [(8, 1.0), (16, 1.02), (32, 1.05)]


def bars(axes) -> list[tuple[float, float, str]]:
    """Left edge, width and colour of every bar, from the top."""
    found = sorted(axes.patches, key=lambda bar: bar.get_y())
    return [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor())) for bar in found]


def row_names(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_the_bars_of_a_spread_are_all_steps_and_its_lines_are_their_percentiles():
    figure = build_distribution_figure("job", STEPS_S, 1.15, GROWTH)
    spread, growth = figure.axes
    assert sum(bar.get_height() for bar in spread.patches) == pytest.approx(100)
    lines = [line.get_xdata()[0] for line in spread.lines]
    assert lines[:3] == pytest.approx(list(np.percentile(STEPS_S, (5, 50, 95))))
    assert lines[3] == pytest.approx(1.15)
    assert "red: the step without variation" in spread.get_title("left")
    (curve,) = growth.lines
    assert list(curve.get_xdata()) == [8, 16, 32]
    assert list(curve.get_ydata()) == pytest.approx([0.0, 2.0, 5.0])


def test_a_step_without_variation_far_from_all_others_does_not_squeeze_them():
    figure = build_distribution_figure("job", STEPS_S, 9.0, GROWTH)
    assert "red" not in figure.axes[0].get_title("left")
    low, high = figure.axes[0].get_xlim()
    assert high - low < 3


def test_short_steps_are_shown_in_a_unit_of_their_size():
    figure = build_distribution_figure("job", STEPS_S / 1000, 1.15e-3, GROWTH)
    assert figure.axes[0].get_xlabel() == "step time [ms]"
    assert [line.get_xdata()[0] for line in figure.axes[0].lines][3] == pytest.approx(1.15)


SPENT_S = {"productive": 90.0, "restarts": 2.0, "lost work": 7.0, "checkpoints": 1.0}


def test_what_was_lost_is_sorted_by_its_share_of_all_time():
    figure = build_goodput_figure("run", SPENT_S, [], (600.0, 0.9))
    (axes,) = figure.axes
    assert row_names(axes) == ["lost work", "restarts", "checkpoints"]
    assert [width for _, width, _ in bars(axes)] == pytest.approx([7.0, 2.0, 1.0])
    assert texts(figure)[:3] == ["7.00 %", "2.00 %", "1.00 %"]


def test_intervals_that_were_tried_are_a_curve_with_a_line_at_the_chosen_one():
    tried = [(300.0, 0.85), (600.0, 0.9), (1200.0, 0.88)]
    figure = build_goodput_figure("run", SPENT_S, tried, (600.0, 0.9))
    _, axes = figure.axes
    curve, line = axes.lines
    assert list(curve.get_xdata()) == [300.0, 600.0, 1200.0]
    assert list(curve.get_ydata()) == pytest.approx([85.0, 90.0, 88.0])
    assert line.get_xdata()[0] == 600.0


def test_the_axis_of_intervals_has_one_unit_and_small_shares_have_digits():
    spent_s = {"productive": 1e6, "detection": 45.0}
    tried = [(3600.0, 0.85), (14400.0, 0.9)]
    figure = build_goodput_figure("run", spent_s, tried, (14400.0, 0.9))
    assert texts(figure)[0] == "0.00450 %"
    assert [each.get_text() for each in figure.axes[1].get_xticklabels()] == ["1.00 h", "4.00 h"]


def test_a_run_that_lost_nothing_is_drawn_too():
    figure = build_goodput_figure("run", {"productive": 10.0}, [], (600.0, 1.0))
    assert not figure.axes[0].patches


def test_each_number_has_a_bar_for_less_and_one_for_more_in_colours_of_their_own():
    rows = [("memory bandwidth", 0.04, -0.03), ("latency", -0.01, 0.01)]
    figure = build_tornado_figure("job", rows, 0.1)
    (axes,) = figure.axes
    assert row_names(axes) == ["memory bandwidth", "latency"]
    widths = {}
    for _, width, colour in bars(axes):
        widths.setdefault(colour, []).append(width)
    assert widths[to_hex(style.ORANGE)] == pytest.approx([4.0, -1.0])
    assert widths[to_hex(style.BLUE)] == pytest.approx([-3.0, 1.0])
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels == ["10 % less", "10 % more"]


OFFERS = [
    OfferBar("cheap", 9.0, 8.0, 12.0, "900 USD", is_best=True),
    OfferBar("quick", 4.0, 3.5, 5.0, "2,000 USD", is_best=False),
]


def test_an_offer_is_a_bar_over_its_interval_with_a_dot_and_its_price():
    figure = build_offers_figure("rent", [("llama", 10.0, OFFERS), ("gpt", None, OFFERS[:1])])
    first, second = figure.axes
    assert row_names(first) == ["cheap", "quick"]
    assert [bar[:2] for bar in bars(first)] == [(8.0, 4.0), (3.5, 1.5)]
    assert [same_color(bar[2], style.BLUE) for bar in bars(first)] == [True, False]
    dots = [line.get_xdata()[0] for line in first.lines if line.get_marker() == "o"]
    assert dots == [9.0, 4.0]
    assert [line.get_xdata()[0] for line in first.lines if line.get_marker() != "o"] == [10.0]
    assert {"900 USD", "2,000 USD"} <= set(texts(figure))
    assert all(line.get_marker() == "o" for line in second.lines)
    assert first.get_xlim()[1] > 12.0


def test_a_deadline_behind_every_offer_is_in_sight():
    figure = build_offers_figure("rent", [("llama", 40.0, OFFERS)])
    assert figure.axes[0].get_xlim()[1] > 40.0


def test_no_offer_leaves_an_empty_panel():
    assert not build_offers_figure("rent", [("llama", None, [])]).axes[0].patches


def test_what_a_replica_does_in_a_step_is_drawn_until_the_step_ends(monkeypatch):
    """Steps end at 1, 2 and 4 s; a batch lasts from the end before it to its own."""
    drawn = []
    monkeypatch.setattr(style, "save", lambda figure, _: drawn.append(figure))
    steps = [
        Step(**{**dict.fromkeys(Step._fields, 0), "end_s": end_s, "decodes": decodes,
                "waiting": waiting, "used_share": share, "preempted": preempted})
        for end_s, decodes, waiting, share, preempted in (
            (1.0, 3, 9, 0.5, 0), (2.0, 5, 4, 0.75, 2), (4.0, 1, 0, 0.25, 1),
        )
    ]  # fmt: skip
    draw_serving("job", steps, "ignored.png")
    (figure,) = drawn
    values = [list(axes.lines[0].get_ydata()) for axes in figure.axes]
    assert values == [[3, 5, 1], [9, 4, 0], [50, 75, 25]]
    assert {axes.lines[0].get_drawstyle() for axes in figure.axes} == {"steps-pre"}
    assert all(list(axes.lines[0].get_xdata()) == [1.0, 2.0, 4.0] for axes in figure.axes)
    assert any("3 preemptions" in text.get_text() for text in figure.texts)
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 4)}
    requests, waiting, _ = figure.axes
    assert all(tick.is_integer() for axes in (requests, waiting) for tick in axes.get_yticks())
