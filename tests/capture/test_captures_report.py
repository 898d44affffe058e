"""Captured steps of plain torch code, and the simulator's own programs of the same jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.make.captures.captured_case import captured_rank
from reports.make.captures.captures_page import PEAK_LIMIT, STEP_LIMIT, page
from reports.make.captures.cases import Case, all_cases
from reports.make.captures.comparison import compared
from reports.make.captures.published_rows import published_table
from simulator.capture.recording import one_rank
from simulator.validate.torch_run import rank_grid

pytestmark = pytest.mark.filterwarnings("ignore")
LLAMA = {
    "layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256,
}  # fmt: skip
PURE = {"base": "torch", "keeps_master_weights": False}


def a_case(**plan) -> Case:
    return Case(
        "llama",
        {
            "model": LLAMA,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
            "batch": {"global": 32, "micro": 2, "seq_len": 4096},
            "plan": {"precision": "bf16", "stack": "torch", **plan},
        },
    )


@pytest.mark.parametrize("plan", [{"zero": 3}, {"zero": 3, "zero_group": 8, "recompute": "full"}])
def test_torchs_own_sharding_is_captured_as_the_simulator_builds_it(plan):
    found = captured_rank(a_case(**plan), 0, Path("nothing"))
    result = compared(a_case(**plan), found, ("h100-sxm-80gb",))
    (stage,) = result.stages
    assert stage.exchanges_are_equal
    assert stage.exchanges > 5
    assert stage.tracked_difference == 0
    assert abs(stage.peak_difference) < PEAK_LIMIT
    assert abs(stage.owner_difference[1]) < PEAK_LIMIT
    differences = *result.step_differences, *result.device_differences
    assert max(map(abs, differences)) < STEP_LIMIT
    assert "| llama |" in page([result])


def test_every_job_of_the_report_is_one():
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases) >= 20
    assert all(case.job().cluster.gpus > 1 for case in cases)


def test_captures_of_torchtitan_are_kept_for_its_published_runs():
    lines = list(published_table())
    assert len(lines) == 2 + 6
    assert "titan-037" in lines[4]


def test_functions_that_were_imported_before_a_capture_are_answered_too():
    original = rank_grid.init_device_mesh
    with one_rank._process_groups(0, 2):
        assert rank_grid.init_device_mesh is not original
    assert rank_grid.init_device_mesh is original
