"""Do the serving functions give what the commands print, and do their numbers add up?"""

from __future__ import annotations

import json

import pytest

import simulator as sim
from simulator.cli.app import main
from simulator.errors import DoesNotFitError, InputError
from simulator.serving.cluster import serve
from simulator.serving.described import load_serving

JOB = """
deployment: {model: llama3.1-8b, profile: h100-sxm-80gb, gpus: 2, usd_per_gpu_hour: 2.0}
workload:
  requests: 60
  arrivals: {kind: poisson, rate: 4.0}
  prompt: {mean: 4096, variation: 0.5}
  answer: {mean: 8}
  objective: {ttft: 500 ms, tpot: 50 ms}
"""
WIDER = {"deployment.tp": 2}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def job(path):
    return sim.load_serving(path)


ASKED = {
    "run": (sim.serve, []),
    "sweep": (lambda job: sim.serve_sweep(job, [1.0, 2.0]), ["--rates", "1,2"]),
    "plan": (
        lambda job: sim.serve_plan(job.replace({"deployment.gpus": 1})),
        ["--set", "deployment.gpus=1"],
    ),
    "capacity": (lambda job: sim.serve_capacity(job, 100.0), ["--rate", "100"]),
    "compare": (
        lambda job: sim.serve_compare(
            [("job", job), ("deployment.tp=2", job.replace(WIDER))], largest_rates=True
        ),
        ["--variant", "deployment.tp=2", "--largest-rates"],
    ),
}


@pytest.fixture(scope="module")
def answers(job):
    return {name: ask(job) for name, (ask, _) in ASKED.items()}


def printed(capsys, *words: object, code: int = 0):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert stopped.value.code == code
    return capsys.readouterr()


@pytest.mark.parametrize("name", ASKED)
def test_a_serve_command_prints_the_json_of_the_function_with_its_name(name, answers, path, capsys):
    said = printed(capsys, "serve", name, path, *ASKED[name][1], "--json")
    assert said.out == answers[name].to_json() + "\n"


@pytest.mark.parametrize("name", ASKED)
def test_a_serving_answer_is_a_table_a_text_and_a_page_that_fetches_nothing(
    name, answers, tmp_path
):
    answer = answers[name]
    assert len(answer.to_frame())
    assert all(sentence in str(answer) for sentence in answer.page().sentences)
    assert "<table" in answer._repr_html_()
    page = answer.write_html(tmp_path / "a.html").read_text(encoding="utf-8")
    assert "http:" not in page
    assert "https:" not in page


def test_a_page_says_the_whole_command_that_made_it(path, tmp_path, capsys):
    page = tmp_path / "s.html"
    printed(capsys, "serve", "sweep", path, "--rates", "1", "--html", page)
    assert "clustersim serve sweep job.yaml --rates 1 --html s.html" in page.read_text("utf-8")


def test_the_parts_of_the_mean_request_sum_to_its_time(answers):
    for run in answers["compare"].runs:
        found = run.result
        assert sum(found.mean_parts_s.values()) == pytest.approx(found.end_to_end_s["mean"])
        assert min(found.mean_parts_s.values()) >= 0
    difference = answers["compare"].to_dict()["differences"][0]
    assert sum(difference["by_part_s"].values()) == pytest.approx(difference["difference_s"])
    assert difference["fields"] == {"deployment.tp": {"first": None, "second": 2}}


def test_waiting_is_what_a_queue_adds_and_nothing_else(job):
    """One request at a time never waits for another: all wait as long as the front end takes."""
    alone = sim.serve(job.replace({"workload.arrivals": {"kind": "closed-loop", "users": 1}}))
    waits = alone.to_frame()["wait_s"]
    assert waits.max() == pytest.approx(waits.min(), abs=1e-3)
    assert alone.to_frame()["ttft_s"].mean() == pytest.approx(alone.result.ttft_s["mean"])


def test_the_largest_rate_of_a_comparison_is_that_of_capacity(answers):
    first = answers["compare"].runs[0]
    assert first.largest_rate == answers["capacity"].rate
    of_a_replica = answers["capacity"].unit.answers
    assert first.usd_per_million_tokens == of_a_replica.usd_per_million_tokens


def test_gpus_for_a_rate_cost_their_price_by_the_hour(answers):
    found = answers["capacity"].to_dict()
    assert found["usd_per_hour"] == 2.0 * found["gpus"]


def test_the_best_split_is_a_job_to_serve(answers, job):
    best = answers["plan"].best
    assert best.deployment.tp == answers["plan"].choices[0].settings["tp"]
    assert best.workload == job.workload


def test_a_changed_serving_job_is_the_file_with_the_change_and_keeps_its_trace(path, tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,8,2\n", "utf-8")
    own = tmp_path / "own.yaml"
    own.write_text("deployment: {model: llama3.1-8b, profile: h100-sxm-80gb, gpus: 1}\n"
                   "workload: {trace: t.csv}\n", "utf-8")  # fmt: skip
    job = sim.load_serving(own)
    changed = job.replace(**{"deployment.gpus": 2})
    assert changed == sim.load_serving(own, {"deployment.gpus": 2})
    assert sim.serve(changed).result.requests == 1
    assert job.deployment.gpus == 1
    with pytest.raises(InputError, match=r"deployment\.tpp = 2: no such field"):
        job.replace({"deployment.tpp": 2})


def test_every_request_is_counted_when_it_ends(job, tmp_path):
    trace = tmp_path / "t.csv"
    rows = "".join(f"{n},8,2\n" for n in range(7))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}", "utf-8")
    for changes, total in (
        ({}, 60),
        ({"workload.arrivals": {"kind": "all-at-once"}}, 60),
        ({"workload": {"trace": str(trace)}}, 7),
    ):
        counts: list[tuple[int, int]] = []
        sim.serve(job.replace(changes), on_ended=lambda *told, kept=counts: kept.append(told))
        assert sum(more for more, _ in counts) == total
        assert {of for _, of in counts} == {total}


def test_counting_the_ends_changes_nothing(job):
    counted = serve(job.deployment, job.workload, on_ended=lambda *_: None)
    plain = serve(job.deployment, job.workload)
    ends = [[request.last_token_s for request in each.requests] for each in (counted, plain)]
    assert ends[0] == ends[1]


def test_pictures_and_traces_are_drawn_of_a_run_that_kept_no_steps(job, tmp_path):
    answer = sim.serve(job)
    assert answer.plot(tmp_path / "run.png").stat().st_size > 10_000
    events = json.loads(answer.write_trace(tmp_path / "t.json").read_text("utf-8"))["traceEvents"]
    assert any(event["ph"] == "X" for event in events)


@pytest.mark.parametrize("ask", [sim.serve, sim.serve_plan, sim.serve_capacity, sim.serve_sweep])
def test_what_is_no_serving_job_is_refused_with_the_way_to_load_one(ask):
    with pytest.raises(InputError, match="must be a ServingJob; load one first"):
        ask("llama3-70b-8xh100")


@pytest.mark.parametrize("rates", [[], [0.0], [1.0, -2.0], [float("inf")]])
def test_rates_that_nobody_can_send_are_refused(job, rates):
    with pytest.raises(InputError, match="must be positive numbers"):
        sim.serve_sweep(job, rates)


def test_a_request_that_the_engine_would_refuse_is_refused(job):
    fixed = {"workload.prompt": {"mean": 100}, "workload.answer": {"mean": 28}}
    with pytest.raises(InputError, match="less than the longest request, 128 tokens"):
        sim.serve(job.replace({**fixed, "deployment.max_model_tokens": 127}))
    sim.serve(job.replace({**fixed, "deployment.max_model_tokens": 128}))


def test_largest_rates_need_an_objective_before_anything_is_served(job):
    without = job.replace({"workload.objective": {}})
    trials: list[None] = []
    pair = {"a": job, "b": without}
    with pytest.raises(InputError, match="objective: sets no limit"):
        sim.serve_compare(pair, largest_rates=True, on_trial=lambda: trials.append(None))
    assert trials == []


def test_comparing_needs_a_second_deployment(job, path, capsys):
    with pytest.raises(InputError, match="needs a second job to compare with"):
        sim.serve_compare({"one": job})
    said = printed(capsys, "serve", "compare", path, code=2).err
    assert "add --variant deployment.tp=8" in said


def test_a_deployment_that_does_not_fit_is_named(job):
    large = job.replace({"deployment.model": "llama3.1-405b"})
    with pytest.raises(DoesNotFitError, match=r"^large: the weights take"):
        sim.serve_compare({"small": job, "large": large})


def test_a_comparison_says_where_it_misleads(path, capsys):
    said = printed(
        capsys, "serve", "compare", path, "--variant", "workload.seed=1",
        "--variant", "deployment.gpus=2",
    )  # fmt: skip
    assert "workload.seed=1 serves other traffic than job" in said.err
    assert "deployment.gpus=2 is the same job as job" in said.err


def test_a_comparison_where_nobody_meets_the_objective_ends_with_1(path, capsys):
    words = ("--variant", "deployment.tp=2", "--set", "workload.objective.ttft=1us")
    said = printed(capsys, "serve", "compare", path, *words, code=1)
    assert "no deployment meets its objective" in said.err


def test_a_sweep_without_an_objective_has_no_column_of_it(path, capsys):
    words = ("serve", "sweep", path, "--rates", "1", "--set", "workload.objective={}")
    assert "objective" not in printed(capsys, *words).out


def test_both_names_of_a_job_read_the_same(path):
    assert load_serving(path) == sim.load_serving(path)
