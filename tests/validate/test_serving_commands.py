"""Are runs of published benchmarks set up as their authors' commands say?"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.described.load import load_model, load_profile
from simulator.errors import InputError
from simulator.serving.defaults import limits_of, scheduler_name
from simulator.serving.requests import requests_of
from simulator.validate.serving import predicted
from simulator.validate.serving_commands import ServingFacts, facts_file_of, tuned_limits
from simulator.validate.serving_rows import deployment_of, read_serving_rows, workload_of

TABLE = Path(__file__).parents[2] / "reports" / "data" / "serving_open.csv.gz"
KNOWN = ServingFacts(facts_file_of(TABLE))
HEAD = (
    "id,source,engine,engine_version,model,weight_dtype,gpu,gpus,tp,pp,ep,dp,scenario,isl,osl,"
    "concurrency_or_batch,output_tokens_per_s,ttft_ms,tpot_ms"
)


def tuned(prompt, answer):
    return tuned_limits(
        load_model("llama3.1-8b"),
        load_profile("h100-sxm-80gb"),
        weights="fp8",
        cache_bytes=1.0,
        ranks=1,
        pp=1,
        tp=1,
        prompt=prompt,
        answer=answer,
    )


@pytest.mark.parametrize(("users", "steps"), [(8, 10), (16, 30)])
def test_inferencex_polls_its_sockets_less_often_with_many_users(users, steps):
    cells = {
        "source": "InferenceX (dashboard fixtures)",
        "engine": "sglang",
        "gpu": "b200-sxm-180gb",
        "weight_dtype": "fp4",
        "concurrency_or_batch": str(users),
    }
    settings = KNOWN.command(cells).set
    assert (settings["receive_steps"], settings["cache"]) == (steps, "fp8")


def test_inferencex_lets_prompts_wait_for_each_other_where_attention_is_data_parallel():
    cells = {"source": "InferenceX (dashboard fixtures)", "engine": "tensorrt-llm"}
    waits = [KNOWN.command({**cells, "dp": dp}).set.get("prompt_wait_steps", 0) for dp in "18"]
    assert waits == [0, 60]


def test_trtllm_bench_bounds_its_batches():
    # finetune_setting: at least 64 and 2,048, at most 4,096 and 32,768.
    assert tuned(100, 1_000_000) == {"max_requests": 64, "max_tokens": 2048}
    assert tuned(100, 1) == {"max_requests": 4096, "max_tokens": 32768}


def test_a_closed_loop_whose_rate_cannot_come_from_its_users_is_skipped(tmp_path):
    # 512 users of 62 ms per token make 8,000 tokens per second, not 202.
    row = (
        "x,InferenceX,vllm,0.9,llama3.1-8b,bf16,h100-sxm-80gb,1,1,1,1,1,"
        "closed loop (fixed concurrency),1024,1024,512,202.24,267.9,62.0"
    )
    table = tmp_path / "rows.csv"
    table.write_text(f"{HEAD}\n{row}\n", encoding="utf-8")
    (read,) = read_serving_rows(table)
    assert "contradicts itself" in predicted(read).skipped


def test_facts_that_errors_told_are_left_out_with_their_source():
    cells = {
        "source": "InferenceX",
        "scenario": "closed loop (fixed concurrency), speculative (MTP)",
    }
    assert KNOWN.command(cells).acceptance == (0.7, 0.55, 0.45)
    assert KNOWN.command(cells, residuals=False).acceptance == ()


@pytest.mark.parametrize(
    ("named", "version"),
    [
        ("0.9.1", "0.9.1"),
        ("2023-11", "0"),
        ("latest, 2024-11", "0.6"),
        ("1.x (main)", "1"),
        ("", ""),
    ],
)
def test_a_run_without_a_version_has_that_of_its_year(tmp_path, named, version):
    table = tmp_path / "runs.csv"
    row = f'a,us,vllm,"{named}",llama3.1-8b,bf16,h100-sxm-80gb,1,1,1,1,1,fixed batch,8,8,1,,,'
    table.write_text(f"{HEAD}\n{row}\n", encoding="utf-8")
    assert deployment_of(read_serving_rows(table)[0]).version == version


def test_a_table_without_a_file_of_facts_is_predicted_from_its_rows_alone(tmp_path):
    assert facts_file_of(tmp_path / "rows.csv.gz") is None
    assert not ServingFacts(None).command({"source": "InferenceX"}).set


def test_an_unclosed_quote_in_a_table_of_serving_swallows_no_row(tmp_path):
    head = "id,engine,model,gpu,gpus,scenario,isl,osl\n"
    table = tmp_path / "rows.csv"
    table.write_text(head + 'a,"vllm,m,H100,1,offline,1,1\nb,vllm,m,H100,1,offline,1,1\n')
    with pytest.raises(InputError, match=r"is not CSV|line break in the cell"):
        read_serving_rows(table)


FACTS = """
groups:
- when: {id: a}
  workload: {requests: 40, uniform_from: 0.5}
  evidence: documentation
  reference: a
- when: {model: llama3.1-8b}
  workload: {found_prompts: true}
  evidence: documentation
  reference: b
"""


def test_what_several_facts_say_of_the_traffic_of_a_closed_loop_joins(tmp_path):
    row = (
        "a,somebody,vllm,0.9,llama3.1-8b,bf16,h100-sxm-80gb,1,1,1,1,1,"
        "closed loop (fixed concurrency),1024,96,4,,,10.0"
    )
    table = tmp_path / "runs.csv"
    table.write_text(f"{HEAD}\n{row}\n")
    table.with_name("runs.facts.yaml").write_text(FACTS)
    (run,) = read_serving_rows(table)
    workload = workload_of(run, deployment_of(run))
    assert workload.requests == 40
    # Means of 1,024 and 96 between half of the longest and all of it.
    assert (workload.prompt.mean, workload.answer.mean) == (1365, 128)
    assert workload.prompt.least_share == 0.5
    longest = max(request.prompt_tokens for request in requests_of(workload))
    assert workload.shared_prefix.tokens == longest > 1024


def test_a_closed_loop_keeps_its_clients_rate_and_what_beginnings_of_prompts_left(tmp_path):
    row = (
        "c,somebody,vllm,0.9,llama3.1-8b,bf16,h100-sxm-80gb,1,1,1,1,1,"
        "closed loop (fixed concurrency),1024,96,4,,,10.0,2.5"
    )
    table = tmp_path / "runs.csv"
    table.write_text(f"{HEAD},request_rate\n{row}\n")
    table.with_name("runs.facts.yaml").write_text(
        "groups:\n- when: {id: c}\n  workload: {found_tokens: 128}\n"
        "  evidence: documentation\n  reference: c\n"
    )
    (run,) = read_serving_rows(table)
    workload = workload_of(run, deployment_of(run))
    assert (workload.arrivals.users, workload.arrivals.rate) == (4, 2.5)
    assert (workload.shared_prefix.tokens, workload.shared_prefix.cached) == (128, True)


def test_atom_computes_prompts_while_any_waits(tmp_path):
    row = (
        "d,somebody,atom,,llama3.1-8b,bf16,mi355x,1,1,1,1,1,"
        "closed loop (fixed concurrency),1024,96,4,,,10.0"
    )
    table = tmp_path / "runs.csv"
    table.write_text(f"{HEAD}\n{row}\n")
    deployment = deployment_of(*read_serving_rows(table))
    assert deployment.engine == "atom"
    assert scheduler_name(deployment) == "vllm-v0"
    assert not limits_of(deployment, 1120).chunked_prefill


def test_prompts_that_were_sent_before_are_not_computed_again(tmp_path):
    row = (
        "b,somebody,vllm,0.9,llama3.1-8b,bf16,h100-sxm-80gb,1,1,1,1,1,"
        "closed loop (fixed concurrency),4096,16,1,,500.0,10.0"
    )
    table = tmp_path / "runs.csv"
    table.write_text(f"{HEAD}\n{row}\n")
    (cold,) = read_serving_rows(table)
    table.with_name("runs.facts.yaml").write_text(FACTS)
    (warm,) = read_serving_rows(table)
    first, again = (predicted(each).ttft_error_pct for each in (cold, warm))
    assert 100 + again < (100 + first) / 2


def test_a_run_of_poisson_arrivals_with_a_known_number_of_requests_ends_after_them(tmp_path):
    """40 requests at 8 a second; none of them warms up, and their answers are all that comes."""
    row = (
        "a,somebody,vllm,0.9,llama3.1-8b,bf16,h100-sxm-80gb,1,1,1,1,1,"
        "server (Poisson),512,512,,3000.0,,,8"
    )
    table = tmp_path / "runs.csv"
    table.write_text(f"{HEAD},request_rate\n{row}\n")
    (endless,) = read_serving_rows(table)
    table.with_name("runs.facts.yaml").write_text(FACTS)
    (short,) = read_serving_rows(table)
    many, few = (workload_of(run, deployment_of(run)) for run in (endless, short))
    assert (few.requests, few.arrivals.rate, few.warm_up_share) == (40, 8.0, 0.0)
    assert many.requests >= 400
    assert many.warm_up_share > 0.0
    # In a run that lasts, 8 x 512 tokens come every second; in five seconds, and then the last
    # answers, fewer.
    lasting, ended = (predicted(run).predicted_tokens_per_s for run in (endless, short))
    assert ended < 0.9 * lasting
