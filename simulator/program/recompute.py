"""What does each recomputation policy repeat in backward, and what does it keep?

``full`` keeps only a layer's input. ``selective`` means different things in different
frameworks, so it is a fact of the stack: Megatron repeats core attention (Korthikanti et
al., arXiv 2205.05198, section 5); torchtitan keeps the outputs of attention and of every
other matrix product of a layer and repeats the rest (its ``per-op`` selective policy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.program.layer import (
    FlashAttention,
    Gemm,
    GroupedGemm,
    Layer,
    Piece,
    RingAttention,
)
from simulator.spec.plan import Recompute
from simulator.spec.stack import SelectivePolicy


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The outcome of a policy for one layer.

    Attributes:
        repeated: Share of each piece's forward work that backward repeats, by piece name.
        kept_bytes: Activations that stay from forward to backward [B].
        restored_bytes: Activations that exist again only while backward runs [B].
    """

    repeated: Mapping[str, float]
    kept_bytes: float
    restored_bytes: float


def recomputation(
    layer: Layer, recompute: Recompute, policy: SelectivePolicy, *, stops_early: bool = False
) -> Recomputation:
    """What is repeated and kept of one layer.

    Args:
        layer: Pieces and saved activations of one rank.
        recompute: The plan's choice.
        policy: What the stack means by ``selective``.
        stops_early: Whether ``full`` ends as soon as every saved activation is there again.
    """
    everything = sum(saved.num_bytes for saved in layer.saved)
    if recompute == "none":
        return Recomputation({}, everything, 0.0)
    if recompute == "full":
        pieces = _needed_again(layer.pieces) if stops_early else layer.pieces
        repeated = {piece.name: 1.0 for piece in pieces}
        return Recomputation(repeated, layer.input_bytes, everything - layer.input_bytes)
    if policy == "core-attention":
        core = sum(saved.num_bytes for saved in layer.saved if saved.in_attention_core)
        return Recomputation(dict.fromkeys(layer.core, 1.0), everything - core, core)
    kept = sum(saved.num_bytes * _KEPT_SHARES.get(saved.name, 0.0) for saved in layer.saved)
    return Recomputation(_alternate_products(layer), kept, everything - kept)


def _needed_again(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces up to the last product, whose output nobody keeps.

    Outputs of routed experts are kept until they are weighed, so there all is needed.
    """
    products = [index for index, piece in enumerate(pieces) if isinstance(piece, _PRODUCTS)]
    if not products or isinstance(pieces[products[-1]], GroupedGemm):
        return pieces
    return pieces[: products[-1]]


_PRODUCTS = (Gemm, GroupedGemm)

_PRODUCTS_IN = {"qkv": 3, "mlp_up": 2}
"""Matrix products that one piece stands for: query, key and value; gate and up."""

_KEPT_SHARES = {
    "attention_norm_input": 1.0,
    "query_key_value": 2 / 3,
    "attention_context": 1.0,
    "attention_log_sum": 1.0,
    "mlp_norm_input": 1.0,
    "activation_input": 0.5,
}
"""What stays of each saved activation when every other product's output is kept: the
layer's input, query and value, attention's output, the gate, and the down product's output
(as large as the MLP norm's input)."""


def _alternate_products(layer: Layer) -> dict[str, float]:
    """Everything but attention and every other product, the first of the layer kept."""
    repeated = {}
    count = 0
    for piece in layer.pieces:
        if isinstance(piece, (FlashAttention, RingAttention)):
            continue
        share = 1.0
        if isinstance(piece, Gemm) and piece.has_weight:
            products = _PRODUCTS_IN.get(piece.name, 1)
            evens = sum((count + index) % 2 == 0 for index in range(1, products + 1))
            share = evens / products
            count += products
        if share:
            repeated[piece.name] = share
    return repeated
