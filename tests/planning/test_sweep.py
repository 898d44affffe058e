"""Does a sweep give one honest row per combination, wherever it runs?"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pandas as pd
import pytest

import simulator as sim
from simulator.errors import InputError
from simulator.spec.load import job_from_document

JOB = {
    "model": {"base": "gpt2", "layers": 4},
    "cluster": {"profile": "a100-sxm-80gb", "gpus": 4},
    "batch": {"global": 16, "seq_len": 1024},
}
GRID = {"plan.tp": [1, 2, 3], "plan.zero": [0, 1]}


@pytest.fixture
def job():
    return job_from_document(JOB)


def test_there_is_one_row_per_combination_in_the_order_of_the_grid(job):
    table = sim.sweep(job, GRID)
    assert table[["plan.tp", "plan.zero"]].to_numpy().tolist() == [
        [tp, zero] for tp in (1, 2, 3) for zero in (0, 1)
    ]


def test_a_row_holds_what_simulating_the_changed_job_gives(job):
    row = sim.sweep(job, {"plan.tp": [2]}).iloc[0]
    alone = sim.simulate(job.replace(**{"plan.tp": 2}))
    assert row["step_time_s"] == alone.step_time_s
    assert row["mfu"] == alone.mfu
    assert row["fits"] == alone.fits


def test_a_combination_that_cannot_run_is_a_row_that_says_why(job):
    table = sim.sweep(job, GRID)
    broken = table[table["plan.tp"] == 3]
    assert broken["step_time_s"].isna().all()
    assert broken["error"].str.contains("must be a multiple of tp x pp x cp").all()
    assert (table[table["plan.tp"] != 3]["error"] == "").all()


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_rows_do_not_depend_on_the_executor(job, pool):
    with pool(2) as executor:
        spread = sim.sweep(job, GRID, executor)
    pd.testing.assert_frame_equal(spread, sim.sweep(job, GRID))


@pytest.mark.parametrize("grid", [{}, {"plan.tp": []}])
def test_a_grid_without_values_is_refused(job, grid):
    with pytest.raises(InputError, match="at least one value"):
        sim.sweep(job, grid)
