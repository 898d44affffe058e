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
    every = types.index("full_attention") + 1 if "full_attention" in types else 1
    expected = ["full_attention" if every > 1 and not (i + 1) % every else "sliding_attention"
                for i in range(len(types))]  # fmt: skip
    if types != expected:
        config.unsupported.append(f"layer_types is no full layer in every {every}; read as such")
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
        config.unsupported.append("mlp_only_layers are not the first ones; read as if they were")
    return len(layers or ())


def _picked_groups(config: ForeignConfig) -> int:
    """Groups of experts that a token picks; 0 where it may pick all."""
    groups, picked = config.take(("n_group",), int, 1), config.take(("topk_group",), int, 0)
    return 0 if picked == groups else picked or 0


def _expert_layer_frequency(config: ForeignConfig) -> int:
    frequency = config.take(("moe_layer_freq",), int, 1)
    if frequency not in {None, 1}:
        config.unsupported.append("moe_layer_freq other than 1; read as experts in every layer")
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


def _switched_qk_norm(config: ForeignConfig) -> str:
    return "head" if config.take(("use_qk_norm",), bool, False) else "none"


_RULES: Mapping[str, Callable[..., Any]] = {
    rule.__name__.lstrip("_"): rule
    for rule in (
        _alternation, _switched_window, _leading_dense_layers, _picked_groups,
        _expert_layer_frequency, _opt_projection, _opt_positions, _opt_final_norm,
        _opt_attention_dropout, _mpt_positions, _mpt_position_rows, _mpt_qk_norm, _bert_extras,
        _switched_qk_norm,
    )
}  # fmt: skip
