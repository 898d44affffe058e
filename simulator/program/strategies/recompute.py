"""What does each recomputation policy repeat in backward, and what does it keep?

``full`` keeps only a layer's input, or that of each of its parts. ``selective`` means different
things in different frameworks, so it is a fact of the stack: Megatron repeats core attention
(Korthikanti et al., arXiv 2205.05198, section 5) or the modules that a plan names; torchtitan keeps
the outputs of attention and of every other matrix product of a layer and repeats the rest (its
``per-op`` selective policy); Paxml's ``SAVE_QKV_OUT_PROJ`` keeps the outputs of the products around
attention and repeats all else; JAX keeps the outputs that a policy names.

Megatron-Core's ``--recompute-modules``: checkpoints (``core_attn``, ``mlp``, ``moe``,
``shared_experts``) keep the input of a part of the layer and repeat all of it. The others
(``layernorm``, ``moe_act``, ``mla_up_proj``) also drop their *output*, which the product behind
them would keep: it is made again just before the gradient needs it. Layers are those of
Transformer Engine. There the norm before query, key and value, the one before a dense MLP and
those of latents are part of the product behind them: ``layernorm`` leaves these alone and repeats
those that are kernels of their own, the input norm of latent attention and the norm before a
mixture of experts; ``mla_up_proj`` repeats the norms of latents, ``mlp`` its own. What a module
repeats and drops stands in the description of the part of a layer that has it.

Source: Megatron-LM, ``recompute_modules`` of ``transformer_config.py``, ``CheckpointWithoutOutput``
of ``tensor_parallel/random.py`` where ``transformer_layer.py``, ``multi_latent_attention.py``,
``moe/experts.py`` and ``moe/moe_layer.py`` use it, and ``gpt_layer_specs.py`` for the norms.
JAX's ``save_only_these_names``, and ``get_remat_policy`` of MaxText's ``layers/decoders.py``. P_a
of ZeRO-R (arXiv 1910.02054, sections 6.1 and 8), DeepSpeed's ``partition_activations`` and
Megatron-LM's ``--distribute-saved-activations`` for inputs that are kept in parts.

Ignores: modules inside others that are repeated twice (``moe_act`` inside ``moe``), and outputs
that checkpoints hold while their backward runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard, get_args

from simulator.described.plan.plan_fields import CORE_ATTENTION, Recompute, RecomputeModule
from simulator.described.plan.stack_options import NamedOutput, SelectivePolicy
from simulator.program.layer.pieces import (
    Exchange,
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    MemoryBound,
    ModuleRecompute,
    Piece,
    RingAttention,
    Role,
)


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The outcome of a policy for one layer.

    Attributes:
        repeated: Share of each piece's forward work that backward repeats, by piece name.
        kept_bytes: Each activation that stays from forward to backward [B].
        restored_bytes: Each activation that exists again only while backward runs [B].
        passing_bytes: Each activation that is not kept but alive at once while forward runs:
            those of the attention or those of the MLP, whichever are larger [B].
        operations: Share of a piece's operations that is repeated, by piece name, where it is not
            as ``repeated``: of products of several widths that are one piece.
        in_turn: Whether parts of the layer are computed again when backward comes to them, and
            not all of it before.
    """

    repeated: Mapping[str, float]
    kept_bytes: tuple[float, ...]
    restored_bytes: tuple[float, ...]
    passing_bytes: tuple[float, ...] = ()
    operations: Mapping[str, float] = field(default_factory=dict)
    in_turn: bool = False

    def share_of_operations(self, piece: Piece) -> float:
        """Share of a piece's forward operations that backward repeats."""
        return self.operations.get(piece.name, self.repeated.get(piece.name, 0.0))


def recomputation(
    layer: Layer,
    recompute: Recompute,
    policy: SelectivePolicy,
    *,
    modules: Collection[RecomputeModule] = (),
    named: Collection[NamedOutput] = (),
    compiled: bool = True,
    stops_early: bool = False,
    keeps_attention: bool = True,
    hands_out_key_values: bool = False,
    by_part: bool = False,
    knows_products: bool = True,
) -> Recomputation:
    """What is repeated and kept of one layer.

    Args:
        layer: Pieces and saved activations of one rank.
        recompute: The plan's choice.
        policy: What the stack means by ``selective``.
        modules: What the plan names of a layer instead of core attention.
        named: Outputs that the policy of named ones keeps.
        compiled: Whether a compiler drops what is kept and never read.
        stops_early: Whether ``full`` ends as soon as every saved activation is there again.
        keeps_attention: Whether the policy that keeps every other product keeps attention's output.
        hands_out_key_values: Whether layers that ``full`` repeats return keys and values as well.
        by_part: Whether ``full`` makes a checkpoint of each norm, attention and dense MLP.
        knows_products: Whether the policy that keeps every other product knows the products.
    """
    if recompute == "none":
        return Recomputation({}, tuple(saved.kept_bytes for saved in layer.saved), ())
    if recompute == "full":
        if by_part and not any(isinstance(piece, GroupedGemm) for piece in layer.pieces):
            outcome = _parts_again(layer, stops_early=stops_early)
        else:
            handed_out = _key_values(layer) if hands_out_key_values else ()
            outcome = _whole_again(layer, handed_out, stops_early=stops_early)
        return outcome
    if policy == "core-attention":
        again = _modules(layer, modules or CORE_ATTENTION)
        return replace(_outcome(layer, again.repeated, again.kept, inputs=0), in_turn=True)
    if policy in ("all-but-projections", "named-outputs"):
        return _only_named_kept(layer, named if policy == "named-outputs" else _AROUND_ATTENTION)
    if not knows_products:
        return _only_attention_kept(layer, keeps_attention=keeps_attention)
    # The down product's output is one of those that are kept, but no backward reads it: eager
    # code keeps it all the same, a compiler does not. It is as large as the layer's input.
    inputs = 1 if compiled else 2
    repeated, operations = _alternate_products(layer, keeps_attention=keeps_attention)
    of_attention = _OF_ATTENTION if keeps_attention else {}
    outcome = _outcome(layer, repeated, _kept(layer, _KEPT_SHARES | of_attention), inputs=inputs)
    return replace(outcome, operations=operations)


def _whole_again(
    layer: Layer, handed_out: tuple[float, ...], *, stops_early: bool
) -> Recomputation:
    pieces = _needed_again(layer.pieces) if stops_early else layer.pieces
    outcome = _outcome(layer, {piece.name: 1.0 for piece in pieces}, {}, inputs=1)
    return replace(outcome, kept_bytes=outcome.kept_bytes + handed_out)


def _parts_again(layer: Layer, *, stops_early: bool) -> Recomputation:
    """Norms and what is behind them are checkpoints; sums with the residual stream are in none.

    Each norm keeps what it reads, and what it gives is the next checkpoint's input: all as wide as
    the model, in the format of the residual stream. What a norm saves comes back with what is
    behind it (assumption: the two are one checkpoint then).
    """
    parts = [list[Piece]()]
    for piece in layer.pieces:
        if isinstance(piece, MemoryBound) and piece.role is Role.RESIDUAL:
            parts.append([])
        else:
            parts[-1].append(piece)
    again = [each for part in parts for each in (_needed_again(part) if stops_early else part)]
    starts = sorted({0, layer.middle} & set(range(len(layer.saved))))
    outcome = _outcome(layer, {each.name: 1.0 for each in again}, {}, inputs=2 * len(starts))
    restored = list(outcome.restored_bytes)
    for start in starts[1:]:
        restored[start] = max(0.0, restored[start] - layer.input_bytes)
    for start in starts:
        behind = (n for n, each in enumerate(layer.saved) if n > start and each.role is Role.OTHER)
        if (read := next(behind, None)) is not None:
            restored[read] = max(0.0, restored[read] - layer.input_bytes)
    return replace(outcome, restored_bytes=tuple(restored), in_turn=True)


def _only_attention_kept(layer: Layer, *, keeps_attention: bool) -> Recomputation:
    """Everything is repeated but attention, if that is known."""
    pieces, kept = _needed_again(layer.pieces), {}
    if keeps_attention:
        pieces = [each for each in pieces if not isinstance(each, (FlashAttention, RingAttention))]
        kept = _kept(layer, _OF_ATTENTION)
    return _outcome(layer, {piece.name: 1.0 for piece in pieces}, kept, inputs=1)


def _outcome(
    layer: Layer, repeated: Mapping[str, float], kept: Mapping[str, float], *, inputs: int
) -> Recomputation:
    """Which share of each saved activation is kept, by name, beside copies of the input.

    The first saved activation is the input, or a copy of it in another format.
    """
    shares = [kept.get(saved.name, 0.0) for saved in layer.saved]
    stays = [saved.kept_bytes * share for saved, share in zip(layer.saved, shares, strict=True)]
    again = [saved.kept_bytes - size for saved, size in zip(layer.saved, stays, strict=True)]
    if inputs and again:
        again[0] = max(0.0, again[0] - layer.input_bytes)
    middle = layer.middle
    return Recomputation(
        repeated,
        kept_bytes=(layer.input_bytes,) * inputs + tuple(stays),
        restored_bytes=tuple(again),
        passing_bytes=tuple(max(again[:middle], again[middle:], key=sum)),
    )


def _key_values(layer: Layer) -> tuple[float, ...]:
    """Keys and values of a layer, before heads are repeated [B]."""
    roles = (Role.KEY, Role.VALUE)
    return tuple(
        saved.kept_bytes / saved.repeats for saved in layer.saved if saved.name in map(str, roles)
    )


def kept_in_parts(outcome: Recomputation, layer: Layer, ranks: int) -> Recomputation:
    """What one of so many ranks keeps; the whole input is there while backward runs."""
    return replace(
        outcome,
        kept_bytes=tuple(num_bytes / ranks for num_bytes in outcome.kept_bytes),
        restored_bytes=(*outcome.restored_bytes, layer.input_bytes),
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


def _only_named_kept(layer: Layer, named: Collection[NamedOutput]) -> Recomputation:
    """Everything is repeated but what gives the named outputs, and what moves these."""
    shares = {piece.name: _share_again(piece, named) for piece in layer.pieces}
    repeated, operations = dict[str, float](), dict[str, float]()
    for piece in _needed_again(layer.pieces):
        serves = piece.serves if isinstance(piece, Exchange) else ""
        if share := shares.get(serves, shares[piece.name]):
            repeated[piece.name] = operations[piece.name] = share
    kept = {_NAMED_ROLES[name]: 1.0 for name in named if name in _NAMED_ROLES}
    kept |= {Role.LOG_SUM: 1.0} if "context" in named else {}
    for piece in layer.pieces:
        if "up" in _outputs(piece):
            kept[Role.ACTIVATION_INPUT] = 1 - shares[piece.name]
    # The output of the product behind attention is as large as the layer's input.
    outcome = _outcome(layer, repeated, _kept(layer, kept), inputs=1 + ("output" in named))
    results = _expert_results_bytes(layer) if "down" in named else ()
    return replace(outcome, operations=operations, kept_bytes=outcome.kept_bytes + results)


def _expert_results_bytes(layer: Layer) -> tuple[float, ...]:
    """Output of the last product of routed experts, a row as the layer's input for each copy [B].

    Source: ``checkpoint_name(..., "mlpwo")`` of MaxText's ``layers/moe.py``.
    """
    tokens = next((p.m for p in layer.pieces if isinstance(p, Gemm) and p.name == "router"), 0)
    copies = (p.groups * p.mean_rows for p in layer.pieces if _gives_expert_results(p))
    return tuple(layer.input_bytes * each / tokens for each in copies)


def _gives_expert_results(piece: Piece) -> TypeGuard[GroupedGemm]:
    return isinstance(piece, GroupedGemm) and piece.tensors == ("experts.down",)


def _share_again(piece: Piece, named: Collection[NamedOutput]) -> float:
    """Share of what a piece gives that is not among the named outputs.

    Keys and values that one product makes of a latent are taken as equally wide.
    """
    if isinstance(piece, (FlashAttention, RingAttention)):
        return float("context" not in named)
    if _gives_expert_results(piece):
        return float("down" not in named)
    product, outputs = _product(piece), _outputs(piece)
    if product is None or not any(name in named for name in outputs):
        return 1.0
    widths = _widths(product)
    if len(widths) != len(outputs):
        widths = [1.0] * len(outputs)
    again = [w for name, w in zip(outputs, widths, strict=True) if name not in named]
    return math.fsum(again) / math.fsum(widths)


def _outputs(piece: Piece) -> list[str]:
    """Names of what a product around attention, or into a dense MLP, gives."""
    product = _product(piece)
    names = [tensor.rpartition(".") for tensor in product.tensors] if product else []
    known = set(get_args(NamedOutput)) - {"down"}
    return [last for part, _, last in names if part in ("attention", "mlp") and last in known]


def _product(piece: Piece) -> Gemm | None:
    """The product that a piece is, on a grid of ranks or not."""
    one = piece.block if isinstance(piece, GridProduct) else piece
    return one if isinstance(one, Gemm) else None


def _kept(layer: Layer, shares: Mapping[Role, float]) -> dict[str, float]:
    saved = (each for each in layer.saved if each.role in shares)
    return {each.name: shares[each.role] / each.repeats for each in saved}


_AROUND_ATTENTION: tuple[NamedOutput, ...] = ("query", "key", "value", "output")
_NAMED_ROLES: Mapping[NamedOutput, Role] = {
    "query": Role.QUERY, "key": Role.KEY, "value": Role.VALUE, "context": Role.CONTEXT,
}  # fmt: skip
"""What is saved of named outputs by itself; that of ``gate`` and ``up`` is joined."""

_KEPT_SHARES = {
    Role.QUERY: 1.0,
    Role.VALUE: 1.0,
    Role.ACTIVATION_INPUT: 0.5,
}
"""What stays of each saved activation, beside the layer's input, when the output of every
other product is kept: query and value, and the gate."""

_OF_ATTENTION = {Role.CONTEXT: 1.0, Role.LOG_SUM: 1.0}
"""What stays besides where attention's output does."""


def _alternate_products(
    layer: Layer, *, keeps_attention: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Everything but every other product, the first of the layer kept, and maybe attention.

    Shares of the time of pieces (assumption: products that are one piece take as long as each
    other), and of the operations of products.
    """
    repeated, operations = {}, {}
    count = 0
    for piece in layer.pieces:
        if keeps_attention and isinstance(piece, (FlashAttention, RingAttention)):
            continue
        share = 1.0
        one = piece.block if isinstance(piece, GridProduct) else piece
        if isinstance(one, Gemm) and one.has_weight:
            again = [index for index in range(one.weights) if (count + index) % 2]
            share = len(again) / one.weights
            widths = _widths(one)
            operations[piece.name] = math.fsum(widths[index] for index in again) / math.fsum(widths)
            count += one.weights
        if share:
            repeated[piece.name] = share
    return repeated, operations


def _widths(product: Gemm) -> list[float]:
    """Columns of each matrix that a product multiplies with: queries, keys, values, or equal."""
    if product.kv_columns:
        key_or_value = product.kv_columns / 2
        return [product.n - product.kv_columns, key_or_value, key_or_value]
    return [product.n / product.weights] * product.weights


def _modules(layer: Layer, modules: Collection[RecomputeModule]) -> ModuleRecompute:
    """What several modules do together: each piece once, and what none of them drops.

    What a pass inserted for a piece is repeated with it.
    """
    each = [layer.modules[module] for module in modules if module in layer.modules]
    repeated: dict[str, float] = {}
    kept = {saved.name: 1.0 for saved in layer.saved}
    for one in each:
        for name, share in one.repeated.items():
            repeated[name] = max(share, repeated.get(name, 0.0))
        for name, share in one.kept.items():
            kept[name] = min(share, kept.get(name, 1.0))
    for piece in layer.pieces:
        if isinstance(piece, (Exchange, MemoryBound)) and piece.serves in repeated:
            repeated[piece.name] = repeated[piece.serves]
    return ModuleRecompute(repeated, kept)
