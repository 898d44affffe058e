"""Is the grid what was asked for, and is every run of it kept, refused or gone on with?"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from reports.make.torch_runs import gpu_check
from reports.make.torch_runs.gpu_check import check
from reports.make.torch_runs.gpu_grid import read_grid
from simulator.api import simulate
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.program.layer.model_totals import parameter_count
from simulator.ranks.world import World
from simulator.validate.torch_run.supported_plan import check_strategies

GRID = Path(__file__).parents[2] / "reports" / "gpu" / "grid.yaml"
RUNS = read_grid(GRID)
JOBS = {run.name: job_from_document(run.document) for run in RUNS}
SMALL = """
common: {cluster: {profile: h100-sxm-80gb, gpus: 1}, plan: {stack: torch}}
runs:
  dense-a: {model: gpt2, batch: {global: 1, micro: 1, seq_len: 256}}
  alone-b: {alone: 8, model: gpt2, batch: {global: 8, micro: 1, seq_len: 256}, plan: {zero: 3}}
"""
Process = subprocess.CompletedProcess[str]


def accumulates(job: Job) -> bool:
    return job.batch.global_batch > job.batch.micro_batch * job.dp


def test_the_grid_has_what_was_asked_for():
    jobs = list(JOBS.values())
    sizes = [parameter_count(job.model) for run, job in zip(RUNS, jobs, strict=True)]
    assert len(jobs) >= 24
    assert min(sizes) < 0.2e9
    assert max(sizes) > 8e9
    assert sum(job.model.experts is not None for job in jobs) >= 3
    assert len({job.batch.seq_len for job in jobs}) >= 5
    assert len({job.batch.micro_batch for job in jobs}) >= 5
    assert {job.plan.recompute for job in jobs} == {"none", "selective", "full"}
    assert {job.plan.precision for job in jobs} >= {"bf16", "fp8", "fp16", "fp32"}
    assert sum(run.is_alone for run in RUNS) >= 5
    assert sum(job.plan.offload.is_used for job in jobs) >= 2
    assert sum(accumulates(job) for job in jobs) >= 3


@pytest.mark.parametrize("name", JOBS)
def test_every_run_of_the_grid_fits_on_the_smallest_gpu_that_it_is_for(name):
    result = simulate(JOBS[name])
    assert result.fits
    assert result.step_time_s < 5


def test_torch_refuses_nothing_of_the_grid(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    gpu = torch.device("cuda", 0)
    for job in JOBS.values():
        backend = "fake" if job.cluster.gpus > 1 else "gloo"
        check_strategies(job, World(0, job.cluster.gpus, backend, gpu))


def test_every_job_differs_from_every_other():
    documents = [json.dumps(dict(run.document), sort_keys=True) for run in RUNS]
    assert len(set(documents)) == len(documents)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "grid.yaml").write_text(SMALL)
    (tmp_path / "profile.yaml").write_text("name: ours\n")
    return tmp_path


def report(measured_s: float, predicted_s: float) -> dict[str, object]:
    gib = 2.0**30
    peaks = [
        {"stage": 0, "name": "peak_allocated", "measured": 10 * gib, "predicted": 11 * gib},
        {"stage": 0, "name": "peak_reserved", "measured": 12 * gib, "predicted": 12 * gib},
    ]
    environment = {"device": "GPU", "torch": "2", "python": "3", "kernel": "6", "date": "today"}
    step = {"stage": -1, "name": "step", "measured": measured_s, "predicted": predicted_s}
    return {
        "title": "a job", "environment": environment, "step": step, "spread": 0.01,
        "memory_bytes": peaks,
    }  # fmt: skip


def runner(answer: Callable[[str, Path], Process]) -> tuple[list[list[str]], gpu_check.Runner]:
    """A process that does what the test says; the list is how it was called."""
    calls: list[list[str]] = []

    def run(words: Sequence[str]) -> Process:
        calls.append(list(words))
        out = Path(words[words.index("--out") + 1])
        return answer(out.stem, out)

    return calls, run


def succeed(name: str, out: Path) -> Process:
    out.write_text(json.dumps(report(0.1, 0.104 if name == "dense-a" else 0.098)))
    return Process([], 0, "", "")


def test_each_run_is_a_process_and_its_report_becomes_a_row(folder):
    calls, run = runner(succeed)
    kept = check(folder, folder / "profile.yaml", steps=7, run=run)
    assert all(each.is_measured for each in kept)
    assert calls[0][1:5] == ["-m", "simulator", "validate", "torch"]
    assert calls[0][calls[0].index("--steps") + 1] == "7"
    assert "--backend" not in calls[0]
    assert calls[1][calls[1].index("--backend") + 1] == "fake"
    job = job_from_document(RUNS[0].document)
    assert job.cluster.gpus == 1
    text = (folder / "README.md").read_text()
    assert "2 runs. Step time: mean error 3.0 %, worst 4.0 %, as wanted" in text
    assert "Peak allocated memory: mean error 10.0 %, worst 10.0 %." in text
    assert "| dense-a: a job | 100 ms | 1.0 % | 104 ms | +4.0 % | 10.0 GiB | +10.0 % |" in text
    assert (folder / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_call_runs_only_what_is_missing(folder):
    def refuse(name: str, out: Path) -> Process:
        if name == "dense-a":
            return succeed(name, out)
        return Process([], 2, "", "1 error in the input:\n  - plan.precision: no fp8 here\n")

    _, run = runner(refuse)
    check(folder, folder / "profile.yaml", run=run)
    assert "- alone-b: refused: plan.precision: no fp8 here" in (folder / "README.md").read_text()
    calls, run = runner(succeed)
    kept = check(folder, folder / "profile.yaml", run=run)
    assert len(calls) == 1
    assert all(each.is_measured for each in kept)
    assert "without a measurement" not in (folder / "README.md").read_text()


def test_a_crash_is_kept_with_its_last_words_and_stops_nothing(folder):
    _, run = runner(lambda name, out: Process([], 137, "", "out of memory\n"))
    said: list[str] = []
    kept = check(folder, folder / "profile.yaml", run=run, say=said.append)
    assert said == ["1/2 dense-a: failed: out of memory", "2/2 alone-b: failed: out of memory"]
    assert not any(each.is_measured for each in kept)
    assert "No run has been measured yet" in (folder / "README.md").read_text()
    assert not (folder / "steps.png").exists()


def test_errors_above_what_is_wanted_are_said(folder):
    def miss(name: str, out: Path) -> Process:
        out.write_text(json.dumps(report(0.1, 0.12)))
        return Process([], 0, "", "")

    _, run = runner(miss)
    check(folder, folder / "profile.yaml", run=run)
    assert "worst 20.0 %, above what is wanted (5 % and 10 %)" in (folder / "README.md").read_text()


def test_without_a_profile_the_way_to_one_is_named(folder):
    with pytest.raises(InputError, match="clustersim calibrate gpu"):
        check(folder, folder / "none.yaml")


def test_a_grid_of_another_layout_is_refused(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("jobs: {}\n")
    with pytest.raises(InputError, match="must have the blocks common and runs"):
        read_grid(path)


def test_the_last_words_of_a_bug_are_the_bug_itself(folder):
    text = "internal error: RuntimeError: no such type\nPlease report it\nThe option --traceback\n"
    _, run = runner(lambda *_: Process([], 3, "", text))
    check(folder, folder / "profile.yaml", run=run)
    page = (folder / "README.md").read_text()
    assert "- dense-a: failed: internal error: RuntimeError: no such type" in page


def test_the_command_ends_with_what_became_of_the_runs(folder, monkeypatch, capsys):
    assert gpu_check.main([str(folder), "--profile", str(folder / "none.yaml")]) == 2
    assert "clustersim calibrate gpu" in capsys.readouterr().err
    monkeypatch.setattr(gpu_check, "_LONGEST_S", 0.0)
    assert gpu_check.main([str(folder)]) == 1
    assert "took longer than 0 s" in (folder / "README.md").read_text()
