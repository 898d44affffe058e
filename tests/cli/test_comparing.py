"""clustersim compare: differences that sum, of files and of variants."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from simulator.api.step_comparison import time_row
from simulator.cli.compared_jobs import assignments


@pytest.fixture
def other_file(write):
    return write(
        """
        model: {base: llama3.1-8b, layers: 4}
        cluster: {profile: h100-sxm-80gb, gpus: 16}
        batch: {global: 32, seq_len: 2048}
        plan: {tp: 4, pp: 2}
        """,
        "other.yaml",
    )


def test_causes_in_json_sum_to_the_difference_of_the_steps(clustersim, job_file, other_file):
    outcome = clustersim("compare", job_file, other_file, "--json")
    assert outcome.code == 0
    document = json.loads(outcome.out)
    first, second = document["runs"]
    [difference] = document["differences"]
    steps_s = second["step_time_s"] - first["step_time_s"]
    assert difference["difference_s"] == steps_s
    assert sum(difference["by_cause_s"].values()) == pytest.approx(steps_s, rel=1e-9)
    assert difference["fields"] == {"plan.tp": {"first": 2, "second": 4}}
    assert [run["name"] for run in document["runs"]] == ["job", "other"]


def test_the_headline_names_every_job_that_has_another_one(clustersim, job_file, other_file):
    lines = clustersim("compare", job_file, other_file).out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:2]] == ["job", "other"]
    assert "tp2" in lines[0]
    assert "tp4" in lines[1]
    alike = clustersim("compare", job_file, "--variant", "plan.recompute=full").out.splitlines()
    assert alike[0] == lines[0].removeprefix("job: ")
    assert alike[1].startswith(" ")


def test_a_value_of_a_variant_may_have_spaces(clustersim, job_file):
    words = "cluster.network.fabric.nic=200 Gbit/s plan.tp=4"
    outcome = clustersim("compare", job_file, "--variant", words, "--json")
    assert outcome.code == 0
    twice = ("--set", "cluster.network.fabric.nic=200 Gbit/s", "--set", "plan.tp=4")
    alone = clustersim("run", job_file, *twice, "--json")
    step_s = json.loads(outcome.out)["runs"][1]["step_time_s"]
    assert step_s == json.loads(alone.out)["step_time_s"]


@pytest.mark.parametrize(
    "text",
    ["plan.tp=1 plan.layout=[2,2]", "plan.tp=1,plan.layout=[2,2]", " plan.tp=1, plan.layout=[2,2]"],
)
def test_fields_of_a_variant_stand_behind_spaces_or_commas(text):
    assert assignments(text) == ["plan.tp=1", "plan.layout=[2,2]"]


def test_jobs_on_different_numbers_of_gpus_are_compared_as_a_whole_too(clustersim, job_file):
    table = clustersim("compare", job_file, "--variant", "cluster.gpus=32").out
    names = {"GPUs", "tokens/s per GPU", "tokens/s of all GPUs"}
    rows = [re.split(r" {2,}", line) for line in table.splitlines()]
    values = {row[0]: float(row[-1].replace(",", "")) for row in rows if row[0] in names}
    assert values["GPUs"] == 32
    assert values["tokens/s of all GPUs"] == pytest.approx(
        32 * values["tokens/s per GPU"], rel=1e-3
    )
    alone = clustersim("compare", job_file, "--variant", "plan.tp=4").out
    assert "tokens/s of all GPUs" not in alone


def test_prices_are_those_of_gpu_time_over_tokens(clustersim, job_file):
    words = ("compare", job_file, "--variant", "cluster.gpus=32")
    price = ("--set", "campaign.systems.h100-sxm-80gb.on_demand=3.6 USD/h")
    found = json.loads(clustersim(*words, *price, "--json").out)["runs"]
    for run in found:
        by_hand = 0.001 / run["tokens_per_s_per_gpu"] * 1e9
        assert run["usd_per_billion_tokens"] == pytest.approx(by_hand)
    table = clustersim(*words, *price)
    row = next(line for line in table.out.splitlines() if line.startswith("USD per billion"))
    assert row.split()[-2:] == [f"{run['usd_per_billion_tokens']:,.2f}" for run in found]
    assert "no price is given" not in table.err


def test_clusters_without_a_price_are_said_to_have_none(clustersim, job_file):
    outcome = clustersim("compare", job_file, "--variant", "cluster.gpus=32")
    assert "USD" not in outcome.out
    assert "no price is given: --set campaign.systems" in outcome.err


def test_jobs_without_a_difference_are_named(clustersim, job_file, other_file):
    same = clustersim("compare", job_file, job_file, "--set", "plan.tp=4")
    assert "is the same job as" in same.err
    assert "--variant" in same.err
    assert "same job" not in clustersim("compare", job_file, other_file).err


def test_a_variant_is_the_first_job_with_changes(clustersim, job_file, other_file):
    variant = clustersim("compare", job_file, "--variant", "plan.tp=4", "--json")
    file = clustersim("compare", job_file, other_file, "--json")
    steps_s = [json.loads(outcome.out)["runs"][1]["step_time_s"] for outcome in (variant, file)]
    assert steps_s[0] == steps_s[1]


def test_the_table_ends_with_the_step(clustersim, job_file):
    outcome = clustersim("compare", job_file, "--variant", "plan.tp=4 batch.global=64")
    assert outcome.code == 0
    assert "its times divided by 2: as many tokens per GPU as job" in outcome.out
    last = outcome.out.strip().splitlines()[-1]
    assert last.split()[0] == "step"


def test_picture_and_page_are_written(clustersim, job_file, tmp_path):
    picture, page = tmp_path / "new" / "why.png", tmp_path / "new" / "why.html"
    outcome = clustersim(
        "compare", job_file, "--variant", "plan.tp=4", "--plot", picture, "--html", page
    )
    assert outcome.err == f"wrote {picture}\nwrote {page}\n"
    assert picture.stat().st_size > 5000
    text = page.read_text(encoding="utf-8")
    assert "Why plan.tp=4 differs from job" in text
    said = next(line for line in outcome.out.splitlines() if line.startswith("plan.tp=4: "))
    assert said.partition("GPU, ")[2] in text


def test_one_job_alone_is_asked_for_another(clustersim, job_file):
    outcome = clustersim("compare", job_file)
    assert outcome.code == 2
    assert "--variant plan.tp=2" in outcome.err


def test_a_change_in_place_of_a_job_is_told_from_a_missing_file(clustersim, job_file):
    outcome = clustersim("compare", job_file, "--variant", "plan.tp=4", "plan.pp=4")
    assert outcome.code == 2
    assert "is a change, not a job; write --variant or --set plan.pp=4" in (outcome.err)


def test_files_of_one_name_are_told_apart_by_their_folders(clustersim, job_file, tmp_path):
    (tmp_path / "b").mkdir()
    twin = tmp_path / "b" / job_file.name
    twin.write_text(job_file.read_text(encoding="utf-8"), encoding="utf-8")
    document = json.loads(clustersim("compare", job_file, twin, "--json").out)
    names = [run["name"] for run in document["runs"]]
    assert names == [str(job_file.with_suffix("")), str(twin.with_suffix(""))]


def test_a_variant_on_hardware_that_does_not_exist_is_said_to_be_doubtful(clustersim, job_file):
    variant = "cluster.network.fabric.nic=400 GB/s"
    outcome = clustersim("compare", job_file, "--variant", variant, "--json")
    assert outcome.code == 0
    assert outcome.err.startswith("doubtful: cluster.network.fabric.nic = '400 GB/s'")


MEMORY = "cluster.device.memory=1 GiB"


def test_a_comparison_in_which_nothing_fits_ends_with_1_and_one_that_fits_is_enough(
    clustersim, job_file
):
    none = clustersim("compare", job_file, "--variant", "plan.tp=4", "--set", MEMORY, "--json")
    assert none.code == 1
    assert none.err.startswith("No job fits;")
    assert [run["fits"] for run in json.loads(none.out)["runs"]] == [False, False]
    one = clustersim("compare", job_file, "--variant", MEMORY, "--json")
    assert (one.code, one.err) == (0, "")
    assert [run["fits"] for run in json.loads(one.out)["runs"]] == [True, False]


def test_differences_far_below_the_digits_of_the_steps_are_none(clustersim, job_file):
    """Of a step of seconds, nanoseconds are what rounding left."""
    clock = "cluster.kernels.launch=5.0001 us"
    lines = clustersim("compare", job_file, "--variant", clock).out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("time by cause"))
    rows = lines[start + 1 : lines.index("", start)]
    assert rows
    assert not [row for row in rows if " ns " in row]


@pytest.mark.parametrize(
    ("before_s", "after_s", "shown"),
    [(4.62e-3, 4.74e-3, "+120 us"), (4.621e-3, 4.622e-3, "0 s"), (4.57, 4.574, "+4.00 ms")],
)
def test_times_that_read_differently_have_a_difference(before_s, after_s, shown):
    row = time_row(SimpleNamespace(first_s=14.4), "data_parallel", before_s, after_s)
    assert row[3] == shown
