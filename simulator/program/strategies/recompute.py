"""What does each recomputation policy repeat in backward, and what does it keep?

``full`` keeps only a layer's input. ``selective`` means different things in different
frameworks, so it is a fact of the stack: Megatron repeats core attention (Korthikanti et
al., arXiv 2205.05198, section 5) or the modules that a plan names; torchtitan keeps the outputs
of attention and of every other matrix product of a layer and repeats the rest (its ``per-op``
selective policy); Paxml's ``SAVE_QKV_OUT_PROJ`` keeps the outputs of the products around attention
and repeats all else.

Megatron-Core's ``--recompute-modules``: checkpoints (``core_attn``, ``mlp``, ``moe``,
``shared_experts``) keep the input of a part of the layer and repeat all of it. The others
(``layernorm``, ``moe_act``, ``mla_up_proj``) also drop their *output*, which the product behind
them would keep: it is made again just before the gradient needs it. Layers are those of
Transformer Engine. There the norm before query, key and value, the one before a dense MLP and
those of latents are part of the product behind them: ``layernorm`` leaves these alone and repeats
those that stand apart, the input norm of latent attention and the norm before a mixture of experts;
``mla_up_proj`` repeats the norms of latents, ``mlp`` its own.

Source: Megatron-LM, ``recompute_modules`` of ``transformer_config.py``, ``CheckpointWithoutOutput``
of ``tensor_parallel/random.py`` where ``transformer_layer.py``, ``multi_latent_attention.py``,
``moe/experts.py`` and ``moe/moe_layer.py`` use it, and ``gpt_layer_specs.py`` for the norms.
P_a of ZeRO-R (arXiv 1910.02054, sections 6.1 and 8), DeepSpeed's ``partition_activations`` and
Megatron-LM's ``--distribute-saved-activations`` for inputs that are kept in parts.

Ignores: modules inside others that are repeated twice (``moe_act`` inside ``moe``), and outputs
that checkpoints hold while their backward runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from simulator.described.plan.plan import CORE_ATTENTION, Recompute, RecomputeModule
from simulator.described.plan.stack_choices import SelectivePolicy
from simulator.program.layer.pieces import (
    FlashAttention,
    Gemm,
    GridProduct,
    GroupedGemm,
    Layer,
    Piece,
    RingAttention,
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


@dataclass(frozen=True, slots=True)
class ModuleAgain:
    """What a module does to one layer; nothing where the layer does not have it.

    Attributes:
        repeated: Share of each piece's forward work that backward repeats, by piece name.
        kept: Share that stays of each saved activation, by name; of all others everything.
    """

    repeated: Mapping[str, float] = field(default_factory=dict)
    kept: Mapping[str, float] = field(default_factory=dict)


def modules_again(layer: Layer, modules: Collection[RecomputeModule]) -> ModuleAgain:
    """What several modules do together: each piece once, and what none of them drops."""
    each = [_MODULES[module](layer) for module in modules]
    repeated: dict[str, float] = {}
    kept = {saved.name: 1.0 for saved in layer.saved}
    for one in each:
        for name, share in one.repeated.items():
            repeated[name] = max(share, repeated.get(name, 0.0))
        for name, share in one.kept.items():
            kept[name] = min(share, kept.get(name, 1.0))
    return ModuleAgain(repeated, kept)


_LATENT_NORM_INPUT = 0.5
"""Of a latent and its norm's output, the first stays."""


def _core_attention(layer: Layer) -> ModuleAgain:
    dropped = [saved.name for saved in layer.saved if saved.in_attention_core]
    return ModuleAgain(dict.fromkeys(layer.core, 1.0), dict.fromkeys(dropped, 0.0))


def _norms(layer: Layer) -> ModuleAgain:
    names = {saved.name for saved in layer.saved}
    repeated: dict[str, float] = {}
    dropped: list[str] = []
    if "latent_input" in names:
        casts = dict.fromkeys(("query_down_cast", "key_value_down_cast"), layer.second_cast_share)
        repeated |= {"attention_norm": 1.0} | casts
        dropped.append("latent_input")
    if "router_input" in names:
        repeated |= {"mlp_norm": 1.0, "shared_mlp_up_cast": layer.second_cast_share}
        dropped += ["router_input", "shared_mlp_input"]
    return ModuleAgain(repeated, dict.fromkeys(dropped, 0.0))


def _expert_activation(layer: Layer) -> ModuleAgain:
    names = {saved.name for saved in layer.saved}
    start = "expert_activation"
    inputs = [name for name in (f"{start}_clamp_input", f"{start}_input") if name in names]
    # A plain ReLU keeps its output alone. Without that its input stays, which is as large.
    stays = inputs[0] if inputs else "expert_down_input"
    outputs = {f"{start}_input", f"{start}_output", "expert_down_input"} - {stays}
    repeated = {start: 1.0, f"{start}_clamp": 1.0, "expert_down_cast": layer.second_cast_share}
    return ModuleAgain(repeated, dict.fromkeys(outputs, 0.0))


def _latent_projections(layer: Layer) -> ModuleAgain:
    products = [f"{name}{part}" for name in ("query_up", "key_value_up")
                for part in ("", ".gather", "_cast")]  # fmt: skip
    norms = ["query_latent_norm", "key_value_latent_norm", "rotary"]
    latents = dict.fromkeys(("query_latent", "key_value_latent"), _LATENT_NORM_INPUT)
    outputs = dict.fromkeys(("query", "key", "value"), 0.0)
    return ModuleAgain(dict.fromkeys([*products, *norms], 1.0), latents | outputs)


def _dense_mlp(layer: Layer) -> ModuleAgain:
    """The norm's input, which is the residual stream, is all that stays."""
    if _has_experts(layer):
        return ModuleAgain()
    return _between(layer, "mlp_norm", "mlp_norm_input")


def _experts(layer: Layer) -> ModuleAgain:
    """Routing, the exchanges, the experts and the shared one, from the norm's output on."""
    if not _has_experts(layer):
        return ModuleAgain()
    return _between(layer, "router", "router_input")


def _shared_experts(layer: Layer) -> ModuleAgain:
    """The shared expert and its gate; the router keeps the same input."""
    pieces = [name for name in _piece_names(layer) if name.startswith("shared_")]
    saved = [saved.name for saved in layer.saved if saved.name.startswith("shared_")]
    repeated = dict.fromkeys(pieces, 1.0)
    repeated.pop("shared_sum", None)
    return ModuleAgain(repeated, dict.fromkeys(saved, 0.0))


def _between(layer: Layer, first_piece: str, module_input: str) -> ModuleAgain:
    """All pieces from one up to the residual, and all that is saved after the module's input."""
    saved = [saved.name for saved in layer.saved]
    pieces = _up_to_the_end(_piece_names(layer), first_piece)
    dropped = _up_to_the_end(saved, module_input)[1:]
    return ModuleAgain(dict.fromkeys(pieces, 1.0), dict.fromkeys(dropped, 0.0))


def _up_to_the_end(names: Iterable[str], first: str) -> list[str]:
    """Names from ``first`` on that come before the norm and the residual behind the MLP."""
    names = list(names)
    return [
        name
        for name in names[names.index(first) :]
        if not name.startswith(("mlp_post_norm", "mlp_residual"))
    ]


def _piece_names(layer: Layer) -> list[str]:
    return [piece.name for piece in layer.pieces]


def _has_experts(layer: Layer) -> bool:
    return "router" in _piece_names(layer)


_MODULES: Mapping[RecomputeModule, Callable[[Layer], ModuleAgain]] = MappingProxyType(
    {
        "core_attn": _core_attention,
        "layernorm": _norms,
        "moe_act": _expert_activation,
        "mla_up_proj": _latent_projections,
        "mlp": _dense_mlp,
        "moe": _experts,
        "shared_experts": _shared_experts,
    }
)
