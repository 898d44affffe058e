"""What the page asks is answered as the library answers it, and mistakes in the library's words."""

from __future__ import annotations

import json

import pytest

from simulator.api import simulate
from simulator.described.load import load_job
from simulator.errors import InputError
from simulator.studio.controls import START, job_of, state_of
from simulator.studio.job_answers import FORMS, answered

SMALL = {
    "model": "llama3.2-1b",
    "cluster.profile": "h100-sxm-80gb",
    "cluster.gpus": 8,
    "batch.global": 8,
    "batch.seq_len": 2048,
}


def ask(name: str, **asked):
    return json.loads(answered(name, asked))


def faults(name: str, **asked) -> list[str]:
    return [fault["text"] for fault in ask(name, **asked)["faults"]]


def test_the_first_job_of_the_page_is_the_shipped_one():
    shipped = state_of(load_job("llama3-70b-64xh100"))
    assert {**shipped, "batch.micro": 1, "campaign.tokens": "1T"} == START


def test_a_step_is_that_of_simulate():
    answer, result = ask("step", state=SMALL), simulate(job_of(SMALL))
    assert answer["step_time_s"] == result.step_time_s
    assert answer["mfu"] == result.mfu
    assert answer["fits_probability"] == result.fits_probability
    assert sum(row["seconds"] for row in answer["breakdown"]) == pytest.approx(result.step_time_s)


def test_the_bar_of_the_fullest_gpu_is_as_long_as_its_need():
    answer = ask("step", state=SMALL)
    (row,) = (row for row in answer["memory"]["rows"] if row["is_fullest"])
    capacity = simulate(job_of(SMALL)).fullest.capacity_bytes
    assert sum(row["shares"]) == pytest.approx(row["need_bytes"] / capacity)
    assert len(row["shares"]) == len(answer["memory"]["owners"])


def test_a_price_and_tokens_give_the_money_of_the_gpu_hours():
    price = {"campaign.systems.h100-sxm-80gb.on_demand": "2 USD/h"}
    state = {**SMALL, "campaign.tokens": "1B", **price}
    cost = ask("step", state=state)["cost"]
    steps = -(-(10**9) // (8 * 2048))
    hours = 8 * steps * simulate(job_of(SMALL)).step_time_s / 3600
    assert cost["gpu_hours"] == pytest.approx(hours)
    assert cost["usd"] == pytest.approx(2 * hours)


def test_without_a_price_the_money_stays_open():
    assert ask("step", state={**SMALL, "campaign.tokens": "1B"})["cost"]["usd"] is None
    assert ask("step", state=SMALL)["cost"] is None


def test_an_impossible_job_is_refused_in_the_words_of_the_library():
    state = {**SMALL, "plan.tp": 3}
    with pytest.raises(InputError) as refused:
        job_of(state)
    assert faults("step", state=state) == [str(fault) for fault in refused.value.faults]


@pytest.mark.parametrize(
    "state",
    [
        {**SMALL, "model": "/etc/model.yaml"},
        {**SMALL, "model": {"base": "../secret.json"}},
        {**SMALL, "cluster.profile": "mine.YML"},
        {**SMALL, "plan.schedule": "order.csv"},
        {**SMALL, "plan.expert_load": {"file": "/etc/passwd"}},
        {**SMALL, "batch.lengths.file": "/etc/passwd"},
        {**SMALL, "batch.lengths.file": ["/etc/passwd"]},
        {**SMALL, "plan.expert_load": {"file": 5}},
        {**SMALL, "cluster": {"pools": [{"profile": "/tmp/a.yaml", "gpus": 8}]}},
    ],
)
def test_a_state_reads_no_file_of_the_machine(state):
    assert all(
        "names a file, but the studio reads no files" in each
        for each in faults("step", state=state)
    )


def nested(depth: int) -> list:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "state", [None, 5, [], {}, {"": 1}, {"plan": 3, "plan.tp": 2}, {"model": nested(480)}]
)
def test_what_is_no_job_is_a_fault_and_no_bug(state):
    assert faults("step", state=state)


def test_a_pasted_config_becomes_a_model():
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
        "_name_or_path": "<b>mine</b>",
    }
    model = ask("model", text=json.dumps(config))["model"]
    assert (model["name"], model["layers"], model["hidden"]) == ("<b>mine</b>", 2, 256)
    assert ask("step", state={**SMALL, "model": model})["step_time_s"] > 0


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model_type": "llama"}', "[" * 100_000])
def test_what_is_no_config_is_a_fault_and_no_bug(text):
    assert faults("model", text=text)


def test_yaml_of_the_page_is_the_same_job(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(ask("copy", state=SMALL, form="YAML")["text"], encoding="utf-8")
    assert load_job(file).document == job_of(SMALL).document


@pytest.mark.parametrize("form", FORMS)
def test_every_copy_is_a_text_or_says_why_not(form):
    answer = ask("copy", state={**SMALL, "model": "llama3.1-8b"}, form=form)
    assert ("text" in answer) != ("faults" in answer)


def test_a_copy_for_deepspeed_does_not_lose_what_the_model_switches_on():
    state = {**SMALL, "model": "llama3.1-8b", "plan.stack": "deepspeed", "plan.recompute": "full"}
    (fault,) = ask("copy", state=state, form="DeepSpeed")["faults"]
    assert fault["path"] == "plan.recompute"


def test_a_change_that_makes_it_fit_does():
    state = {**SMALL, "model": "llama3.1-8b", "batch.seq_len": 16384, "plan.zero": 0}
    assert not ask("step", state=state)["fits"]
    (first, *_) = ask("fit", state=state)["changes"]
    assert ask("step", state={**state, **first["fields"]})["fits"]


def test_changes_that_make_it_faster_gain_and_fit_first():
    changes = ask("faster", state={**SMALL, "plan.recompute": "full"})["changes"]
    assert changes[0]["fits"]
    assert all(change["gain"] > 0 for change in changes)
    order = [(not change["fits"], -change["gain"]) for change in changes]
    assert order == sorted(order)
