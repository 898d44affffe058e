"""Does the one-file runner measure everything, go on where it stopped, and need torch alone?"""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from reports.make.gpu_bundle import __main__ as command
from reports.make.gpu_bundle import compare
from reports.make.gpu_bundle.compare import (
    CALIBRATED,
    CAPTURED,
    FIRST_SIGHT,
    ComparedRun,
    compared_runs,
    page,
    report,
)
from reports.make.gpu_bundle.device import host_items, training
from reports.make.gpu_bundle.device import main as program
from reports.make.gpu_bundle.device import sensors as sensors_module
from reports.make.gpu_bundle.device.journal import Journal
from reports.make.gpu_bundle.device.main import items, measure, run_all
from reports.make.gpu_bundle.device.processes import OwnProcesses
from reports.make.gpu_bundle.device.training_runs import LATER_RUNS, TRAINING_RUNS
from reports.make.gpu_bundle.jobs import job_document
from reports.make.gpu_bundle.pack import packed_cases
from simulator.api import simulate
from simulator.calibrate.gpu import system_calls
from simulator.calibrate.gpu.raw_file import read_raw_file, read_raw_lines
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.program.layer.model_totals import parameter_count

CPU = torch.device("cpu")
RUNS = {run.name: run for run in TRAINING_RUNS}
NEW_KINDS = {
    run.name: run
    for run in LATER_RUNS
    if run.is_grouped
    or run.precision == "tf32"
    or run.name.startswith(("transformers-gpt", "transformers-moe"))
}
CASES = [
    {"op": "gemm", "dtype": "bf16", "m": 16, "n": 16, "k": 16 * k, "direction": "fwd"}
    for k in range(1, 9)
]


@pytest.fixture(autouse=True)
def short(monkeypatch, one_thread):
    monkeypatch.setattr(training, "_MOST_STEPS", 1)
    monkeypatch.setattr(training, "WARM_UP_STEPS", 1)
    monkeypatch.setattr(system_calls, "_LOAD_ON_CPU_S", 0.01)
    monkeypatch.setattr(system_calls, "_LOAD_S", 0.01)
    monkeypatch.setattr(system_calls, "_HOST_WARM_BUDGETS", 0)
    monkeypatch.setattr(system_calls, "_HOST_BUDGETS", 0)


@pytest.mark.parametrize(
    "name", [*(n for n, run in RUNS.items() if not run.is_compiled), *NEW_KINDS]
)
def test_every_run_trains_on_a_processor_at_tiny_size(name):
    item = next(item for item in items([]) if item.what == name)
    if {**RUNS, **NEW_KINDS}[name].is_transformers:
        pytest.importorskip("transformers")
    found = measure(item, CPU, tiny=True)
    assert "skipped" not in found
    assert found["out_of_memory"] is False
    assert all(seconds > 0 for seconds in found["step_s"])
    assert set(found["phases_s"][0]) == {"forward", "backward", "optimizer"}
    assert found["kernels"]


@pytest.mark.parametrize("name", ["operators", "updates", "small kernels in a row"])
def test_every_row_of_a_loop_is_measured(name, monkeypatch):
    monkeypatch.setattr(host_items, "_REPETITIONS", 1)
    monkeypatch.setattr(host_items, "_IN_A_ROW", 2)
    found = measure(next(item for item in items([]) if item.what == name), CPU, tiny=True)
    assert all(isinstance(row[2], (int, list)) for row in found["rows"]), found["rows"]


def test_compiled_layers_are_those_that_the_compiler_is_given(monkeypatch):
    given = []

    def compile_nothing(function, **options):
        given.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    for run in (*TRAINING_RUNS, *LATER_RUNS):
        if run.is_compiled:
            item = next(item for item in items([]) if item.what == run.name)
            assert "skipped" not in measure(item, CPU, tiny=True)
    assert given == [{"dynamic": False}] * (
        2 * sum(run.is_compiled for run in (*TRAINING_RUNS, *LATER_RUNS))
    )


@pytest.mark.parametrize("name", [*RUNS, *NEW_KINDS])
def test_every_run_is_a_job_of_the_same_size(name):
    run = {**RUNS, **NEW_KINDS}[name]
    job = job_from_document(job_document(run, "h200-sxm-141gb"))
    if run.is_transformers:
        pytest.importorskip("transformers")
    with torch.device("meta"):
        model = training.build_network(
            program.dataclasses.replace(run, precision="bf16", lora_rank=0), torch.device("meta")
        )
    assert parameter_count(job.model) == sum(p.numel() for p in model.parameters())
    assert simulate(job).fits is not run.is_beyond


def test_the_runs_are_those_that_were_asked_for():
    sizes = [parameter_count(job_from_document(job_document(run, "h200-sxm-141gb")).model)
             for run in TRAINING_RUNS]  # fmt: skip
    assert len(TRAINING_RUNS) >= 24
    assert min(sizes) < 0.2e9
    assert max(sizes) > 8e9
    assert {run.recompute for run in TRAINING_RUNS} == {"none", "selective", "full"}
    assert {run.precision for run in TRAINING_RUNS} == {"bf16", "fp8", "fp32"}
    assert {run.optimizer for run in TRAINING_RUNS} == {"fused", "foreach"}
    assert {1024, 32768} <= {run.seq_len for run in TRAINING_RUNS}
    assert sum(run.is_beyond for run in TRAINING_RUNS) == 1


def test_the_first_ten_minutes_hold_a_profile_and_eight_runs(capsys):
    assert command.main(["--plan"]) == 0
    said = capsys.readouterr().out
    found = re.search(r"the first 10 hold (\d+) kernels and (\d+) training runs", said)
    assert found is not None
    assert int(found[1]) >= 240
    assert int(found[2]) >= 8


def test_the_file_needs_nothing_but_torch(tmp_path):
    packed = tmp_path / "gpu_bundle.pyz"
    assert command.main(["--out", str(packed)]) == 0
    names = zipfile.ZipFile(packed).namelist()
    assert "simulator/calibrate/gpu/kernel_calls.py" in names
    blocked = "import sys; sys.modules.update(dict.fromkeys(('pydantic','yaml','simpy','scipy')));"
    script = f"{blocked} sys.argv = [{str(packed)!r}, '--plan']; "
    script += f"import runpy; runpy.run_path({str(packed)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "training runs" in done.stdout


def test_a_second_call_measures_only_what_is_missing(tmp_path):
    todo = [item for item in items(CASES) if item.kind == "kernel"]
    path = tmp_path / "raw.jsonl"
    assert run_all(Journal(path), todo[:3], CPU, 60, None, tiny=True) == 0
    path.write_text(path.read_text()[:-5])
    journal = Journal(path)
    assert len(journal.done & {item.id for item in todo}) == 2
    assert run_all(journal, todo, CPU, 60, None, tiny=True) == 0
    kernels = [record["id"] for record in journal.records if record["kind"] == "kernel"]
    assert sorted(kernels) == sorted(item.id for item in todo)


def test_what_took_its_process_down_twice_is_not_begun_again(tmp_path):
    todo = [item for item in items(CASES) if item.kind == "kernel"][:1]
    journal = Journal(tmp_path / "raw.jsonl")
    for _ in range(2):
        journal.add({"id": f"begin {todo[0].id}", "kind": "begin", "of": todo[0].id})
    run_all(Journal(tmp_path / "raw.jsonl"), todo, CPU, 60, None, tiny=True)
    lost = Journal(tmp_path / "raw.jsonl").records[-1]
    assert (lost["id"], lost["kind"]) == (todo[0].id, "lost")


def test_without_time_nothing_is_begun(tmp_path):
    journal = Journal(tmp_path / "raw.jsonl")
    assert run_all(journal, items(CASES), CPU, 0, None, tiny=True) == len(items(CASES))
    assert not journal.records


def test_an_item_that_is_longer_than_the_time_left_is_put_off(tmp_path):
    journal = Journal(tmp_path / "raw.jsonl")
    run_all(journal, items(CASES), CPU, 4.0, None, tiny=True)
    assert {record["kind"] for record in journal.records} == {"begin", "kernel"}


def test_readings_of_the_driver_are_numbers_by_field():
    found = sensors_module.parsed("1980, 3201, 650.12, 700.00, 55, 1024, 0x0000000000000004")
    assert found["clocks.sm"] == 1980
    assert found["power.draw"] == 650.12
    assert found["clocks_throttle_reasons.active"] == "0x0000000000000004"


def test_the_driver_is_read_while_items_run(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 1980, 3201, 650, 700, 55, 1024, 0x4\nexec sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setattr(sensors_module.shutil, "which", lambda _: str(smi))
    with sensors_module.Sensors() as sensors:
        while not (found := sensors.since_last()):
            pass
    assert found[0]["temperature.gpu"] == 55
    assert sensors.since_last() == found


def test_running_out_of_memory_is_a_record(monkeypatch):
    def exhaust(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(training, "Trainer", exhaust)
    run = next(item for item in items([]) if item.kind == "run")
    assert measure(run, CPU, tiny=True)["out_of_memory"] is True


def test_a_process_that_dies_or_lasts_too_long_is_said():
    with OwnProcesses([sys.executable, "-c", "exit(7)"]) as processes:
        assert "ended with 7" in processes.answer("any", 600)["skipped"]
    with OwnProcesses([sys.executable, "-c", "import time; time.sleep(60)"]) as processes:
        assert processes.answer("any", 0.05)["error"] == "timeout"


@pytest.fixture
def whole_run(tmp_path, monkeypatch, absent_cuda):
    """A raw file that the absent device gave: synthetic numbers, of a processor."""
    few = [item for item in packed_cases() if item["op"] in ("host_launch", "sustained_gemm")]
    few += CASES
    few[:] = [{**case, "m": 32, "n": 32, "k": 32} if "gemm" in case["op"] and case["m"] > 999
              else case for case in few]  # fmt: skip
    monkeypatch.setitem(program._WIDTH, "cuda", 64)
    monkeypatch.setattr("simulator.calibrate.gpu.kernel_calls._COVER_BYTES", 64)

    class Here:
        """Measures in this process, where the absent device is."""

        def __init__(self, command):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait_until_loaded(self):
            pass

        def answer(self, item_id, left_s):
            item = next(item for item in items(few) if item.id == item_id)
            return measure(item, torch.device("cuda"), tiny=True)

    monkeypatch.setattr(program, "OwnProcesses", Here)
    monkeypatch.setattr(program, "ALL_RUNS", TRAINING_RUNS[:4])
    monkeypatch.setattr(program, "LOOP_ITEMS", {})
    raw = tmp_path / "raw.jsonl"
    assert program.main(["--out", str(raw), "--minutes", "30"], few) == 0
    return raw


def test_every_kind_of_item_runs_on_the_absent_device(whole_run):
    records = [json.loads(line) for line in whole_run.read_text().splitlines()]
    ended = [record for record in records if record["kind"] != "begin"]
    assert not [record for record in ended if "skipped" in record]
    device = next(record for record in ended if record["kind"] == "device")
    assert device["name"] == "NVIDIA H200"
    run = next(record for record in ended if record["kind"] == "run")
    assert run["allocated_bytes"] == 2**30
    assert run["device_bytes"] == run["taken_before_bytes"] == 2**30


def test_a_raw_file_makes_a_profile_and_a_page_without_the_device(
    whole_run, tmp_path, clustersim, monkeypatch
):
    pytest.importorskip("scipy")
    raw = read_raw_file(whole_run)
    assert raw.facts.name == "NVIDIA H200"
    assert len(raw.kernels) == 10
    out = tmp_path / "mine.yaml"
    outcome = clustersim("calibrate", "gpu", "--from", whole_run, "--out", out)
    assert outcome.code == 0, outcome.err
    assert clustersim("profile", "check", out).code == 0
    report(tmp_path, tmp_path / "page", str(out), "h200-sxm-141gb")
    text = (tmp_path / "page" / "raw.md").read_text()
    assert "| calibrated profile | " in text
    assert "| shipped profile | " in text
    assert "| llama-1b |" in text
    assert (tmp_path / "page" / "raw_steps.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_ran_out_of_memory_is_held_against_whether_it_is_predicted_to_fit():
    run = program.dataclasses.asdict(RUNS["llama-8b-beyond"])
    line = {"kind": "run", "out_of_memory": True, "run": run, "allocated_bytes": 1,
            "reserved_bytes": 1, "device_bytes": 1}  # fmt: skip
    (found,) = compared_runs([line], {CALIBRATED: "h200-sxm-141gb"})
    assert found.ran_out
    assert not found.fits


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "raw.jsonl"
    path.write_text('{"kind": "kernel"}\n')
    with pytest.raises(InputError, match="does not state its device"):
        read_raw_file(path)
    path.write_text("no json\n")
    with pytest.raises(InputError, match="line 1"):
        read_raw_file(path)


def test_the_runner_prints_its_plan_and_asks_for_a_file_and_a_gpu(tmp_path, capsys):
    assert program.main(["--plan"], CASES) == 0
    assert "8 kernels" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        program.main([], CASES)
    assert "--out is needed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        program.main(["--out", str(tmp_path / "raw.jsonl")], CASES)
    assert "finds no GPU" in capsys.readouterr().err


def test_a_process_of_one_item_answers_with_that_item_alone(tmp_path, monkeypatch):
    item = next(item for item in items(CASES) if item.kind == "kernel")
    out = tmp_path / "answer.json"
    asked = io.StringIO(json.dumps({"id": item.id, "out": str(out)}) + "\n")
    monkeypatch.setattr(sys, "stdin", asked)
    assert program.main(["--one", "--device", "cpu", "--tiny"], CASES) == 0
    assert json.loads(out.read_text())["samples_s"]


def test_each_item_has_a_process_of_its_own_that_waited_for_it():
    script = (
        "import json, os, sys; asked = json.loads(sys.stdin.readline());"
        "open(asked['out'], 'w').write(json.dumps({'of': asked['id'], 'by': os.getpid()}))"
    )
    with OwnProcesses([sys.executable, "-c", script]) as processes:
        first, second = (processes.answer(name, 60) for name in ("a", "b"))
    assert [first["of"], second["of"]] == ["a", "b"]
    assert first["by"] != second["by"]


def test_what_the_runner_calls_again_is_itself(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_bundle.pyz"])
    assert program._own_command() == [sys.executable, "gpu_bundle.pyz"]
    monkeypatch.setattr(sys, "argv", ["main.py"])
    assert program._own_command()[1:] == ["-m", "reports.make.gpu_bundle.device.main"]


def test_a_product_in_fp8_is_scaled_and_a_torch_without_it_skips_the_case(monkeypatch):
    case = {**CASES[0], "dtype": "fp8"}
    todo = next(item for item in items([case]) if item.kind == "kernel")
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda left, right, **_: left.float() @ right.float(), raising=False
    )
    assert measure(todo, CPU, tiny=True)["samples_s"]
    monkeypatch.setattr(torch, "_scaled_mm", None)
    assert measure(todo, CPU, tiny=True)["skipped"] == "this torch has no _scaled_mm"


def test_the_page_names_runs_that_ran_out_and_those_without_numbers():
    device = {"name": "NVIDIA H200", "torch": "2", "date": "today"}
    numbers = {"allocated": 1.0, "reserved": 1.0, "device": 1.0}
    predicted = {CALIBRATED: numbers | {"step": 1.0}}
    beyond = [ComparedRun(name, numbers, predicted, True, fits)
              for name, fits in (("beyond", False), ("small", True))]  # fmt: skip
    text = page(beyond, device, {"run: late": "no time was left"})
    assert "- beyond: as predicted" in text
    assert "- small: predicted to fit, wrongly" in text
    assert "- run: late: no time was left" in text


def test_a_folder_without_one_raw_file_of_a_device_is_refused(tmp_path, capsys):
    words = [str(tmp_path), str(tmp_path / "page"), "--profile", "h200-sxm-141gb"]
    assert compare.main(words) == 2
    assert "must hold one *.jsonl" in capsys.readouterr().err
    (tmp_path / "raw.jsonl").write_text('{"id": "x", "kind": "kernel"}\n')
    assert compare.main(words) == 2
    assert "which device" in capsys.readouterr().err


def test_captures_and_first_predictions_beside_a_raw_file_are_compared_too():
    raw = Path(compare.__file__).parents[2] / "gpu"
    lines = [line for line in read_raw_lines(raw / "raw.jsonl.gz") if line["id"] == "run: gpt-0.1b"]
    (found,) = compared_runs(lines, {CALIBRATED: "h100-sxm-80gb"}, raw)
    assert set(found.predicted) == {FIRST_SIGHT, CALIBRATED, CAPTURED}
    assert found.error_pct("step", FIRST_SIGHT) == pytest.approx(-7.2, abs=0.1)
    # To the byte: what the allocator reserves for a captured run is what it reserved.
    assert found.error_pct("reserved", CAPTURED) == 0


def test_a_raw_file_may_be_gzipped_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "raw.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"kind": "kernel"}\n'))
    assert read_raw_lines(path) == [{"kind": "kernel"}]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="cannot be read"):
        read_raw_lines(path)


def test_the_context_of_a_raw_file_is_what_its_libraries_take(tmp_path):
    path = tmp_path / "raw.jsonl"
    device = {"id": "device", "kind": "device", "name": "any", "type": "cuda", "torch": "2",
              "date": "2026-01-01", "memory_bytes": 80, "foreign_bytes": 5}  # fmt: skip
    held = {"id": "memory: context", "kind": "memory", "reserved_bytes": 20,
            "device_bytes": {"before": 5, "attention": 32}}  # fmt: skip
    path.write_text(f"{json.dumps(device)}\n")
    assert read_raw_file(path).facts.foreign_bytes == 5
    path.write_text(f"{json.dumps(device)}\n{json.dumps(held)}\n")
    assert read_raw_file(path).facts.foreign_bytes == 12


def test_a_process_ahead_says_when_it_has_loaded_torch():
    """Only then is the host of others undisturbed, whose launches are timed."""
    slow = "import time; time.sleep(0.3); print('loaded', flush=True); input()"
    with OwnProcesses([sys.executable, "-c", slow]) as processes:
        began = time.perf_counter()
        processes.wait_until_loaded()
        assert time.perf_counter() - began > 0.2
