"""Are measured runs whose prompts are computed apart set up as their notes say?"""

from __future__ import annotations

import pytest

from simulator.validate.serving import predicted
from simulator.validate.serving_rows import deployment_of, read_serving_rows, workload_of

HEAD = (
    "id,source,engine,engine_version,model,weight_dtype,gpu,gpus,tp,pp,ep,dp,scenario,isl,osl,"
    "concurrency_or_batch,request_rate,ttft_ms,notes"
)


def row_of(tmp_path, scenario, notes, engine="vllm", model="llama3.1-8b", rate=""):
    run = f"{engine},0.20,{model},fp8,h100-sxm-80gb,24,8,1,1,1,{scenario},1024,64,16,{rate}"
    table = tmp_path / "rows.csv"
    table.write_text(f"{HEAD}\nx,them,{run},50,{notes}\n", encoding="utf-8")
    (read,) = read_serving_rows(table)
    return read


def notes_of(prefill, decode):
    return f'"spec none; disaggregated: prefill {prefill}, decode {decode}; median"'


def test_each_pool_has_its_own_gpus_and_degrees(tmp_path):
    notes = notes_of(
        "2 workers on 8 GPUs (tp4 ep4 dpattn True)", "1 workers on 16 GPUs (tp16 ep8 dpattn False)"
    )
    scenario = "closed loop (fixed concurrency); disaggregated"
    read = row_of(tmp_path, scenario, notes, engine="dynamo-trt", model="deepseek-r1")
    deployment = deployment_of(read)
    prompts = deployment.prefill_deployment
    assert (prompts.gpus, prompts.replicas) == (8, 2)
    assert (prompts.tp, prompts.attention_dp, prompts.ep) == (1, 4, 4)
    assert (deployment.gpus, deployment.replicas, deployment.engine) == (16, 1, "tensorrt-llm")
    assert (deployment.tp, deployment.attention_dp, deployment.ep) == (16, 1, 8)


def test_two_pools_are_served_together_though_one_has_two_replicas(tmp_path):
    scenario = "closed loop (fixed concurrency); disaggregated"
    times = {}
    for workers in (1, 4):
        notes = notes_of(f"{workers} workers on {workers} GPUs (tp1)", "2 workers on 2 GPUs (tp1)")
        times[workers] = predicted(row_of(tmp_path, scenario, notes)).ttft_error_pct
    assert times[4] < times[1]


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ("two pools", "does not say which GPUs"),
        (notes_of("1 workers on 4 GPUs (tp1)", "1 workers on 8 GPUs (tp8)"), "are not its 4 GPUs"),
    ],
)
def test_a_run_whose_pools_are_not_told_is_skipped(tmp_path, notes, reason):
    read = row_of(tmp_path, "closed loop (fixed concurrency); disaggregated", notes)
    assert reason in predicted(read).skipped


def test_requests_at_a_constant_rate_come_evenly(tmp_path):
    read = row_of(tmp_path, "online (constant rate)", "", rate="8")
    arrivals = workload_of(read, deployment_of(read)).arrivals
    assert arrivals.rate == 8
    assert arrivals.burstiness < 1e-3
