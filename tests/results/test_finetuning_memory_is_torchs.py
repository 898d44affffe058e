"""Peaks of steps that train adapters or a part of a model, against torch's memory tracker.

``oracles/finetuning_peaks.csv`` holds what :mod:`tests.finetuned_by_torch` measured with torch
2.13. Weights, gradients and states are 16-bit, the update and, unless said, the norms are fused
kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.results.simulation import run_step
from tests.finetuned_by_torch import case_of, peak_bytes, rows

_OURS = {"embedding*": "embedding.*", "head*": "head.tokens", "norm*": "head.norm"}
"""Patterns of the plan for those of the torch model."""


def _frozen(row: Mapping[str, str]) -> list[str]:
    return [_OURS.get(each, each) for each in row["frozen"].split()]


def finetuning_job(row: Mapping[str, str]) -> Job:
    """The job of a row."""
    plan: dict[str, Any] = {
        "zero": 0,
        "master_weights": False,
        "clip_gradients": False,
        "recompute": row["recompute"],
        "optimizer": row["optimizer"],
        "frozen": _frozen(row) or None,
        "prefix_tokens": int(row["prefix"]) or None,
        "stack": {"base": "torch", "fused_rmsnorm": row["fused_norms"] == "true"},
    }
    if int(row["rank"]) or row["kind"]:
        plan["lora"] = {
            "kind": row["kind"] or "lora",
            "rank": int(row["rank"]) or None,
            "targets": row["targets"].split() or ["all"],
            "dropout": float(row["dropout"]),
            "base_precision": row["base"] or None,
        }
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
    micro = int(row["micro_batch"])
    return job_from_document(
        {
            "model": {name: int(row[name]) for name in sizes},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 1},
            "batch": {"global": micro, "micro": micro, "seq_len": int(row["seq_len"])},
            "plan": plan,
        }
    )


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["case"])
def test_the_peak_of_finetuning_is_what_torchs_tracker_counts(row):
    (memory,) = run_step(finetuning_job(row), "replay").memory
    assert memory.peak_allocated_bytes == pytest.approx(float(row["peak_bytes"]), rel=0.01)


def test_a_recorded_peak_is_what_torch_counts_now():
    row = next(row for row in rows() if row["case"] == "qlora")
    assert peak_bytes(case_of(row)) == int(row["peak_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["case"])
def test_every_recorded_peak_is_what_torch_counts_now(row):
    assert peak_bytes(case_of(row)) == int(row["peak_bytes"])
