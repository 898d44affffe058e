"""What would save most memory?"""

from __future__ import annotations

import pytest

from simulator.planning.changes.fitting import savings
from simulator.results.simulation import run_step
from tests.planning.test_limits import small_job


def peak(job) -> float:
    return max(memory.peak_device_bytes for memory in run_step(job, "replay").memory)


def test_savings_are_those_of_the_simulated_change_and_sorted():
    job = small_job(micro=4)
    found = savings(job)
    assert {"plan.recompute": "full"} in [saving.changes for saving in found]
    assert [s.saved_bytes for s in found] == sorted((s.saved_bytes for s in found), reverse=True)
    for saving in found:
        changed = job.replace(saving.changes)
        assert peak(job) - peak(changed) == pytest.approx(saving.saved_bytes)
        assert saving.saved_bytes > 0


def test_full_recompute_saves_memory_and_costs_time():
    (full,) = [s for s in savings(small_job(micro=4)) if s.changes == {"plan.recompute": "full"}]
    assert full.slower_share > 0.1
