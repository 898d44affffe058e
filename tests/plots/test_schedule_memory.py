"""The picture of memory by schedule."""

from __future__ import annotations

import pytest

from reports.make.galleries.schedule_memory import SCHEDULES, build_schedule_memory_figure
from tests.factories import GIB, Pipeline


def test_every_schedule_has_a_row_with_the_peak_of_every_stage() -> None:
    result = Pipeline(stages=4, microbatches=8).result()
    figure = build_schedule_memory_figure("a job", [(change, result) for change in SCHEDULES])
    assert len(figure.axes) == 2 * len(SCHEDULES)
    for bars in figure.axes[1::2]:
        heights = [container.patches[0].get_height() for container in bars.containers]
        peaks = [memory.peak_allocated_bytes / GIB for memory in result.memory]
        assert heights == pytest.approx(peaks)
