"""What recomputation keeps, repeats and holds, by the words of the frameworks that do it."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.model import Model
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.model_totals import hardware_flop_per_token, model_flop_per_token
from simulator.program.price.stage_cost import StageCosts
from simulator.results.simulation import run_step
from tests.jobs import gpt_model, small_job

TOKENS, HIDDEN = 64, 64
ROW = 2 * TOKENS * HIDDEN
"""An activation as wide as the model, in 16 bits [B]."""
LAYER = Slice(1, 2)


def paxml_job(model: Model | None = None, **plan: object) -> Job:
    stack = {"base": "jax", "selective_policy": "all-but-projections"}
    return small_job(model or gpt_model(), recompute="selective", stack=stack, **plan)


def test_all_but_projections_keeps_the_input_and_what_four_products_give():
    """``SAVE_QKV_OUT_PROJ``: combined_qkv_proj and out_proj, beside what the scan carries."""
    kept = total_bytes(StageCosts(paxml_job()).saved(LAYER))
    assert kept == (1 + 3 + 1) * ROW


def test_all_but_projections_repeats_attention_and_the_first_product_of_the_mlp():
    job = paxml_job(global_batch=1)
    attention = 4 * TOKENS * TOKENS * HIDDEN / 2
    up = 2 * TOKENS * 4 * HIDDEN * HIDDEN
    costs = StageCosts(job)
    assert costs.units.of(costs.units.layers[0]).time.recompute.flop == pytest.approx(
        attention + up
    )
    more = hardware_flop_per_token(
        job.model, TOKENS, "selective", "all-but-projections"
    ) - model_flop_per_token(job.model, TOKENS)
    assert more == pytest.approx(job.model.layers * (2 * attention + up) / TOKENS)
    assert run_step(job).hfu > run_step(job).mfu


def again(memory: Memory) -> float:
    return sum(size for owner, size in memory if owner is Owner.RECOMPUTE)


@pytest.mark.parametrize("stack", ["megatron-core", "deepspeed", "internevo"])
def test_a_checkpoint_function_holds_the_output_and_its_gradient(stack):
    """``CheckpointFunction.backward``; without reentrant autograd there is no such function."""
    plans = ({"base": stack}, {"base": stack, "recompute_stops_early": True})
    with_function, without = (
        total_bytes(StageCosts(small_job(gpt_model(), recompute="full", stack=plan)).working(LAYER))
        for plan in plans
    )
    assert with_function - without == 2 * ROW


def test_what_is_computed_again_for_the_mlp_is_gone_when_attention_needs_room():
    """The MLP keeps 4 h twice, its input, and its norm's; attention all else, and 5 a s^2 b."""
    plan = {"stack": "deepspeed", "recompute": "full", "attention": "fused-softmax"}
    long, short = (
        StageCosts(small_job(gpt_model(max_positions=seq), seq_len=seq, **plan)).working(LAYER)
        for seq in (512, 8)
    )
    heads, row, norms, mask = 8, 2 * HIDDEN, 8, HIDDEN

    def of_attention(seq: int) -> float:
        """Its norm's statistics, input of qkv, qkv, context and mask; the layer's input is kept."""
        return seq * (norms + row + 3 * row + row + mask) + 5 * heads * seq * seq

    def of_mlp(seq: int) -> float:
        """Its norm's input and statistics, input of the product, 4 h twice, and mask."""
        return seq * (row + norms + row + 2 * 4 * row + mask)

    assert again(long) == of_attention(512)
    assert again(short) == of_attention(8) + of_mlp(8)
