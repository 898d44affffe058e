"""Is a wrong verdict on memory told apart from a right one, and said with its size?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reports.make.accuracy.memory_accuracy import memory_section
from simulator.validate.published.published_runs import (
    PublishedReport,
    PublishedResult,
    predicted,
    read_rows,
)

MEMORY = Path(__file__).parents[2] / "reports" / "data" / "memory_gathered.csv"


def test_wrong_verdicts_are_named_with_how_full_the_gpu_is_predicted_to_be():
    ran = PublishedResult("ran-001", "A", "h100", 1.0, fits=True, filled_share=0.5)
    too_full = replace(ran, id="ran-002", fits=False, filled_share=1.001)
    burst = replace(ran, id="oom-001", ran=False, fits=False, filled_share=1.4)
    fitted = replace(burst, id="oom-002", fits=True, filled_share=0.988)
    section = memory_section(PublishedReport([ran, too_full]), {}, [burst, fitted])
    assert "ran-002 (100.1 %), oom-002 (98.8 %)." in section
    assert "| ran | 1 | 1 |" in section
    assert "| out of memory | 1 | 1 |" in section
    assert "Wrong" not in memory_section(PublishedReport([ran]), {}, [burst])


def test_a_run_is_held_against_its_own_device_and_its_odds_against_one_with_room():
    """Batches of twelve on 24 GB: the allocator has returned unused segments, as measured."""
    row = next(row for row in read_rows(MEMORY) if row["id"] == "fsdpqlora-018")
    result = predicted(row, "replay")
    assert result.predicted_mem_gib is not None
    assert result.free_mem_gib is not None
    assert result.predicted_mem_gib < 24 < result.free_mem_gib
    assert result.mem_error_pct == pytest.approx(0, abs=10)
    assert result.free_mem_error_pct == pytest.approx(100 * (result.free_mem_gib / 22.54 - 1))


def test_without_a_prediction_of_its_own_the_odds_take_that_of_the_run():
    assert PublishedResult("a-1", "A", "h100", 1.0, mem_error_pct=3.0).free_mem_error_pct == 3.0
