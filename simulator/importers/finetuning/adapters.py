"""Which adapters do settings train, beside which frozen weights?

axolotl says ``adapter``, LLaMA-Factory ``finetuning_type``, ms-swift ``tuner_type``; PEFT's names for
the matrices are common to them.

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
