"""How long does a layer take forward, backward, and when it is computed again?

The pieces run one after another on the compute stream. Exchanges block it, except where
the framework hides them:

- the collective of an input gradient runs beside the weight gradient, and the repeated
  gather of the input beside the input gradient (``overlap_tp_backward``);
- tensor exchanges are cut into chunks and pipelined with their products (``overlap_tp``).

Then only what sticks out is booked (:meth:`PieceTimer.exposed_s`). What hides behind another
microbatch is not a matter of one layer: see :meth:`simulator.program.stage.StageCosts.work`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simulator.cost.collectives import CollectiveCost, CollectiveKind
from simulator.program.ir import Category, Collective, Part
from simulator.program.layer import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    Move,
    Piece,
    RingAttention,
    Stream,
)
from simulator.program.timing import PieceTimer

_AXIS_CATEGORY = {
    Axis.TENSOR: Category.TENSOR_PARALLEL,
    Axis.ROW: Category.TENSOR_PARALLEL,
    Axis.COLUMN: Category.TENSOR_PARALLEL,
    Axis.DEPTH: Category.TENSOR_PARALLEL,
    Axis.WEIGHT: Category.TENSOR_PARALLEL,
    Axis.INPUT: Category.TENSOR_PARALLEL,
    Axis.OUTPUT: Category.TENSOR_PARALLEL,
    Axis.CONTEXT: Category.CONTEXT_PARALLEL,
    Axis.CONTEXT_HEADS: Category.CONTEXT_PARALLEL,
    Axis.EXPERT: Category.EXPERT_PARALLEL,
    Axis.EXPERT_TENSOR: Category.EXPERT_PARALLEL,
}

_ATTENTION_BACKWARD_KERNELS = 3
"""Row sums, the kernel itself, and the conversion of the query gradient
(FlashAttention-2, arXiv 2307.08691, section 3.1)."""

_BACKWARD_MERGES = 3
"""Gradients of queries, keys and values of a ring's steps are added up one by one."""


@dataclass(slots=True)
class PassTime:
    """What one direction takes.

    Attributes:
        parts: Kernels and exposed exchanges, in order.
        collectives: Every exchange, in order, hidden or not.
        flop: Floating-point operations.
        kernels: Launches of kernels.
        exchanges: Launches of exchanges.
    """

    parts: list[Part] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    flop: float = 0.0
    kernels: int = 0
    exchanges: int = 0

    def add(self, name: str, category: Category, seconds: float, kernels: int = 1) -> None:
        """Append a part and the kernels that it launches."""
        self.parts.append(Part(name, category, seconds))
        self.kernels += kernels

    def add_exchange(self, name: str, axis: Axis, seconds: float, exchanges: int = 1) -> None:
        """Append what exchanges add, and their launches."""
        self.parts.append(Part(name, _AXIS_CATEGORY[axis], seconds))
        self.exchanges += exchanges


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The directions of one layer on one rank."""

    forward: PassTime
    backward_input: PassTime
    backward_weight: PassTime
    recompute: PassTime


@dataclass(frozen=True, slots=True)
class Hiding:
    """Which exchanges a framework hides.

    Attributes:
        behind_gradients: Exchanges of backward run beside the other gradient.
        behind_products: Tensor exchanges are pipelined with their products, in this many
            chunks; 0 is off.
    """

    behind_gradients: bool
    behind_products: int


def layer_time(
    layer: Layer, timer: PieceTimer, hiding: Hiding, repeated: Mapping[str, float]
) -> LayerTime:
    """Times of all directions.

    Args:
        layer: Pieces of one rank.
        timer: What each piece takes.
        hiding: Which exchanges are hidden.
        repeated: Share of each piece's forward work that backward repeats, by name.
    """
    forward = _forward(layer.pieces, timer, hiding, Category.FORWARD)
    inputs, weights = _backward(layer.pieces, timer, hiding)
    return LayerTime(
        forward=forward,
        backward_input=inputs,
        backward_weight=weights,
        recompute=_recompute(layer.pieces, timer, hiding, repeated),
    )


def attention_flop(attention: FlashAttention) -> float:
    """Forward FLOP of the two products of attention; a causal mask halves them."""
    scores = attention.batch * attention.heads * attention.seq_q * attention.seq_kv
    flop = 2.0 * scores * (attention.head_dim + attention.v_head_dim)
    return flop / 2 if attention.causal else flop


def _recompute(
    pieces: Sequence[Piece], timer: PieceTimer, hiding: Hiding, repeated: Mapping[str, float]
) -> PassTime:
    result = PassTime()
    for index, piece in enumerate(pieces):
        share = repeated.get(piece.name, 0.0)
        if share:
            once = PassTime()
            _add_forward(once, pieces, index, timer, hiding, Category.RECOMPUTE)
            result.flop += once.flop * share
            result.collectives += once.collectives
            result.kernels += once.kernels
            result.exchanges += once.exchanges
            result.parts += [replace(part, seconds=part.seconds * share) for part in once.parts]
    return result


def _forward(
    pieces: Sequence[Piece], timer: PieceTimer, hiding: Hiding, category: Category
) -> PassTime:
    result = PassTime()
    for index in range(len(pieces)):
        _add_forward(result, pieces, index, timer, hiding, category)
    return result


def _add_forward(
    result: PassTime,
    pieces: Sequence[Piece],
    index: int,
    timer: PieceTimer,
    hiding: Hiding,
    category: Category,
) -> None:
    piece = pieces[index]
    match piece:
        case Gemm():
            result.add(piece.name, category, timer.gemm_s(piece), piece.products)
            result.flop += _gemm_flop(piece)
        case GroupedGemm():
            result.add(piece.name, category, timer.gemm_s(piece), piece.launches)
            result.flop += _grouped_flop(piece)
        case GridProduct():
            compute_s = piece.steps * timer.gemm_s(piece.block)
            _add_grid_product(
                result, piece, piece.forward, compute_s, timer, hiding, category=category
            )
        case FlashAttention():
            result.add(piece.name, category, timer.attention_s(piece, backward=False))
            result.flop += attention_flop(piece)
        case RingAttention():
            _add_ring(result, piece, timer, category, backward=False)
        case Stream() if piece.forward_bytes:
            seconds = timer.stream_s(piece, backward=False)
            result.add(piece.name, category, seconds, piece.kernels)
        case Exchange():
            beside = _product_beside(pieces, index)
            beside_s = timer.gemm_s(beside) if beside else 0.0
            _add_exchange(result, piece, piece.forward, beside_s, timer, hiding)


def _backward(
    pieces: Sequence[Piece], timer: PieceTimer, hiding: Hiding
) -> tuple[PassTime, PassTime]:
    inputs, weights = PassTime(), PassTime()
    for index in reversed(range(len(pieces))):
        piece = pieces[index]
        match piece:
            case Gemm():
                gradient_s = timer.input_gradient_s(piece)
                inputs.add(piece.name, Category.BACKWARD, gradient_s, piece.products)
                inputs.flop += _gemm_flop(piece)
                target = weights if piece.has_weight else inputs
                gradient_s = timer.weight_gradient_s(piece)
                target.add(piece.name, Category.BACKWARD, gradient_s, piece.products)
                target.flop += _gemm_flop(piece)
            case GroupedGemm():
                for target, gradient_s in (
                    (inputs, timer.input_gradient_s(piece)),
                    (weights, timer.weight_gradient_s(piece)),
                ):
                    target.add(piece.name, Category.BACKWARD, gradient_s, piece.launches)
                    target.flop += _grouped_flop(piece)
            case GridProduct():
                _add_grid_gradients(inputs, weights, piece, timer, hiding)
            case FlashAttention():
                seconds = timer.attention_s(piece, backward=True)
                inputs.add(piece.name, Category.BACKWARD, seconds, _ATTENTION_BACKWARD_KERNELS)
                inputs.flop += 2.0 * attention_flop(piece)
            case RingAttention():
                _add_ring(inputs, piece, timer, Category.BACKWARD, backward=True)
            case Stream() if piece.backward_bytes:
                seconds = timer.stream_s(piece, backward=True)
                inputs.add(piece.name, Category.BACKWARD, seconds, piece.kernels)
            case Exchange():
                _add_backward_exchange(inputs, pieces, index, timer, hiding)
    return inputs, weights


def _add_grid_gradients(
    inputs: PassTime,
    weights: PassTime,
    product: GridProduct,
    timer: PieceTimer,
    hiding: Hiding,
) -> None:
    """Both gradients; the collectives of each block the pass that needs them."""
    category = Category.BACKWARD
    input_s = product.steps * timer.input_gradient_s(product.block)
    weight_s = timer.grid_weight_gradient_s(product)
    _add_grid_product(
        inputs, product, product.input_gradient, input_s, timer, hiding,
        category=category, beside_s=weight_s,
    )  # fmt: skip
    _add_grid_product(
        weights, product, product.weight_gradient, weight_s, timer, hiding, category=category
    )


def _add_grid_product(
    result: PassTime,
    product: GridProduct,
    moves: Sequence[Move],
    compute_s: float,
    timer: PieceTimer,
    hiding: Hiding,
    *,
    category: Category,
    beside_s: float = 0.0,
) -> None:
    """A product on a grid in one direction, and what sticks out of its exchanges.

    Those of every step run beside the product of another step where the framework pipelines
    them, those that may wait beside the weight gradient (``beside_s``).
    """
    costs = {move: _all_times(timer.move_cost(move), move.times) for move in moves}
    stepwise = [move for move in moves if product.steps > 1 and move.times > 1]
    all_steps_s = sum(costs[move].seconds for move in stepwise)
    share = 1.0
    if all_steps_s and hiding.behind_products:
        held = max(costs[move].sm_count for move in stepwise)
        together = replace(costs[stepwise[0]], seconds=all_steps_s, sm_count=held)
        share = timer.exposed_s(together, compute_s, product.steps) / all_steps_s
    result.add(product.name, category, compute_s, product.steps)
    result.flop += product.steps * _gemm_flop(product.block)
    for move in moves:
        seconds = costs[move].seconds
        if move in stepwise:
            seconds *= share
        elif move.hides and hiding.behind_gradients:
            seconds = timer.exposed_s(costs[move], beside_s)
        if costs[move].seconds:
            name = f"{product.name}.{move.name}"
            result.add_exchange(name, move.axis, seconds, move.times)
    for step in range(product.steps):
        result.collectives += [
            timer.moved(move, product)
            for move in moves
            for _ in range(_in_step(move.times, product.steps, step))
        ]


def _all_times(cost: CollectiveCost, times: int) -> CollectiveCost:
    return replace(cost, seconds=times * cost.seconds)


def _in_step(times: int, steps: int, step: int) -> int:
    """How many of so many collectives belong to one step; a single one to the last."""
    if times == 1:
        return int(step == steps - 1)
    return times // steps


def _add_ring(
    result: PassTime, ring: RingAttention, timer: PieceTimer, category: Category, *, backward: bool
) -> None:
    compute_s, exposed_s = timer.ring_s(ring, backward=backward)
    result.collectives += timer.ring_collectives(ring, backward=backward)
    kernels = ring.steps * (_ATTENTION_BACKWARD_KERNELS if backward else 1)
    kernels += (ring.steps - 1) * (_BACKWARD_MERGES if backward else 1)
    result.add(ring.name, category, compute_s, kernels)
    result.add_exchange(f"{ring.name}_ring", Axis.CONTEXT, exposed_s, ring.steps - 1)
    flop = attention_flop(ring.first) + (ring.steps - 1) * attention_flop(ring.step)
    result.flop += flop * (2.0 if backward else 1.0)


def _add_exchange(
    result: PassTime,
    exchange: Exchange,
    kind: CollectiveKind | None,
    beside_s: float,
    timer: PieceTimer,
    hiding: Hiding,
) -> None:
    """An exchange that blocks, or that is pipelined with the product beside it."""
    cost = timer.exchange_cost(exchange, kind)
    if kind is None or not cost.seconds:
        return
    result.collectives.append(timer.collective(exchange, kind))
    seconds = cost.seconds
    if hiding.behind_products and beside_s and exchange.axis is Axis.TENSOR:
        seconds = timer.exposed_s(cost, beside_s, hiding.behind_products)
    result.add_exchange(exchange.name, exchange.axis, seconds)


def _add_backward_exchange(
    inputs: PassTime, pieces: Sequence[Piece], index: int, timer: PieceTimer, hiding: Hiding
) -> None:
    exchange = pieces[index]
    assert isinstance(exchange, Exchange)
    product = _product_beside(pieces, index)
    is_entry = product is not None and index + 1 < len(pieces) and pieces[index + 1] is product
    if not (is_entry and hiding.behind_gradients and exchange.axis is Axis.TENSOR):
        if exchange.gathers_again:
            _add_exchange(inputs, exchange, exchange.forward, 0.0, timer, hiding)
        beside_s = timer.input_gradient_s(product) if product and not is_entry else 0.0
        _add_exchange(inputs, exchange, exchange.backward, beside_s, timer, hiding)
        return
    assert product is not None
    again = exchange.forward if exchange.gathers_again else None
    issued = [kind for kind in (again, exchange.backward) if kind is not None]
    inputs.collectives += [timer.collective(exchange, kind) for kind in issued]
    reduce = timer.exchange_cost(exchange, exchange.backward)
    exposed_s = timer.exposed_s(reduce, timer.weight_gradient_s(product))
    if exchange.gathers_again:
        gather = timer.exchange_cost(exchange, exchange.forward)
        exposed_s += timer.exposed_s(gather, timer.input_gradient_s(product))
    inputs.add_exchange(exchange.name, exchange.axis, exposed_s, len(issued))


def _product_beside(pieces: Sequence[Piece], index: int) -> Gemm | None:
    """The product with a weight right after or right before an exchange."""
    for neighbour in (index + 1, index - 1):
        if 0 <= neighbour < len(pieces):
            piece = pieces[neighbour]
            if isinstance(piece, Gemm) and piece.has_weight:
                return piece
    return None


def _gemm_flop(gemm: Gemm) -> float:
    return 2.0 * gemm.m * gemm.n * gemm.k * gemm.batch


def _grouped_flop(gemm: GroupedGemm) -> float:
    return 2.0 * gemm.groups * gemm.mean_rows * gemm.n * gemm.k
