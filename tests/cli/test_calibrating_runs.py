"""Does calibrate runs learn, print, write and refuse as it says?"""

from __future__ import annotations

import json
import re

import pytest

from simulator.described.load import job_from_document, load_profile
from simulator.results.fit_probability import job_spread
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import predicted
from tests.csv_files import read_rows, write_rows
from tests.validate.published_jobs import ROW

SLOWER = 1.2
"""Measured over predicted time of every run."""


@pytest.fixture(scope="module")
def predicted_s():
    """Steps of the row with one and two microbatches per rank and stage."""
    return {batch: predicted({**ROW, "global_batch": batch}).predicted_step_s for batch in "48"}


@pytest.fixture
def table(tmp_path, predicted_s):
    """Runs of a system, as a share of their predicted times; returns the path."""

    def write(*ratios: float, **cells: str):
        rows = [
            {
                **ROW, **cells, "id": f"ours-{number}", "global_batch": batch,
                "measured_step_s": str(ratio * predicted_s[batch]), "measured_mem_gib": "",
            }
            for number, (ratio, batch) in enumerate(zip(ratios, "4848", strict=False))
        ]  # fmt: skip
        return write_rows(rows, tmp_path / "ours.csv", list(ROW))

    return write


BASE = ("--profile", "h100-sxm-80gb")


def test_runs_of_a_shipped_model_need_no_columns_of_its_dimensions(clustersim, tmp_path):
    named = {
        "model": "gpt2", "profile": "h100-sxm-80gb", "gpus": "8", "framework": "megatron-core",
        "micro_batch": "1", "seq_len": "1024",
    }  # fmt: skip
    runs = [named | {"id": f"ours-{batch}", "global_batch": batch} for batch in ("32", "64")]
    for run in runs:
        run["measured_step_s"] = str(SLOWER * predicted(run).predicted_step_s)
    path = write_rows(runs, tmp_path / "ours.csv")
    outcome = clustersim("calibrate", "runs", path, *BASE, "--json")
    assert len(json.loads(outcome.out)["runs"]) == 2
    path.write_text(path.read_text(encoding="utf-8").replace("gpt2", "ours"), encoding="utf-8")
    refused = clustersim("calibrate", "runs", path, *BASE)
    assert refused.code == 2
    assert "clustersim models list" in refused.err


def test_runs_that_are_all_slower_are_predicted_so_and_have_narrower_bands(clustersim, table):
    outcome = clustersim("calibrate", "runs", table(*[SLOWER] * 4), *BASE, "--json")
    document = json.loads(outcome.out)
    for run in document["runs"]:
        assert run["predicted_after_s"] == pytest.approx(run["measured_step_s"], rel=0.06)
        assert run["band_width_after"] < run["band_width_before"]
    # Steps of a few milliseconds are most likely bound by their host.
    assert document["learnt"]["host.layer_wait"]["after"] != "0 ns"


def test_every_command_takes_the_written_profile(clustersim, table, tmp_path, predicted_s):
    ours = tmp_path / "ours.yaml"
    outcome = clustersim("calibrate", "runs", table(*[SLOWER] * 4), *BASE, "--out", ours)
    assert outcome.code == 0
    assert "learned from 4 runs" in outcome.out
    assert "device.context" not in outcome.out  # no run states its memory
    assert clustersim("profile", "check", ours).code == 0
    result = predicted({**ROW, "profile": str(ours)})
    assert result.predicted_step_s == pytest.approx(SLOWER * predicted_s["8"], rel=0.06)
    low, high = result.band_s
    assert low < SLOWER * predicted_s["8"] < high


def test_a_measured_memory_moves_the_odds_of_its_framework(clustersim, table, tmp_path):
    path, ours = table(1.0), tmp_path / "ours.yaml"
    write_rows([{**read_rows(path)[0], "measured_mem_gib": "20"}], path)
    outcome = clustersim("calibrate", "runs", path, *BASE, "--out", ours)
    assert "odds of fitting know it" in outcome.out
    assert clustersim("profile", "check", ours).code == 0
    own = load_profile(str(ours)).own_runs
    assert own.memory.runs == 1
    job = job_from_document(job_document({**ROW, "profile": str(ours)}))
    assert job_spread(job) == (own.memory.scale, own.memory.freedom, own.memory.centre)
    other = job.replace({"plan": {"stack": "jax"}})
    assert job_spread(other).centre != own.memory.centre


def test_a_written_profile_learns_on(clustersim, table, tmp_path):
    ours, more = tmp_path / "ours.yaml", table(*[SLOWER] * 4)
    clustersim("calibrate", "runs", more, *BASE, "--out", ours)
    again = more.read_text().replace("h100-sxm-80gb", str(ours))
    more.write_text(again)
    document = json.loads(clustersim("calibrate", "runs", more, "--profile", ours, "--json").out)
    assert document["learnt"]["own_runs"]["before"]["runs"] == 4
    assert document["learnt"]["own_runs"]["after"]["runs"] == 8


def test_a_run_that_contradicts_the_others_is_named(clustersim, table):
    outcome = clustersim("calibrate", "runs", table(1.0, 1.0, 1.0, 2.5), *BASE)
    assert "ours-3 contradicts the other runs" in outcome.err
    assert "ours-1 contradicts" not in outcome.err


@pytest.mark.parametrize("others", [(), (1.1,), (1.1, 1.0)])
def test_a_run_in_milliseconds_is_refused_and_no_profile_is_written(
    clustersim, table, tmp_path, others
):
    ours = tmp_path / "ours.yaml"
    outcome = clustersim("calibrate", "runs", table(1000.0, *others), *BASE, "--out", ours)
    assert (outcome.code, outcome.out) == (2, "")
    assert "ours-0: took" in outcome.err
    assert "is it milliseconds?" in outcome.err
    assert not ours.exists()


def test_runs_that_contradict_one_another_make_no_profile(clustersim, table, tmp_path):
    ours = tmp_path / "ours.yaml"
    outcome = clustersim("calibrate", "runs", table(1.0, 6.0), *BASE, "--out", ours)
    assert outcome.code == 2
    assert "runs: contradict one another: ours-0 took" in outcome.err
    assert not ours.exists()


def test_rows_that_teach_nothing_are_named_with_their_reason(clustersim, table):
    path = table(1.0, 1.0, 1.0)
    rows = read_rows(path)
    rows[1]["measured_step_s"], rows[2]["dp"] = "", "5"
    write_rows(rows, path)
    outcome = clustersim("calibrate", "runs", path, *BASE, "--json")
    assert "left out ours-1: measured_step_s: is empty" in outcome.err
    assert "left out ours-2: dp: 5 contradicts gpus" in outcome.err
    document = json.loads(outcome.out)
    assert [row["name"] for row in document["skipped"]] == ["ours-1", "ours-2"]
    assert len(document["runs"]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give either a table or --job"),
        (("--job", "gpt2-8xa100"), "--step: is missing"),
        (("TABLE",), "--profile: is missing"),
        (("TABLE", *BASE, "--step", "3s"), "--step: is for a single run"),
        (("TABLE", "--profile", "a100-sxm-80gb"), "is not a100-sxm-80gb"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(clustersim, table, words, said):
    path = table(1.0)
    outcome = clustersim("calibrate", "runs", *(path if w == "TABLE" else w for w in words))
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err.replace("\n", " ")


def test_runs_without_a_step_time_are_refused(clustersim, table):
    path = table(1.0)
    path.write_text(path.read_text().replace(path.read_text().splitlines()[1].split(",")[-4], ""))
    outcome = clustersim("calibrate", "runs", path, *BASE)
    assert outcome.code == 2
    assert "ours-0: measured_step_s: is empty" in outcome.err


JOB = """
model: llama3.2-1b
cluster: {profile: h100-sxm-80gb, gpus: 8}
batch: {global: 32, seq_len: 2048}
plan: {stack: STACK}
"""


@pytest.fixture
def of_jobs(tmp_path):
    """A table of one job, with and without full recomputation; returns the path."""

    def write(stack: str, *rows: str, columns: str = "job,plan.recompute,measured_step_s"):
        (tmp_path / "job.yaml").write_text(JOB.replace("STACK", stack), encoding="utf-8")
        path = tmp_path / "ours.csv"
        path.write_text("\n".join([columns, *rows]), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("stack", ["torch-fsdp", "torchtitan", "deepspeed", "trl"])
def test_a_row_that_names_a_job_is_the_job_that_run_runs(clustersim, of_jobs, tmp_path, stack):
    path = of_jobs(stack, "job.yaml,full,1.0")
    found = json.loads(clustersim("calibrate", "runs", path, *BASE, "--json").out)
    asked = ("--set", "plan.recompute=full", "--json")
    ran = json.loads(clustersim("run", tmp_path / "job.yaml", *asked).out)
    assert found["runs"][0]["predicted_before_s"] == ran["step_time_s"]


def test_rows_that_cannot_run_are_left_out_and_the_others_teach(clustersim, of_jobs):
    rows = ("job.yaml,none,1.0", "job.yaml,sometimes,1.0", "none.yaml,,1.0", "job.yaml,full,")
    outcome = clustersim("calibrate", "runs", of_jobs("torchtitan", *rows), *BASE)
    assert outcome.code == 0
    assert "learned from 1 run" in outcome.out
    for reason in ("plan.recompute", "none.yaml", "measured_step_s: is empty"):
        assert reason in outcome.err


def test_a_column_that_is_no_field_is_refused(clustersim, of_jobs):
    path = of_jobs("torchtitan", "job.yaml,2,1.0", columns="job,micro,measured_step_s")
    outcome = clustersim("calibrate", "runs", path, *BASE)
    assert outcome.code == 2
    assert "micro: is not a field" in outcome.err
    assert "batch.micro" in outcome.err


def test_a_table_of_jobs_on_one_system_needs_no_other_word_for_it(clustersim, of_jobs):
    path = of_jobs("torchtitan", "job.yaml,none,1.0", "none.yaml,,1.0")
    unsaid, said = (clustersim("calibrate", "runs", path, *words).out for words in ((), BASE))
    assert unsaid == said
    path = of_jobs("torchtitan", "job.yaml,none,1.0", "llama3-8b-8xh100,,1.0", "gpt2-1xa100,,1.0")
    assert "--profile: is missing" in clustersim("calibrate", "runs", path).err


def test_times_that_were_learnt_have_three_digits_as_all_others(clustersim, of_jobs):
    out = clustersim("calibrate", "runs", of_jobs("torchtitan", "job.yaml,none,1.3"), *BASE).out
    launch = next(line for line in out.splitlines() if line.startswith("kernels.launch"))
    assert re.fullmatch(r"kernels.launch +5\.73 us +\d\.\d\d us", launch)
