"""Which adapters do settings train, beside which frozen weights?

axolotl says ``adapter``, LLaMA-Factory ``finetuning_type``, ms-swift ``tuner_type``; PEFT's names
for the matrices are common to them.

Source: PEFT's LoraConfig; the trainers' own settings; as facts.
"""

from __future__ import annotations

from typing import Any

from simulator.importers.settings import Settings, leave_out

_KINDS = ("adapter", "finetuning_type", "tuner_type", "train_type", "sft_type")
_WHOLE = ("full", "", "none", None, False)


def adapter_fields(settings: Settings) -> dict[str, Any]:
    """Fields of a plan that trains adapters; faults go to ``settings``."""
    key, kind = settings.first(*_KINDS)
    if kind in _WHOLE:
        return {}
    rule = "is not modelled: it trains adapters instead of the weights"
    settings.fault(key, rule, kind, leave_out(key))
    return {}


def lora_fields(settings: Settings, builder: str) -> dict[str, Any]:
    """Fields of a plan whose model torchtune builds with adapters; faults go to ``settings``."""
    if not builder.startswith(("lora_", "qlora_")):
        return {}
    key = "model._component_"
    rule = "is not modelled: it trains adapters instead of the weights"
    settings.fault(key, rule, builder, leave_out(key))
    return {}


def peft_fields(settings: Settings, section: str) -> dict[str, Any]:
    """Fields of a plan with the LoraConfig of a section; faults go to ``settings``."""
    inner = [key for key in settings.keys if key.startswith(f"{section}.")]
    if inner:
        key = f"{section}.type"
        rule = "is not modelled: it trains adapters instead of the weights"
        settings.fault(key, rule, str(settings.get(key)), leave_out(key))
    return {}
