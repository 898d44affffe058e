"""What does each module of Megatron-Core's selective recomputation repeat, and what does it keep?

``--recompute-modules`` names them. Checkpoints (``core_attn``, ``mlp``, ``moe``,
``shared_experts``) keep the input of a part of the layer and repeat all of it. The others
(``layernorm``, ``moe_act``, ``mla_up_proj``) also drop their *output*, which the product behind
them would keep: it is made again just before the gradient needs it.

Layers are those of Transformer Engine. There the norm before query, key and value, the one before a
dense MLP and those of latents are part of the product behind them: ``layernorm`` leaves these
alone and repeats those that stand apart, the input norm of latent attention and the norm before a
mixture of experts; ``mla_up_proj`` repeats the norms of latents, ``mlp`` its own.

Source: Megatron-LM, ``recompute_modules`` of ``transformer_config.py``, ``CheckpointWithoutOutput``
of ``tensor_parallel/random.py`` where ``transformer_layer.py``, ``multi_latent_attention.py``,
``moe/experts.py`` and ``moe/moe_layer.py`` use it, and ``gpt_layer_specs.py`` for the norms.

Ignores: modules inside others that are repeated twice (``moe_act`` inside ``moe``), and outputs
that checkpoints hold while their backward runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from simulator.described.plan.plan import RecomputeModule
from simulator.program.layer.pieces import Layer


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
