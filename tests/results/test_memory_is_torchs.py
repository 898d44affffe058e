"""Peaks of Llama-like models, against torch's own memory trackers.

``oracles/torch_memory_trackers.csv`` holds what ``MemTracker`` and ``FSDPMemTracker`` of
torch 2.13 counted for the second step of one rank under fake tensors and a fake process
group: eager layers, one fused kernel for attention and for each norm, repeated key and value
heads, AdamW without fused kernels, cross-entropy of fp32 logits. Sequence parallelism beside
tensor parallelism; every rank gathers all logits.

Where the head is tied to the embedding the update is one fused kernel, so that it is not the
fullest moment: that is the end of backward, or the loss in the first of these rows and with eight
shards. FSDP2 wraps a tied embedding as one root.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.results.simulation import run_step

_CASES = Path(__file__).parent / "oracles" / "torch_memory_trackers.csv"
_SIZES = {
    "160m": {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn_hidden": 2048},
    "1b": {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn_hidden": 8192},
    "8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336},
}
_VOCAB = {"160m": 32000, "1b": 128256, "8b": 128256}
_EAGER = {
    "repeats_kv_heads": True, "parallel_loss": False, "fused_elementwise": False,
    "cross_entropy": "eager",
}  # fmt: skip
_INPUT_BYTES = 2 * 8
"""Token and target, which the trackers count and the simulator does not."""


def cases() -> list[dict[str, str]]:
    with _CASES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tracked_job(case: dict[str, str]) -> Job:
    fsdp, tp, micro = (int(case[key]) for key in ("fsdp", "tp", "micro_batch"))
    ranks, replicas = max(1, fsdp), int(case["replicas"])
    stack = {"base": "torchtitan", **_EAGER}
    zero = 3 if case["reshards"] == "true" else 2
    if case["pure_bf16"] == "true":
        stack |= {"base": "torch", "fused_rmsnorm": True, "keeps_master_weights": False}
        zero = 0
    return job_from_document(
        {
            "model": {
                **_SIZES[case["size"]],
                "vocab": _VOCAB[case["size"]],
                "tied_embeddings": case["tied"] == "true",
            },
            "cluster": {"profile": "h100-sxm-80gb", "gpus": ranks * tp},
            "batch": {
                "global": micro * ranks * int(case["microbatches"]),
                "micro": micro,
                "seq_len": int(case["seq_len"]),
            },
            "plan": {
                "tp": tp,
                "zero": zero,
                "reshard_after_forward": True if zero == 3 else None,
                "zero_group": ranks // replicas if replicas > 1 else 0,
                "sequence_parallel": tp > 1,
                "recompute": case["recompute"],
                "stack": stack,
            },
        }
    )


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["case"])
def test_the_peak_is_what_torchs_tracker_counts(case):
    job = tracked_job(case)
    (memory,) = run_step(job, "replay").memory
    inputs = _INPUT_BYTES * job.batch.micro_batch * job.batch.seq_len
    assert memory.peak_allocated_bytes + inputs == pytest.approx(
        float(case["peak_bytes"]), rel=2e-4
    )
