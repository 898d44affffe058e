"""Peaks of Llama-like models, against torch's own memory trackers.

``oracles/torch_memory_trackers.csv`` holds what :mod:`tests.tracked_by_torch` counted with torch
2.13: large models by name, and small ones in every combination of a grid.

Where the head is tied to the embedding the update is one fused kernel, so that it is not the
fullest moment: that is the end of backward, or the loss. FSDP2 wraps a tied embedding as one root.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.program.ir import Owner
from simulator.results.memory import peak_moment
from simulator.results.simulation import run_step
from simulator.results.step import ClassMemory
from tests.tracked_by_torch import case_of, rows, tracked_bytes

_EAGER = {
    "repeats_kv_heads": True, "parallel_loss": False, "fused_elementwise": False,
    "cross_entropy": "eager",
}  # fmt: skip
_KEPT = {
    "parameters": (Owner.WEIGHTS, Owner.MASTER_WEIGHTS),
    "optimizer_states": (Owner.OPTIMIZER_STATES,),
    "gathered": (Owner.GATHERED_WEIGHTS,),
    "gradients": (Owner.GRADIENTS,),
}


def tracked_job(row: Mapping[str, str]) -> Job:
    """The job of a row."""
    fsdp, tp, micro, pp = (int(row[key]) for key in ("fsdp", "tp", "micro_batch", "pp"))
    ranks, replicas = max(1, fsdp), int(row["replicas"])
    stack: dict[str, Any] = {"base": "torchtitan", "sharding_units": "root", **_EAGER}
    # Fake tensors call no library, and autograd adds up tensors like them apart.
    stack |= {"matrix_workspaces": 0, "sums_gradients_in_place": False}
    zero = 3
    if not fsdp:
        stack |= {"base": "torch", "fused_rmsnorm": True, "keeps_master_weights": False}
        zero = 0
    experts = {"count": int(row["experts"]), "top_k": int(row["top_k"])}
    if experts["count"]:
        experts["ffn_hidden"] = int(row["ffn_hidden"])
        stack |= {"grouped_experts": True, "fused_elementwise": True}
        stack["weighs_copies_in_fp32"] = False
    # A root whose wrapping says nothing stays whole from forward to backward.
    asks = bool(fsdp) and row["tied"] == "false"
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
    return job_from_document(
        {
            "model": {
                **{name: int(row[name]) for name in sizes},
                "tied_embeddings": row["tied"] == "true",
                "experts": experts if experts["count"] else None,
            },
            "cluster": {"profile": "h100-sxm-80gb", "gpus": ranks * tp * pp},
            "batch": {
                "global": micro * ranks * int(row["microbatches"]),
                "micro": micro,
                "seq_len": int(row["seq_len"]),
            },
            "plan": {
                "tp": tp,
                **({"pp": pp, "schedule": row["schedule"].lower()} if pp > 1 else {}),
                "zero": zero,
                "reshard_after_forward": row["reshards"] == "true" if asks else None,
                "zero_group": ranks // replicas if replicas > 1 else 0,
                "sequence_parallel": tp > 1,
                "recompute": row["recompute"],
                "optimizer": row["optimizer"],
                "stack": stack,
            },
        }
    )


def unlike_torch_bytes(row: Mapping[str, str]) -> float:
    """What torch's pipelines may hold more or less [B].

    Hidden states of one microbatch that are sent or received; and at the last stage its logits,
    which ``stage_backward`` keeps until it is over, where layers that run again are the fullest
    moment.
    """
    if row["pp"] == "1":
        return 0.0
    tokens = 2 * int(row["micro_batch"]) * int(row["seq_len"])
    keeps_logits = int(row["stage"]) == int(row["pp"]) - 1 and row["recompute"] == "full"
    return float(tokens * (int(row["hidden"]) + int(row["vocab"]) * keeps_logits))


def kept_bytes(memory: ClassMemory) -> dict[str, float]:
    """What each group of owners holds at the peak, and all that is made on the way [B]."""
    held = {name: sum(memory.by_owner.get(o, 0.0) for o in of) for name, of in _KEPT.items()}
    return {**held, "made": memory.peak_allocated_bytes - sum(held.values())}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["case"])
def test_the_peak_is_what_torchs_tracker_counts_and_so_is_what_each_owner_holds(row):
    """Some counts as made on the way where layers run.

    That is what FSDP2 gathers ahead and reduces, and a tied embedding's gradient that waits.
    """
    result = run_step(tracked_job(row), "replay")
    stage = int(row["stage"])
    memory, peak = result.memory[stage], float(row["peak_bytes"])
    moment = peak_moment(result.timeline, stage, memory.peak_time_s)
    most_unlike = max(0.005 * peak, 1.01 * unlike_torch_bytes(row))
    assert memory.peak_allocated_bytes == pytest.approx(peak, abs=most_unlike)
    in_layers = moment.startswith("backward") and not moment.endswith("head or loss")
    has_other_names = in_layers and (int(row["fsdp"]) or row["tied"] == "true")
    has_other_names = has_other_names or int(row["pp"]) > 1
    if not row["parameters_bytes"] or has_other_names:
        return
    for name, num_bytes in kept_bytes(memory).items():
        assert num_bytes == pytest.approx(float(row[f"{name}_bytes"]), abs=0.005 * peak), name


def test_a_recorded_peak_is_what_torch_counts_now():
    row = next(row for row in rows() if row["case"] == "fsdp=8 recompute=full")
    assert tracked_bytes(case_of(row))["peak"] == int(row["peak_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["case"])
def test_every_recorded_peak_is_what_torch_counts_now(row):
    assert tracked_bytes(case_of(row))["peak"] == int(row["peak_bytes"])
