"""Copies of weights that autocast made stay until forward ends, though no layer saves them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.program.price.layer_cost import End, UnitCosts

LAYERS, HIDDEN, FFN, VOCAB = 3, 64, 160, 96
MATRICES = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN)


def job(**plan: Any) -> Job:
    model = {"name": "small", "layers": LAYERS, "hidden": HIDDEN, "heads": 4, "kv_heads": 4,
             "ffn_hidden": FFN, "vocab": VOCAB}  # fmt: skip
    return job_from_document(
        {
            "model": model,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 1},
            "batch": {"global": 1, "micro": 1, "seq_len": 32},
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
