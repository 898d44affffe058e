"""Does a sweep give one honest row per combination, wherever it runs?"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from unittest import mock

import pandas as pd
import pytest

import simulator as sim
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning import sweep as sweep_module

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


def test_rows_do_not_depend_on_the_number_of_processes(job):
    pd.testing.assert_frame_equal(sim.sweep(job, GRID, workers=2), sim.sweep(job, GRID))


def test_fields_that_move_together_are_one_axis_of_the_grid(job):
    table = sim.sweep(job, {"plan.tp,plan.pp": [(1, 4), (4, 1)], "plan.zero": [0, 1]})
    assert table[["plan.tp", "plan.pp", "plan.zero"]].to_numpy().tolist() == [
        [1, 4, 0], [1, 4, 1], [4, 1, 0], [4, 1, 1],
    ]  # fmt: skip
    assert (table["error"] == "").all()


@pytest.mark.parametrize("value", [[1], 4, "14"])
def test_fields_that_move_together_need_a_value_each(job, value):
    with pytest.raises(InputError, match="changes 2 fields together"):
        sim.sweep(job, {"plan.tp,plan.pp": [value]})


def test_a_field_appears_once_in_a_grid(job):
    with pytest.raises(InputError, match="appears twice"):
        sim.sweep(job, {"plan.tp": [1], "plan.tp,plan.pp": [(1, 4)]})


def test_a_misspelt_field_is_refused_before_anything_is_simulated(job):
    with pytest.raises(InputError) as caught:
        sim.sweep(job, {"plan.tpp": [1, 2], "layers": [4], "plan.zero": [7]})
    assert [fault.path for fault in caught.value.faults] == ["plan.tpp", "layers"]
    assert "did you mean model.layers or reference.layers?" in str(caught.value)


def test_any_field_of_a_job_can_be_swept(job):
    grid = {
        "model.layers": [4, 8],
        "cluster.gpus": [4, 8],
        "cluster.device.memory": ["1 GiB", "80 GiB"],
        "batch.micro": [1, 2],
    }
    table = sim.sweep(job, grid, engine="replay")
    assert (table["error"] == "").all()
    assert table.groupby("cluster.device.memory")["fits"].all().to_dict() == {
        "1 GiB": False, "80 GiB": True,
    }  # fmt: skip


def test_a_bug_costs_its_own_row_only(job):
    def broken(job, engine):
        if job.plan.tp == 2:
            raise ZeroDivisionError("our fault")
        return real(job, engine)

    real = sweep_module.run_step
    with mock.patch.object(sweep_module, "run_step", broken):
        table = sim.sweep(job, {"plan.tp": [1, 2, 4]})
    assert table["error"].tolist() == ["", "ZeroDivisionError: our fault", ""]


def test_a_worker_that_dies_costs_its_own_row_only(job):
    def deadly(job, engine):
        if job.plan.tp == 2:
            os._exit(137)
        return real(job, engine)

    real = sweep_module.run_step
    with mock.patch.object(sweep_module, "run_step", deadly):
        table = sim.sweep(job, GRID, workers=2)
    died = table["error"].str.contains("its worker process died")
    assert died.tolist() == (table["plan.tp"] == 2).tolist()
    alone = sim.sweep(job, GRID)
    pd.testing.assert_frame_equal(table[~died].convert_dtypes(), alone[~died].convert_dtypes())


def test_a_sweep_that_was_stopped_goes_on_and_repeats_nothing(job, tmp_path):
    file = tmp_path / "table.csv"
    seen = []

    def stop_after_two(row):
        seen.append(row)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim.sweep(job, GRID, table=file, on_row=stop_after_two)
    with mock.patch.object(sweep_module, "run_step", wraps=sweep_module.run_step) as run:
        resumed = sim.sweep(job, GRID, table=file, on_row=seen.append)
    assert run.call_count == 2  # of four combinations that can run, two were done
    assert seen[:2] == seen[2:4]
    pd.testing.assert_frame_equal(resumed, sim.sweep(job, GRID))


@pytest.mark.parametrize(
    ("changes", "grid", "differs"),
    [({"batch.global": 32}, GRID, "job"), ({}, {"plan.tp": [1, 2]}, "grid")],
)
def test_another_sweep_under_the_same_name_is_noticed(job, tmp_path, changes, grid, differs):
    sim.sweep(job, GRID, table=tmp_path / "table.csv")
    with pytest.raises(InputError, match=f"another sweep, of another {differs}"):
        sim.sweep(job.replace(changes), grid, table=tmp_path / "table.csv")
