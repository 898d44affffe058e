"""What tensor parallelism divides, and what the ranks of a group say to each other."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.described.plan.plan import Plan
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.layer.block import Shape, microbatch_shape
from simulator.program.layer.layer_kinds import model_layer
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.model_ends import embedding_layer, head_layer, loss_layer
from simulator.program.layer.pieces import Exchange, FlashAttention, Gemm, Layer, MemoryBound
from simulator.program.price.stage_cost import StageCosts
from simulator.program.strategies.tensor_parallel import tensor_parallel
from simulator.schedule import Phase
from tests.jobs import SIXTEEN_BIT_TORCH, free_latency_profile, small_job, small_model

B, S, H = 2, 64, 64
BSH = B * S * H * 2.0
"""One boundary activation of 16-bit numbers [B]."""

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)


def shape() -> Shape:
    return microbatch_shape(Plan(), B, S)


def layer(tp: int, *, sequence_parallel: bool = False, **model) -> Layer:
    whole = model_layer(small_model(**model), LayerKind(), Plan(), shape())
    return tensor_parallel(whole, tp, sequence_parallel=sequence_parallel, element_bytes=2.0)


def exchanges(divided: Layer) -> list[Exchange]:
    return [piece for piece in divided.pieces if isinstance(piece, Exchange)]


def calls(divided: Layer, direction: str) -> Counter[CollectiveKind]:
    kinds = [getattr(exchange, direction) for exchange in exchanges(divided)]
    return Counter(kind for kind in kinds if kind)


def gemm(divided: Layer, name: str) -> Gemm:
    return next(p for p in divided.pieces if isinstance(p, Gemm) and p.name == name)


def test_one_rank_talks_to_nobody():
    assert exchanges(layer(1)) == []


def test_a_layer_needs_two_all_reduces_of_bsh_forward_and_two_backward():
    """Megatron-LM (arXiv 1909.08053), section 3 and figure 4."""
    divided = layer(4)
    assert calls(divided, "forward") == {ALL_REDUCE: 2}
    assert calls(divided, "backward") == {ALL_REDUCE: 2}
    assert {exchange.num_bytes for exchange in exchanges(divided)} == {BSH}


def test_sequence_parallelism_makes_a_gather_and_a_scatter_of_each_all_reduce():
    """Korthikanti et al. (arXiv 2205.05198), section 4.2.2."""
    divided = layer(4, sequence_parallel=True)
    assert calls(divided, "forward") == {ALL_GATHER: 2, REDUCE_SCATTER: 2}
    assert calls(divided, "backward") == {ALL_GATHER: 2, REDUCE_SCATTER: 2}
    assert {exchange.num_bytes for exchange in exchanges(divided)} == {BSH}


def port_bytes(divided: Layer, tp: int) -> float:
    """Bytes through one rank's port in a forward and a backward pass, repeats left out."""
    network = free_latency_profile().network
    costs = [
        collective_cost(kind, exchange.num_bytes, Group(tp, tp), network)
        for exchange in exchanges(divided)
        for kind in (exchange.forward, exchange.backward)
        if kind
    ]
    return sum(sum(cost.port_bytes.values()) for cost in costs)


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_moves_the_same_bytes(tp):
    plain, cut = (
        port_bytes(layer(tp, sequence_parallel=sequence), tp) for sequence in (False, True)
    )
    assert plain == pytest.approx(4 * 2 * BSH * (tp - 1) / tp)
    assert cut == pytest.approx(plain)


def test_operands_cast_to_8_bits_travel_cast_and_sums_in_16_bits():
    whole = model_layer(small_model(), LayerKind(), Plan(), shape())
    divided = tensor_parallel(
        whole, 4, sequence_parallel=True, element_bytes=2.0, gathered_bytes=1.0
    )
    for exchange in exchanges(divided):
        assert exchange.message_bytes(ALL_GATHER) == BSH / 2
        assert exchange.message_bytes(REDUCE_SCATTER) == BSH


def test_the_head_computes_and_so_gathers_in_16_bits():
    whole = head_layer(small_model(), Plan(), shape(), 256)
    divided = tensor_parallel(
        whole, 4, sequence_parallel=True, element_bytes=2.0, gathered_bytes=1.0
    )
    (exchange,) = exchanges(divided)
    assert exchange.message_bytes(ALL_GATHER) == BSH


def test_inputs_of_column_products_are_gathered_once_more_in_backward():
    """They are stored cut, and the weight gradient needs them whole (section 4.2.2)."""
    pieces = layer(2, sequence_parallel=True).pieces
    followed = [
        product.name
        for exchange, product in pairwise(pieces)
        if isinstance(exchange, Exchange) and exchange.gathers_again
    ]
    assert followed == ["qkv", "mlp_up"]
    assert not any(e.gathers_again for e in exchanges(layer(2)))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_products_are_cut_by_columns_then_rows(tp):
    whole, divided = layer(1, kv_heads=8), layer(tp, kv_heads=8)
    for name, axis in (
        ("qkv", "n"),
        ("attention_output", "k"),
        ("mlp_up", "n"),
        ("mlp_down", "k"),
    ):
        before, after = gemm(whole, name), gemm(divided, name)
        assert getattr(after, axis) * tp == getattr(before, axis)
        assert after.m == before.m


def test_key_and_value_heads_are_copied_where_there_are_fewer_than_ranks():
    """8 query heads of 8, 2 key heads and 2 value heads: one of each on every rank."""
    divided = layer(4, kv_heads=2)
    assert gemm(divided, "qkv").n == 2 * 8 + 2 * 8
    attention = next(p for p in divided.pieces if isinstance(p, FlashAttention))
    assert (attention.heads, attention.kv_heads) == (2, 1)


@pytest.mark.parametrize(("sequence_parallel", "share"), [(False, 1.0), (True, 0.25)])
def test_norms_are_whole_unless_the_sequence_is_cut(sequence_parallel, share):
    def norm_bytes(divided):
        return next(
            p.forward_bytes
            for p in divided.pieces
            if isinstance(p, MemoryBound) and p.name == "mlp_norm"
        )

    divided = layer(4, sequence_parallel=sequence_parallel)
    assert norm_bytes(divided) == norm_bytes(layer(1)) * share


def test_activation_functions_run_on_a_share_of_the_width_either_way():
    for sequence_parallel in (False, True):
        divided = layer(4, sequence_parallel=sequence_parallel)
        share, whole = (
            next(p.forward_bytes for p in each.pieces if p.name == "activation")
            for each in (divided, layer(1))
        )
        assert share == whole / 4


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_embedding_adds_up_its_rows_and_the_head_spreads_its_input(sequence_parallel):
    model = small_model()
    embedding, head, loss = (
        tensor_parallel(each, 4, sequence_parallel=sequence_parallel, element_bytes=2.0)
        for each in (
            embedding_layer(model, Plan(), shape(), model.vocab),
            head_layer(model, Plan(tp=4), shape(), 1024),
            loss_layer(model, Plan(tp=4), shape(), 1024),
        )
    )
    after, before = exchanges(embedding), exchanges(head)
    assert [e.num_bytes for e in after + before] == [BSH, BSH]
    assert [(e.forward, e.backward, e.num_bytes) for e in exchanges(loss)] == [
        (ALL_REDUCE, None, B * S * 4)
    ] * 3
    if sequence_parallel:
        assert (after[0].forward, after[0].backward) == (REDUCE_SCATTER, ALL_GATHER)
        assert (before[0].forward, before[0].backward) == (ALL_GATHER, REDUCE_SCATTER)
    else:
        assert (after[0].forward, after[0].backward) == (ALL_REDUCE, None)
        assert (before[0].forward, before[0].backward) == (None, ALL_REDUCE)


def test_sums_that_ranks_scatter_come_and_go_in_layers_and_units_keep_what_a_pass_takes():
    """A sum is whole, its part and what the projection of queries, keys and values makes half."""
    job = small_job(small_model(), gpus=2, tp=2, sequence_parallel=True, stack=SIXTEEN_BIT_TORCH)
    (run,) = stage_slices(job, 1)
    forward = StageCosts(job).forward(run)
    _, layers, _, loss = forward.by_unit
    sum_bytes = 2.0 * job.batch.seq_len * job.model.hidden
    gone = [size for turn in layers.turns for _, size in turn]
    assert sorted(gone) == [sum_bytes / 2, sum_bytes]
    assert [block for unit in forward.by_unit for block in unit.takes] == [*forward.early]
    assert loss.turns == ()


def test_backward_exchanges_in_the_opposite_order_of_forward_the_heads_first():
    job = small_job(small_model(layers=1), gpus=2, global_batch=1, tp=2, sequence_parallel=False)
    run = Slice(0, 1, has_embedding=True, has_head=True)
    forward, backward = (
        [each.name.partition(".")[0] for each in StageCosts(job).work(run, phase).collectives]
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert forward == ["embedding", "attention_output", "mlp_down"]
    assert backward == ["head", "mlp_up", "qkv"]
