"""Peaks of steps that train adapters or a part of a model, against torch's memory tracker.

``oracles/finetuning_peaks.csv`` holds what :mod:`tests.finetuned_by_torch` measured with torch
2.13. Weights, gradients and states are 16-bit, the update and, unless said, the norms are fused
kernels.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.utils.checkpoint import checkpoint

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.results.simulation import run_step
from tests.finetuned_by_torch import case_of, peak_bytes, rows
from tests.torch_traffic import fake_ranks

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
        "stack": {
            "base": "torch",
            "fused_rmsnorm": row["fused_norms"] == "true",
            "matrix_workspaces": 0,
        },
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


class _Adapted(nn.Module):
    """A frozen matrix with an adapter, and its inputs whenever it is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8, bias=False).requires_grad_(False)
        self.adapter = nn.Linear(8, 8, bias=False)
        self.inputs: list[weakref.ref[torch.Tensor]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.inputs.append(weakref.ref(x))
        return x + self.base(x) + self.adapter(x)


class _Recomputed(nn.ModuleList):
    """Layers one after another, each computed again with reentrant autograd."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


_CPU = torch.device("cpu")


def _inputs_with_gradients(*, shards: bool, layers: int = 4) -> int:
    """Inputs that are there, with their gradients, as the first layer's backward ends."""
    own = [_Adapted() for _ in range(layers)]
    net: nn.Module = _Recomputed(own)
    if shards:
        policy = CustomPolicy(lambda each: isinstance(each, _Adapted) or _is_trained(each))
        net = FullyShardedDataParallel(net, auto_wrap_policy=policy, device_id=_CPU)
    x = torch.zeros(4, 8, requires_grad=True)
    found = []

    def count(_: torch.Tensor) -> None:
        inputs = [each() for layer in own for each in layer.inputs]
        found.append(sum(1 for each in inputs if each is not None and each.grad is not None))

    x.register_hook(count)
    net(x).sum().backward()
    return found[0]


def _is_trained(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.weight.requires_grad


@pytest.mark.filterwarnings("ignore")
def test_fsdp1_keeps_inputs_of_recomputed_frozen_layers_and_their_gradients():
    assert _inputs_with_gradients(shards=False) <= 1
    with fake_ranks(2):
        assert _inputs_with_gradients(shards=True) == 4


def _adapted_peak_bytes(layers: int, *, keeps: bool) -> float:
    document = {
        "model": {"layers": layers, "hidden": 1024, "heads": 8, "ffn_hidden": 2048, "vocab": 1024},
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 2},
        "batch": {"global": 2, "micro": 1, "seq_len": 4096},
        "plan": {
            "zero": 3,
            "recompute": "full",
            "lora": {"rank": 8},
            "stack": {"base": "trl", "frozen_units_keep_inputs": keeps},
            "libraries": {"transformers": "4.57"},
        },
    }
    (memory,) = run_step(job_from_document(document), "replay").memory
    return memory.peak_allocated_bytes


def test_with_every_layer_fsdp1_keeps_one_more_block_as_large_as_its_input():
    """Inputs are there before backward, gradients after it: the peak has one of both more.

    By then the adapters of all layers but the first have gradients, too.
    """
    more, fewer = (
        _adapted_peak_bytes(12, keeps=keeps) - _adapted_peak_bytes(8, keeps=keeps)
        for keeps in (True, False)
    )
    assert more - fewer == pytest.approx(4 * 4096 * 1024 * 2, rel=0.04)
