"""How is a published run turned into a job?

One row states a run in the words of a Job; empty cells mean that the source does not
say, and the stack's default is taken. Facts that only the notes state are read by a
table of phrases: each says what the run did, never how fast it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError
from simulator.spec.documents import merged
from simulator.spec.load import model_names
from simulator.spec.stacks import STACKS
from simulator.validate.recipe_facts import recipe_facts

Row = Mapping[str, str]

_NOTE_FACTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"squared-ReLU", {"model": {"activation": "squared-relu"}}),
    (r"CP by all-to-all", {"plan": {"cp_method": "all_to_all"}}),
    (r"TP comm overlap on", {"plan": {"overlap_tp": True}}),
    (r"synchronous p2p", {"plan": {"overlap_p2p": False}}),
    (
        r"no comm/compute overlap",
        {
            "plan": {
                "overlap_grad_reduce": False,
                "overlap_param_gather": False,
                "stack": {"overlap_tp_backward": False},
            }
        },
    ),
    (r"not overlapped|no gradient-bucket overlap", {"plan": {"overlap_grad_reduce": False}}),
    (r"grad sync overlapped|grad/param comm overlap", {"plan": {"overlap_grad_reduce": True}}),
    (r"capacity factor 1\b|tokendrop", {"model": {"experts": {"capacity_factor": 1.0}}}),
    (r"(?<!no )grouped GEMM", {"plan": {"stack": {"grouped_experts": True}}}),
    (r"a2a overlap on", {"plan": {"overlap_ep": True}}),
    (r"w/ MTP", {"model": {"multi_token_layers": 1}}),
    (r"w/o MTP", {"model": {"multi_token_layers": 0}}),
    (r"^(?!.*tokendrop).*\b(Deep|Hybrid)EP\b", {"plan": {"ep_dispatch": "hierarchical"}}),
    (r"bf16 grad sync", {"plan": {"grad_reduce_precision": "bf16"}}),
    (r"MP mode PURE", {"plan": {"grad_reduce_precision": "bf16"}}),
    (r"async TP", {"plan": {"overlap_tp": True}}),
    (
        r"float8 rowwise",
        {"plan": {"stack": {"float8_scaling": "rows", "gathers_casted": False}}},
    ),
    (
        r"\beager\b",
        {
            "plan": {
                "stack": {"fused_elementwise": False, "fused_rmsnorm": False, "fused_rotary": False}
            }
        },
    ),
)
"""Phrase in the notes, and the fields it decides.

DeepEP and HybridEP send a token once to every rank that has an expert of it. Recipes that drop
tokens run without them: Megatron-Bridge's ``apply_moe_token_drop`` asks for the ``alltoall``
dispatcher, whatever the preset of the next release names."""


_SOME_LAYERS_AGAIN = re.compile(r"full recompute of (\d+) of \d+ layers only")
"""Phrase in the notes of runs whose stages compute their first layers again."""

_RECOMPUTED_MODULES = re.compile(r"preset recomputes ([a-z_]+(?:\+[a-z_]+)*)")
"""Phrase in the notes of runs that computed again which modules of Megatron-Core's layers."""

_OFFLOADED_LAYERS = re.compile(r"activation CPU offload of (\d+) layers")
"""Phrase in the notes of runs that copy activations of their first layers to the host."""

_DEVICE_MEMORY = re.compile("total memory in log")
"""Phrase in the notes of runs whose printed memory is what ``nvidia-smi`` calls used: the log of
Sailor's pipeline engine (``deepspeed/pipe_engine.py`` in eth-easl/sailor) names it TOTAL,
beside RESERVED and ALLOCATED."""


def memory_kind(row: Row) -> str:
    """What the row's memory counts: allocated, reserved or device; oom if there was not enough."""
    if _DEVICE_MEMORY.search(row.get("notes", "")):
        return "device"
    return row.get("mem_kind", "")


def job_document(row: Row) -> dict[str, Any]:
    """The job that a published row describes, ready for ``job_from_document``."""
    document: dict[str, Any] = {
        "model": _model(row),
        "cluster": _cluster(row),
        "batch": {
            "global": _int(row, "global_batch"),
            "micro": _int(row, "micro_batch"),
            "seq_len": _int(row, "seq_len"),
        },
        "plan": _plan(row),
    }
    notes = row.get("notes", "")
    said = (facts for pattern, facts in _NOTE_FACTS if re.search(pattern, notes))
    for facts in (*recipe_facts(row), *said):
        document = merged(document, facts)
    if document["plan"].get("tp", 1) == 1:
        # Launch lines ask for it whatever the degree is.
        document["plan"].pop("partition_activations", None)
    return document


def _model(row: Row) -> dict[str, Any]:
    gated = row["gated_mlp"].lower() == "true"
    name = row["model"].lower()
    shipped = model_names()
    known = next((n for n in (name, _full_model_name(name)) if n in shipped), None)
    stated = {
        "name": row["model"],
        "layers": _int(row, "layers"),
        "hidden": _int(row, "hidden"),
        "heads": _int(row, "heads"),
        "kv_heads": _int(row, "kv_heads"),
        "vocab": _int(row, "vocab"),
        "gated_mlp": gated,
    }
    if row.get("tied_embeddings"):
        stated["tied_embeddings"] = row["tied_embeddings"].lower() == "true"
    if row.get("experts"):
        stated["experts"] = _experts(row)
        stated["multi_token_layers"] = 0
        unnamed = {**_llama_style(), "ffn_hidden": _int(row, "ffn_hidden")}
        return {**({"base": known} if known else unnamed), **stated}
    stated["ffn_hidden"] = _int(row, "ffn_hidden")
    if known:
        return {"base": known, **stated}
    style = _llama_style() if gated else _gpt_style(_int(row, "seq_len"))
    return {**style, **stated}


def _full_model_name(name: str) -> str:
    """The public model that a cut-down one was made from (``llama3-70b-12L``)."""
    return re.sub(r"(-proxy)?-\d+l$", "", name).replace("deepseekv", "deepseek-v")


def _llama_style() -> dict[str, Any]:
    return {"positions": "rotary", "normalisation": "rmsnorm", "activation": "silu"}


def _gpt_style(seq_len: int) -> dict[str, Any]:
    """Models with a plain MLP are GPT-2's kin: learned positions, layer norm, biases."""
    return {
        "positions": "learned",
        "max_positions": seq_len,
        "normalisation": "layernorm",
        "activation": "gelu",
        "norm_bias": True,
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "tied_embeddings": True,
    }


def _experts(row: Row) -> dict[str, Any]:
    """Routed experts; dense layers and shared experts are those of the named model."""
    columns = {"count": "experts", "top_k": "top_k", "ffn_hidden": "ffn_hidden"}
    return {field: _int(row, column) for field, column in columns.items()}


def _cluster(row: Row) -> dict[str, Any]:
    network: dict[str, Any] = {}
    fabric: dict[str, Any] = {}
    if row.get("gpus_per_node"):
        network["gpus_per_node"] = _int(row, "gpus_per_node")
        if "nvl72" not in row["profile"]:
            network["scale_up"] = {"gpus": network["gpus_per_node"]}
    if row.get("nics_per_node"):
        fabric["nics_per_node"] = _int(row, "nics_per_node")
    if row.get("nic_gbps"):
        fabric["nic"] = f"{float(row['nic_gbps']):g} Gbit/s"
    if row.get("fabric"):
        fabric["kind"] = row["fabric"]
    if fabric:
        network["fabric"] = fabric
    cluster: dict[str, Any] = {"profile": row["profile"], "gpus": _int(row, "gpus")}
    return {**cluster, "network": network} if network else cluster


def _plan(row: Row) -> dict[str, Any]:
    stack = stack_of(row["framework"], row.get("framework_version", ""))
    plan: dict[str, Any] = {"stack": {"base": stack}}
    for key in ("tp", "pp", "vpp", "cp", "ep", "zero"):
        if row.get(key):
            plan[key] = _int(row, key)
    if row.get("experts"):
        plan |= _expert_tensor_degree(row)
    if row.get("zero_group"):
        plan["zero_group"] = _zero_group(row)
    if plan.get("pp", 1) > 1:
        plan |= _stated_layout(row)
    for key in ("sequence_parallel", "overlap_grad_reduce", "overlap_param_gather"):
        if row.get(key):
            plan[key] = row[key].lower() == "true"
    for key in ("schedule", "recompute", "precision", "attention"):
        if row.get(key):
            plan[key] = row[key]
    plan |= _recomputed_parts(row)
    if offloaded := _OFFLOADED_LAYERS.search(row.get("notes", "")):
        plan["offload"] = {"activations": "cpu", "activation_layers": int(offloaded.group(1))}
    repeats_core = "core_attn" in plan.get("recompute_modules", ["core_attn"])
    if not row.get("attention") and row.get("recompute") == "selective" and repeats_core:
        # Core attention is only worth computing again where its scores would be kept.
        plan["attention"] = "fused-softmax"
    return plan


def _recomputed_parts(row: Row) -> dict[str, Any]:
    """Layers or modules that are computed again, where the notes say which."""
    notes = row.get("notes", "")
    if some_layers := _SOME_LAYERS_AGAIN.search(notes):
        return {"recompute_layers": int(some_layers.group(1))}
    if modules := _RECOMPUTED_MODULES.search(notes):
        return {"recompute": "selective", "recompute_modules": modules.group(1).split("+")}
    return {}


def _expert_tensor_degree(row: Row) -> dict[str, int]:
    """Ranks that share an expert, where the notes or the framework's generation say so.

    Recipes before Megatron-Bridge (NeMo up to 25.02) leave it at Megatron-Core's default:
    experts are split as the rest of the layer is.
    """
    stated = re.search(r"\bETP ?=? ?(\d+)", row.get("notes", ""))
    if stated:
        return {"etp": int(stated.group(1))}
    inherits = re.search(r"NeMo (24\.\d\d|25\.0[0-2])", row.get("framework_version", ""))
    return {"etp": _int(row, "tp")} if inherits else {}


def _stated_layout(row: Row) -> dict[str, Any]:
    """Layers per stage, or what counts as a layer, where the notes say so."""
    notes = row.get("notes", "")
    stated = re.search(r"units per stage incl\. embedding and head ([\d/]+)", notes)
    if stated:
        first, *middle, last = [int(units) for units in stated.group(1).split("/")]
        return {"layout": [first - 1, *middle, last - 1]}
    if "first and last stage hold one layer fewer" in notes:
        stages = _int(row, "pp") * (_int(row, "vpp") if row.get("vpp") else 1)
        middle = [(_int(row, "layers") + 2) // stages] * stages
        return {"layout": [middle[0] - 1, *middle[1:-1], middle[-1] - 1]}
    counted = re.search(r"embedding and (loss|head) (are )?count(ed)? as .*layers", notes)
    return {"account_for_embedding": True, "account_for_loss": True} if counted else {}


def _zero_group(row: Row) -> int:
    if row["zero_group"] == "node":
        return _int(row, "gpus_per_node") // _int(row, "tp")
    return _int(row, "zero_group")


_FRAMEWORK_STACKS = {
    "nemo": "megatron-core",
    "megatron-bridge": "megatron-core",
    "paddle": "megatron-core",
    "gpt-neox": "megatron-deepspeed",
    "axonn": "megatron-deepspeed",
    "colossalai": "megatron-deepspeed",
    "fsdp": "torch-fsdp",
    "llm-foundry": "torch-fsdp",
    "nanotron": "torch",
    "picotron": "torch",
    "maxtext": "jax",
    "paxml": "jax",
    "axlearn": "jax",
    "alpa": "jax",
}
"""Stack that a framework without one of its own is closest to."""


def stack_of(framework: str, version: str) -> str:
    """The stack that stands for a framework's generation.

    A framework that nobody has described is taken as Megatron-Core, the default of a plan.
    """
    name = framework.lower()
    year = re.search(r"20(20|21)", version)
    if name == "megatron":
        return f"megatron-lm-{year.group()}" if year else "megatron-core"
    if name == "deepspeed" and year:
        return "deepspeed-2021"
    if name == "torch-fsdp" and "torchtitan" in version.lower():
        return "torchtitan"
    return name if name in STACKS else _FRAMEWORK_STACKS.get(name, "megatron-core")


def _int(row: Row, key: str) -> int:
    """A whole number; spreadsheets write some of them as ``12.0``."""
    try:
        number = float(row[key])
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise InputError.single(key, f"must be a whole number, not {row[key]!r}")
    return int(number)
