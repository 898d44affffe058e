"""Do single requests end when vLLM's ended?"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from simulator.described.load import load_model, load_profile
from simulator.serving.cluster import serve
from simulator.serving.described import Deployment
from simulator.serving.requests import Request
from simulator.serving.workload import Arrivals, Workload
from tests.csv_files import read_rows

TABLE = Path(__file__).parent / "oracles" / "llmservingsim_requests.csv"


def measured(run):
    return [row for row in read_rows(TABLE) if row["run"] == run]


def served(rows, model, profile, **settings):
    deployment = Deployment(
        model=load_model(model),
        profile=load_profile(profile),
        **{"gpus": 1, **settings},
        engine="vllm",
        version="0.19.0",
        max_requests=128,
        max_tokens=2048,
        memory_share=0.9,
        has_front_end=False,
    )
    requests = [
        Request(i, float(r["queued_s"]), int(r["input_tokens"]), int(r["output_tokens"]))
        for i, r in enumerate(rows)
    ]
    workload = Workload(requests=len(requests), arrivals=Arrivals(kind="all-at-once"))
    return serve(deployment, workload, requests=requests)


@pytest.mark.parametrize(
    ("run", "model", "settings"),
    [
        # The engine's log names the blocks: 2,588.
        ("RTX4090/Llama-3.1-8B", "llama3.1-8b", {"kv_blocks": 2588}),
        ("RTXPRO6000/Llama-3.1-8B", "llama3.1-8b", {}),
        # vllm/meta.json beside each run names the split.
        ("RTXPRO6000/Qwen3-32B", "qwen3-32b", {"gpus": 2, "tp": 2}),
        (
            "RTXPRO6000/Qwen3-30B-A3B-Instruct-2507",
            "qwen3-30b-a3b",
            {"gpus": 2, "attention_dp": 2, "ep": 2},
        ),
    ],
)
def test_requests_take_as_long_end_to_end_as_vllm_took_within_5_percent(run, model, settings):
    rows = measured(run)
    profile = "rtx-4090" if run.startswith("RTX4090") else "rtx-pro-6000-blackwell-96gb"
    result = served(rows, model, profile, **settings)
    took = [float(row["last_token_s"]) - float(row["queued_s"]) for row in rows]
    errors = [
        abs(request.end_to_end_s / wanted - 1.0)
        for request, wanted in zip(result.requests, took, strict=True)
    ]
    assert mean(errors) < 0.05
