"""What is each kernel of a layer, and how near does it come to what the device could do?

A kernel that does ``flop`` and moves ``num_bytes`` can run no faster than the larger of
flop / peak and bytes / bandwidth. Bytes are those of operands and results, once each, as the
kernel models count them; what a cache saves or a tile reads again is not in them.

Source:
    Williams et al., "Roofline", CACM 52(4), 2009. Attention moves queries, keys, values and
    output forward, and those and all their gradients backward, and computes five products
    backward where forward has two (FlashAttention-2, arXiv 2307.08691, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from simulator.cost.gemm import product_bytes
from simulator.cost.measured_products import measured_over_modelled
from simulator.cost.rates import ELEMENT_BYTES, activation_precision, peak_flop_per_s
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.program.layer.layer_kinds import layer_kinds, layer_parts
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.pieces import (
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    MemoryBound,
    Piece,
    RingAttention,
)
from simulator.program.price.layer_time import attention_flop
from simulator.program.price.matrix_optimizers import NEWTON_SCHULZ
from simulator.program.price.piece_time import PieceTimer, columns_of
from simulator.program.price.stage_cost import StageCosts


@dataclass(frozen=True)
class KernelPoint:
    """One kernel of a layer in one direction, alone on the device.

    Attributes:
        name: What it computes.
        layer: Kind of layer it belongs to.
        direction: ``forward``, ``input gradient``, ``weight gradient`` or ``backward``.
        flop: Floating-point operations; 0 for what only moves bytes.
        num_bytes: Bytes read and written [B].
        seconds: How long it takes [s].
        peak_flop_per_s: Dense peak in its number format [FLOP/s].
        bytes_per_s: Bandwidth of the device's memory [B/s].
        is_measured: Whether the time is that of measured products (``kernels.table``).
    """

    name: str
    layer: str
    direction: str
    flop: float
    num_bytes: float
    seconds: float
    peak_flop_per_s: float
    bytes_per_s: float
    is_measured: bool = False

    @property
    def intensity(self) -> float:
        """Work per byte [FLOP/B]."""
        return self.flop / self.num_bytes

    @property
    def roof_s(self) -> float:
        """The least time that the device's peaks allow [s]."""
        return max(self.flop / self.peak_flop_per_s, self.num_bytes / self.bytes_per_s)

    @property
    def share_of_roof(self) -> float:
        """The least time over the time it takes, 0 to 1."""
        return self.roof_s / self.seconds


def roofline(job: Job) -> tuple[KernelPoint, ...]:
    """Every kernel of each distinct layer of a job, on one rank, for one microbatch.

    Exchanges between ranks are left out. Ring attention is its step on the rank's own keys.
    """
    refuse_pools(job, "the roofline")
    costs, points = StageCosts(job), []
    kinds = dict.fromkeys(layer_kinds(job.model))
    for kind in kinds:
        pieces, timer = costs.layer_pieces(kind)
        name = _kind_name(kind, kinds)
        for piece in pieces:
            points += list(_points(piece, name, timer, job.plan.precision))
    return tuple(point for point in points if point.seconds > 0 and point.num_bytes > 0)


def measured_share(job: Job) -> float:
    """Share of the kernels of all layers, by time, that follows from measured products.

    Both directions count; what recomputing repeats, exchanges and the optimizer do not.
    """
    kinds = layer_kinds(job.model)
    names = {_kind_name(kind, dict.fromkeys(kinds)): kinds.count(kind) for kind in kinds}
    points = [(names[point.layer] * point.seconds, point.is_measured) for point in roofline(job)]
    measured_s = math.fsum(seconds for seconds, is_measured in points if is_measured)
    return measured_s / math.fsum(seconds for seconds, _ in points)


def _kind_name(kind: LayerKind, kinds: Collection[LayerKind]) -> str:
    if len(kinds) == 1:
        return "layer"
    mixer, mlp = layer_parts(kind)
    name = f"{mlp.title} layer"
    if len({each.mixer for each in kinds}) > 1:
        name = f"{mixer.title}, {name}"
    return f"{name}, window {kind.window}" if kind.window else name


def _points(
    piece: Piece, layer: str, timer: PieceTimer, precision: Precision
) -> Iterator[KernelPoint]:
    half = activation_precision(precision)

    def point(
        direction: str,
        flop: float,
        num_bytes: float,
        seconds: float,
        used: Precision,
        *,
        is_measured: bool = False,
    ) -> KernelPoint:
        device = timer.profile.device
        return KernelPoint(
            piece.name, layer, direction, flop, num_bytes, seconds,
            peak_flop_per_s(timer.profile, used), device.memory_bandwidth_bytes_per_s, is_measured,
        )  # fmt: skip

    match piece:
        case Gemm() | GroupedGemm():
            used = timer.precision_of(piece)
            for direction, seconds, (rows, n, k) in _products(piece, timer):
                flop = 2.0 * math.fsum(rows) * n * k
                num_bytes = product_bytes(rows, n, k, precision=used)
                is_measured = isinstance(piece, Gemm) and _is_measured(
                    piece, direction, timer, used
                )
                yield point(direction, flop, num_bytes, seconds, used, is_measured=is_measured)
        case GridProduct():
            # One of its steps; the others are the same.
            yield from _points(piece.block, layer, timer, precision)
        case FlashAttention() | RingAttention():
            one = piece.first if isinstance(piece, RingAttention) else piece
            flop, num_bytes = attention_flop(one), _attention_bytes(one, ELEMENT_BYTES[half])
            forward_s = timer.attention_s(one, backward=False)
            yield point("forward", flop, num_bytes, forward_s, half)
            dims = (3 * one.head_dim + 2 * one.v_head_dim) / (one.head_dim + one.v_head_dim)
            backward_s = timer.attention_s(one, backward=True)
            yield point("backward", flop * dims, 2 * num_bytes, backward_s, half)
        case MemoryBound():
            sizes = {"forward": piece.forward_bytes, "backward": piece.backward_bytes}
            for direction, num_bytes in sizes.items():
                if num_bytes:
                    seconds = timer.memory_bound_s(piece, backward=direction == "backward")
                    yield point(direction, 0.0, num_bytes, seconds, precision)


def _products(
    gemm: Gemm | GroupedGemm, timer: PieceTimer
) -> Iterator[tuple[str, float, tuple[list[int], int, int]]]:
    """Direction, time and shape (rows of each product, columns, inner) of three products."""
    count = gemm.groups if isinstance(gemm, GroupedGemm) else gemm.batch
    m = math.ceil(gemm.mean_rows) if isinstance(gemm, GroupedGemm) else gemm.m
    n, k = gemm.n, gemm.k
    yield "forward", timer.gemm_s(gemm), ([m] * count, n, k)
    yield "input gradient", timer.input_gradient_s(gemm), ([m] * count, k, n)
    yield "weight gradient", timer.weight_gradient_s(gemm), ([k] * count, n, m)


def _is_measured(gemm: Gemm, direction: str, timer: PieceTimer, precision: Precision) -> bool:
    """Whether the system's table knows all products that one stands for."""
    m, k = gemm.m, gemm.k
    for n in columns_of(gemm):
        shapes = {"forward": (m, n, k), "input gradient": (m, k, n), "weight gradient": (k, n, m)}
        ratio = measured_over_modelled(
            timer.profile, *shapes[direction], batch=gemm.batch, precision=precision
        )
        if ratio is None:
            return False
    return True


def _attention_bytes(attention: FlashAttention, element_bytes: float) -> float:
    dims = attention.head_dim + attention.v_head_dim
    queries = attention.heads * attention.seq_q * dims
    keys = attention.kv_heads * attention.seq_kv * dims
    return element_bytes * attention.batch * (queries + keys)


class KernelKind(StrEnum):
    """What a kernel computes, as a profile of a real run can tell, too."""

    GEMM = "gemm"
    ATTENTION = "attention"
    OTHER = "other"


def kernel_kinds(job: Job) -> dict[str, KernelKind]:
    """Kind of every part that computes, by its name; names that are missing are of others.

    Attention that is not fused is the products and the softmax that it is made of.
    """
    kinds = {piece.name: _kind(piece) for piece in StageCosts(job).all_pieces()}
    return kinds | {NEWTON_SCHULZ: KernelKind.GEMM}


def _kind(piece: Piece) -> KernelKind:
    match piece:
        case Gemm() | GroupedGemm() | GridProduct():
            return KernelKind.GEMM
        case FlashAttention() | RingAttention():
            return KernelKind.ATTENTION
        case _:
            return KernelKind.OTHER
