"""Does clustersim plan rank what fits, say what was pruned, and answer when nothing fits?"""

from __future__ import annotations

import json
import shlex
from math import inf

import pytest

from simulator.cli.planning.plan import _progress_text
from simulator.planning.search.search import Progress
from simulator.units import chance

FEW = (
    "--vary", "plan.tp=1,2", "--vary", "plan.pp=1,2", "--vary", "batch.micro=1,2",
    "--vary", "plan.cp=1", "--workers", "1",
)  # fmt: skip


def test_the_fastest_plans_are_ranked(clustersim, job_file):
    outcome = clustersim("plan", job_file, *FEW, "--top", "3")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[1].split()[:5] == ["#", "tp", "pp", "vpp", "cp"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "3"]
    assert "valid plans" in outcome.err
    assert "slower, by a lower bound" in outcome.err
    assert "break a rule" in outcome.err


def test_the_printed_options_give_the_printed_step(clustersim, job_file):
    words = ("plan", job_file, *FEW, "--top", "1")
    found = json.loads(clustersim(*words, "--json", "--workers", "2").out)
    lines = clustersim(*words).out.splitlines()
    options = shlex.split(lines[-1].partition(": ")[2])
    step = json.loads(clustersim("run", job_file, *options, "--json").out)
    best = found["choices"][0]
    assert step["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)
    assert step["tokens_per_s_per_gpu"] == pytest.approx(best["tokens_per_s_per_gpu"], rel=1e-12)


def test_the_jobs_own_plan_is_compared_with_the_first(clustersim, job_file):
    own = json.loads(clustersim("run", job_file, "--json").out)
    wide = ("--vary", "plan.tp=2", "--vary", "plan.pp=1", "--vary", "batch.micro=2")
    outcome = clustersim("plan", job_file, *wide, "--workers", "1")
    assert "The job's own plan takes" in outcome.out
    assert "than plan 1" in outcome.out
    document = json.loads(clustersim("plan", job_file, *wide, "--json").out)
    assert document["own"]["step_time_s"] == own["step_time_s"]
    assert document["own"]["fits_probability"] == own["fits_probability"]
    assert document["schema_version"] == own["schema_version"]


def test_a_job_whose_own_plan_is_the_fastest_is_told_so(clustersim, job_file):
    best = json.loads(clustersim("plan", job_file, *FEW, "--top", "1", "--json").out)["choices"][0]
    options = [
        word for path, value in best["changes"].items() for word in ("--set", f"{path}={value}")
    ]
    outcome = clustersim("plan", job_file, *FEW, *options, "--top", "1", "--workers", "1")
    assert "Plan 1 is the job's own plan." in outcome.out


def test_a_plan_that_breaks_a_rule_does_not_keep_others_from_being_found(clustersim, job_file):
    broken = clustersim("plan", job_file, *FEW, "--set", "plan.tp=3", "--no-why", "--json")
    sound = clustersim("plan", job_file, *FEW, "--no-why", "--json")
    assert broken.code == 0
    assert json.loads(broken.out)["choices"] == json.loads(sound.out)["choices"]


def test_a_job_that_no_plan_can_save_says_what_the_job_itself_lacks(clustersim, job_file):
    outcome = clustersim("plan", job_file, *FEW, "--set", "batch.global=0")
    assert outcome.code == 2
    assert "batch.global = 0" in outcome.err


def test_plans_that_do_not_fit_are_counted_and_not_chosen(clustersim, job_file):
    memory = ("--set", "cluster.device.memory=14 GiB")
    words = ("plan", job_file, *FEW, *memory, "--no-why", "--json")
    found = json.loads(clustersim(*words).out)
    assert found["pruned"]["too_large"] > 0
    assert all(choice["peak_device_bytes"] <= 14 * 2**30 for choice in found["choices"])


def test_no_plan_that_fits_is_an_answer_with_the_nearest_that_would(clustersim, job_file):
    memory = ("--set", "cluster.device.memory=5 GiB")
    outcome = clustersim("plan", job_file, *FEW, *memory)
    assert (outcome.code, outcome.out) == (1, "")
    assert "No plan fits" in outcome.err
    smallest = next(line for line in outcome.err.splitlines() if "the least memory" in line)
    alone = clustersim(
        "run", job_file, *memory, *shlex.split(smallest.rpartition(": ")[2]), "--json"
    )
    odds = json.loads(alone.out)["fits_probability"]
    assert f"is {chance(odds)} likely to fit, and 95 % are asked: " in smallest
    nearest = next(line for line in outcome.err.splitlines() if "nearest" in line)
    options = shlex.split(nearest.partition(": ")[2])
    assert clustersim("run", job_file, *memory, *options).code == 0


def test_where_no_combination_is_valid_the_rules_that_the_asked_values_break_are_named(
    clustersim, job_file
):
    outcome = clustersim("plan", job_file, "--vary", "plan.tp=3", "--workers", "1")
    assert outcome.code == 1
    assert "No combination is a valid plan. Rules that --set plan.tp=3 breaks:" in outcome.err
    assert "plan.tp = 3: must divide the model's" in outcome.err


def test_a_field_that_cannot_be_varied_is_the_users_to_mend(clustersim, job_file):
    outcome = clustersim("plan", job_file, "--vary", "cluster.profile=h100-sxm-80gb")
    assert outcome.code == 2
    assert "cannot be varied" in outcome.err


def test_plans_of_several_numbers_of_gpus_are_those_of_each_alone(clustersim, job_file):
    words = ("plan", job_file, *FEW, "--no-why", "--json", "--top")
    both = json.loads(clustersim(*words, 1, "--vary", "cluster.gpus=4,8").out)["choices"]
    assert [choice["changes"]["cluster.gpus"] for choice in both] == [8, 4]
    assert 0.0 < both[1].pop("faster_probability") < 0.5
    both[1]["faster_probability"] = None
    for choice in both:
        gpus = choice["changes"].pop("cluster.gpus")
        alone = json.loads(clustersim(*words, 1, "--set", f"cluster.gpus={gpus}").out)["choices"]
        assert [choice] == alone
    table = clustersim("plan", job_file, *FEW, "--no-why", "--vary", "cluster.gpus=4,8")
    assert "on 4 or 8 x" in table.out


def test_numbers_of_gpus_on_which_no_plan_fits_are_named(clustersim, job_file):
    words = ("plan", job_file, *FEW, "--no-why", "--set", "model=llama3-8b")
    out = clustersim(*words, "--vary", "cluster.gpus=1,8").out
    assert "No plan fits on 1 x h100-sxm-80gb." in out
    assert " or " not in out.splitlines()[0]


def test_the_best_plan_says_what_is_lost_and_what_would_help(clustersim, job_file):
    out = clustersim("plan", job_file, *FEW, "--top", "2").out
    assert "lost to" in out
    assert "Plan 2 " in out
    assert "Next" in out or "No change outside" in out


def test_every_gain_is_that_of_the_changed_job(clustersim, job_file):
    found = json.loads(clustersim("plan", job_file, *FEW, "--top", "1", "--json").out)
    best, knobs = found["choices"][0], found["reasons"]["knobs"]
    assert sum(best["breakdown_s"].values()) == pytest.approx(best["step_time_s"])
    changes = {**best["changes"], **knobs[0]["changes"]}
    words = [f"--set={path}={str(value).lower()}" for path, value in changes.items()]
    step = json.loads(clustersim("run", job_file, *words, "--json").out)
    gain = 1 - step["step_time_s"] / best["step_time_s"]
    assert gain > 0
    assert knobs[0]["gain"] == pytest.approx(gain)


def test_no_plan_is_riskier_than_asked_and_max_tp_is_kept(clustersim, job_file):
    memory = ("--set", "cluster.device.memory=14 GiB", "--risk", "0.1", "--no-why")
    found = json.loads(clustersim("plan", job_file, *FEW, *memory, "--json").out)
    assert found["choices"]
    assert found["risk"] == 0.1
    assert all(choice["fits_probability"] >= 0.9 for choice in found["choices"])
    narrow = (
        "--vary", "plan.pp=1,2", "--vary", "batch.micro=1", "--vary", "plan.cp=1",
        "--max-tp", "2", "--no-why", "--workers", "1",
    )  # fmt: skip
    found = json.loads(clustersim("plan", job_file, *narrow, "--json").out)
    assert {choice["changes"]["plan.tp"] for choice in found["choices"]} <= {1, 2}


def test_the_price_of_more_and_of_less_risk_is_told(clustersim, job_file):
    words = ("plan", job_file, *FEW, "--top", "1")
    best = json.loads(clustersim(*words, "--json", "--no-why").out)["choices"][0]
    memory = ("--set", f"cluster.device.memory={1.2 * best['peak_device_bytes'] / 2**30} GiB")
    found = json.loads(clustersim(*words, *memory, "--json").out)
    priced = {each["risk"]: each["choices"] for each in found["other_risks"]}
    assert list(priced) == [0.01, 0.2]
    assert priced[0.2][0]["step_time_s"] <= found["choices"][0]["step_time_s"]
    for risk, choices in priced.items():
        assert all(choice["fits_probability"] >= 1 - risk for choice in choices)
    said = clustersim(*words, *memory).out
    assert "At a risk of 1 %" in said
    assert "At a risk of 20 % the f" in said


def test_of_several_batches_the_one_with_the_least_time_per_token_wins(clustersim, job_file):
    words = ("plan", job_file, *FEW, "--top", "3", "--json", "--no-why")
    both = json.loads(clustersim(*words, "--global-batch", "16,32").out)
    single = [json.loads(clustersim(*words, "--set", f"batch.global={b}").out) for b in (16, 32)]
    rates = sorted(c["tokens_per_s_per_gpu"] for each in single for c in each["choices"])
    assert [c["tokens_per_s_per_gpu"] for c in both["choices"]] == rates[:-4:-1]
    assert both["plans"] == sum(each["plans"] for each in single)


def test_the_pareto_front_is_drawn(clustersim, job_file, tmp_path):
    picture = tmp_path / "front.png"
    words = ("--pareto", picture, "--gpus", "8,16", "--no-why", "--top", "1")
    assert clustersim("plan", job_file, *FEW, *words).code == 0
    assert picture.stat().st_size > 10_000
    assert clustersim("plan", job_file, *FEW, "--gpus", "8").code == 2


def test_gradients_of_an_fp16_job_are_never_told_to_be_reduced_in_bf16(clustersim, write):
    job = write("""
        model: {base: bert-large, layers: 2}
        cluster: {profile: v100-sxm2-32gb, gpus: 8}
        batch: {global: 64, micro: 8, seq_len: 512}
        plan: {precision: fp16}
    """)
    narrow = ("--vary", "plan.tp=1", "--vary", "plan.pp=1", "--vary", "plan.zero=1")
    found = json.loads(clustersim("plan", job, *narrow, "--top", "1", "--json").out)
    formats = {
        knob["changes"]["plan.grad_reduce_precision"]
        for knob in found["reasons"]["knobs"]
        if "plan.grad_reduce_precision" in knob["changes"]
    }
    assert formats == {"fp16"}


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(1, 1, 1, 2.0, 0.0), "1 plan replayed, 1 simulated; best 2.00 s"),
        (Progress(2, 1, 0, 2.0, 0.1), "2 plans replayed, 1 simulated; best 2.00 s"),
        (Progress(3, 0, 4, inf, 1.0), "3 plans replayed, 0 simulated; 4 could still be faster"),
        (Progress(0, 0, None, inf, 1.0), "0 plans replayed, 0 simulated; computing bounds of all"),
        (
            Progress(3, 2, 4, 2.0, 0.123),
            "3 plans replayed, 2 simulated; best 2.00 s; 4 could still be faster, by up to 12.3 %",
        ),
    ],
)
def test_a_search_says_how_many_plans_could_be_faster_only_while_some_could(progress, text):
    assert _progress_text(progress, "") == text


@pytest.mark.parametrize(
    ("stack", "zero", "is_said"),
    [("megatron-core", 3, True), ("megatron-core", 1, False), ("torchtitan", 3, False)],
)
def test_a_plan_that_needs_megatron_fsdp_says_so(clustersim, job_file, stack, zero, is_said):
    """The distributed optimizer of Megatron-Core is ZeRO 1 and no more."""
    asked = ("--set", f"plan.stack={stack}", "--vary", f"plan.zero={zero}", "--no-why")
    for command in (("plan", job_file, *FEW, *asked), ("advise", job_file, *FEW, *asked[:-1])):
        assert ("--use-megatron-fsdp" in clustersim(*command).out) is is_said


def test_the_written_job_takes_the_step_of_the_best_plan(clustersim, job_file, tmp_path):
    best = tmp_path / "elsewhere" / "best.yaml"
    outcome = clustersim("plan", job_file, *FEW, "--workers", "1", "--json", "--write", best)
    assert outcome.err.splitlines()[-1] == f"wrote {best}"
    step = json.loads(clustersim("run", best, "--json").out)
    first = json.loads(outcome.out)["choices"][0]
    assert step["step_time_s"] == pytest.approx(first["step_time_s"], rel=1e-12)


def test_a_plan_is_never_written_over_the_job_itself(clustersim, job_file):
    before = job_file.read_text()
    outcome = clustersim("plan", job_file, *FEW, "--write", job_file)
    assert (outcome.code, job_file.read_text()) == (2, before)
    assert "choose another name" in outcome.err


def test_no_job_is_written_where_no_plan_fits(clustersim, job_file, tmp_path):
    small = ("--set", "cluster.device.memory=2 GiB")
    best = tmp_path / "best.yaml"
    assert clustersim("plan", job_file, *FEW, *small, "--write", best).code == 1
    assert not best.exists()
