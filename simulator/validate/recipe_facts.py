"""What do the recipes behind a published table say that its rows do not?

A fact holds for all runs of a source, or for its runs of one model. It says what the runs did,
never how fast they were or how much they took.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_BRIDGE = "Megatron-Bridge performance summary"
"""How the source begins whose recipes are in Megatron-Bridge."""

SOURCE_FACTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        r"^torchtitan .*(llama3_h100_202412|mid-2024)",
        {"plan": {"stack": {"cross_entropy": "eager"}}},
    ),
    (
        r"^vTrain .*ground_truth_single",
        {"plan": {"recompute": "none", "stack": {"pads_vocab": False, "fused_softmax": False}}},
    ),
    (r"^DGX Cloud benchmarking recipes", {"plan": {"overlap_tp": True}}),
    (
        rf"^{_BRIDGE}",
        {"plan": {"overlap_tp": True, "grad_reduce_precision": "bf16"}},
    ),
    (r"^MLPerf Training ", {"plan": {"overlap_tp": True}}),
    (
        r"^NeMo Framework Launcher"
        r"|^DGX Cloud .*(nemo_megatron/README_175b|nemotron/README_340b|llama3\.1/README)",
        {"plan": {"stack": {"keeps_weight_remainders": True}}},
    ),
)
"""Pattern of a source, and the fields that hold for all its runs.

torchtitan compiled its loss from 2025 on; until then its ``train.py`` says that doing so fails.

vTrain's table states times and degrees only. Its configurations say ``use_checkpoint``, but the
times exclude that anything was computed again: from hidden size 1024 to 2048 a layer of a
sequence takes 1.0 ms more, in which the products with recompute would run at 1.2 times the peak
of the device, and without it at 0.9. What does not grow with the hidden size are 20 more passes
over the attention scores than a fused softmax makes, and what grows with the vocabulary takes
2.4 times that of a vocabulary padded to whole vectors; the project's own model pads none either
(``src/model/gpt_modeling.py``).

NVIDIA's own recipes pipeline tensor-parallel exchanges with their products: those of DGX Cloud
(the table's README says so of all its runs), of Megatron-Bridge (``CommOverlapConfig`` of
``scripts/performance/configs``, which also reduces gradients in bf16: ``grad_reduce_in_fp32``), and
of MLPerf's submissions (``TP_COMM_OVERLAP`` of the systems' ``config_*.sh``).

NeMo 1 runs these models with Apex's ``distributed_fused_adam`` (``optim.name`` in the launcher's
``conf/training`` and in ``nemotron4-340b-synth.yaml`` and ``gpt3_175b_hydra.yaml`` of DGX Cloud's
recipes; those of Grok and Nemotron 15B say ``mcore_distributed_optim``), and sets its
``store_param_remainders`` for bf16 weights (``setup_optimization`` of
``megatron_base_model.py``)."""

_BRIDGE_DEEPSEEK_LAYOUTS: Mapping[int, list[int]] = MappingProxyType(
    {
        4: [16, 16, 16, 13],
        8: [8] * 7 + [5],
        16: [4] * 15 + [1],
        32: [1] + [2] * 30 + [0],
    }
)
"""Layers of each virtual stage of DeepSeek-V3, by their number, in Megatron-Bridge's recipes:
``layout_map`` of ``recipes/deepseek/deepseek_v3.py``, and ``Et|(tt|)*30mL`` of
``scripts/performance``. The last stage holds the module of multi-token prediction, too, which the
recipe trains (``mtp_num_layers = 1``) unless the table says otherwise."""


def recipe_facts(row: Mapping[str, str]) -> dict[str, Any]:
    """Fields that a source's recipe of the row's model decides."""
    if not row.get("source", "").startswith(_BRIDGE) or row["model"].lower() != "deepseek-v3":
        return {}
    stages = int(row["pp"]) * int(row.get("vpp") or 1)
    layout = _BRIDGE_DEEPSEEK_LAYOUTS.get(stages)
    plan = {"layout": layout} if layout else {}
    return {"model": {"multi_token_layers": 1}, "plan": plan}
