"""How many parameters has the network that an installed transformers builds of a ``config.json``?

The network is built on torch's meta device, where tensors have shapes and no contents, so that
neither weights are loaded nor memory is needed. Code that a configuration brings along is not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from simulator.described.huggingface.parameter_counts import ParameterCount
from simulator.errors import InputError
from simulator.extras import require

_FUSED_EXPERTS_AXES = 3
"""Weights of all experts in one tensor: experts, outputs, inputs."""


def built_network_count(config: Mapping[str, Any], origin: str = "") -> ParameterCount:
    """Parameters of the causal language model, or of the bare network where there is none.

    Parts are the modules of the top two levels. Of experts whose weights are one tensor, those
    count as active that a token visits (``num_experts_per_tok``); other experts count in full.

    Args:
        config: The parsed ``config.json``.
        origin: The file, for messages.

    Raises:
        InputError: transformers is not installed, does not know the network, or cannot build it.
    """
    require("transformers", "builds networks of transformers")
    require("torch", "builds networks of transformers")
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    keys = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    try:
        known = AutoConfig.for_model(config.get("model_type"), **keys)
        is_causal = type(known) in AutoModelForCausalLM._model_mapping
        builder = AutoModelForCausalLM if is_causal else AutoModel
        with torch.device("meta"):
            network = builder.from_config(known)
    # Its builders raise whatever their code meets.
    except Exception as error:
        rule = f"the installed transformers cannot build it ({type(error).__name__}: {error})"
        hint = "install the release that the file was written for"
        raise InputError.single("", rule, hint=hint, file=origin) from error
    return _count(network, getattr(known.get_text_config(), "num_experts_per_tok", None))


def _count(network: Any, top_k: int | None) -> ParameterCount:
    whole: Counter[str] = Counter()
    active: Counter[str] = Counter()
    for name, parameter in network.named_parameters():
        part = ".".join(name.split(".")[:2])
        is_routed = ".experts." in name and parameter.dim() == _FUSED_EXPERTS_AXES
        whole[part] += parameter.numel()
        active[part] += parameter[0].numel() * top_k if is_routed and top_k else parameter.numel()
    return ParameterCount(type(network).__name__, whole, active)
