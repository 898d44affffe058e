"""Which key of which Hugging Face model family means what, and what becomes of the others?

The tables are ``simulator/facts/huggingface.yaml``; here their readers are made, and the rules
stand that take more than one key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import cache, partial
from typing import Any

from simulator.described.foreign_config import (
    ForeignConfig,
    Reader,
    Table,
    count,
    first_positive,
    flag,
    inverse,
    scaled,
    word,
)
from simulator.errors import Fault
from simulator.facts import shipped_facts

_FILE = "huggingface"


class Fate(Enum):
    """What becomes of an unread key."""

    IGNORED = auto()
    """Costs nothing, or is switched off."""
    UNSUPPORTED = auto()
    """Costs something and is not modelled."""
    UNKNOWN = auto()
    """Nothing is known of it."""


def fate_of_unread_key(key: str, value: object) -> Fate:
    """Fate of a key that the family's table does not read."""
    facts = shipped_facts(_FILE)
    if not value or key in facts["free_keys"] or re.fullmatch(facts["free_pattern"], key):
        return Fate.IGNORED
    return Fate.UNSUPPORTED if re.fullmatch(facts["costly_pattern"], key) else Fate.UNKNOWN


def family_names() -> tuple[str, ...]:
    """Every ``model_type`` that is read exactly."""
    return tuple(shipped_facts(_FILE)["families"])


@cache
def table_of_family(name: str) -> Table:
    """The table of a ``model_type`` among :func:`family_names`."""
    return _table({"like": [name]})


def _table(entries: Mapping[str, Any]) -> dict[str, Any]:
    facts = shipped_facts(_FILE)
    table: dict[str, Any] = {}
    for base in entries.get("like", ()):
        table |= _table(facts["families"].get(base) or facts["tables"][base])
    return table | {field: _reader(e) for field, e in entries.items() if field != "like"}


def _reader(entry: Any) -> Any:
    """The reader that an entry describes; a plain value and a nested table as they are."""
    if not isinstance(entry, Mapping):
        return entry
    kind, given = next(iter(entry.items()))
    if kind in _READERS and not (kind == "count" and isinstance(given, Mapping)):
        options = {name: value for name, value in entry.items() if name != kind}
        return _READERS[kind](*((given,) if isinstance(given, str | Mapping) else given), **options)
    return _table(entry)  # a block of fields, the first of which may be a count


def _activation(*keys: str, default: str) -> Reader:
    meanings = shipped_facts(_FILE)["activations"]
    return word(*keys, meanings=meanings, default=default, otherwise="gelu")


_READERS: Mapping[str, Callable[..., Reader]] = {
    "count": count,
    "flag": flag,
    "activation": _activation,
    "not": lambda entry: inverse(_reader(entry)),
    "product": lambda *entries: scaled(*map(_reader, entries)),
    "first": lambda *entries: first_positive(*map(_reader, entries)),
    "rule": lambda name, **options: partial(_RULES[name], **options),
}


def _alternation(config: ForeignConfig, default: int) -> int:
    """Full-attention period, from the list of layer types if there is one."""
    if config.states("sliding_window") and config.get("sliding_window") is None:
        return 1
    types = config.take(("layer_types",), list, []) if config.states("layer_types") else []
    if not types:
        return int(config.take(("sliding_window_pattern",), int, default) or default)
    unknown = [each for each in types if each not in ("full_attention", "sliding_attention")]
    if unknown:
        rule = "must be full_attention and sliding_attention, the only form that is modelled"
        config.faults.append(Fault("layer_types", rule, unknown[0]))
    every = types.index("full_attention") + 1 if "full_attention" in types else 1
    expected = ["full_attention" if every > 1 and not (i + 1) % every else "sliding_attention"
                for i in range(len(types))]  # fmt: skip
    if types != expected:
        config.unsupported.append(
            f"layer_types is not one full layer in every {every}; read as if it were"
        )
    return every


def _switched_window(config: ForeignConfig) -> int:
    """Window of Qwen, which applies from layer ``max_window_layers`` on if switched on."""
    if not config.take(("use_sliding_window",), bool, False):
        for key in ("sliding_window", "max_window_layers", "layer_types"):
            config.get(key)
        return 0
    first = config.take(("max_window_layers",), int, 0)
    if first:
        config.unsupported.append(
            f"layers from {first} on have a sliding window; read as full attention everywhere"
        )
        return 0
    return int(config.take(("sliding_window",), int, 0) or 0)


def _leading_dense_layers(config: ForeignConfig) -> int:
    """Length of ``mlp_only_layers`` if it lists the first layers."""
    layers = config.take(("mlp_only_layers",), list, [])
    if layers and layers != list(range(len(layers))):
        rule = "must be the first layers, the only form that is modelled"
        config.faults.append(Fault("mlp_only_layers", rule, layers))
    return len(layers or ())


def _picked_groups(config: ForeignConfig) -> int:
    """Groups of experts that a token picks; 0 where it may pick all."""
    groups, picked = config.take(("n_group",), int, 1), config.take(("topk_group",), int, 0)
    return 0 if picked == groups else picked or 0


def _expert_layer_frequency(config: ForeignConfig) -> int:
    frequency = config.take(("moe_layer_freq",), int, 1)
    if frequency not in {None, 1}:
        rule = "must be 1, experts in every layer, the only form that is modelled"
        config.faults.append(Fault("moe_layer_freq", rule, frequency))
    return 1


def _opt_projection(config: ForeignConfig) -> int:
    """Embedding width, or 0 where it is the width of the layers."""
    width = config.take(("word_embed_proj_dim",), int, 0)
    return 0 if width is None or width == config.get("hidden_size") else int(width)


def _opt_positions(config: ForeignConfig) -> int | None:
    """Rows of the position table: OPT keeps two more than it has positions."""
    positions = config.take(("max_position_embeddings",), int, None)
    return None if positions is None else int(positions + 2)


def _opt_final_norm(config: ForeignConfig) -> bool:
    """Only variants that normalise before each block have a norm at the end."""
    removed = config.take(("_remove_final_layer_norm",), bool, False)
    return bool(config.take(("do_layer_norm_before",), bool, True)) and not removed


def _opt_attention_dropout(config: ForeignConfig) -> bool:
    return bool(config.take(("attention_dropout",), float, 0.0))


def _caps_logits(config: ForeignConfig, default: bool) -> bool:
    """Whether logits are capped; null where the cap of the family is switched off."""
    if not config.states("final_logit_softcapping"):
        return default
    return bool(config.get("final_logit_softcapping"))


def _mpt_positions(config: ForeignConfig) -> str:
    learned = config.take(("learned_pos_emb",), bool, True)
    if config.get("attn_config.alibi"):
        return "alibi"
    return "learned" if learned else "none"


def _mpt_position_rows(config: ForeignConfig) -> int | None:
    rows: int | None = 0
    if _mpt_positions(config) == "learned":
        rows = config.take(("max_seq_len",), int, None)
    return rows


def _mpt_qk_norm(config: ForeignConfig) -> str:
    return "full" if config.get("attn_config.qk_ln") else "none"


def _bert_extras(config: ForeignConfig) -> int:
    """Parameters of token types and of the pooler, a square matrix with bias."""
    hidden = config.get("hidden_size")
    types = config.take(("type_vocab_size",), int, 2)
    return hidden * (types + hidden + 1) if type(hidden) is int and type(types) is int else 0


def _switched_qk_norm(config: ForeignConfig, switched_on: str) -> str:
    return switched_on if config.take(("use_qk_norm",), bool, False) else "none"


def _no_latent_bias(config: ForeignConfig) -> bool:
    if config.take(("attention_bias",), bool, False):
        rule = "biases of latent attention are not modelled"
        config.faults.append(Fault("attention_bias", rule, True))
    return False


def _falcon_is_new(config: ForeignConfig) -> bool:
    return bool(config.take(("new_decoder_architecture",), bool, False))


def _falcon_key_heads(config: ForeignConfig) -> int:
    """Heads of keys and values: their own number, one for all, or as many as queries (0)."""
    stated = int(config.take(("num_kv_heads", "n_head_kv"), int, 0) or 0)
    shared = config.take(("multi_query",), bool, True)
    return stated if _falcon_is_new(config) else int(bool(shared))


def _falcon_parallel_block(config: ForeignConfig) -> bool:
    return bool(config.take(("parallel_attn",), bool, True)) or _falcon_is_new(config)


def _falcon_norms(config: ForeignConfig) -> int:
    norms = int(config.take(("num_ln_in_parallel_attn",), int, 2) or 2)
    if _falcon_is_new(config):
        return norms
    return 1 if _falcon_parallel_block(config) else 2


def _falcon_positions(config: ForeignConfig) -> str:
    return "alibi" if config.take(("alibi",), bool, False) else "rotary"


def _one_key_head(config: ForeignConfig) -> int:
    return int(bool(config.take(("multi_query",), bool, True)))


def _switched_post_norms(config: ForeignConfig) -> int:
    return 4 if config.take(("use_post_norm",), bool, True) else 2


def _stablelm_norms(config: ForeignConfig) -> int:
    if config.take(("qk_layernorm",), bool, False):
        rule = "separate norms for every head are not modelled"
        config.faults.append(Fault("qk_layernorm", rule, True))
    return 1 if config.take(("use_parallel_residual",), bool, False) else 2


def _dense_before_sparse(config: ForeignConfig, default: int) -> int:
    """Leading layers without experts, by their number or by a list with a word for each layer."""
    kinds = config.take(("mlp_layer_types",), list, []) if config.states("mlp_layer_types") else []
    if not kinds:
        return int(config.take(("first_k_dense_replace",), int, default) or 0)
    config.get("first_k_dense_replace")
    dense = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if kinds != ["dense"] * dense + ["sparse"] * (len(kinds) - dense):
        rule = (
            "must be dense layers first and sparse layers after them, the only form that is "
            "modelled"
        )
        config.faults.append(Fault("mlp_layer_types", rule, kinds))
    return dense


_RULES: Mapping[str, Callable[..., Any]] = {
    rule.__name__.lstrip("_"): rule
    for rule in (
        _alternation, _switched_window, _leading_dense_layers, _picked_groups,
        _expert_layer_frequency, _opt_projection, _opt_positions, _opt_final_norm,
        _opt_attention_dropout, _mpt_positions, _mpt_position_rows, _mpt_qk_norm, _bert_extras,
        _switched_qk_norm, _falcon_key_heads, _falcon_parallel_block, _falcon_norms,
        _falcon_positions, _one_key_head, _switched_post_norms, _stablelm_norms,
        _dense_before_sparse, _no_latent_bias, _caps_logits,
    )
}  # fmt: skip
