"""Attention over a sequence that several ranks share."""

from __future__ import annotations

import pytest

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan import Plan
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kind, model_layer
from simulator.program.layer.pieces import (
    Axis,
    ContextSplit,
    Exchange,
    FlashAttention,
    Layer,
    RingAttention,
)
from simulator.program.price.layer_time import attention_flop
from simulator.program.strategies.divided_layer import context_parallel
from simulator.program.strategies.tensor_parallel import tensor_parallel
from tests.jobs import small_model

B, S = 2, 64
HEADS_RANKS = 2
KV_BYTES = 2 * B * S * 4 * 8 * 2.0
"""Keys and values of the whole sequence: 4 heads of 8, 16 bit [B]."""


def layer(
    cp: int, method: str = "ring", attention: str = "flash", stack: str = "megatron-core", **model
) -> Layer:
    plan = Plan(attention=attention, stack=stack, cp=cp)
    shape = microbatch_shape(plan, B, S // cp)
    sizes = small_model(**model)
    whole = model_layer(sizes, layer_kind(sizes, 0), plan, shape)
    split = ContextSplit(cp, HEADS_RANKS, element_bytes=2.0, sum_ratio=1.0)
    return context_parallel(whole, method, split) if cp > 1 else whole


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_gathering_keys_and_values_shares_the_scores_evenly_too(cp, causal):
    whole = attention_flop(kernel(layer(1, causal=causal)))
    gathered = layer(cp, "all_gather", causal=causal)
    assert cp * attention_flop(kernel(gathered)) == pytest.approx(whole)
    (exchange,) = (p for p in gathered.pieces if isinstance(p, Exchange))
    assert exchange.num_bytes == KV_BYTES
    assert (exchange.forward, exchange.backward, exchange.gathers_again) == (
        CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, True,
    )  # fmt: skip


def test_gathered_keys_are_divided_by_heads_that_tensor_ranks_do_not_share():
    """Four heads of keys: eight ranks hold each twice."""
    for tp, ways in ((2, 2), (8, 4)):
        divided = tensor_parallel(
            layer(2, "all_gather"), tp, sequence_parallel=False, element_bytes=2.0
        )
        (gather,) = (
            p for p in divided.pieces if isinstance(p, Exchange) and p.axis is Axis.CONTEXT
        )
        assert gather.num_bytes == KV_BYTES / ways


@pytest.mark.parametrize("causal", [True, False])
def test_trading_heads_among_neighbours_leaves_a_ring_of_the_others(causal):
    """Eight ranks, two trade: half the heads, a ring of four over twice the tokens."""
    whole = attention_flop(kernel(layer(1, causal=causal)))
    combined = layer(8, "all_to_all+ring", causal=causal)
    passing = next(p for p in combined.pieces if isinstance(p, RingAttention))
    assert 8 * ring_flop(passing) == pytest.approx(whole)
    assert passing.steps == 4
    # A quarter of the tokens with half of the heads.
    assert passing.kv_bytes == KV_BYTES / 4 / 2
    exchanges = [p for p in combined.pieces if isinstance(p, Exchange)]
    assert {p.axis for p in exchanges} == {Axis.CONTEXT_HEADS}
    # Queries, keys, values and results of 1/8 of the tokens.
    assert sum(p.num_bytes for p in exchanges) == 2 * B * S * (8 + 4) * 8 * 2.0 / 8


@pytest.mark.parametrize("method", ["all_to_all", "all_gather"])
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("window", [8, 24, 40])
def test_ranks_that_hold_all_keys_share_the_scores_of_a_window_evenly(method, cp, window):
    """Windows shorter and longer than what one rank holds (16 or 32 of 64 tokens)."""
    whole = kernel(layer(1, sliding_window=window))
    shared = kernel(layer(cp, method, sliding_window=window))
    assert shared.seq_kv == whole.seq_kv == window
    assert cp * attention_flop(shared) == attention_flop(whole)


def test_keys_are_gathered_whole_for_a_window_too():
    """Transformer Engine gathers all and takes slices (``AttnFuncWithCPAndKVAllGather``)."""
    gathered = layer(4, "all_gather", sliding_window=8)
    (exchange,) = (p for p in gathered.pieces if isinstance(p, Exchange))
    assert exchange.num_bytes == KV_BYTES


def ring(cp: int, **model) -> RingAttention:
    return next(p for p in layer(cp, **model).pieces if isinstance(p, RingAttention))


def kernel(divided: Layer) -> FlashAttention:
    return next(p for p in divided.pieces if isinstance(p, FlashAttention))


def ring_flop(ring: RingAttention) -> float:
    return attention_flop(ring.first) + (ring.steps - 1) * attention_flop(ring.step)


def test_a_rank_of_its_own_is_left_alone():
    assert kernel(layer(1)).seq_kv == S


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("causal", [True, False])
def test_a_ring_shares_the_scores_of_the_whole_sequence_evenly(cp, causal):
    whole = attention_flop(kernel(layer(1, causal=causal)))
    assert cp * ring_flop(ring(cp, causal=causal)) == pytest.approx(whole)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_passes_on_the_keys_and_values_of_one_rank_per_step(cp):
    """Cp - 1 steps bring every other rank's share."""
    passing = ring(cp)
    assert passing.steps == cp
    assert (passing.steps - 1) * passing.kv_bytes == pytest.approx(KV_BYTES * (cp - 1) / cp)


def test_heads_repeated_before_attention_go_round_the_ring_repeated():
    """Eight heads of queries read four of keys."""
    (passing,) = (p for p in layer(4, stack="torchtitan").pieces if isinstance(p, RingAttention))
    assert passing.kv_bytes == 2 * KV_BYTES / 4


@pytest.mark.parametrize("cp", [2, 4])
def test_head_trading_computes_a_share_of_the_heads_over_the_whole_sequence(cp):
    attention = kernel(layer(cp, "all_to_all"))
    assert (attention.seq_q, attention.seq_kv) == (S, S)
    assert (attention.heads, attention.kv_heads) == (8 // cp, 4 // cp)
    assert cp * attention_flop(attention) == attention_flop(kernel(layer(1)))


def test_head_trading_moves_queries_keys_and_values_in_and_the_context_out():
    """DeepSpeed-Ulysses (arXiv 2309.14509), section 3.2: each rank's own share of them."""
    traded = [p for p in layer(4, "all_to_all").pieces if isinstance(p, Exchange)]
    width = 8 * 8
    tokens = B * S // 4
    assert [e.num_bytes for e in traded] == [tokens * 2 * width * 2.0, tokens * width * 2.0]
    assert {(e.axis, e.forward, e.backward) for e in traded} == {
        (Axis.CONTEXT, CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL)
    }


@pytest.mark.parametrize("method", ["ring", "all_to_all"])
def test_tensor_ranks_move_their_own_heads_only(method):
    whole = layer(2, method)
    shared = tensor_parallel(whole, 2, sequence_parallel=False, element_bytes=2.0)

    def moved(divided):
        rings = [p.kv_bytes for p in divided.pieces if isinstance(p, RingAttention)]
        exchanged = [
            p.num_bytes
            for p in divided.pieces
            if isinstance(p, Exchange) and p.axis is Axis.CONTEXT
        ]
        return [*rings, *exchanged]

    assert moved(shared) == [num_bytes / 2 for num_bytes in moved(whole)]


def test_selective_recompute_repeats_the_ring():
    assert layer(2).modules["core_attn"].repeated == {"attention": 1.0}
