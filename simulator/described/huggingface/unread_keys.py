"""What becomes of a Hugging Face key that no table reads?

Most keys of a ``config.json`` change the mathematics or the text handling but neither
time nor memory of training, such as scales, epsilons, rotary angles and token numbers.
"""

from __future__ import annotations

import re
from enum import Enum, auto


class Fate(Enum):
    """What becomes of an unread key."""

    IGNORED = auto()
    """Costs nothing, or is switched off."""
    UNSUPPORTED = auto()
    """Costs something and is not modelled."""
    UNKNOWN = auto()
    """Nothing is known of it."""


_FREE = frozenset(
    [
        *("architectures", "auto_map", "cache_implementation", "dtype", "finetuning_task"),
        *("gradient_checkpointing", "id2label", "label2id", "prefix", "task_specific_params"),
        *("tokenizer_class", "tokenizer_name", "torch_dtype", "transformers_version"),
        *("use_bfloat16", "use_cache", "output_attentions", "output_hidden_states"),
        *("init_config", "init_device", "init_std", "initializer_range", "initializer_factor"),
        *("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling"),
        *("embedding_multiplier", "residual_multiplier", "attention_multiplier"),
        *("query_pre_attn_scalar", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
        *("reorder_and_upcast_attn", "layer_norm_epsilon", "norm_epsilon", "norm_type"),
        *("max_position_embeddings", "max_seq_len", "n_ctx", "n_positions", "head_dim"),
        *("sliding_window_size",),
        *("initial_context_length", "original_max_position_embeddings", "max_window_layers"),
        *("partial_rotary_factor", "rotary_emb_base", "rotary_pct", "position_embedding_type"),
        *("aux_loss_alpha", "ep_size", "n_group", "topk_group", "topk_method", "norm_topk_prob"),
        *("output_router_logits", "routed_scaling_factor", "router_aux_loss_coef"),
        *("router_jitter_noise", "scoring_func", "seq_aux", "swiglu_limit"),
        *("attention_softmax_in_fp32", "masked_softmax_fusion", "bias_dropout_fusion"),
        *("offset_alibi", "pretraining_tp", "seq_length", "skip_bias_add", "slow_but_exact"),
        *("apply_residual_connection_post_layernorm", "layerdrop", "embedding_fraction"),
    ]
)
_FREE_PATTERN = re.compile(r"_.*|rope_.*|summary_.*|.*_token_id|.*_eps|.*_token_index")
_COSTLY_PATTERN = re.compile(
    r"quantization_config|.*dropout(_prob|_rate)?|.*pdrop|sliding_window|(vision|audio)_config"
)


def fate_of_unread_key(key: str, value: object) -> Fate:
    """Fate of a key that the family's table does not read."""
    if not value or key in _FREE or _FREE_PATTERN.fullmatch(key):
        return Fate.IGNORED
    if _COSTLY_PATTERN.fullmatch(key):
        return Fate.UNSUPPORTED
    return Fate.UNKNOWN
