"""What does each recomputation policy repeat in backward, and what does it keep?

``full`` keeps only a layer's input. ``selective`` means different things in different
frameworks, so it is a fact of the stack: Megatron repeats core attention (Korthikanti et
al., arXiv 2205.05198, section 5) or the modules that a plan names
(:mod:`simulator.program.strategies.recompute_modules`); torchtitan keeps the outputs of attention
and of every other matrix product of a layer and repeats the rest (its ``per-op`` selective policy);
Paxml's ``SAVE_QKV_OUT_PROJ`` keeps the outputs of the products around attention and repeats all
else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from simulator.described.plan.plan import CORE_ATTENTION, Recompute, RecomputeModule
from simulator.described.plan.stack import SelectivePolicy
from simulator.program.layer.pieces import (
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    Piece,
    RingAttention,
)
from simulator.program.strategies.recompute_modules import modules_again


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The outcome of a policy for one layer.

    Attributes:
        repeated: Share of each piece's forward work that backward repeats, by piece name.
        kept_bytes: Each activation that stays from forward to backward [B].
        restored_bytes: Each activation that exists again only while backward runs [B].
        passing_bytes: Each activation that is not kept but alive at once while forward runs:
            those of the attention or those of the MLP, whichever are larger [B].
    """

    repeated: Mapping[str, float]
    kept_bytes: tuple[float, ...]
    restored_bytes: tuple[float, ...]
    passing_bytes: tuple[float, ...] = ()


def recomputation(
    layer: Layer,
    recompute: Recompute,
    policy: SelectivePolicy,
    *,
    modules: Collection[RecomputeModule] = (),
    compiled: bool = True,
    stops_early: bool = False,
) -> Recomputation:
    """What is repeated and kept of one layer.

    Args:
        layer: Pieces and saved activations of one rank.
        recompute: The plan's choice.
        policy: What the stack means by ``selective``.
        modules: What the plan names of a layer instead of core attention.
        compiled: Whether a compiler drops what is kept and never read.
        stops_early: Whether ``full`` ends as soon as every saved activation is there again.
    """
    if recompute == "none":
        return Recomputation({}, tuple(saved.num_bytes for saved in layer.saved), ())
    if recompute == "full":
        pieces = _needed_again(layer.pieces) if stops_early else layer.pieces
        return _outcome(layer, {piece.name: 1.0 for piece in pieces}, {}, inputs=1)
    if policy == "core-attention":
        again = modules_again(layer, modules or CORE_ATTENTION)
        return _outcome(layer, again.repeated, again.kept, inputs=0)
    if policy == "all-but-projections":
        needed = {piece.name for piece in _needed_again(layer.pieces)}
        # The output of the second one is as large as the layer's input.
        return _outcome(layer, dict.fromkeys(needed - _PROJECTIONS, 1.0), _PROJECTED, inputs=2)
    # The down product's output is one of those that are kept, but no backward reads it: eager
    # code keeps it all the same, a compiler does not. It is as large as the layer's input.
    inputs = 1 if compiled else 2
    return _outcome(layer, _alternate_products(layer), _KEPT_SHARES, inputs=inputs)


def _outcome(
    layer: Layer, repeated: Mapping[str, float], kept: Mapping[str, float], *, inputs: int
) -> Recomputation:
    """Which share of each saved activation is kept, by name, beside copies of the input.

    The first saved activation is the input, or a copy of it in another format.
    """
    shares = [kept.get(saved.name, 0.0) for saved in layer.saved]
    stays = [saved.num_bytes * share for saved, share in zip(layer.saved, shares, strict=True)]
    again = [saved.num_bytes - size for saved, size in zip(layer.saved, stays, strict=True)]
    if inputs and again:
        again[0] = max(0.0, again[0] - layer.input_bytes)
    middle = layer.middle
    return Recomputation(
        repeated,
        kept_bytes=(layer.input_bytes,) * inputs + tuple(stays),
        restored_bytes=tuple(again),
        passing_bytes=tuple(max(again[:middle], again[middle:], key=sum)),
    )


def _needed_again(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces up to the last product, whose output nobody keeps.

    Outputs of routed experts are kept until they are weighed, so there all is needed.
    """
    products = [index for index, piece in enumerate(pieces) if isinstance(piece, _PRODUCTS)]
    if not products or isinstance(pieces[products[-1]], GroupedGemm):
        return pieces
    return pieces[: products[-1]]


_PRODUCTS = (Gemm, GroupedGemm, GridProduct)
_PRODUCTS_IN = {"qkv": 3, "mlp_up": 2}
"""Matrix products that one piece stands for: query, key and value; gate and up."""

_PROJECTIONS = frozenset({"qkv", "attention_output"})
_PROJECTED = {"query": 1.0, "key": 1.0, "value": 1.0}

_KEPT_SHARES = {
    "query": 1.0,
    "value": 1.0,
    "attention_context": 1.0,
    "attention_log_sum": 1.0,
    "activation_input": 0.5,
}
"""What stays of each saved activation, beside the layer's input, when the output of every
other product is kept: query and value, attention's output, and the gate."""


def _alternate_products(layer: Layer) -> dict[str, float]:
    """Everything but attention and every other product, the first of the layer kept."""
    repeated = {}
    count = 0
    for piece in layer.pieces:
        if isinstance(piece, (FlashAttention, RingAttention)):
            continue
        share = 1.0
        if isinstance(piece, GridProduct) or (isinstance(piece, Gemm) and piece.has_weight):
            products = _PRODUCTS_IN.get(piece.name, 1)
            evens = sum((count + index) % 2 == 0 for index in range(1, products + 1))
            share = evens / products
            count += products
        if share:
            repeated[piece.name] = share
    return repeated
