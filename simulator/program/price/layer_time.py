"""How long does a layer take forward, backward, and when it is computed again?

The pieces run one after another on the compute stream. Exchanges block it, except where
the framework hides them:

- the collective of an input gradient runs beside the weight gradient, and the repeated
  gather of the input beside the input gradient (``overlap_tp_backward``);
- tensor exchanges are cut into chunks and pipelined with their products (``overlap_tp``);
- tokens travel to their experts and back beside the shared one (``overlap_shared_expert``).

Then only what sticks out is booked (:meth:`PieceTimer.exposed_s`). What hides behind another
microbatch is not a matter of one layer: see
:meth:`simulator.program.price.stage_cost.StageCosts.work`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simulator.cost.collectives import CollectiveCost, CollectiveKind
from simulator.program.ir import Category, Collective, Part
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    MemoryBound,
    Move,
    Piece,
    RingAttention,
)
from simulator.program.price.piece_time import PieceTimer

_AXIS_CATEGORY = {
    **dict.fromkeys(Axis, Category.TENSOR_PARALLEL),
    Axis.CONTEXT: Category.CONTEXT_PARALLEL,
    Axis.CONTEXT_HEADS: Category.CONTEXT_PARALLEL,
    Axis.EXPERT: Category.EXPERT_PARALLEL,
    Axis.EXPERT_TENSOR: Category.EXPERT_PARALLEL,
}
"""Where the time of an exchange is booked, by its group: lines of a grid are tensor-parallel."""

_ATTENTION_BACKWARD_KERNELS = 3
"""Row sums, the kernel itself, and the conversion of the query gradient
(FlashAttention-2, arXiv 2307.08691, section 3.1)."""

_BACKWARD_MERGES = 3
"""Gradients of queries, keys and values of a ring's steps are added up one by one."""


_PARTS_OF_SPLIT = 3
"""The rank's own part, and those of the ranks before and behind it."""


@dataclass(slots=True)
class PassTime:
    """What one direction takes.

    Attributes:
        parts: Kernels and exposed exchanges, in order.
        collectives: Every exchange, in order, hidden or not.
        flop: Floating-point operations.
        kernels: Launches of kernels.
        exchanges: Launches of exchanges.
        calls: Launches in a library's loop over experts.
    """

    parts: list[Part] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    flop: float = 0.0
    kernels: int = 0
    exchanges: int = 0
    calls: int = 0

    def add(
        self, name: str, category: Category, seconds: float, kernels: int = 1, calls: int = 0
    ) -> None:
        """Append a part and the kernels that it launches."""
        self.parts.append(Part(name, category, seconds))
        self.kernels += kernels
        self.calls += calls

    def add_share(self, other: PassTime, share: float) -> None:
        """Append a share of the time and work of another pass, with all of its launches."""
        self.parts += [replace(part, seconds=part.seconds * share) for part in other.parts]
        self.collectives += other.collectives
        self.flop += other.flop * share
        self.kernels += other.kernels
        self.exchanges += other.exchanges
        self.calls += other.calls

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
        splits_products: A product whose input is gathered is three kernels.
    """

    behind_gradients: bool
    behind_products: int
    splits_products: bool = False


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
    passes = _Passes(layer.pieces, timer, hiding)
    inputs, weights = passes.backward()
    return LayerTime(passes.forward(), inputs, weights, passes.recompute(repeated))


def piece_times(
    layer: Layer, timer: PieceTimer, hiding: Hiding, captured: Collection[Piece] = ()
) -> list[PassTime]:
    """Forward of each piece alone; ``captured`` ones are launched with a graph."""
    passes = _Passes(layer.pieces, timer, hiding)
    times = [passes.forward_of(index) for index in range(len(layer.pieces))]
    for time, piece in zip(times, layer.pieces, strict=True):
        if piece in captured:
            time.kernels = time.exchanges = time.calls = 0
    return times


def attention_flop(attention: FlashAttention) -> float:
    """Forward FLOP of the two products of attention; a causal mask halves them."""
    scores = attention.batch * attention.heads * attention.seq_q * attention.seq_kv
    flop = 2.0 * scores * (attention.head_dim + attention.v_head_dim)
    return flop / 2 if attention.causal else flop


def with_input_gathered(time: LayerTime, layer: Layer, timer: PieceTimer) -> LayerTime:
    """The layer's times where tensor-parallel ranks gather its input before they repeat it."""
    kind = CollectiveKind.ALL_GATHER
    exchange = Exchange("checkpoint", Axis.TENSOR, None, kind, layer.input_bytes)
    seconds = timer.exchange_cost(exchange, kind).seconds
    again = time.recompute
    recompute = replace(
        again,
        parts=[Part(str(kind), Category.TENSOR_PARALLEL, seconds), *again.parts],
        collectives=[timer.collective(exchange, kind), *again.collectives],
        exchanges=again.exchanges + 1,
    )
    return replace(time, recompute=recompute)


def whole_flop(piece: Piece) -> float:
    """Forward FLOP of a piece; attention counts all scores, those that a mask hides included."""
    match piece:
        case Gemm() | GroupedGemm():
            return _gemm_flop(piece)
        case FlashAttention():
            return attention_flop(replace(piece, causal=False))
        case _:
            return 0.0


@dataclass(frozen=True, slots=True)
class _Passes:
    """The passes over one layer; attributes as the arguments of :func:`layer_time`."""

    pieces: Sequence[Piece]
    timer: PieceTimer
    hiding: Hiding

    def forward(self) -> PassTime:
        result = PassTime()
        for index in range(len(self.pieces)):
            self._add_forward(result, index, Category.FORWARD)
        return result

    def forward_of(self, index: int) -> PassTime:
        result = PassTime()
        self._add_forward(result, index, Category.FORWARD)
        return result

    def recompute(self, repeated: Mapping[str, float]) -> PassTime:
        result = PassTime()
        for index, piece in enumerate(self.pieces):
            share = repeated.get(piece.name, 0.0)
            if share:
                once = PassTime()
                self._add_forward(once, index, Category.RECOMPUTE)
                result.add_share(once, share)
        return result

    def backward(self) -> tuple[PassTime, PassTime]:
        inputs, weights = PassTime(), PassTime()
        for index in reversed(range(len(self.pieces))):
            piece = self.pieces[index]
            match piece:
                case Gemm() | GroupedGemm():
                    self._add_gradients(inputs, weights, index, piece)
                case GridProduct():
                    self._add_grid_gradients(inputs, weights, piece)
                case FlashAttention():
                    seconds = self.timer.attention_s(piece, backward=True)
                    inputs.add(piece.name, Category.BACKWARD, seconds, _ATTENTION_BACKWARD_KERNELS)
                    inputs.flop += 2.0 * attention_flop(piece)
                case RingAttention():
                    self._add_ring(inputs, piece, Category.BACKWARD, backward=True)
                case MemoryBound() if piece.backward_bytes:
                    seconds = self.timer.memory_bound_s(piece, backward=True)
                    inputs.add(piece.name, Category.BACKWARD, seconds, piece.kernels)
                case Exchange():
                    self._add_backward_exchange(inputs, index, piece)
        return inputs, weights

    def _add_forward(self, result: PassTime, index: int, category: Category) -> None:
        piece = self.pieces[index]
        match piece:
            case Gemm() | GroupedGemm():
                launches = _launches(piece) + self._more_kernels(index - 1, backward=False)
                result.add(piece.name, category, self.timer.gemm_s(piece), launches, _calls(piece))
                result.flop += _gemm_flop(piece)
            case GridProduct():
                compute_s = piece.steps * self.timer.gemm_s(piece.block)
                self._add_grid_product(result, piece, piece.forward, compute_s, category)
            case FlashAttention():
                result.add(piece.name, category, self.timer.attention_s(piece, backward=False))
                result.flop += attention_flop(piece)
            case RingAttention():
                self._add_ring(result, piece, category, backward=False)
            case MemoryBound() if piece.forward_bytes:
                seconds = self.timer.memory_bound_s(piece, backward=False)
                result.add(piece.name, category, seconds, piece.kernels)
            case Exchange():
                beside = self._beside(piece) or self._product_at(index + 1)
                beside = beside or self._product_at(index - 1)
                beside_s = self.timer.gemm_s(beside) if beside else 0.0
                self._add_exchange(result, piece, piece.forward, beside_s)

    def _add_gradients(
        self, inputs: PassTime, weights: PassTime, index: int, product: Gemm | GroupedGemm
    ) -> None:
        """Both gradients of a product; those of two activations belong to the same pass."""
        has_weight = isinstance(product, GroupedGemm) or product.has_weight
        launches, flop = _launches(product), _gemm_flop(product)
        gradient_s = self.timer.input_gradient_s(product)
        kernels = launches + self._more_kernels(index + 1, backward=True)
        inputs.add(product.name, Category.BACKWARD, gradient_s, kernels, _calls(product))
        inputs.flop += flop
        if share := product.trained_share:
            target = weights if has_weight else inputs
            gradient_s = self.timer.weight_gradient_s(product)
            adds = launches if has_weight and self.timer.accumulates_in_python else 0
            gradient_s *= share
            kernels, calls = launches + adds, _calls(product)
            target.add(product.name, Category.BACKWARD, gradient_s, kernels, calls)
            target.flop += flop * share

    def _add_grid_gradients(
        self, inputs: PassTime, weights: PassTime, product: GridProduct
    ) -> None:
        """Both gradients; the collectives of each block the pass that needs them."""
        category = Category.BACKWARD
        input_s = product.steps * self.timer.input_gradient_s(product.block)
        weight_s = self.timer.grid_weight_gradient_s(product)
        self._add_grid_product(
            inputs, product, product.input_gradient, input_s, category, beside_s=weight_s
        )
        self._add_grid_product(weights, product, product.weight_gradient, weight_s, category)

    def _add_grid_product(
        self,
        result: PassTime,
        product: GridProduct,
        moves: Sequence[Move],
        compute_s: float,
        category: Category,
        *,
        beside_s: float = 0.0,
    ) -> None:
        result.add(product.name, category, compute_s, product.steps)
        result.flop += product.steps * _gemm_flop(product.block)
        for move, seconds in self._exposed_moves(product, moves, compute_s, beside_s):
            result.add_exchange(f"{product.name}.{move.name}", move.axis, seconds, move.times)
        for step in range(product.steps):
            result.collectives += [
                self.timer.moved(move, product)
                for move in moves
                for _ in range(_in_step(move.times, product.steps, step))
            ]

    def _exposed_moves(
        self, product: GridProduct, moves: Sequence[Move], compute_s: float, beside_s: float
    ) -> Iterator[tuple[Move, float]]:
        """What each of a product's exchanges adds, all times together [s].

        Those of every step run beside the product of another step where the framework pipelines
        them, those that may wait beside the weight gradient (``beside_s``).
        """
        costs = {move: _all_times(self.timer.move_cost(move), move.times) for move in moves}
        costs = {move: cost for move, cost in costs.items() if cost.seconds}
        stepwise = [move for move in costs if product.steps > 1 and move.times > 1]
        all_steps_s = math.fsum(costs[move].seconds for move in stepwise)
        share = 1.0
        if all_steps_s and self.hiding.behind_products:
            held = max(costs[move].sm_count for move in stepwise)
            together = replace(costs[stepwise[0]], seconds=all_steps_s, sm_count=held)
            share = self.timer.exposed_s(together, compute_s, product.steps) / all_steps_s
        for move, cost in costs.items():
            if move in stepwise:
                yield move, cost.seconds * share
            elif move.hides and self.hiding.behind_gradients:
                yield move, self.timer.exposed_s(cost, beside_s)
            else:
                yield move, cost.seconds

    def _add_ring(
        self, result: PassTime, ring: RingAttention, category: Category, *, backward: bool
    ) -> None:
        compute_s, exposed_s = self.timer.ring_s(ring, backward=backward)
        result.collectives += self.timer.ring_collectives(ring, backward=backward)
        kernels = ring.steps * (_ATTENTION_BACKWARD_KERNELS if backward else 1)
        kernels += (ring.steps - 1) * (_BACKWARD_MERGES if backward else 1)
        result.add(ring.name, category, compute_s, kernels)
        result.add_exchange(f"{ring.name}_ring", Axis.CONTEXT, exposed_s, ring.steps - 1)
        flop = attention_flop(ring.first) + (ring.steps - 1) * attention_flop(ring.step)
        result.flop += flop * (2.0 if backward else 1.0)

    def _add_exchange(
        self, result: PassTime, exchange: Exchange, kind: CollectiveKind | None, beside_s: float
    ) -> None:
        """An exchange that blocks, or of which only what sticks out of a product counts.

        That is pipelined with its own, or runs beside one of another stream.
        """
        cost = self.timer.exchange_cost(exchange, kind)
        if kind is None or not cost.seconds:
            return
        result.collectives.append(self.timer.collective(exchange, kind))
        seconds = cost.seconds
        if exchange.beside:
            seconds = self.timer.exposed_s(cost, beside_s)
        elif self.hiding.behind_products and beside_s and exchange.axis is Axis.TENSOR:
            seconds = self.timer.exposed_s(cost, beside_s, self.hiding.behind_products)
        result.add_exchange(exchange.name, exchange.axis, seconds)

    def _add_backward_exchange(self, inputs: PassTime, index: int, exchange: Exchange) -> None:
        """An exchange backward: what follows a product blocks, what precedes one may hide."""
        if shared := self._beside(exchange):
            beside_s = self.timer.input_gradient_s(shared)
            beside_s += shared.trained_share * self.timer.weight_gradient_s(shared)
            self._add_exchange(inputs, exchange, exchange.backward, beside_s)
            return
        after, before = self._product_at(index + 1), self._product_at(index - 1)
        if after and self.hiding.behind_gradients and exchange.axis is Axis.TENSOR:
            self._add_hidden_exchange(inputs, exchange, after)
            return
        if exchange.gathers_again:
            self._add_exchange(inputs, exchange, exchange.forward, 0.0)
        beside_s = self.timer.input_gradient_s(before) if before and not after else 0.0
        self._add_exchange(inputs, exchange, exchange.backward, beside_s)

    def _add_hidden_exchange(self, inputs: PassTime, exchange: Exchange, product: Gemm) -> None:
        """An exchange before a product, each collective beside the gradient without need of it."""
        again = exchange.forward if exchange.gathers_again else None
        issued = [kind for kind in (again, exchange.backward) if kind is not None]
        inputs.collectives += [self.timer.collective(exchange, kind) for kind in issued]
        reduce = self.timer.exchange_cost(exchange, exchange.backward)
        weight_s = product.trained_share * self.timer.weight_gradient_s(product)
        exposed_s = self.timer.exposed_s(reduce, weight_s)
        if exchange.gathers_again:
            gather = self.timer.exchange_cost(exchange, exchange.forward)
            exposed_s += self.timer.exposed_s(gather, self.timer.input_gradient_s(product))
        inputs.add_exchange(exchange.name, exchange.axis, exposed_s, len(issued))

    def _more_kernels(self, index: int, *, backward: bool) -> int:
        """Kernels beyond one of a product whose input an exchange there gathers."""
        piece = self.pieces[index] if 0 <= index < len(self.pieces) else None
        if not (self.hiding.splits_products and isinstance(piece, Exchange)):
            return 0
        gathers = (piece.backward if backward else piece.forward) is CollectiveKind.ALL_GATHER
        return _PARTS_OF_SPLIT - 1 if gathers and piece.axis is Axis.TENSOR else 0

    def _beside(self, exchange: Exchange) -> Gemm | None:
        """The product that another stream computes during an exchange."""
        if not exchange.beside:
            return None
        return next(
            piece
            for piece in self.pieces
            if isinstance(piece, Gemm) and piece.name == exchange.beside
        )

    def _product_at(self, index: int) -> Gemm | None:
        """The product with a weight at a place among the pieces; None if another one is there."""
        piece = self.pieces[index] if 0 <= index < len(self.pieces) else None
        return piece if isinstance(piece, Gemm) and piece.has_weight else None


def _all_times(cost: CollectiveCost, times: int) -> CollectiveCost:
    return replace(cost, seconds=times * cost.seconds)


def _in_step(times: int, steps: int, step: int) -> int:
    """How many of so many collectives belong to one step; a single one to the last."""
    if times == 1:
        return int(step == steps - 1)
    return times // steps


def _launches(gemm: Gemm | GroupedGemm) -> int:
    return gemm.launches if isinstance(gemm, GroupedGemm) else gemm.products


def _calls(gemm: Gemm | GroupedGemm) -> int:
    """Products that a library launches one after another where the framework asks for one."""
    return gemm.calls if isinstance(gemm, GroupedGemm) and gemm.calls > gemm.launches else 0


def _gemm_flop(gemm: Gemm | GroupedGemm) -> float:
    if isinstance(gemm, GroupedGemm):
        return 2.0 * gemm.groups * gemm.mean_rows * gemm.n * gemm.k
    return 2.0 * gemm.m * gemm.n * gemm.k * gemm.batch
