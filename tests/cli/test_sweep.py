"""Does clustersim sweep write one honest row per combination, and survive being killed?"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from simulator.planning.sweep import journal_path

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 600.0
TP = ("--grid", "plan.tp=1,2,3")


def test_a_person_sees_one_line_per_combination(clustersim, job_file):
    outcome = clustersim("sweep", job_file, *TP)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[1].split() == [
        "plan.tp", "step", "time", "tokens/s", "per", "GPU", "fullest", "GPU", "fits", "error",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "3"]
    assert "multiple of tp x pp x cp" in lines[4]


def test_json_rows_are_those_of_run(clustersim, job_file):
    rows = json.loads(clustersim("sweep", job_file, *TP, "--json").out)["rows"]
    step = json.loads(clustersim("run", job_file, "--set", "plan.tp=1", "--json").out)
    assert rows[0]["step_time_s"] == pytest.approx(step["step_time_s"], rel=1e-9)
    assert rows[2]["step_time_s"] is None


def test_set_changes_every_row(clustersim, job_file):
    options = ("--set", "cluster.device.memory=4 GiB", "--json")
    rows = json.loads(clustersim("sweep", job_file, *TP, *options).out)["rows"]
    assert [row["fits"] for row in rows] == [False, False, None]


def test_a_sweep_without_a_grid_names_the_option_that_is_missing(clustersim, job_file):
    outcome = clustersim("sweep", job_file, "--set", "plan.tp=1,2")
    assert outcome.code != 0
    assert "--grid: needs at least one value to try; --grid plan.tp=1,2" in outcome.err


def test_a_table_in_which_nothing_fits_ends_with_1_and_is_written(clustersim, job_file, tmp_path):
    table = tmp_path / "table.csv"
    memory = ("--set", "cluster.device.memory=1 GiB", "--out", table)
    for _ in ("simulated", "read back"):
        outcome = clustersim("sweep", job_file, *TP, *memory)
        assert outcome.code == 1
        assert "No combination fits;" in outcome.err
        assert len(pd.read_csv(table)) == 3


def test_one_combination_that_fits_is_enough(clustersim, job_file):
    grid = ("--grid", "cluster.device.memory=1 GiB,80 GiB", "--json")
    outcome = clustersim("sweep", job_file, *grid)
    assert outcome.code == 0
    assert [row["fits"] for row in json.loads(outcome.out)["rows"]] == [False, True]


@pytest.mark.parametrize(("suffix", "read"), [("csv", pd.read_csv), ("parquet", pd.read_parquet)])
def test_the_table_is_written_to_a_file(clustersim, job_file, tmp_path, suffix, read):
    pytest.importorskip("pyarrow")
    file = tmp_path / f"table.{suffix}"
    grid = ("--grid", "plan.schedule=null,gpipe", "--grid", "plan.layout=null,[1, 3],Ett|ttL")
    outcome = clustersim("sweep", job_file, *TP, *grid, "--out", file)
    assert (outcome.code, outcome.out) == (0, "")
    assert "18 rows, 0 do not fit, 6 cannot run" in outcome.err
    table = read(file)
    assert len(table) == 18
    assert table["step_time_s"].notna().sum() == 12
    assert not list(tmp_path.glob(".*"))


def test_a_finished_sweep_is_read_back_and_not_run_again(clustersim, job_file, tmp_path):
    command = ("sweep", job_file, *TP, "--out", tmp_path / "table.csv")
    said = clustersim(*command).err
    assert "table.csv.journal keeps the rows: the same command, also with --plot" in said
    first = (tmp_path / "table.csv").read_bytes()
    journal = (tmp_path / "table.csv.journal").read_bytes()
    assert clustersim(*command).code == 0
    assert (tmp_path / "table.csv").read_bytes() == first
    assert (tmp_path / "table.csv.journal").read_bytes() == journal


def test_fresh_replaces_what_another_sweep_left(clustersim, job_file, tmp_path):
    out = ("--out", tmp_path / "table.csv")
    clustersim("sweep", job_file, *TP, *out)
    refused = clustersim("sweep", job_file, "--grid", "plan.tp=1", *out)
    assert refused.code == 2
    assert "another grid" in refused.err
    assert clustersim("sweep", job_file, "--grid", "plan.tp=1", *out, "--fresh").code == 0
    assert len(pd.read_csv(tmp_path / "table.csv")) == 1


def test_a_grid_that_could_not_run_does_not_stand_in_the_way_of_the_next(
    clustersim, job_file, tmp_path
):
    out = ("--out", tmp_path / "table.csv")
    assert clustersim("sweep", job_file, "--grid", "plan.tp=3", *out).code == 2
    assert clustersim("sweep", job_file, "--grid", "plan.tp=1", *out).code == 0
    refused = clustersim("sweep", job_file, "--grid", "plan.tp=2", *out)
    assert "belongs to another sweep" in refused.err


def test_a_file_that_no_sweep_wrote_is_not_overwritten(clustersim, job_file, tmp_path):
    (tmp_path / "table.csv").write_text("mine")
    outcome = clustersim("sweep", job_file, *TP, "--out", tmp_path / "table.csv")
    assert outcome.code == 2
    assert (tmp_path / "table.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "at least one value"),
        (("--grid", "plan.tp"), "FIELD=VALUE"),
        (("--grid", "plan.tp="), "at least one value"),
        (("--grid", "plan.tp=1", "--grid", "plan.tp=2"), "twice"),
        (("--grid", "plan.tp=1]"), "not valid YAML"),
        (("--grid", "plan.tp=1..4"), "write every value, for example --grid plan.tp=1,2,4"),
        (("--grid", "plan.tp=1-4"), "write every value, for example --grid plan.tp=1,2,4"),
        (("--grid", "plan.tp=x,7"), "no combination can run: plan.tp: should be a valid integer"),
        ((*TP, "--out", "table.txt"), "must end in .csv or .parquet"),
        ((*TP, "--workers", "2", "--dask", "tcp://host:1"), "has its own workers"),
    ],
)
def test_wrong_options_are_the_users_to_mend(clustersim, job_file, options, words):
    outcome = clustersim("sweep", job_file, *options)
    assert outcome.code == 2
    assert words in outcome.err


def test_a_missing_pyarrow_is_said_before_anything_runs(
    clustersim, job_file, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    outcome = clustersim("sweep", job_file, *TP, "--out", tmp_path / "table.parquet")
    assert outcome.code == 2
    assert "pip install" in outcome.err
    assert "pyarrow" in outcome.err
    assert list(tmp_path.glob("table*")) == []


SIZES = ",".join(str(32 * count) for count in range(3, 9))


KILLED = """
import os, signal, sys
from simulator.cli.app import main
from simulator.planning.sweep import Journal

def write_and_die(journal, line):
    write(journal, line)
    if line.get("number") is not None and len(journal.path.read_bytes().splitlines()) == 4:
        os.killpg(0, signal.SIGKILL)

if __name__ == "__main__":
    write, Journal._write = Journal._write, write_and_die
    main(sys.argv[1:])
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_sweep_killed_half_way_loses_no_finished_row_and_repeats_none(
    clustersim, job_file, tmp_path, write, monkeypatch, workers
):
    table, journal = tmp_path / "table.csv", tmp_path / "table.csv.journal"
    words = ["sweep", job_file, "--grid", "plan.tp=1,2,4", "--grid", f"batch.global={SIZES}"]
    command = [*map(str, words), "--workers", workers, "--out", str(table)]
    killed = subprocess.run(
        [sys.executable, str(write(KILLED, "killed.py")), *command],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    # Its workers die with it, and on a busy machine a moment later.
    monkeypatch.setattr("simulator.planning.sweep._LOCK_PATIENCE_S", PATIENCE_S)
    finished = journal.read_bytes()
    finished = finished[: finished.rfind(b"\n") + 1]
    assert not table.exists()
    assert clustersim(*command).code == 0
    assert journal.read_bytes().startswith(finished)
    numbers = [json.loads(line)["number"] for line in journal.read_text().splitlines()[1:]]
    assert sorted(numbers) == list(range(18))
    whole = tmp_path / "whole.csv"
    clustersim("sweep", *command[1:-1], whole)
    assert table.read_text() == whole.read_text()


def test_an_interrupted_sweep_says_where_its_finished_rows_are(
    clustersim, job_file, tmp_path, monkeypatch
):
    def interrupted(*_: object, table: Path, **__: object) -> None:
        journal_path(table).write_text("a row\n")
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.planning.sweep.sweep", interrupted)
    out = tmp_path / "table.csv"
    outcome = clustersim("sweep", job_file, "--grid", "plan.tp=1,2", "--out", out)
    assert outcome.code == 130
    assert f"{out}.journal keeps the finished rows" in outcome.err
    assert outcome.err.endswith("interrupted\n")


def test_a_sweep_is_drawn_where_asked(clustersim, job_file, tmp_path):
    picture = tmp_path / "new" / "sweep.png"
    grid = ("--grid", "plan.tp=1,2", "--grid", "plan.zero=0,1")
    outcome = clustersim("sweep", job_file, *grid, "--workers", 1, "--plot", picture)
    assert (outcome.code, outcome.out) == (0, "")
    assert f"wrote {picture}" in outcome.err
    assert picture.stat().st_size > 5000


def test_a_page_says_how_likely_the_fastest_that_fits_fits(clustersim, job_file, tmp_path):
    file = tmp_path / "sweep.html"
    outcome = clustersim("sweep", job_file, *TP, "--grid", "batch.micro=1,2", "--html", file)
    assert outcome.code == 0
    page = file.read_text(encoding="utf-8")
    assert re.search(r"is fastest: [\d,]+ tokens/s per GPU, .* a step, .* % likely to fit\.", page)
