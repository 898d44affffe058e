"""8-bit copies of weights beside 16-bit ones."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Owner
from simulator.program.states.cast_weights import cast_weight_bytes
from simulator.results.simulation import run_step

MODEL = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 1024, "vocab": 1000}
MATRICES = 4 * 512 * 512 + 3 * 1024 * 512
"""Elements of the matrices of one layer: attention's four and three of a gated MLP."""


def a_job(*, gpus: int = 2, model: object = MODEL, **plan: object) -> Job:
    return job_from_document(
        {
            "model": model,
            "cluster": {"profile": "h100-sxm-80gb", "gpus": gpus},
            "batch": {"global": 2, "micro": 1, "seq_len": 128},
            "plan": plan,
        }
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_each_matrix_of_a_layer_has_a_copy_in_both_layouts(tp):
    """Not the embedding, the head or the norms, which stay 16-bit."""
    job = a_job(precision="fp8", tp=tp)
    assert cast_weight_bytes(job, [Slice(0, 2)]) == 2 * 2 * MATRICES / tp
    assert cast_weight_bytes(job, [Slice(0, 1)]) == 2 * MATRICES / tp


@pytest.mark.parametrize(
    "plan",
    [
        {"precision": "bf16"},
        {"precision": "fp8", "stack": {"base": "megatron-core", "keeps_cast_weights": False}},
        {"precision": "fp8", "stack": "torchtitan"},
    ],
)
def test_16_bit_products_weights_of_8_bits_and_casts_of_each_product_keep_none(plan):
    assert cast_weight_bytes(a_job(**plan), [Slice(0, 2)]) == 0


def test_experts_of_a_rank_have_copies_of_their_own():
    experts = {"count": 8, "top_k": 2, "ffn_hidden": 256}
    job = a_job(model={**MODEL, "experts": experts}, precision="fp8", ep=2)
    of_experts = 4 * 3 * 256 * 512
    assert cast_weight_bytes(job, [Slice(0, 1)]) == 2 * (4 * 512 * 512 + of_experts)


def test_copies_are_there_all_the_time_as_weights():
    bare, cast = (
        run_step(
            a_job(precision="fp8", stack={"base": "megatron-core", "keeps_cast_weights": keeps}),
            "replay",
        ).fullest
        for keeps in (False, True)
    )
    more = cast.by_owner[Owner.WEIGHTS] - bare.by_owner[Owner.WEIGHTS]
    assert more == 2 * 2 * MATRICES
