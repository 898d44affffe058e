"""Does the command line say what the simulation found, no more and no less?"""

from __future__ import annotations

import io
import json
import math
import re
import sys

import pytest

from simulator.api import Result
from simulator.units import format_count, parse_quantity
from tests.csv_files import read_rows

TOO_BIG = ("--set", "cluster.device.memory=4 GiB")
KEYS = {
    "step_time_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu",
    "bubble_fraction", "breakdown_s", "exposed_comm_s", "memory", "fits", "sources",
    "schema_version",
}  # fmt: skip


def table(text: str, title: str) -> list[list[str]]:
    """Rows of the printed table with that title, split at wide gaps, without its heading."""
    lines = text.partition(f"{title}\n")[2].partition("\n\n")[0].splitlines()
    return [line.split() for line in lines[1:]]


@pytest.fixture(autouse=True)
def explained(monkeypatch):
    """A misfit is explained elsewhere; here it only has to reach the user."""
    monkeypatch.setattr(
        Result, "explain_misfit", lambda *_, **__: "too little memory", raising=False
    )


def test_json_is_one_object_with_the_promised_fields(clustersim, job_file):
    outcome = clustersim("run", job_file, "--json")
    document = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (0, "")
    assert set(document) >= KEYS
    assert document["fits"] is True
    assert len(document["memory"]) == 2
    total = sum(document["breakdown_s"].values())
    assert total == pytest.approx(document["step_time_s"], rel=1e-9)


def test_what_the_job_leaves_to_defaults_is_said(clustersim, job_file):
    found = json.loads(clustersim("run", job_file, "--json").out)
    setup = clustersim("run", job_file).out.splitlines()[1]
    assert setup.startswith(f"{format_count(found['parameters'])} parameters; ")
    assert f"ZeRO {found['resolved']['plan.zero']}, " in setup
    assert f"microbatch {found['resolved']['batch.micro']}, " in setup


def test_the_printed_breakdown_sums_to_the_step(clustersim, job_file):
    rows = table(clustersim("run", job_file).out, "breakdown")
    *parts, step = [(parse_quantity(" ".join(row[1:3]), "s"), float(row[3])) for row in rows]
    assert rows[-1][0] == "step"
    assert sum(seconds for seconds, _ in parts) == pytest.approx(step[0], rel=0.01)
    assert sum(share for _, share in parts) == pytest.approx(100, abs=0.5)
    assert step[1] == 100.0


def test_no_time_has_more_digits_than_its_interval_leaves(clustersim, job_file):
    compared = clustersim("compare", job_file, "--variant", "plan.tp=4").out
    times = re.findall(r"([\d.]+) (?:ns|us|ms|s)\b", clustersim("run", job_file).out + compared)
    assert len(times) > 20
    assert all(len(digits.replace(".", "").lstrip("0")) <= 3 for digits in times)


def test_the_text_agrees_with_the_json(clustersim, job_file):
    text = clustersim("run", job_file).out
    document = json.loads(clustersim("run", job_file, "--json").out)
    assert f"{document['mfu']:.1%}".replace("%", " %") in text
    assert f"{document['tokens_per_s_per_gpu']:,.1f}" in text
    for kind, count in document["sources"].items():
        assert [kind, str(count)] in table(text, "hardware numbers of h100-sxm-80gb")


def test_a_use_of_more_than_the_peak_is_explained(clustersim, job_file):
    one = ("cluster.gpus=1", "plan.tp=1", "plan.pp=1", "plan.lora={rank: 8}", "batch.micro=4")
    changes = [word for change in one for word in ("--set", change)]
    frozen = clustersim("run", job_file, *changes, "--set", "cluster.kernels.slowness=0.5")
    assert "those of frozen weights too" in frozen.err
    assert "frozen weights" not in clustersim("run", job_file, *changes).err


def test_set_changes_the_job(clustersim, job_file):
    plain = json.loads(clustersim("run", job_file, "--json").out)
    changed = json.loads(clustersim("run", job_file, "--json", "--set", "batch.global=64").out)
    assert changed["step_time_s"] > plain["step_time_s"]


@pytest.fixture
def pipe(monkeypatch):
    """Pipe a text into the next command."""

    def into(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return into


@pytest.mark.parametrize("command", [["run"], ["plan", "--vary", "plan.tp=2", "--no-why"]])
def test_a_dash_is_the_job_that_is_piped_in(clustersim, job_file, pipe, command):
    name, *options = command
    pipe(job_file.read_text())
    piped = clustersim(name, "-", *options, "--json")
    assert piped.code == 0
    assert piped.out == clustersim(name, job_file, *options, "--json").out


def test_faults_of_a_piped_job_name_the_standard_input(clustersim, pipe):
    pipe("model: llama3.1-8b")
    assert "standard input: cluster: is missing" in clustersim("run", "-").err


def test_long_sequences_show_use_without_what_a_causal_mask_skips(clustersim, job_file):
    """Of products and half the attention, against products and all of it."""
    long = ["batch.seq_len=131072", "batch.global=8", "cluster.gpus=8", "plan.recompute=full"]
    sets = [word for change in long for word in ("--set", change)]
    document = json.loads(clustersim("run", job_file, *sets, "--json").out)
    assert document["mfu_causal"] < 0.75 * document["mfu"]
    rows = dict(
        line.split("  ", 1)
        for line in clustersim("run", job_file, *sets).out.splitlines()
        if "MFU" in line
    )
    assert rows["MFU without masked attention"].strip() == f"{100 * document['mfu_causal']:.1f} %"
    assert "masked" not in clustersim("run", job_file).out


def test_a_wrong_set_names_the_field(clustersim, job_file):
    outcome = clustersim("run", job_file, "--set", "plan.tp=3", "--set", "plan.tpp=1")
    assert outcome.code == 2
    assert "plan.tpp" in outcome.err


def test_files_are_written_where_asked_and_named_on_stderr(clustersim, job_file, tmp_path):
    trace = tmp_path / "deep" / "trace.json.gz"
    outcome = clustersim("run", job_file, "--plot", tmp_path / "pictures", "--trace", trace)
    written = [line.removeprefix("wrote ") for line in outcome.err.splitlines()]
    pictures = [str(path) for path in sorted((tmp_path / "pictures").iterdir())]
    assert sorted(written) == sorted([*pictures, str(trace)])
    assert len(pictures) >= 3
    assert trace.read_bytes()[:2] == b"\x1f\x8b"


def test_a_page_is_written_with_a_verdict_whose_gain_was_simulated(clustersim, job_file, tmp_path):
    page = tmp_path / "deep" / "report.html"
    outcome = clustersim("run", job_file, "--html", page)
    assert (outcome.code, outcome.err) == (0, f"wrote {page}\n")
    text = page.read_text(encoding="utf-8")
    assert re.search(r'id="verdict">[A-Z][a-z]+-bound.*\.</p>', text)
    assert "raising microbatches from 8 to 16" in text


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("run", "--trace", "trace.txt"), "--trace = 'trace.txt': is written as .json or .json.gz"),
        (("memory", "--over-time", "m.xls"), "--over-time = 'm.xls': is written as .csv, .png, "),
    ],
)
def test_a_file_of_another_kind_is_refused_before_anything_is_simulated(
    clustersim, job_file, monkeypatch, words, rule
):
    monkeypatch.setattr("simulator.api.simulate", lambda *_, **__: pytest.fail("simulated"))
    command, *options = words
    outcome = clustersim(command, job_file, *options)
    assert outcome.code == 2
    assert rule in outcome.err
    assert "change the suffix" in outcome.err


@pytest.mark.parametrize("command", ["run", "memory"])
def test_a_misfit_is_an_answer_and_ends_with_1(clustersim, job_file, command):
    outcome = clustersim(command, job_file, *TOO_BIG)
    assert outcome.code == 1
    assert "peak memory per GPU, capacity 4.00 GiB" in outcome.out
    assert outcome.err.splitlines()[-1] == "too little memory"


@pytest.mark.parametrize("command", ["run", "memory"])
def test_a_misfit_is_still_one_json_object(clustersim, job_file, command):
    outcome = clustersim(command, job_file, "--json", *TOO_BIG)
    assert outcome.code == 1
    assert json.loads(outcome.out)["fits"] is False


def test_memory_owners_sum_to_what_is_allocated_and_all_shares_to_the_device(clustersim, job_file):
    document = json.loads(clustersim("memory", job_file, "--json").out)
    verdict = {"fits", "fits_probability", "fit"}
    assert set(document) == {"schema_version", *verdict, "capacity_bytes", "memory"}
    for stage in document["memory"]:
        held = sum(stage["by_owner"].values())
        assert held == pytest.approx(stage["peak_allocated_bytes"], rel=1e-9)
        assert math.fsum(stage["device_shares"].values()) == stage["peak_device_bytes"]
    assert [row[0] for row in table(clustersim("memory", job_file).out, "at the peak")][-1] == (
        "device"
    )


def test_memory_over_time_peaks_where_the_table_says(clustersim, job_file, tmp_path):
    path = tmp_path / "memory.csv"
    document = json.loads(clustersim("memory", job_file, "--json", "--over-time", path).out)
    held: dict[int, list[float]] = {0: [], 1: []}
    for row in read_rows(path):
        owners = (float(value) for name, value in row.items() if name.endswith("_bytes"))
        held[int(row["rank_class"])].append(sum(owners))
    for index, stage in enumerate(document["memory"]):
        assert max(held[index]) == pytest.approx(stage["peak_allocated_bytes"], rel=1e-9)


def test_memory_over_time_can_be_a_picture(clustersim, job_file, tmp_path):
    path = tmp_path / "deep" / "memory.png"
    assert clustersim("memory", job_file, "--over-time", path).err == f"wrote {path}\n"
    assert path.read_bytes()[:4] == b"\x89PNG"


OFFLOADED = ("--set", "plan.pp=1", "--set", "plan.offload.optimizer=cpu")


def test_what_left_the_gpus_is_printed_and_is_in_the_json(clustersim, job_file):
    shown = table(clustersim("memory", job_file, *OFFLOADED).out, "on the fullest node")
    document = json.loads(clustersim("memory", job_file, "--json", *OFFLOADED).out)
    held = document["host_memory"]["by_owner"]
    named = {row[0].replace("pinned", "communication") for row in shown}
    assert named == {*held, "all", "capacity"}
    assert document["host_memory"]["fits"]


def test_a_node_without_room_for_what_left_its_gpus_is_a_misfit(clustersim, job_file):
    outcome = clustersim("run", job_file, *OFFLOADED, "--set", "cluster.host.memory=1 GiB")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == "too little memory"


def test_a_trace_of_chosen_ranks_holds_their_classes_only(clustersim, job_file, tmp_path):
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    assert clustersim("run", job_file, "--trace", whole).code == 0
    outcome = clustersim("run", job_file, "--trace", part, "--trace-ranks", "15")
    assert outcome.code == 0
    events = [len(json.loads(path.read_text())["traceEvents"]) for path in (whole, part)]
    assert events[1] < events[0]
    about = json.loads(part.read_text())["otherData"]
    assert about["classes_left_out"] == ["stage 0"]


@pytest.mark.parametrize("ranks", ["16", "a,b", "-1"])
def test_ranks_that_are_none_are_refused(clustersim, job_file, tmp_path, ranks):
    outcome = clustersim("run", job_file, "--trace", tmp_path / "t.json", "--trace-ranks", ranks)
    assert outcome.code == 2
    assert "ranks" in outcome.err
    assert not (tmp_path / "t.json").exists()


def test_stages_that_hold_the_same_share_a_line(clustersim, job_file):
    """With all forwards first, the stages between the ends hold the same."""
    pipeline = ("--set", "plan.pp=4", "--set", "plan.schedule=gpipe")
    lines = clustersim("memory", job_file, *pipeline).out.splitlines()
    assert "  stage 1 to 2  " in lines[1]
    assert [line.strip()[:6] for line in lines if line.endswith(" of microbatch 0, layer 1")] == [
        "1 to 2"
    ]


def test_json_has_whole_bytes(clustersim, job_file):
    document = json.loads(clustersim("run", job_file, "--json").out)
    assert isinstance(document["capacity_bytes"], int)
    for memory in document["memory"]:
        sizes = [value for key, value in memory.items() if key.endswith("_bytes")]
        shares = [*memory["by_owner"].values(), *memory["device_shares"].values()]
        assert all(isinstance(size, int) for size in [*sizes, *shares])
        assert isinstance(memory["peak_time_s"], float)


def test_a_shipped_job_that_does_not_fit_points_to_what_its_file_says(clustersim):
    name, words = "llama2-7b-8xrtx4090-does-not-fit", "stands at the top of"
    said = clustersim("run", name).err
    assert said.count(words) == 1
    assert f"{name}.yaml" in said
    assert words not in clustersim("run", name, "--set", "batch.global=64").err


def test_owners_of_tensors_stand_before_what_the_device_holds_beside_them(clustersim, job_file):
    """Logits are on the last stage alone, and are tensors like those of the first."""
    lines = clustersim("memory", job_file).out.partition("\n\n")[0].splitlines()
    names = [line.split()[0] for line in lines]
    assert names.index("logits") < names.index("unused") < names.index("context")


def test_a_picture_in_place_of_the_folder_of_pictures_is_refused(clustersim, job_file, tmp_path):
    outcome = clustersim("run", job_file, "--plot", tmp_path / "step.png")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is the folder of several pictures, not one of them" in outcome.err
    assert f"for example {tmp_path / 'step'}" in outcome.err
    assert not (tmp_path / "step.png").exists()
