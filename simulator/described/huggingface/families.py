"""Which key of which Hugging Face model family means what?

One table per ``model_type``: a field of :class:`~simulator.described.model.Model` maps to
the key it is read from, or to the plain value that the family's code fixes. Defaults
are those of the family's configuration class. Families that differ little share a
table and override the rest.

Source: the configuration and modelling code of Hugging Face transformers (4.x), as
facts on architectures; counts are checked against published models in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
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

_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "quick_gelu")
_ACTIVATIONS = MappingProxyType(
    dict.fromkeys(_GELUS, "gelu")
    | {"silu": "silu", "swish": "silu", "relu": "relu", "relu2": "squared-relu"}
)


def _activation(*keys: str, default: str) -> Reader:
    return word(*keys, meanings=_ACTIVATIONS, default=default, otherwise="gelu")


def _full_attention_every(config: ForeignConfig, pattern_key: str, default: int) -> int:
    """Full-attention period, from the list of layer types if there is one."""
    types = config.take(("layer_types",), list, []) if config.states("layer_types") else []
    if not types:
        return int(config.take((pattern_key,), int, default) or default)
    every = types.index("full_attention") + 1 if "full_attention" in types else 1
    expected = ["full_attention" if every > 1 and not (i + 1) % every else "sliding_attention"
                for i in range(len(types))]  # fmt: skip
    if types != expected:
        config.unsupported.append(f"layer_types is no full layer in every {every}; read as such")
    return every


def _alternation(default: int, pattern_key: str = "sliding_window_pattern") -> Reader:
    def read(config: ForeignConfig) -> int:
        if config.states("sliding_window") and config.get("sliding_window") is None:
            return 1
        return _full_attention_every(config, pattern_key, default)

    return read


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


_SIZES: Table = {
    "layers": count("num_hidden_layers"),
    "hidden": count("hidden_size"),
    "heads": count("num_attention_heads"),
    "ffn_hidden": count("intermediate_size"),
    "vocab": count("vocab_size"),
}
_GROUPED_QUERIES: Table = {
    "kv_heads": count("num_key_value_heads", default=0),
    "head_dim": count("head_dim", default=0),
}
_ROTARY_GATED: Table = {
    **_SIZES,
    **_GROUPED_QUERIES,
    "activation": _activation("hidden_act", default="silu"),
    "tied_embeddings": flag("tie_word_embeddings", default=False),
}
LLAMA: Table = {
    **_ROTARY_GATED,
    "qkv_bias": flag("attention_bias", default=False),
    "attention_output_bias": flag("attention_bias", default=False),
    "mlp_bias": flag("mlp_bias", default=False),
}
_ALL_BIASES: Table = {
    "normalisation": "layernorm",
    "norm_bias": True,
    "qkv_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "gated_mlp": False,
}
_LEARNED: Table = {"positions": "learned", "max_positions": count("max_position_embeddings")}

_MISTRAL: Table = {**_ROTARY_GATED, "sliding_window": count("sliding_window", default=0)}
_QWEN2: Table = {**_ROTARY_GATED, "qkv_bias": True, "sliding_window": _switched_window}
_QWEN3: Table = {
    **_ROTARY_GATED,
    "head_dim": count("head_dim", default=128),
    "qkv_bias": flag("attention_bias", default=False),
    "attention_output_bias": flag("attention_bias", default=False),
    "qk_norm": "head",
    "sliding_window": _switched_window,
}
_QWEN_EXPERTS: Table = {
    "count": count("num_experts"),
    "top_k": count("num_experts_per_tok"),
    "ffn_hidden": count("moe_intermediate_size"),
    "every": count("decoder_sparse_step", default=1),
    "first_dense_layers": _leading_dense_layers,
}
_SHARED_QWEN_EXPERT: Table = {
    "shared_ffn_hidden": count("shared_expert_intermediate_size"),
    "shared_gate": True,
}
_MIXTRAL_EXPERTS: Table = {
    "count": count("num_local_experts"),
    "top_k": count("num_experts_per_tok", "experts_per_token"),
    "ffn_hidden": count("intermediate_size"),
}
_GEMMA: Table = {
    **_ROTARY_GATED,
    "head_dim": count("head_dim", default=256),
    "activation": _activation("hidden_activation", "hidden_act", default="gelu_pytorch_tanh"),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
}
_GEMMA2: Table = {
    **_GEMMA,
    "norms_per_layer": 4,
    "sliding_window": count("sliding_window", default=4096),
    "sliding_window_every": _alternation(2),
}
_GEMMA3: Table = {
    **_GEMMA2,
    "heads": count("num_attention_heads", default=8),
    "kv_heads": count("num_key_value_heads", default=4),
    "vocab": count("vocab_size", default=262208),
    "qk_norm": "head",
    "sliding_window_every": _alternation(6),
}
_GPT_OSS: Table = {
    **_ROTARY_GATED,
    "head_dim": count("head_dim", default=64),
    "qkv_bias": flag("attention_bias", default=True),
    "attention_output_bias": flag("attention_bias", default=True),
    "mlp_bias": True,
    "clamped_gate": True,
    "attention_sinks": True,
    "sliding_window": count("sliding_window", default=128),
    "sliding_window_every": _alternation(2),
    "experts": {**_MIXTRAL_EXPERTS, "router_bias": True},
}
_DEEPSEEK_V2: Table = {
    **_SIZES,
    "kv_heads": count("num_key_value_heads", default=0),
    "activation": _activation("hidden_act", default="silu"),
    "tied_embeddings": flag("tie_word_embeddings", default=False),
    "latent_attention": {
        "q_lora_rank": count("q_lora_rank", default=0),
        "kv_lora_rank": count("kv_lora_rank"),
        "qk_nope_head_dim": count("qk_nope_head_dim"),
        "qk_rope_head_dim": count("qk_rope_head_dim"),
        "v_head_dim": count("v_head_dim"),
    },
    "attention_output_bias": flag("attention_bias", default=False),
    "experts": {
        "count": count("n_routed_experts"),
        "top_k": count("num_experts_per_tok"),
        "ffn_hidden": count("moe_intermediate_size"),
        "groups": count("n_group", default=1),
        "top_groups": _picked_groups,
        "shared_ffn_hidden": scaled(
            count("n_shared_experts", default=0), count("moe_intermediate_size")
        ),
        "first_dense_layers": count("first_k_dense_replace", default=0),
        "every": _expert_layer_frequency,
    },
}
_DEEPSEEK_V3: Table = {
    **_DEEPSEEK_V2,
    "experts": {**_DEEPSEEK_V2["experts"], "router_bias": True},
    "multi_token_layers": count("num_nextn_predict_layers", default=0),
}
_GPT2_WIDTH = count("n_embd", "hidden_size")
_GPT2: Table = {
    **_ALL_BIASES,
    "layers": count("n_layer", "num_hidden_layers"),
    "hidden": _GPT2_WIDTH,
    "heads": count("n_head", "num_attention_heads"),
    "ffn_hidden": first_positive(count("n_inner", default=0), scaled(_GPT2_WIDTH, 4)),
    "vocab": count("vocab_size"),
    "activation": _activation("activation_function", default="gelu_new"),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "positions": "learned",
    "max_positions": count("n_positions", "max_position_embeddings", "n_ctx"),
}
_BLOOM_WIDTH = count("hidden_size", "n_embed")
_BLOOM: Table = {
    **_ALL_BIASES,
    "layers": count("n_layer", "num_hidden_layers"),
    "hidden": _BLOOM_WIDTH,
    "heads": count("n_head", "num_attention_heads"),
    "ffn_hidden": scaled(_BLOOM_WIDTH, 4),
    "vocab": count("vocab_size"),
    "activation": "gelu",
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "positions": "alibi",
    "embedding_norm": True,
}
_GPT_NEOX: Table = {
    **_SIZES,
    **_ALL_BIASES,
    "qkv_bias": flag("attention_bias", default=True),
    "attention_output_bias": flag("attention_bias", default=True),
    "activation": _activation("hidden_act", default="gelu"),
    "tied_embeddings": flag("tie_word_embeddings", default=False),
    "parallel_block": flag("use_parallel_residual", default=True),
}


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


_OPT: Table = {
    **_SIZES,
    **_ALL_BIASES,
    "qkv_bias": flag("enable_bias", default=True),
    "attention_output_bias": flag("enable_bias", default=True),
    "mlp_bias": flag("enable_bias", default=True),
    "ffn_hidden": count("ffn_dim"),
    "embedding_dim": _opt_projection,
    "activation": _activation("activation_function", default="relu"),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "positions": "learned",
    "max_positions": _opt_positions,
    "final_norm": _opt_final_norm,
    "attention_dropout": _opt_attention_dropout,
}


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


_MPT_BIAS = inverse(flag("no_bias", default=True))
_MPT: Table = {
    "layers": count("n_layers"),
    "hidden": count("d_model"),
    "heads": count("n_heads"),
    "kv_heads": count("attn_config.kv_n_heads", default=0),
    "ffn_hidden": scaled(count("d_model"), count("expansion_ratio", default=4)),
    "vocab": count("vocab_size"),
    "normalisation": "layernorm",
    "norm_bias": _MPT_BIAS,
    "qkv_bias": _MPT_BIAS,
    "attention_output_bias": _MPT_BIAS,
    "mlp_bias": _MPT_BIAS,
    "gated_mlp": False,
    "activation": "gelu",
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "qk_norm": _mpt_qk_norm,
    "positions": _mpt_positions,
    "max_positions": _mpt_position_rows,
}


def _bert_extras(config: ForeignConfig) -> int:
    """Parameters of token types and of the pooler, a square matrix with bias."""
    hidden = config.get("hidden_size")
    types = config.take(("type_vocab_size",), int, 2)
    return hidden * (types + hidden + 1) if type(hidden) is int and type(types) is int else 0


_BERT: Table = {
    **_SIZES,
    **_ALL_BIASES,
    **_LEARNED,
    "activation": _activation("hidden_act", default="gelu"),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "embedding_norm": True,
    "final_norm": False,
    "causal": False,
    "extra_parameters": _bert_extras,
}
_PHI: Table = {
    **_SIZES,
    **_ALL_BIASES,
    "kv_heads": count("num_key_value_heads", default=0),
    "activation": _activation("hidden_act", default="gelu_new"),
    "tied_embeddings": flag("tie_word_embeddings", default=False),
    "parallel_block": True,
    "norms_per_layer": 1,
    "head_bias": True,
}
_NEMOTRON: Table = {
    **LLAMA,
    "normalisation": "layernorm",
    "norm_bias": True,
    "gated_mlp": False,
    "activation": _activation("hidden_act", default="relu2"),
}
_OLMO2: Table = {
    **_ROTARY_GATED,
    "qkv_bias": flag("attention_bias", default=False),
    "attention_output_bias": flag("attention_bias", default=False),
    "qk_norm": "full",
}
_STARCODER2_BIAS = flag("use_bias", default=True)
_STARCODER2: Table = {
    **_SIZES,
    **_ALL_BIASES,
    "kv_heads": count("num_key_value_heads", default=2),
    "qkv_bias": _STARCODER2_BIAS,
    "attention_output_bias": _STARCODER2_BIAS,
    "mlp_bias": _STARCODER2_BIAS,
    "activation": _activation("hidden_act", default="gelu_pytorch_tanh"),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "sliding_window": count("sliding_window", default=0),
}
_COHERE: Table = {
    **_ROTARY_GATED,
    "qkv_bias": flag("attention_bias", default=False),
    "attention_output_bias": flag("attention_bias", default=False),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "normalisation": "layernorm",
    "parallel_block": True,
    "norms_per_layer": 1,
}


def _switched_qk_norm(config: ForeignConfig) -> str:
    return "head" if config.take(("use_qk_norm",), bool, False) else "none"


_GLM4_MOE: Table = {
    **_ROTARY_GATED,
    "qkv_bias": flag("attention_bias", default=False),
    "qk_norm": _switched_qk_norm,
    "experts": {**_DEEPSEEK_V3["experts"], "every": 1},
    "multi_token_layers": count("num_nextn_predict_layers", default=0),
}

FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bert": _BERT,
        "bloom": _BLOOM,
        "cohere": {**_COHERE, "qk_norm": _switched_qk_norm},
        "deepseek_v2": _DEEPSEEK_V2,
        "deepseek_v3": _DEEPSEEK_V3,
        "gemma": _GEMMA,
        "gemma2": _GEMMA2,
        "gemma3": _GEMMA3,
        "gemma3_text": _GEMMA3,
        "glm4_moe": _GLM4_MOE,
        "gpt2": _GPT2,
        "gpt_neox": _GPT_NEOX,
        "gpt_oss": _GPT_OSS,
        "kimi_k2": _DEEPSEEK_V3,
        "llama": LLAMA,
        "mistral": _MISTRAL,
        "mixtral": {**_MISTRAL, "experts": _MIXTRAL_EXPERTS},
        "mpt": _MPT,
        "nemotron": _NEMOTRON,
        "olmo2": _OLMO2,
        "opt": _OPT,
        "phi": _PHI,
        "phi3": _MISTRAL,
        "qwen2": _QWEN2,
        "qwen2_moe": {**_QWEN2, "experts": {**_QWEN_EXPERTS, **_SHARED_QWEN_EXPERT}},
        "qwen3": _QWEN3,
        "qwen3_moe": {**_QWEN3, "experts": _QWEN_EXPERTS},
        "starcoder2": _STARCODER2,
    }
)
"""Table of every ``model_type`` that is read exactly."""
