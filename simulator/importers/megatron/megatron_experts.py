"""What do Megatron-Core's options say of experts?

Source: Megatron-Core 0.16, ``transformer/transformer_config.py``, as facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simulator.described.load import load_model
from simulator.importers.hub_models import ModelDocument
from simulator.importers.megatron.megatron_model import count_of, switch_of
from simulator.importers.settings import Settings

_OF_EXPERTS = (
    "moe_(grouped_gemm|permute_fusion|flex_dispatcher_backend|shared_expert_overlap"
    "|expert_capacity_factor)"
)


def pass_over_experts(settings: Settings) -> None:
    """Settings of experts do nothing in a model without: say so, for it may be the wrong model."""
    unread = settings.unread.items()
    said = [key for key, value in unread if value and re.fullmatch(_OF_EXPERTS, key)]
    settings.pass_over(_OF_EXPERTS)
    if said:
        settings.assumed.append(f"the model has no experts, so nothing comes of {', '.join(said)}")


def expert_parallelism(settings: Settings, tp: int, experts: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a plan that say how experts are spread, and how tokens reach them."""
    ep, etp = count_of(settings, "plan.ep", 1), count_of(settings, "plan.etp", None)
    overlap_ep = switch_of(settings, "plan.overlap_ep") or None
    way = settings.meaning(
        "megatron/dispatchers", "moe_token_dispatcher_type", default="all_gather"
    )
    joins_by_node = settings.switch("moe_enable_deepep")
    if not experts:
        return {"ep": ep}
    if way != "hierarchical" and joins_by_node:
        settings.assumed.append(
            f"tokens go {way}: moe_enable_deepep counts with moe_token_dispatcher_type flex alone"
        )
    found = {
        "ep": ep,
        "etp": etp or tp,
        "overlap_ep": overlap_ep,
        "overlap_shared_expert": switch_of(settings, "plan.overlap_shared_expert")
        and bool(experts.get("shared_ffn_hidden")),
    }
    return found | ({"ep_dispatch": way} if way != "all_to_all" else {})


def experts_of(model: ModelDocument | None) -> Mapping[str, Any]:
    """The experts of a model; empty where it has none."""
    if isinstance(model, dict) and "base" not in model:
        return model.get("experts") or {}
    name = model["base"] if isinstance(model, dict) else model
    experts = load_model(name).experts if name else None
    return experts.model_dump() if experts else {}
