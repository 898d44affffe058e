"""What does backward of a layer hold, piece by piece?

Autograd runs a layer's pieces in reverse. Each reads what forward saved for it, which is free once
it is done, and turns the gradient of its output into that of its input; the two are there at once.
A product makes the gradient of its weight first, which stays; products of one input that are
kernels of their own come one after another, and their gradients of it are added up. Beside a branch
waits the gradient of the residual stream, which the branch begins with, too, and which is added to
what the branch ends with.

What was computed again is there from the start, or from when the part comes that a checkpoint of
its own repeats. Head, loss and embedding are one moment: their losses say what they hold
(:mod:`simulator.program.layer.losses`).

Sizes of gradients are those of what products and attention read and make; kernels that only move
bytes pass them on. Ignored: scratch memory inside of kernels, 8-bit copies of gradients, what
branches beside another, routers and parallel MLPs, give for their common input until it is summed.

Source: PyTorch's autograd engine, ``torch/csrc/autograd/engine.cpp``, ``release_variables`` after
each node; ``MmBackward0`` of its ``derivatives.yaml``; held against torch's tracker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from simulator.cost.collectives import CollectiveKind
from simulator.cost.rates import FULL_BYTES
from simulator.program.ir import Memory, Owner, total_bytes
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    MemoryBound,
    Piece,
    RingAttention,
    Role,
)
from simulator.program.strategies.recompute import Recomputation


class BackwardMemory(NamedTuple):
    """A backward at its fullest.

    Attributes:
        freed, rest: Blocks that forward saved and that are free by then, and the others.
        holds: Gradients of activations, what was computed again, and gradients of weights that
            were made by then.
        in_attention: Whether attention runs then, after the MLP.
    """

    freed: Memory = ()
    rest: Memory = ()
    holds: Memory = ()
    in_attention: bool = False

    @property
    def more_bytes(self) -> float:
        """What it holds beyond all that forward saved [B]."""
        return total_bytes(self.holds) - total_bytes(self.freed)


class _Moment(NamedTuple):
    """What there is while a piece runs backward.

    Attributes:
        place: Index of the piece; what it reads and what those before it read is still there.
        has_read: Whether what it reads is free already.
        gradients: Gradients of activations [B].
        made: Elements of weights whose gradients exist.
        making: Elements of those among them that are being made.
    """

    place: int
    gradients: tuple[float, ...]
    made: float = 0.0
    making: float = 0.0
    has_read: bool = False


@dataclass(frozen=True)
class Backward:
    """Backward of one layer, or of an end of the model.

    Attributes:
        layer: One rank's.
        outcome: What is kept and computed again.
        owner: Who holds what is kept.
        element_bytes: Of a gradient of an activation [B].
        weight_bytes: Of the gradient of a weight that is made to be added to another [B].
        calls_backward: Whether a function computes the layer again and then calls its backward:
            it holds the layer's output and the gradient of it until it returns
            (``CheckpointFunction.backward`` of ``torch.utils.checkpoint``, and those of
            Megatron-LM and DeepSpeed).
        is_end: Whether it is an end of the model, one moment.
        more: What it holds beside all that.
    """

    layer: Layer
    outcome: Recomputation
    owner: Owner
    element_bytes: float
    weight_bytes: float = 0.0
    calls_backward: bool = False
    is_end: bool = False
    more: Memory = ()
    _known: dict[tuple[float, bool], BackwardMemory] = field(default_factory=dict, compare=False)

    def memory(self, made_bytes: float = 0.0, *, frees: bool = True) -> BackwardMemory:
        """Its fullest moment.

        Args:
            made_bytes: All gradients of its weights, if it makes them anew [B].
            frees: Whether what forward saved goes piece by piece, not at the end.
        """
        key = made_bytes, frees
        if key not in self._known:
            self._known[key] = self._fullest(made_bytes, frees=frees)
        return self._known[key]

    def _fullest(self, made_bytes: float, *, frees: bool) -> BackwardMemory:
        at = max(self._moments, key=lambda moment: self._held_bytes(moment, made_bytes, frees))
        is_free = [frees and not self._is_there(n, at) for n in range(len(self._kept))]
        sizes = (*at.gradients, self._adding(at, made_bytes), *self.layer.buffer_bytes)
        again = [n for n in range(len(self._restored)) if not frees or self._exists(n, at)]
        holds = (
            *self.more,
            *_blocks(Owner.TEMPORARIES, sizes),
            *_blocks(Owner.RECOMPUTE, [*(self._restored[n] for n in again), *self._whole_input]),
            *_blocks(Owner.GRADIENTS, [self._made_share(at) * made_bytes]),
        )
        in_attention = at.place < self._first_of_mlp
        freed = [size for size, gone in zip(self._kept, is_free, strict=True) if gone]
        rest = [size for size, gone in zip(self._kept, is_free, strict=True) if not gone]
        rest = [*self.inputs, *rest]
        owner = self.owner
        return BackwardMemory(_blocks(owner, freed), _blocks(owner, rest), holds, in_attention)

    @property
    def weights(self) -> float:
        """Elements of the weights of its products."""
        return self._moments[-1].made

    def _held_bytes(self, at: _Moment, made_bytes: float, frees: bool) -> float:
        kept = sum(s for n, s in enumerate(self._kept) if not frees or self._is_there(n, at))
        again = sum(s for n, s in enumerate(self._restored) if not frees or self._exists(n, at))
        made = self._made_share(at) * made_bytes + self._adding(at, made_bytes)
        return kept + again + made + math.fsum(at.gradients)

    def _adding(self, at: _Moment, made_bytes: float) -> float:
        return 0.0 if made_bytes else at.making * self.weight_bytes

    def _made_share(self, at: _Moment) -> float:
        return at.made / self.weights if self.weights else 1.0

    @cached_property
    def inputs(self) -> tuple[float, ...]:
        """Copies of the layer's input that are kept [B]."""
        return self.outcome.kept_bytes[: len(self.outcome.kept_bytes) - len(self.layer.saved)]

    @cached_property
    def _kept(self) -> tuple[float, ...]:
        """What stays of each saved activation."""
        return self.outcome.kept_bytes[len(self.inputs) :]

    @cached_property
    def _restored(self) -> tuple[float, ...]:
        return self.outcome.restored_bytes[: len(self.layer.saved)]

    @property
    def _whole_input(self) -> tuple[float, ...]:
        return self.outcome.restored_bytes[len(self.layer.saved) :]

    @cached_property
    def _readers(self) -> list[int]:
        """Index of the piece that is the last to read each saved activation."""
        first: dict[str, int] = {}
        for index, piece in enumerate(self.layer.pieces):
            first.setdefault(piece.name, index)
        return [first.get(saved.reader, 0) for saved in self.layer.saved]

    @cached_property
    def _returns(self) -> list[int]:
        """Index of the piece with which each saved activation is computed again."""
        pieces, again = self.layer.pieces, self.outcome.repeated
        if not self.outcome.in_turn:
            return [len(pieces)] * len(self.layer.saved)
        ends = list(range(len(pieces)))
        for index in reversed(ends[:-1]):
            if pieces[index + 1].name in again:
                ends[index] = ends[index + 1]
        return [ends[index] for index in self._readers]

    @cached_property
    def _first_of_mlp(self) -> int:
        middle = self.layer.middle
        is_one = middle == len(self.layer.saved) or self.is_end
        return 0 if is_one else self._readers[middle]

    def _is_there(self, number: int, at: _Moment) -> bool:
        """Whether a saved activation is still to be read."""
        return self.is_end or self._readers[number] < at.place + (not at.has_read)

    def _exists(self, number: int, at: _Moment) -> bool:
        return self._is_there(number, at) and (self.is_end or at.place <= self._returns[number])

    @cached_property
    def _moments(self) -> tuple[_Moment, ...]:
        """All of them, in the order of backward; the first one before anything has run."""
        if self.is_end:
            return (_Moment(0, self._of_end()),)
        walk = _Walk(self.layer, self.element_bytes, self.calls_backward)
        return tuple(walk.moments())

    def _of_end(self) -> tuple[float, ...]:
        """As it says, or the two largest of what it saved."""
        largest = sorted((saved.num_bytes for saved in self.layer.saved), reverse=True)[:2]
        return self.layer.working_bytes or tuple(largest)


class _Walk:
    """A walk through the pieces of a layer, last one first."""

    def __init__(self, layer: Layer, element_bytes: float, calls_backward: bool) -> None:
        self._layer, self._element_bytes = layer, element_bytes
        self._row = layer.input_bytes
        self._masked = {saved.name for saved in layer.saved}
        self._checkpoint: tuple[float, ...] = (self._row,) if calls_backward else ()
        """Output of the layer; then that and its gradient, once nothing else holds it."""
        self._residual = 0.0
        self._gradient = self._row
        """Of what the piece at hand makes; 0 while it is that of the residual stream."""
        self._beside = 0.0
        """What an adapter gives for the input of its product."""
        self._made = 0.0

    def moments(self) -> Iterator[_Moment]:
        pieces, cuts = self._layer.pieces, gradient_sizes(self._layer, self._element_bytes)
        yield self._moment(len(pieces), ())
        for index in reversed(range(len(pieces))):
            piece, made = pieces[index], cuts[index]
            match piece:
                case MemoryBound(role=Role.RESIDUAL):
                    self._residual = self._row
                    self._gradient = self._row if f"{piece.name}_mask" in self._masked else 0.0
                    yield self._moment(index, ())
                case Gemm(role=Role.ADAPTER):
                    yield from self._adapter(index, piece)
                case Gemm(has_weight=True):
                    yield from self._products(index, piece, made)
                case _ if _passes_on(piece):
                    pass
                case _:
                    numel = _weights(piece)
                    self._made += numel
                    of_made, of_read, scratch = _gradient_widths(piece)
                    self._gradient *= of_made
                    yield self._moment(index, (of_read * made, scratch * made), making=numel)
                    self._gradient = made
            begins = index == 0 or _is_residual(pieces[index - 1])
            if begins and self._residual:
                # What the branch gives is added to the stream's gradient.
                self._residual, self._gradient = 0.0, self._row
                self._checkpoint = self._checkpoint[:1] * 2

    def _moment(
        self, index: int, more: tuple[float, ...], making: float = 0.0, *, has_read: bool = False
    ) -> _Moment:
        held = (*self._checkpoint, self._residual, self._gradient, self._beside, *more)
        return _Moment(index, held, self._made, making, has_read)

    def _adapter(self, index: int, product: Gemm) -> Iterator[_Moment]:
        """Up, then down: the gradient of what both products give waits for that of the base."""
        given = product.m * product.k * self._element_bytes
        self._made += _weights(product)
        yield self._moment(index, (given,), making=_weights(product))
        self._beside = given

    def _products(self, index: int, product: Gemm, given: float) -> Iterator[_Moment]:
        """One after another, the last one first."""
        again = _gathered_again(self._layer.pieces, index)
        widths = _widths(product)
        share = product.trained_share
        for number in reversed(range(len(widths))):
            making = widths[number] * product.k * share
            self._made += making
            earlier = () if number == len(widths) - 1 else (given,)
            yield self._moment(index, (*earlier, given, again), making=making)
            self._gradient *= sum(widths[:number]) / max(1.0, sum(widths[: number + 1]))
            if earlier:
                yield self._moment(index, (given,) * 3, has_read=not number)
        self._gradient, self._beside = given, 0.0


def gradient_sizes(layer: Layer, element_bytes: float) -> list[float]:
    """Gradients of what each piece of a layer reads, and at the end that of its output [B]."""
    pieces, row = layer.pieces, layer.input_bytes
    sizes = [row] * (len(pieces) + 1)
    for index in reversed(range(len(pieces))):
        piece = pieces[index]
        known = _read_and_made(piece, element_bytes, row)
        if known is None:
            sizes[index] = sizes[index + 1]
            continue
        read, made = known
        if made is not None:
            sizes[index + 1] = made
        sizes[index] = sizes[index + 1] if read is None else read
    return sizes


_Sizes = tuple[float | None, float | None]
"""Of the gradients of what a piece reads and of what it makes; None where it passes one on [B]."""


def _read_and_made(piece: Piece, size: float, row: float) -> _Sizes | None:
    """Of a piece with elements of a size and rows of the residual stream; None as of both."""
    match piece:
        case MemoryBound():
            return {
                Role.RESIDUAL: (row, row), Role.PERMUTE: (row, None), Role.UNPERMUTE: (None, row),
            }.get(piece.role)  # fmt: skip
        case Exchange(axis=Axis.TENSOR, forward=CollectiveKind.ALL_GATHER):
            return row, None
        case Exchange(axis=Axis.TENSOR, forward=CollectiveKind.REDUCE_SCATTER):
            return piece.num_bytes, row
        case Exchange() | Gemm(role=Role.ADAPTER):
            return None
        case FlashAttention() | RingAttention():
            return _attention_sizes(
                piece if isinstance(piece, FlashAttention) else piece.first, size
            )
        case _:
            size = FULL_BYTES if isinstance(piece, GroupedGemm) and piece.is_wide else size
            rows, k, n = _product_sides(piece)
            return rows * k * size, rows * n * size


def _product_sides(product: Gemm | GroupedGemm | GridProduct) -> tuple[float, int, int]:
    """Rows that a rank keeps of a product's operands, and columns of its input and output."""
    match product:
        case Gemm():
            return float(product.batch * product.m), product.k, product.n
        case GroupedGemm():
            return product.groups * product.mean_rows, product.k, product.n
        case GridProduct(block=block):
            # Of operands a rank keeps as large a part as of the weight.
            return product.weights / (block.k * block.n) * block.m, block.k, block.n


def _attention_sizes(attention: FlashAttention, element_bytes: float) -> tuple[float, float]:
    """Queries, keys and values, and what attention makes of them [B]."""
    tokens = attention.batch * element_bytes
    queries = tokens * attention.seq_q * attention.heads
    keys = tokens * attention.seq_kv * attention.kv_heads
    both = attention.head_dim + attention.v_head_dim
    return queries * attention.head_dim + keys * both, queries * attention.v_head_dim


def _passes_on(piece: Piece) -> bool:
    """Whether backward of a piece makes no gradient of an activation."""
    match piece:
        case MemoryBound():
            return not (piece.forward_bytes and piece.backward_bytes)
        case Exchange():
            return piece.backward in (None, CollectiveKind.ALL_REDUCE)
        case _:
            return False


def _gradient_widths(piece: Piece) -> tuple[float, float, float]:
    """Of what a piece makes, of what it reads, and of what backward makes beside."""
    if not isinstance(piece, MemoryBound):
        return 1.0, 1.0, 0.0
    return (*piece.gradient_widths, piece.gradient_scratch)


def _is_residual(piece: Piece) -> bool:
    return isinstance(piece, MemoryBound) and piece.role is Role.RESIDUAL


def _weights(piece: Piece) -> float:
    """Elements of a piece's weights that have a gradient."""
    match piece:
        case Gemm(has_weight=True):
            return float(piece.n) * piece.k * piece.trained_share
        case GroupedGemm():
            return float(piece.groups) * piece.n * piece.k * piece.trained_share
        case GridProduct():
            return piece.weights
        case _:
            return 0.0


def _widths(product: Gemm) -> tuple[float, ...]:
    """Columns of each kernel that a product is."""
    if product.products == 1:
        return (float(product.n),)
    if product.kv_columns:
        key_or_value = product.kv_columns / 2
        return product.n - product.kv_columns, key_or_value, key_or_value
    return (product.n / product.products,) * product.products


def _gathered_again(pieces: Sequence[Piece], index: int) -> float:
    """What is gathered for the gradient of a product's weight, as its input was [B]."""
    before = pieces[index - 1] if index else None
    gathers = isinstance(before, Exchange) and before.gathers_again
    return before.num_bytes if gathers and isinstance(before, Exchange) else 0.0


def _blocks(owner: Owner, sizes: Sequence[float]) -> Memory:
    return tuple((owner, num_bytes) for num_bytes in sizes if num_bytes)
