"""What does tensor parallelism over a grid of ranks (2D, 2.5D, 3D) change in a layer?

Every activation is cut both by tokens and by width, so that each of p ranks holds 1/p of it,
and norms, residuals and attention work on that. Ranks with the same tokens divide the heads,
and add up what a norm sums over the width. Products are different in each method, see
:mod:`.grid_products`.

The embedding's table is cut by vocabulary and width: each rank looks up its part of the
vocabulary for the tokens of a whole line of ranks, which then scatter the sums; the loss adds
up over a line what Megatron's adds up over all ranks.

Source: ``LayerNorm2D``, ``VocabParallelEmbedding2D`` and their 2.5D and 3D variants of
Colossal-AI; Optimus (arXiv 2104.05343) for attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.cost.collectives import CollectiveKind
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.program.layer.pieces import (
    Axis,
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    Layer,
    MemoryBound,
    Piece,
    Region,
    Role,
    Saved,
)
from simulator.program.strategies.grid_products import (
    cube_product,
    gathered_bytes,
    scattered_bytes,
    summa_buffer_bytes,
    summa_product,
    tesseract_product,
)

GRID_LINES = {
    "2d": (Axis.ROW, Axis.COLUMN, Axis.DEPTH),
    "2.5d": (Axis.ROW, Axis.COLUMN, Axis.DEPTH),
    "3d": (Axis.WEIGHT, Axis.INPUT, Axis.OUTPUT),
}
"""The lines of a grid, that of neighbouring ranks first."""


def grid_parallel(
    layer: Layer,
    grid: TensorGrid,
    *,
    element_bytes: float,
    keeps_gathered: bool,
    norm_sums: int,
    vocabulary: int,
) -> Layer:
    """The layer of one rank of a grid, with its exchanges.

    Args:
        layer: The layer of a single device.
        grid: The ranks that share it.
        element_bytes: Bytes of one activation or weight [B].
        keeps_gathered: Whether products in 3D keep what they gathered for backward.
        norm_sums: Numbers per token that a norm needs of the whole width.
        vocabulary: Elements of the embedding's table.
    """
    division = _Division(layer, grid, element_bytes, keeps_gathered, norm_sums, vocabulary)
    pieces = tuple(new for piece in layer.pieces for new in division.pieces(piece))
    products = [piece for piece in pieces if isinstance(piece, GridProduct)]
    return replace(
        layer,
        pieces=pieces,
        saved=tuple(division.saved(products)),
        input_bytes=layer.input_bytes / grid.ranks,
        passing_bytes=tuple(size / grid.ranks for size in layer.passing_bytes),
        freed_bytes=tuple(size / grid.ranks for size in layer.freed_bytes),
        working_bytes=tuple(size / grid.ranks for size in layer.working_bytes),
        buffer_bytes=max(map(division.buffer_bytes, products), key=sum, default=()),
    )


@dataclass(frozen=True, slots=True)
class _Division:
    """How one layer is divided; attributes as the arguments of :func:`grid_parallel`."""

    layer: Layer
    grid: TensorGrid
    element_bytes: float
    keeps_gathered: bool
    norm_sums: int
    vocabulary: int

    def pieces(self, piece: Piece) -> Iterator[Piece]:
        grid = self.grid
        match piece:
            case Gemm(has_weight=True):
                yield self._product(piece)
            case Gemm():
                yield replace(piece, batch=piece.batch // grid.ranks)
            case FlashAttention():
                yield replace(
                    piece,
                    batch=piece.batch // grid.token_ways,
                    heads=piece.heads // grid.width_ways,
                    kv_heads=piece.kv_heads // grid.width_ways,
                )
            case MemoryBound(role=Role.EMBEDDING):
                yield _shrunk(piece, grid.ranks // grid.side)
                yield from self._embedding_exchanges(piece)
            case MemoryBound():
                yield _shrunk(piece, grid.ranks)
                yield from self._norm_exchanges(piece)
            case Exchange():
                # Over the vocabulary, a number per token.
                axis = Axis.INPUT if grid.method == "3d" else Axis.ROW
                yield replace(piece, axis=axis, num_bytes=piece.num_bytes / grid.token_ways)
            case _:
                raise AssertionError(f"{piece.name} has no part on a grid")

    def saved(self, products: list[GridProduct]) -> Iterator[Saved]:
        grid = self.grid
        keeps = self.keeps_gathered and grid.method == "3d"
        for saved in self.layer.saved:
            ways = grid.ranks
            if saved.role is Role.NORM_STATISTICS:
                ways = grid.token_ways
            elif keeps and _is_product_input(saved):
                ways = grid.ranks // grid.side
            yield replace(saved, num_bytes=saved.num_bytes / ways)
        if keeps:
            for product in products:
                _, weight_bytes = gathered_bytes(product)
                yield Saved(f"{product.name}_weight", weight_bytes, Region.WHOLE)

    def buffer_bytes(self, product: GridProduct) -> tuple[float, ...]:
        if self.grid.method != "3d":
            return summa_buffer_bytes(product)
        operands = () if self.keeps_gathered else gathered_bytes(product)
        return (*operands, scattered_bytes(product))

    def _product(self, gemm: Gemm) -> GridProduct:
        match self.grid.method:
            case "3d":
                return cube_product(
                    gemm, self.grid, self.element_bytes, keeps_gathered=self.keeps_gathered
                )
            case "2.5d":
                return tesseract_product(gemm, self.grid, self.element_bytes)
            case _:
                return summa_product(gemm, self.grid, self.element_bytes)

    def _norm_exchanges(self, norm: MemoryBound) -> Iterator[Exchange]:
        """Sums over the width, forward and of their gradients backward.

        In 3D all sums are one message, else each is its own.
        """
        if not norm.statistics_bytes:
            return
        grid = self.grid
        axis, calls = (Axis.OUTPUT, 1) if grid.method == "3d" else (Axis.ROW, self.norm_sums)
        kind, num_bytes = CollectiveKind.ALL_REDUCE, norm.statistics_bytes / grid.token_ways / calls
        for _ in range(calls):
            yield Exchange(f"{norm.name}.sums", axis, kind, kind, num_bytes)

    def _embedding_exchanges(self, lookup: MemoryBound) -> Iterator[Exchange]:
        """Looked-up rows are added up and scattered; copies of the table add up gradients."""
        grid, size = self.grid, self.element_bytes
        gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
        # A lookup reads and writes each row.
        rows_bytes = lookup.forward_bytes / 2 * grid.side / grid.ranks
        table_bytes = self.vocabulary * size / grid.side**2
        axis = Axis.INPUT if grid.method == "3d" else Axis.COLUMN
        if grid.method == "3d":
            yield Exchange("embedding.table", Axis.WEIGHT, gather, scatter, table_bytes)
        yield Exchange("embedding.reduce", axis, scatter, gather, rows_bytes)
        if grid.method == "2.5d":
            kind = CollectiveKind.ALL_REDUCE
            yield Exchange("embedding.copies", Axis.DEPTH, None, kind, table_bytes)


def _shrunk(piece: MemoryBound, ways: int) -> MemoryBound:
    return replace(
        piece,
        forward_bytes=piece.forward_bytes / ways,
        backward_bytes=piece.backward_bytes / ways,
    )


def _is_product_input(saved: Saved) -> bool:
    """Whether a product reads it; attention's own copy of its output is part of that one."""
    return saved.region is Region.GATHERED or saved.role in (Role.CONTEXT, Role.DOWN_INPUT)
