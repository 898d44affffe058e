"""How the pieces of a layer add up in each direction, and what hides behind what.

Every product takes 4 s forward, 5 s for its input's gradient and 6 s for its weight's; an
exchange takes as long as its name's timer says and holds a tenth of the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from simulator.cost.collectives import CollectiveCost, CollectiveKind, Group
from simulator.program.ir import Category
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    Layer,
    MemoryBound,
    Piece,
    RingAttention,
    Split,
)
from simulator.program.price.layer_time import (
    Hiding,
    LayerTime,
    PassTime,
    attention_flop,
    layer_time,
)
from simulator.program.price.piece_time import PieceTimer
from tests.jobs import free_latency_profile, network_profile

GATHER, SCATTER = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
BLOCKING = Hiding(behind_gradients=False, behind_products=0)
BEHIND_GRADIENTS = Hiding(behind_gradients=True, behind_products=0)


@dataclass(slots=True)
class GivenTimer(PieceTimer):
    """Products of 4, 5 and 6 s; exchanges of ``exchange_s``."""

    exchange_s: float = 3.0

    def gemm_s(self, gemm):
        return 4.0

    def input_gradient_s(self, gemm):
        return 5.0

    def weight_gradient_s(self, gemm):
        return 6.0

    def memory_bound_s(self, stream, *, backward):
        return 2.0 if backward else 1.0

    def exchange_cost(self, exchange, kind):
        seconds = self.exchange_s if kind else 0.0
        return CollectiveCost(seconds, 0.0, "given", "given", {}, 1)


def timer(exchange_s: float = 3.0) -> GivenTimer:
    profile = network_profile()
    device = profile.device.model_copy(update={"sm_count": 10})
    profile = profile.model_copy(update={"device": device})
    groups = {axis: Group(2, 2) for axis in Axis}
    return GivenTimer(profile, "bf16", groups, "best", False, 0.0, exchange_s=exchange_s)


PRODUCT = Gemm("product", 2, 3, 5, split=Split.COLUMN)
ENTRY = Exchange("entry", Axis.TENSOR, GATHER, SCATTER, 8.0, gathers_again=True)
EXIT = Exchange("exit", Axis.TENSOR, SCATTER, GATHER, 8.0)


def timed(
    *pieces: Piece, exchange_s: float = 3.0, hiding: Hiding = BLOCKING, repeated=None
) -> LayerTime:
    layer = Layer(pieces, (), 0.0)
    return layer_time(layer, timer(exchange_s), hiding, repeated or {})


def seconds(direction: PassTime, *categories: Category) -> float:
    return sum(p.seconds for p in direction.parts if not categories or p.category in categories)


def exposed(direction: PassTime) -> float:
    return seconds(direction, Category.TENSOR_PARALLEL)


def test_a_product_has_two_gradients_of_as_many_operations():
    time = timed(PRODUCT)
    assert seconds(time.forward) == 4.0
    assert seconds(time.backward_input) == 5.0
    assert seconds(time.backward_weight) == 6.0
    flop = {time.forward.flop, time.backward_input.flop, time.backward_weight.flop}
    assert flop == {2 * 2 * 3 * 5}


def test_both_gradients_of_a_product_of_activations_belong_to_the_input():
    time = timed(Gemm("scores", 2, 3, 5, batch=7, has_weight=False))
    assert seconds(time.backward_input) == 11.0
    assert time.backward_input.flop == 2 * 2 * 2 * 3 * 5 * 7
    assert time.backward_weight.parts == []


def test_memory_bound_pieces_launch_their_kernels_in_both_directions():
    time = timed(MemoryBound("norm", 10.0, 20.0, kernels=3))
    assert (seconds(time.forward), seconds(time.backward_input)) == (1.0, 2.0)
    assert (time.forward.kernels, time.backward_input.kernels) == (3, 3)


def test_exchanges_are_no_kernels_of_the_layer_but_launches_of_their_own():
    time = timed(ENTRY, PRODUCT, EXIT)
    assert (time.forward.kernels, time.forward.exchanges) == (1, 2)
    assert (time.backward_input.kernels, time.backward_input.exchanges) == (1, 3)


def test_kernels_that_move_nothing_do_not_run():
    """As the forward cast that the kernel before it does on its way."""
    time = timed(MemoryBound("cast", 0.0, 20.0))
    assert (time.forward.parts, time.forward.kernels) == ([], 0)
    assert seconds(time.backward_input) == 2.0


def test_exchanges_that_are_not_hidden_block():
    time = timed(ENTRY, PRODUCT, EXIT)
    assert exposed(time.forward) == 2 * 3.0
    # The exit's gather, the entry's scatter, and the entry's gather once more.
    assert exposed(time.backward_input) == 3 * 3.0


def test_gradient_exchanges_hide_behind_the_other_gradient_but_for_the_sms_they_take():
    """A tenth of each of the two sticks out; the exit's gather still blocks."""
    time = timed(ENTRY, PRODUCT, EXIT, hiding=BEHIND_GRADIENTS)
    assert exposed(time.forward) == 6.0
    assert exposed(time.backward_input) == pytest.approx(3.0 + 2 * 0.3)


def test_what_is_longer_than_its_cover_sticks_out():
    """Scatter of 8 s beside 6 s of weight gradient, gather beside 5 s of input gradient."""
    time = timed(ENTRY, PRODUCT, exchange_s=8.0, hiding=BEHIND_GRADIENTS)
    assert exposed(time.backward_input) == pytest.approx(2.0 + 3.0)


def test_an_exchange_in_n_chunks_leaves_its_first_chunk_exposed():
    time = timed(ENTRY, PRODUCT, hiding=Hiding(behind_gradients=False, behind_products=4))
    assert exposed(time.forward) == pytest.approx(3.0 / 4)


def test_only_tensor_exchanges_are_pipelined_with_products():
    trade = Exchange("trade", Axis.CONTEXT, GATHER, SCATTER, 8.0)
    time = timed(trade, PRODUCT, hiding=Hiding(behind_gradients=True, behind_products=4))
    assert seconds(time.forward, Category.CONTEXT_PARALLEL) == 3.0
    assert seconds(time.backward_input, Category.CONTEXT_PARALLEL) == 3.0


@pytest.mark.parametrize("exchange_s", [0.1, 3.0, 5.5, 20.0])
@pytest.mark.parametrize("chunks", [0, 2, 8])
def test_hiding_is_never_slower_than_blocking_nor_faster_than_either_side(exchange_s, chunks):
    hidden = timed(ENTRY, PRODUCT, EXIT, exchange_s=exchange_s, hiding=Hiding(True, chunks))
    blocking = timed(ENTRY, PRODUCT, EXIT, exchange_s=exchange_s)
    for direction in ("forward", "backward_input"):
        assert seconds(getattr(hidden, direction)) <= seconds(getattr(blocking, direction))
    total_s = seconds(hidden.backward_input) + seconds(hidden.backward_weight)
    assert total_s >= max(5.0 + 6.0, 3 * exchange_s if not chunks else 0.0)


def test_recompute_repeats_the_named_pieces_and_books_them_apart():
    time = timed(PRODUCT, MemoryBound("norm", 10.0, 20.0), repeated={"norm": 1.0})
    assert seconds(time.recompute) == seconds(time.recompute, Category.RECOMPUTE) == 1.0
    assert time.recompute.flop == 0.0
    whole = timed(PRODUCT, repeated={"product": 1.0})
    assert seconds(whole.recompute) == 4.0
    assert whole.recompute.flop == whole.forward.flop


def test_a_pass_repeated_in_part_takes_its_share():
    time = timed(PRODUCT, repeated={"product": 0.5})
    assert seconds(time.recompute) == 2.0
    assert time.recompute.flop == time.forward.flop / 2


def pieces_of(ranks: int) -> PieceTimer:
    """Times where so many ranks of a node share a sequence."""
    groups = {Axis.CONTEXT: Group(ranks, ranks)}
    return PieceTimer(free_latency_profile(), "bf16", groups, "best", False, 0.0)


def ring_of(ranks: int, kv_bytes: float) -> tuple[FlashAttention, RingAttention]:
    """Attention of a part of a sequence, and the ring that passes keys and values on."""
    kernel = FlashAttention("attention", 1, 1, 1, 8, 8, 8, 8, causal=False)
    return kernel, RingAttention("attention", kernel, kernel, steps=ranks, kv_bytes=kv_bytes)


def test_a_ring_hides_its_transfers_behind_its_steps():
    """Four ranks, 1 GB/s: three transfers of 3 s beside kernels of t seconds each."""
    kernel, ring = ring_of(4, kv_bytes=3e9)
    pieces = pieces_of(4)
    one = pieces.attention_s(kernel, backward=False)
    compute_s, exposed_s = pieces.ring_s(ring, backward=False)
    assert exposed_s == pytest.approx(3 * (3.0 - one))
    _, slow = ring_of(4, kv_bytes=1.0)
    assert pieces.ring_s(slow, backward=False) == (compute_s, 0.0)


@pytest.mark.parametrize(
    ("sum_ratio", "causal", "backward", "elements", "element_bytes"),
    [
        (1.0, False, False, 2 * 8 * 4, 2 + 2 + 2),
        (2.0, False, False, 2 * 8 * 4, 2 + 4 + 4),
        (2.0, True, False, 0.75 * 2 * 8 * 4, 2 + 4 + 4),
        (2.0, False, True, 2 * 8 * 6 + 1 * 8 * (6 + 4), 2 + 4 + 4),
    ],
)
def test_every_step_of_a_ring_but_the_first_is_merged_with_those_before(
    sum_ratio: float, causal: bool, backward: bool, elements: float, element_bytes: int
):
    """Two heads of queries and one of keys, 6 wide, values 4 wide, 8 tokens; a byte takes a ns."""
    kernel = FlashAttention("attention", 1, 2, 1, 8, 8, 6, 4, causal=causal)
    ring = RingAttention("attention", kernel, kernel, 4, 1.0, sum_ratio)
    pieces = pieces_of(4)
    one_s = pieces.attention_s(kernel, backward=backward)
    merge_s = 1e-6 + elements * element_bytes * 1e-9
    compute_s, _ = pieces.ring_s(ring, backward=backward)
    assert compute_s == pytest.approx(4 * one_s + 3 * merge_s)


def test_a_rings_backward_launches_three_kernels_a_step_and_three_sums_after_each_but_the_first():
    """Backward of attention is three kernels; sums are of gradients of queries, keys, values."""
    _, ring = ring_of(4, kv_bytes=1.0)
    pieces = pieces_of(4)
    time = layer_time(Layer((ring,), (), 0.0), pieces, BLOCKING, {})
    assert time.forward.kernels == 4 * 1 + 3 * 1
    assert time.backward_input.kernels == 4 * 3 + 3 * 3
    assert (time.forward.exchanges, time.backward_input.exchanges) == (3, 3)


def test_gradients_of_keys_and_values_travel_with_them_and_one_hop_further_home():
    kernel, ring = ring_of(2, kv_bytes=3e9)
    pieces = pieces_of(2)
    one = pieces.attention_s(kernel, backward=True)
    last_hop_s = 3.0
    assert pieces.ring_s(ring, backward=True)[1] == pytest.approx(6.0 - one + last_hop_s)


def test_a_causal_mask_halves_the_scores():
    full = FlashAttention("attention", 2, 4, 4, 16, 16, 8, 8, causal=False)
    half = FlashAttention("attention", 2, 4, 4, 16, 16, 8, 8, causal=True)
    assert attention_flop(full) == 2 * 2 * 2 * 4 * 16 * 16 * 8
    assert attention_flop(half) == attention_flop(full) / 2


@pytest.mark.parametrize("passes", ["gemm_s", "input_gradient_s", "weight_gradient_s"])
def test_products_apart_are_kernels_apart(passes):
    """Queries of 64 columns, keys and values of 16 each, as Llama's first layer has them."""
    profile = free_latency_profile()
    groups = {axis: Group(1, 1) for axis in Axis}
    times = getattr(PieceTimer(profile, "bf16", groups, "best", False, 0.0), passes)
    apart = times(Gemm("qkv", 128, 96, 64, kv_columns=32, kv_heads=2, products=3))
    kernels = [times(Gemm(name, 128, n, 64)) for name, n in (("q", 64), ("k", 16), ("v", 16))]
    assert apart == pytest.approx(sum(kernels))


def test_products_apart_are_launched_apart():
    whole = Layer((Gemm("up", 2, 4, 5, products=2),), (), 0.0)
    assert layer_time(whole, timer(), BLOCKING, {}).forward.kernels == 2


def test_a_product_over_gathered_input_is_three_kernels_where_its_own_part_goes_first():
    """Forward behind the gather, backward where the output's gradient is gathered."""
    splits = Hiding(behind_gradients=False, behind_products=0, splits_products=True)
    whole, split = timed(ENTRY, PRODUCT), timed(ENTRY, PRODUCT, hiding=splits)
    assert (whole.forward.kernels, split.forward.kernels) == (1, 3)
    assert split.backward_input.kernels == 1
    split = timed(PRODUCT, EXIT, hiding=splits)
    assert (split.forward.kernels, split.backward_input.kernels) == (1, 3)
    assert seconds(split.forward) == seconds(timed(PRODUCT, EXIT).forward)


def test_python_that_adds_gradients_up_launches_a_kernel_for_each_weight():
    layer = Layer((PRODUCT, Gemm("scores", 2, 3, 5, has_weight=False)), (), 0.0)
    adding = replace(timer(), accumulates_in_python=True)
    plain, added = (layer_time(layer, each, BLOCKING, {}) for each in (timer(), adding))
    assert added.backward_weight.kernels == plain.backward_weight.kernels + 1
    assert added.backward_input.kernels == plain.backward_input.kernels
