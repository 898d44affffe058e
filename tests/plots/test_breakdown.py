"""The breakdown picture: bars add up to the step."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from simulator.plots import style
from simulator.plots.comparison import build_breakdown_figure
from simulator.plots.style import save
from simulator.program.ir import Category
from tests.factories import Pipeline

FULL = Pipeline(
    stages=4,
    microbatches=8,
    recompute_s=0.5,
    tensor_parallel_s=0.25,
    transfer_s=0.25,
    gradient_s=1.0,
    gather_s=0.5,
    optimizer_s=0.25,
)


def bars(figure, panel: int) -> dict[str, np.ndarray]:
    """Corner points of the bars of each category, shape (bars, 4, 2)."""
    return {
        str(c.get_gid()): np.array([path.vertices[:4] for path in c.get_paths()])
        for c in figure.axes[panel].collections
        if isinstance(c, PolyCollection)
    }


def test_the_waterfall_falls_from_zero_to_the_step_time() -> None:
    result = FULL.result()
    found = bars(build_breakdown_figure(result), 0)
    spans = [(b[0, 0, 0], b[0, 1, 0]) for b in found.values()]
    assert spans[0][0] == 0
    assert spans[-1][1] == pytest.approx(result.step_time_s)
    assert [s[1] for s in spans[:-1]] == pytest.approx([s[0] for s in spans[1:]])


def test_a_bar_is_as_long_as_its_category() -> None:
    result = FULL.result()
    for name, corners in bars(build_breakdown_figure(result), 0).items():
        length = corners[0, 1, 0] - corners[0, 0, 0]
        assert length == pytest.approx(result.breakdown_s[Category(name)])


def test_the_bars_of_each_stage_fill_the_step() -> None:
    result = FULL.result()
    found = bars(build_breakdown_figure(result), 1)
    lengths = sum(c[:, 1, 0] - c[:, 0, 0] for c in found.values())
    assert lengths == pytest.approx([result.step_time_s] * 4)


def test_work_is_plain_and_waiting_is_hatched_in_its_colour() -> None:
    figure = build_breakdown_figure(FULL.result())
    found = {c.get_gid(): c for c in figure.axes[0].collections if isinstance(c, PolyCollection)}
    assert to_hex(found["recompute"].get_facecolor()[0]).upper() == style.YELLOW
    assert not found["recompute"].get_hatch()
    assert to_hex(found["tensor_parallel"].get_edgecolor()[0]).upper() == style.VERMILLION
    assert found["tensor_parallel"].get_hatch()
    assert found["bubble"].get_hatch()


def test_every_category_carries_its_time_and_share() -> None:
    # 4 stages, 8 microbatches: a step of 33 s, 8 s of it forward, 9 s bubble.
    figure = build_breakdown_figure(Pipeline(4, 8).result())
    texts = [t.get_text().split() for t in figure.axes[0].texts]
    assert texts == [
        ["8.00", "s", "24.2", "%"],
        ["16.0", "s", "48.5", "%"],
        ["9.00", "s", "27.3", "%"],
    ]


def test_categories_without_time_are_left_out() -> None:
    figure = build_breakdown_figure(Pipeline(4, 8).result())
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["forward", "backward", "bubble"]


@pytest.mark.parametrize("stages", [1, 4, 16, 64])
def test_nothing_is_clipped(stages: int) -> None:
    figure = build_breakdown_figure(Pipeline(stages, 16, transfer_s=0.1, gradient_s=1).result())
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    for axes in figure.axes:
        extent = axes.get_tightbbox()
        assert extent.x0 >= 0
        assert extent.x1 <= width
        assert extent.y0 >= 0
        assert extent.y1 <= height


def test_the_picture_is_written(tmp_path) -> None:
    save(build_breakdown_figure(FULL.result()), tmp_path / "breakdown.svg")
    assert (tmp_path / "breakdown.svg").stat().st_size > 0
