"""Copies of weights that autocast made stay until forward ends, though no layer saves them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from simulator.described.job import Job  # noqa: E402
from simulator.described.load import job_from_document  # noqa: E402
from simulator.program.price.layer_cost import UnitCosts  # noqa: E402
from simulator.program.price.unit_cost import End  # noqa: E402
from tests.torch_traffic import fake_ranks  # noqa: E402

LAYERS, HIDDEN, FFN, VOCAB = 3, 64, 160, 96
MATRICES = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN)


def job(**plan: Any) -> Job:
    model = {"name": "small", "layers": LAYERS, "hidden": HIDDEN, "heads": 4, "kv_heads": 4,
             "ffn_hidden": FFN, "vocab": VOCAB}  # fmt: skip
    return job_from_document(
        {
            "model": model,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 2},
            "batch": {"global": 2, "micro": 1, "seq_len": 32},
            "plan": {"stack": "torch", "precision": "bf16", **plan},
        },
        source="job.yaml",
    )


def held_bytes(given: Job) -> float:
    """What forward of the loss holds."""
    return math.fsum(size for _, size in UnitCosts(given).of(End.LOSS).passing)


@pytest.mark.parametrize("repeated", [LAYERS, 1])
def test_the_loss_meets_a_16_bit_copy_of_every_weight_of_layers_that_are_computed_again(repeated):
    plain = held_bytes(job())
    again = held_bytes(job(recompute="full", recompute_layers=repeated))
    assert again - plain == 2 * MATRICES * repeated / LAYERS


@pytest.mark.parametrize("plan", [{"master_weights": False}, {"precision": "fp32"}])
def test_weights_that_nothing_casts_have_no_such_copy(plan):
    assert held_bytes(job(recompute="full", **plan)) == held_bytes(job(**plan))


def test_weights_that_fsdp1_gathers_are_never_cached():
    stack = {"base": "torch-fsdp", "gathers_fp32_weights": True}
    plain, again = (job(stack=stack, zero=3, recompute=which) for which in ("none", "full"))
    assert again.plan.saves_cast_weights
    assert held_bytes(again) == held_bytes(plain)


def test_frozen_weights_beside_adapters_are_never_cached():
    lora = {"rank": 8, "targets": ["all"], "base_precision": "fp32"}
    plain, again = (job(lora=lora, recompute=which) for which in ("none", "full"))
    assert again.plan.saves_cast_weights
    assert held_bytes(again) == held_bytes(plain)


class _Twice(nn.Module):
    """One product of two inputs with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.product(self.product(batch))


class _WeightCasts(TorchDispatchMode):
    """How often a whole weight of :class:`_Twice` is cast."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_cast = func is torch.ops.aten._to_copy.default
        self.count += is_cast and args[0].shape == (HIDDEN, HIDDEN)
        return func(*args, **(kwargs or {}))


def weight_casts(wrapped: Callable[[nn.Module], nn.Module]) -> int:
    with fake_ranks(2):
        model = wrapped(_Twice())
        with _WeightCasts() as casts, torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.randn(8, HIDDEN))
    return casts.count


def test_torch_casts_a_frozen_weight_at_every_use():
    assert weight_casts(lambda model: model.requires_grad_(False)) == 2


def test_torch_casts_a_plain_weight_once_and_one_that_fsdp1_gathers_at_every_use():
    assert weight_casts(lambda model: model) == 1
    sharded = FullyShardedDataParallel
    assert weight_casts(lambda model: sharded(model, device_id=torch.device("cpu"))) == 2
