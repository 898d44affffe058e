"""What does it save to keep 1/tp of every checkpoint, and what does that cost?

Tensor-parallel ranks hold the same input of a layer. With full recomputation each keeps its
part of it, and all of them gather it before the layer is computed again.

Source: P_a of ZeRO-R, arXiv 1910.02054, sections 6.1 and 8; DeepSpeed's
``partition_activations`` and Megatron-LM's ``--distribute-saved-activations``.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.collectives import CollectiveKind
from simulator.program.ir import Category, Part
from simulator.program.layer.pieces import Axis, Exchange, Layer
from simulator.program.price.layer_time import LayerTime
from simulator.program.price.piece_time import PieceTimer
from simulator.program.strategies.recompute import Recomputation


def kept_in_parts(outcome: Recomputation, layer: Layer, ranks: int) -> Recomputation:
    """What one of so many ranks keeps; the whole input is there while backward runs."""
    return replace(
        outcome,
        kept_bytes=tuple(num_bytes / ranks for num_bytes in outcome.kept_bytes),
        restored_bytes=(*outcome.restored_bytes, layer.input_bytes),
    )


def with_gather(time: LayerTime, layer: Layer, timer: PieceTimer) -> LayerTime:
    """The layer's times with its input gathered before it is computed again."""
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
