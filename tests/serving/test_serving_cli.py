"""Do the serve commands answer, refuse and end as the others do?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from simulator.cli.app import main

JOB = """
deployment:
  model: llama3.1-8b
  profile: h100-sxm-80gb
  gpus: 2
  weights: bf16
  usd_per_gpu_hour: 2.0
workload:
  requests: 60
  arrivals: {kind: poisson, rate: 4.0}
  prompt: {mean: 256, variation: 0.5}
  answer: {mean: 32}
  objective: {ttft: 500 ms, tpot: 50 ms}
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "serving.yaml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def ended(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code or 0, capsys.readouterr()


def test_a_run_counts_every_token_of_every_answer(job, capsys):
    code, said = ended(["serve", "run", job, "--json"], capsys)
    answers = json.loads(said.out)
    assert code == 0
    share = answers["output_tokens_per_s"] / answers["requests_per_s"]
    assert share == pytest.approx(32)
    assert answers["ttft_s"]["p50"] <= answers["ttft_s"]["p99"] <= answers["ttft_s"]["max"]


def test_the_headline_says_how_experts_and_attention_are_split(job, capsys):
    assert ", ep " not in ended(["serve", "run", job], capsys)[1].out
    changes = "deployment.model=mixtral-8x7b deployment.gpus=8 deployment.ep=8"
    degrees = "deployment.tp=2 deployment.attention_dp=4"
    words = [f"--set={each}" for each in f"{degrees} {changes}".split()]
    out = ended(["serve", "run", job, *words], capsys)[1].out
    assert "tp 2, pp 1, attention dp 4, ep 8" in out


def test_a_price_says_that_it_is_one_of_output_tokens(job, capsys):
    assert "USD per million output tokens" in ended(["serve", "run", job], capsys)[1].out
    assert "usd_per_million_tokens" in ended(["serve", "run", job, "--json"], capsys)[1].out


def test_the_same_seed_gives_the_same_answers_and_another_does_not(job, capsys):
    said = [
        ended(["serve", "run", job, "--json", "--set", f"workload.seed={seed}"], capsys)[1].out
        for seed in (1, 1, 2)
    ]
    assert said[0] == said[1] != said[2]


def test_a_trace_is_found_beside_the_file_that_names_it_and_all_its_requests_come(job, capsys):
    rows = "".join(f"{n / 10},64,4\n" for n in range(70))
    text = f"arrival_s,input_tokens,output_tokens\n{rows}"
    Path(job).with_name("t.csv").write_text(text, encoding="utf-8")
    words = ["serve", "run", job, "--json", "--set", "workload={trace: t.csv}"]
    assert json.loads(ended(words, capsys)[1].out)["requests"] == 70


def test_a_trace_does_not_come_at_the_same_rate_at_every_rate_of_a_sweep(job, capsys):
    rows = "".join(f"{n / 10},64,4\n" for n in range(70))
    text = f"arrival_s,input_tokens,output_tokens\n{rows}"
    Path(job).with_name("t.csv").write_text(text, encoding="utf-8")
    words = ["serve", "sweep", job, "--json", "--rates", "2,8", "--set", "workload.trace=t.csv"]
    slow, fast = json.loads(ended(words, capsys)[1].out)["rows"]
    assert slow["requests_per_s"] == pytest.approx(2, rel=0.05)
    assert fast["requests_per_s"] == pytest.approx(8, rel=0.05)


def test_an_objective_that_every_rate_meets_is_refused(job, capsys):
    code, said = ended(["serve", "capacity", job, "--set", "workload.objective.ttft=9h",
                        "--set", "workload.objective.tpot=9h", "--set", "workload.requests=10",
                        "--set", "workload.answer.mean=1"], capsys)  # fmt: skip
    assert code == 2
    assert "is met at every rate" in said.err


def test_more_gpus_bear_a_larger_rate(job, capsys):
    few = json.loads(ended(["serve", "capacity", job, "--json", "--rate", "100"], capsys)[1].out)
    assert few["rate"] == pytest.approx(2 * few["rate_per_replica"])
    assert few["gpus"] == -(-100 // few["rate_per_replica"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([], "60 requests at 4 per second (poisson), prompts of 256 tokens, answers of 32"),
        (["workload.arrivals={kind: all-at-once}"], "60 requests all at once, "),
        (["workload.arrivals={kind: closed-loop, users: 8}"], "requests from 8 users at a time"),
    ],
)
def test_a_run_says_which_traffic_it_is_of(job, capsys, changes, said):
    words = [word for change in changes for word in ("--set", change)]
    assert said in ended(["serve", "run", job, *words], capsys)[1].out.splitlines()[1]


def test_gpus_that_leave_part_of_a_replica_are_refused_where_they_are_divided(job, capsys):
    words = ["--set", "deployment.gpus=3", "--set", "deployment.tp=2"]
    code, said = ended(["serve", "run", job, *words], capsys)
    assert code == 2
    assert "deployment.tp = 2: must divide the 3 GPUs" in said.err
    assert said.err.startswith("1 error")


def test_a_misspelt_field_is_named(job, capsys):
    code, said = ended(["serve", "run", job, "--set", "deployment.tpp=2"], capsys)
    assert code == 2
    assert "deployment.tpp" in said.err


def test_a_job_of_training_is_one_fault_and_not_one_per_field(capsys):
    file = Path(__file__).parents[2] / "workloads" / "llama3-8b-8xh100.yaml"
    code, said = ended(["serve", "run", str(file)], capsys)
    assert code == 2
    assert "is a job of training; give a YAML file with a deployment" in said.err
    assert said.err.startswith("1 error")


def test_a_model_that_leaves_no_room_for_the_cache_does_not_fit(job, capsys):
    code, said = ended(["serve", "run", job, "--set", "deployment.model=llama3.1-405b"], capsys)
    assert code == 1
    assert "leave no room for the cache" in said.err


def test_a_picture_of_a_run_is_written(job, tmp_path, capsys):
    picture = tmp_path / "run.png"
    code, _said = ended(["serve", "run", job, "--plot", str(picture)], capsys)
    assert code == 0
    assert picture.stat().st_size > 10_000


def test_a_trace_has_every_engine_step_and_every_request(job, tmp_path, capsys):
    trace = tmp_path / "run.json"
    code, said = ended(["serve", "run", job, "--json", "--trace", str(trace)], capsys)
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    steps = sum(event["args"]["steps"] for event in events if event["ph"] == "X")
    assert code == 0
    assert steps == json.loads(said.out)["steps"]
    assert sum(event["ph"] == "b" and event["name"] == "answer" for event in events) == 60


def test_a_page_says_how_the_run_went(job, tmp_path, capsys):
    page = tmp_path / "run.html"
    prompts = ["--set", "deployment.prefill={gpus: 1}", "--set", "deployment.gpus=1"]
    code, _said = ended(["serve", "run", job, "--html", str(page), *prompts], capsys)
    text = page.read_text(encoding="utf-8")
    assert code == 0
    assert "of the requests meet the objective" in text
    assert "A replica for prompts over time" in text


def test_the_guide_ends_with_as_many_gpus_as_the_command_finds(capsys):
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "serving.md").read_text(encoding="utf-8")
    job = str(root / "workloads" / "serving" / "llama3-70b-8xh100.yaml")
    first_token_alone = ["--set", "workload.objective={ttft: 1 s}"]
    asked = ["serve", "capacity", job, "--json", "--rate", "50", *first_token_alone]
    gpus = json.loads(ended(asked, capsys)[1].out)["gpus"]
    assert f"**{gpus} H100** do" in guide


def test_a_shipped_serving_job_is_given_by_its_name(capsys):
    words = ["serve", "run", "llama3-70b-8xh100", "--set", "workload.requests=20"]
    code, said = ended(words, capsys)
    assert (code, said.out.splitlines()[0][:12]) == (0, "llama3.1-70b")
    code, said = ended(["serve", "run", "llama3-70b-8xh10"], capsys)
    assert (code, "did you mean 'llama3-70b-8xh100'" in said.err) == (2, True)


@pytest.mark.parametrize(("objective", "ends"), [("ttft: 1 us", 1), ("ttft: 100 s", 0), ("", 0)])
def test_a_run_whose_requests_miss_the_objective_that_was_asked_for_ends_with_1(
    job, objective, ends, capsys
):
    changed = JOB.replace("ttft: 500 ms, tpot: 50 ms", objective)
    Path(job).write_text(changed, encoding="utf-8")
    code, said = ended(["serve", "run", job, "--json"], capsys)
    assert code == ends
    assert ("meet the objective" in said.err) == bool(ends)
    assert json.loads(said.out)["output_tokens_per_s"] > 0


def test_a_model_in_place_is_served_as_the_one_that_it_describes(job, capsys):
    named = ended(["serve", "run", job, "--json"], capsys)[1].out
    block = "model: {base: llama3.1-8b, name: mine}"
    Path(job).write_text(JOB.replace("model: llama3.1-8b", block), encoding="utf-8")
    code, said = ended(["serve", "run", job, "--json"], capsys)
    assert (code, said.out.replace("mine on", "llama3.1-8b on")) == (0, named)
    fields = "model: {layers: 2, hidden: 512, heads: 8, ffn_hidden: 2048, vocab: 32000}"
    Path(job).write_text(JOB.replace("model: llama3.1-8b", fields), encoding="utf-8")
    assert ended(["serve", "run", job, "--json"], capsys)[0] == 0


@pytest.mark.parametrize(
    ("field", "example"), [("model", "llama3.1-70b"), ("profile", "h100-sxm-80gb")]
)
def test_an_example_is_one_of_the_field_that_it_stands_by(job, field, example, capsys):
    code, said = ended(["serve", "run", job, "--set", f"deployment.{field}=3"], capsys)
    assert code == 2
    assert said.err.strip().endswith(f"for example {example}")


def test_a_plain_number_of_tokens_is_told_how_a_mean_is_written(job, tmp_path, capsys):
    path = tmp_path / "plain.yaml"
    document = yaml.safe_load(JOB)
    document["workload"]["prompt"] = 1024
    path.write_text(json.dumps(document), encoding="utf-8")
    code, said = ended(["serve", "run", str(path)], capsys)
    assert code == 2
    assert "workload.prompt = 1024: must be a block of fields; write {mean: 1024}" in said.err
