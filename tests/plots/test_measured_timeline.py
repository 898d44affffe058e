"""Two panels on one axis: what the simulator ran above what the profiler saw."""

from __future__ import annotations

import pytest

from simulator.plots.measured_timeline import Box, build_measured_timeline, predicted_rows
from simulator.program.ir import Kind
from simulator.results.simulation import run_step
from tests.validate.test_torch_strategies import job

MEASURED = {
    stage: [
        Box(Kind.FORWARD, False, 0.0, 1.0 + stage),
        Box(Kind.ALL_REDUCE, True, 1.0, 3.0),
        Box(Kind.OPTIMIZER, False, 3.0, 3.5),
    ]
    for stage in range(2)
}


def test_every_box_is_drawn_in_its_panel_on_the_same_axis():
    figure = build_measured_timeline("a job", MEASURED, MEASURED, (4.0, 5.0))
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_xlim()[1] >= 5.0
    for axes in (above, below):
        assert sum(len(drawn.get_paths()) for drawn in axes.collections) == 6
    assert [text.get_text() for text in below.get_yticklabels()] == ["stage 0", "stage 1"]
    assert any("20.0 % shorter" in text.get_text() for text in figure.texts)


def test_the_simulated_step_has_a_row_per_stage_with_its_passes():
    result = run_step(job(2, pp=2))
    rows = predicted_rows(result)
    assert set(rows) == {0, 1}
    for boxes in rows.values():
        forwards = [box for box in boxes if box.kind is Kind.FORWARD]
        assert len(forwards) == 16
        assert all(box.is_lane for box in boxes if box.kind is Kind.SEND_RECV)
        assert max(box.end_s for box in boxes) == pytest.approx(result.step_time_s)
