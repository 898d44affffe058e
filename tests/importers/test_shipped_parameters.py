"""Parameters of every shipped model, against the network of transformers that it is."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.described.huggingface.parameter_counts import network_count
from simulator.described.load import load_model, model_names
from simulator.described.model import Model
from simulator.program.layer.model_totals import parameter_count_by_part

FAMILY_OF_NAME = {
    "bert-": "bert", "bloom-": "bloom", "command-r-": "cohere", "deepseek-v2": "deepseek_v2",
    "deepseek-v3": "deepseek_v3", "falcon-": "falcon", "gemma-": "gemma", "gemma2-": "gemma2",
    "gemma3-": "gemma3_text", "glm4.5-": "glm4_moe", "gpt-neox-": "gpt_neox", "gpt-oss-": "gpt_oss",
    "gpt-j-": "gptj", "gpt": "gpt2", "grok1-": "mixtral", "internlm-": "llama",
    "kimi-k2": "deepseek_v3", "llama4-": "llama4_text", "llama": "llama", "mamba2-": "mamba2",
    "mistral-": "mistral", "mixtral-": "mixtral", "moonlight-": "deepseek_v3", "mpt-": "mpt",
    "mt-nlg-": "gpt2",
    "nemotron4-": "nemotron", "olmo2-": "olmo2", "opt-": "opt", "phi-2": "phi", "phi": "phi3",
    "pythia-": "gpt_neox", "qwen1.5-moe-": "qwen2_moe", "qwen2.5-": "qwen2",
    "qwen3-235b": "qwen3_moe", "qwen3-30b": "qwen3_moe", "qwen3-": "qwen3",
    "starcoder2-": "starcoder2", "tinyllama-": "llama",
}  # fmt: skip
"""The ``model_type`` of every name that starts so; the first that fits."""


def keys_of(model: Model, family: str) -> dict[str, Any]:
    """What a config.json says of a model, under every name that some family has for it."""
    keys: dict[str, Any] = {"model_type": family, "tie_word_embeddings": model.tied_embeddings}
    keys |= dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), model.layers)
    keys |= dict.fromkeys(("hidden_size", "n_embd", "d_model"), model.hidden)
    keys |= dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), model.heads)
    widths = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp")
    keys |= dict.fromkeys(widths, model.ffn_hidden)
    keys |= {"vocab_size": model.vocab, "word_embed_proj_dim": model.embedding_dim or model.hidden}
    rows = model.max_positions - (2 if family == "opt" else 0)
    keys |= {"max_position_embeddings": rows, "n_positions": rows}
    keys |= {"attention_bias": model.qkv_bias, "mlp_bias": model.mlp_bias}
    keys |= {
        "use_qk_norm": model.qk_norm != "none",
        "_remove_final_layer_norm": not model.final_norm,
    }
    keys |= {"num_key_value_heads": model.kv_heads, "head_dim": model.head_dim}
    keys |= {"num_kv_heads": model.kv_heads, "new_decoder_architecture": model.kv_heads > 1}
    return keys | keys_of_experts(model, family) | keys_of_other_mixers(model)


def keys_of_experts(model: Model, family: str) -> dict[str, Any]:
    experts = model.experts
    if experts is None:
        return {}
    counts = ("num_experts", "num_local_experts", "n_routed_experts")
    keys: dict[str, Any] = dict.fromkeys(counts, experts.count)
    keys |= {"num_experts_per_tok": experts.top_k, "moe_intermediate_size": experts.ffn_hidden}
    keys |= {"n_shared_experts": experts.shared_ffn_hidden // experts.ffn_hidden}
    keys |= {"shared_expert_intermediate_size": experts.shared_ffn_hidden}
    keys |= {"first_k_dense_replace": experts.first_dense_layers, "mlp_only_layers": []}
    keys |= dict.fromkeys(("decoder_sparse_step", "interleave_moe_layer_step"), experts.every)
    only_experts = family in {"mixtral", "gpt_oss", "llama4_text"}
    return keys | ({"intermediate_size": experts.ffn_hidden} if only_experts else {})


def keys_of_other_mixers(model: Model) -> dict[str, Any]:
    if model.latent_attention is not None:
        keys = model.latent_attention.model_dump()
        return keys | {"q_lora_rank": keys["q_lora_rank"] or None}
    if model.ssm is None:
        return {}
    keys = {"num_heads": model.ssm.heads(model.hidden), "head_dim": model.ssm.head_dim}
    keys |= {"state_size": model.ssm.state, "n_groups": model.ssm.groups}
    return keys | {"conv_kernel": model.ssm.conv_kernel, "expand": model.ssm.expand}


def difference(name: str) -> int:
    """Parameters of a shipped model over those of its network in transformers."""
    model = load_model(name)
    family = next(each for start, each in FAMILY_OF_NAME.items() if name.startswith(start))
    network = network_count(keys_of(model, family))
    return parameter_count_by_part(model).parameters - network.parameters


@pytest.mark.parametrize("name", model_names())
def test_a_shipped_model_has_the_parameters_of_its_network(name: str) -> None:
    model = load_model(name)
    expected = 0
    if name.startswith("bert-"):  # with a pooler, and without a head that has biases and a norm
        expected = -model.vocab - 2 * model.hidden
    if name.startswith("mpt-"):  # as trained: transformers has no learned positions in MPT
        expected = model.max_positions * model.hidden
    if name.startswith("grok1-"):  # not in transformers: four norms a layer, not two
        expected = 2 * model.layers * model.hidden
    assert difference(name) == expected
