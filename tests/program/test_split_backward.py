"""What stays in memory between the halves of a backward?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cost.collectives import CollectiveKind
from simulator.described.load import job_from_document
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Owner
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    Split,
)
from simulator.program.price.stage_cost import StageCosts
from simulator.program.strategies.split_backward import (
    Halves,
    freed_half_way,
    pending_bytes,
    whole_until_the_end,
)

LAYER = Slice(1, 2)


def costs_of(**plan) -> StageCosts:
    """A GPT layer, h = 1024, 1024 tokens, dropout, unfused attention of 16 heads."""
    return StageCosts(
        job_from_document(
            {
                "model": {
                    "layers": 4, "hidden": 1024, "heads": 16, "ffn_hidden": 4096, "vocab": 8192,
                    "gated_mlp": False, "normalisation": "layernorm", "activation": "gelu",
                },
                "cluster": {"profile": "a100-sxm-80gb", "gpus": 4},
                "batch": {"global": 8, "seq_len": 1024},
                "plan": {"pp": 4, "stack": "zero-bubble", "precision": "fp16", **plan},
            }
        )
    )  # fmt: skip


def total(memory) -> float:
    return sum(size for _, size in memory)


def test_32_h_of_34_h_and_5_a_s_bytes_per_token_wait_for_the_weight_gradient():
    """Table 1 of arXiv 2401.10241, and arXiv 2205.05198, section 4.1."""
    costs, tokens = costs_of(), 1024
    saved = total(costs.saved(LAYER))
    assert saved == pytest.approx(tokens * (34 * 1024 + 5 * 16 * 1024), rel=0.01)
    halves = costs.halves(LAYER)
    assert total(halves.pending) == pytest.approx(tokens * 32 * 1024, rel=0.05)
    assert total(halves.takes) - total(halves.gives) == pytest.approx(total(halves.pending) - saved)


def test_a_framework_that_retains_the_graph_frees_nothing_half_way():
    costs = costs_of(stack={"base": "zero-bubble", "keeps_graph_for_weights": True})
    assert costs.halves(LAYER) == Halves((), (), costs.saved(LAYER))


def test_what_is_computed_again_is_freed_with_the_first_half():
    """Full recomputation keeps 2 h; 32 h are pending then all the same."""
    costs = costs_of(recompute="full")
    assert total(costs.saved(LAYER)) == pytest.approx(1024 * 2 * 1024)
    halves = costs.halves(LAYER)
    assert total(halves.pending) == pytest.approx(1024 * 32 * 1024, rel=0.1)
    assert not halves.gives


def test_blocks_freed_are_blocks_that_forward_left():
    saved = ((Owner.ACTIVATIONS, 5.0), (Owner.ACTIVATIONS, 3.0), (Owner.LOGITS, 2.0))
    halves = freed_half_way(saved, ((Owner.ACTIVATIONS, 4.0),))
    assert halves.gives == ((Owner.ACTIVATIONS, 5.0),)
    assert sorted(halves.gives + halves.pending) == sorted(saved)
    assert whole_until_the_end(saved, ()) == Halves((), (), saved)


@pytest.mark.parametrize(
    ("method", "tp", "depth"), [("1d", 4, 1), ("2d", 4, 1), ("2.5d", 8, 2), ("3d", 8, 1)]
)
def test_products_of_every_tensor_method_wait_for_their_weight_gradients(method, tp, depth):
    job = costs_of(stack="megatron-core", zero=0).job.replace(
        {
            "cluster.gpus": tp, "batch.micro": 4, "plan.pp": 1, "plan.tp": tp,
            "plan.tp_method": method, "plan.tp_depth": depth,
        }
    )  # fmt: skip
    assert total(StageCosts(job).halves(LAYER).pending) > 0


def test_operands_on_a_grid_wait_in_the_part_that_a_rank_keeps():
    """Half of the 4 x 2 elements of a weight: half of 8 x 4 inputs and of 8 x 2 gradients."""
    product = GridProduct("up", Gemm("block", m=8, k=4, n=2), 2, 4.0, (), (), ())
    assert pending_bytes(Layer((product,), (), 0.0), 1, 2.0, 2.0) == (8 * 4 / 2 * 2, 8 * 2 / 2 * 2)


def test_inputs_that_are_gathered_again_wait_in_parts_and_gradients_whole():
    """Four ranks; 8 rows of 5 in, 3 out, in 16 bits: 2 rows wait, and 8 rows of gradients."""
    product = Gemm("up", 8, 3, 5, split=Split.COLUMN)
    kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    gather = Exchange("gather", Axis.TENSOR, *kinds, 80.0, gathers_again=True)
    keeps = replace(gather, gathers_again=False)
    waiting = [
        pending_bytes(Layer(pieces, (), 0.0), 4, 2.0, 2.0)
        for pieces in ((gather, product), (keeps, product), (product,))
    ]
    assert waiting == [(2 * 5 * 2, 8 * 3 * 2), (8 * 5 * 2, 8 * 3 * 2), (8 * 5 * 2, 8 * 3 * 2)]


def test_operands_in_eight_bits_wait_in_eight_bits_but_for_products_in_sixteen():
    eight = Gemm("up", 8, 3, 5)
    sixteen = replace(eight, half_precision=True)
    scores = replace(eight, has_weight=False)
    layer = Layer((eight, sixteen, scores), (), 0.0)
    assert pending_bytes(layer, 1, 2.0, 1.0) == (40.0, 24.0, 80.0, 48.0)


def test_experts_wait_with_the_rows_of_all_groups():
    experts = GroupedGemm("up", groups=2, rows=4, n=3, k=5, split=Split.NONE)
    assert pending_bytes(Layer((experts,), (), 0.0), 1, 2.0, 2.0) == (8 * 5 * 2.0, 8 * 3 * 2.0)
