"""How is a published run turned into a job?

One row states a run in the words of a Job; empty cells mean that the source does not
say, and the stack's default is taken. Facts that only the notes state are read by a
table of phrases: each says what the run did, never how fast it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, get_args

from simulator import cells
from simulator.cells import Row
from simulator.described.cluster.kernel_parameters import NARROW
from simulator.described.documents import merged
from simulator.described.load import load_profile, profile_names
from simulator.described.plan.plan_fields import RecomputeModule
from simulator.described.plan.shipped_stacks import libraries_of_stack
from simulator.described.plan.stack_options import has_wide_kernel
from simulator.errors import InputError
from simulator.facts import host_launches
from simulator.tables import spellings
from simulator.tables.spellings import profile_name_of, stated_memory_gb
from simulator.validate.published.adapters_in_notes import adapters
from simulator.validate.published.framework_stacks import (
    context_parallelism_of,
    drops_out,
    eager_model_facts,
    fused_attention,
    keeps_gathered,
    prints_decimal_gb,
    recipe_settings,
    runs_transformers,
    stack_facts,
    sums_unsharded,
    unsaid_settings,
    untuned_fabric,
    wraps_tensors,
    zero_of,
)
from simulator.validate.published.published_models import has_experts, model_document
from simulator.validate.published.row_facts import stated_facts
from simulator.validate.published.run_releases import releases_of_their_time

_SOME_LAYERS_AGAIN = re.compile(
    r"full recompute of (\d+) of \d+ layers only"
    r"|(?i:(?=.*\bblock\b).*\brecompute[_-]num[_-]layers[ =:]*)(\d+)"
)
"""Phrase in the notes of runs whose stages compute their first layers again."""

_MODULE = "|".join(get_args(RecomputeModule))
_RECOMPUTED_MODULES = re.compile(
    rf"(?:preset recomputes|recompute modules:|\brecompute(?= (?:{_MODULE})\b))"
    r" (?!none\b)([a-z_]+(?: ?\+ ?[a-z_]+)*)"
)
"""Phrase in the notes of runs that computed again which modules of Megatron-Core's layers."""

_EVERY_SO_MANY_LAYERS = re.compile(r"(?i)\bAC (?:of )?every (other|\d)(?:nd|rd|th)? layer")
"""Phrase in the notes of runs that compute whole layers again, but not all."""

_LAYERS_IN_BF16 = re.compile(
    r"(?i)\b(first|last)(?: and (last))?(?: (\d+))? layers? (?:are |stay |kept )*in bf16"
)
"""Phrase in the notes of runs that leave some layers out of 8- or 4-bit training."""

_OFFLOADED_LAYERS = re.compile(r"activation CPU offload of (\d+) layers")
"""Phrase in the notes of runs that copy activations of their first layers to the host."""

_NOT_MODELLED = (
    (r"(?i)forward (pass )?only\b|inference only", "no training step was measured"),
    (r"(?i)one MoE layer only|not a full step", "only a part of a step was measured"),
)
"""Phrase in the notes of runs that are no training steps of whole models, and why they are left
out."""


_DRIVERS_SHARE = 0.986
"""GiB that torch prints for a V100 over its nominal size: 15.78 of 16, and 31.73 of 32 less what
error correction holds back."""


def memory_kind(row: Row) -> str:
    """What the row's memory counts: allocated, reserved or device; oom if there was not enough."""
    kind = cells.word(row, "mem_kind")
    return next((k for k in ("oom", "reserved", "allocated", "device") if k in kind), kind)


def measured_memory_gib(row: Row) -> float | None:
    """What the row's run held, as a number of GiB whatever unit its framework prints."""
    printed = cells.measured(row, "measured_mem_gib")
    is_decimal = prints_decimal_gb(*_framework(row))
    if printed is None or not (is_decimal and re.search(r"\(GB\)", row.get("notes", ""))):
        return printed
    return printed * 1e9 / 2.0**30


def job_document(row: Row) -> dict[str, Any]:
    """The job that a published row describes, ready for ``job_from_document``.

    Raises:
        InputError: A cell lacks what only the row can say, or says something unreadable.
    """
    notes = row.get("notes", "")
    refused = next((reason for word, reason in _NOT_MODELLED if re.search(word, notes)), None)
    if refused:
        raise InputError.single("notes", refused)
    micro_batch, plan = cells.whole_if_stated(row, "micro_batch"), _plan(row)
    document: dict[str, Any] = {
        "model": model_document(row),
        "cluster": _cluster(row),
        "batch": {
            "global": cells.whole(row, "global_batch"),
            "micro": _usual_microbatch(row, plan) if micro_batch is None else micro_batch,
            "seq_len": cells.tokens(row, "seq_len"),
        },
        "plan": plan,
    }
    if documents := spellings.packed_documents(notes):
        length = min(documents.tokens, document["batch"]["seq_len"])
        document["batch"]["document_len"] = length
    said = f"{row.get('framework_version', '')}; {notes}"
    usual, told = spellings.usual_facts(said), spellings.facts_in_notes(said)
    for facts in (*usual, *told, stated_facts(row)):
        document = merged(document, facts)
    model = document["model"]
    if model.get("max_positions") and model.get("positions", "learned") != "learned":
        del model["max_positions"]  # of the usual style of models without gates
    if not has_experts(document["model"]):
        # Phrases of whole tables, which hold dense models, too.
        document["model"].pop("experts", None)
        for field in ("ep_dispatch", "overlap_ep", "overlap_shared_expert"):
            document["plan"].pop(field, None)
    plan = document["plan"]
    if plan.get("tp", 1) == 1:
        # Launch lines ask for it whatever the degree is.
        plan.pop("partition_activations", None)
    if plan.get("zero", 0) < 3:
        plan.pop("reshard_after_forward", None)  # parameters are whole all the time
    if plan.get("deterministic"):
        plan.pop("overlap_tp", None)  # recipes overlap, but that mode cannot
    return document


def _usual_microbatch(row: Row, plan: Mapping[str, Any]) -> int:
    """Sequences of a microbatch where the row does not say: one, or all that a rank has."""
    if not _unsaid(row).get("one_microbatch"):
        return 1
    width: int = math.prod(plan.get(key, 1) for key in ("tp", "pp", "cp"))
    sequences, gpus = cells.whole(row, "global_batch"), cells.whole(row, "gpus")
    return max(1, sequences * width // max(1, gpus))


def _unsaid(row: Row) -> Mapping[str, Any]:
    return unsaid_settings(cells.text(row, "framework"), cells.text(row, "framework_version"))


def _framework(row: Row) -> tuple[str, str]:
    """Framework and version as they are written."""
    return row["framework"], row.get("framework_version", "")


def _cluster(row: Row) -> dict[str, Any]:
    name = _profile_name(row)
    gpus = cells.whole(row, "gpus")
    cluster: dict[str, Any] = {"profile": name, "gpus": gpus}
    if (memory_gb := stated_memory_gb(row["profile"])) is not None:
        cluster["device"] = {"memory": f"{_DRIVERS_SHARE * memory_gb:.2f} GiB"}
    own = load_profile(name).network
    network: dict[str, Any] = {}
    nics = cells.whole_if_stated(row, "nics_per_node")
    if per_node := cells.whole_if_stated(row, "gpus_per_node"):
        network["gpus_per_node"] = per_node
        if "nvl72" not in name:
            network["scale_up"] = {"gpus": per_node}
        if not nics and per_node != own.gpus_per_node:
            # A node with fewer or more GPUs than the standard one has its NICs per GPU.
            nics = max(1, own.fabric.nics_per_node * per_node // own.gpus_per_node)
    fabric: dict[str, Any] = {"nics_per_node": nics} if nics else {}
    if rate_gbps := cells.number(row, "nic_gbps"):
        fabric["nic"] = f"{rate_gbps:g} Gbit/s"
    said = cells.text(row, "fabric")
    crosses = gpus > network.get("scale_up", {}).get("gpus", own.scale_up.gpus)
    if kind := spellings.fabric_kind(f"{said} {name}" if said else ""):
        version = cells.text(row, "framework_version")
        older = untuned_fabric(kind, cells.text(row, "framework"), version)
        fabric |= {"kind": kind, **older}
    elif said and crosses and not spellings.is_inside_nodes(said):
        fabric["kind"] = said  # refused by name; within a node or a rack nothing crosses it
    if fabric:
        network["fabric"] = fabric
    return {**cluster, "network": network} if network else cluster


def _profile_name(row: Row) -> str:
    """The shipped profile that the row means, or the path of another one.

    Raises:
        InputError: No profile describes the device.
    """
    said = cells.text(row, "profile")
    is_path = said.endswith((".yaml", ".yml"))
    name = said if is_path else profile_name_of(said, profile_names())
    if name is None:
        raise InputError.single("profile", f"no hardware profile describes {said or 'no device'!r}")
    # Nodes of eight V100 SXM2 are DGX-1s and similar systems, whose links make a cube mesh.
    if name == "v100-sxm2-32gb" and cells.whole_if_stated(row, "gpus_per_node") == 8:
        return "dgx1-v100-32gb"
    return name


def _plan(row: Row) -> dict[str, Any]:
    framework, version = cells.text(row, "framework"), cells.text(row, "framework_version")
    stack = stack_facts(framework, version, row.get("notes", ""))
    plan: dict[str, Any] = {}
    for key in ("tp", "pp", "vpp", "cp", "ep"):
        if (degree := cells.whole_if_stated(row, key)) is not None:
            plan[key] = degree
    stages, chunks = plan.get("pp", 1), plan.get("vpp", 1)
    if stages == 1:
        plan.pop("vpp", None)  # chunks of a pipeline that there is not
    _check_degrees(row, plan)
    plan |= _sharding(row, plan, stack["base"])
    if cells.text(row, "experts"):
        plan |= _expert_tensor_degree(row, plan)
    if stages > 1:
        plan |= _stated_layout(row, plan)
        schedule = spellings.schedule_name(cells.text(row, "schedule"), chunks)
        plan |= {"schedule": schedule} if schedule else {}
        if chunks == 1 and (folded := spellings.chunks_of_schedule(schedule)):
            plan["vpp"] = folded
    for key in ("sequence_parallel", "overlap_grad_reduce", "overlap_param_gather"):
        if (said := cells.flag(row, key)) is not None:
            plan[key] = said
    plan |= _recomputation(row) | adapters(row)
    plan |= _precision(row, stack["base"])
    published = f"{row.get('source', '')}; {row.get('notes', '')}"
    usual = recipe_settings(framework, version, plan, cells.text(row, "model"), published)
    plan = {**usual, **plan}
    if plan.get("cp", 1) > 1 and context_parallelism_of(stack["base"]) != "ring":
        plan["cp_method"] = context_parallelism_of(stack["base"])
    plan = merged(plan, _attention(row, plan, stack["base"]))
    if offloaded := _OFFLOADED_LAYERS.search(row.get("notes", "")):
        plan["offload"] = {"activations": "cpu", "activation_layers": int(offloaded.group(1))}
    of_the_model = _stack_of_the_model(row, plan, stack["base"])
    releases = releases_of_their_time(stack["base"], framework, version)
    if own := releases.pop(stack["base"], None):
        stack["base"] = f"{stack['base']}@{own}"
    plan["stack"] = {**stack, **of_the_model, **plan.get("stack", {})}
    return {**plan, "libraries": releases} if releases else plan


def _check_degrees(row: Row, plan: Mapping[str, Any]) -> None:
    """Refuse a row whose GPUs and degrees contradict each other.

    Tables count data-parallel ranks with or without those of the context and the experts, or
    groups of ranks that share states.
    """
    copies, gpus = cells.whole_if_stated(row, "dp"), cells.whole(row, "gpus")
    tp, pp, cp, ep = (plan.get(key, 1) for key in ("tp", "pp", "cp", "ep"))
    width = tp * pp * cp
    if not copies or not width or gpus % width:
        return
    group = cells.text(row, "zero_group")
    shards = int(group) if group.isdecimal() else 1
    factors = (cp, 1, ep, cp * ep, cp * max(1, shards))
    if all(copies * tp * pp * factor != gpus for factor in factors):
        rule = f"{copies} contradicts gpus / (tp x pp x cp) = {gpus // width}"
        raise InputError.single("dp", rule)


def _sharding(row: Row, plan: Mapping[str, Any], base: str) -> dict[str, Any]:
    said = cells.word(row, "zero")
    if not said:
        stage = zero_of(base, *_framework(row))
        # Inside a pipeline few shard parameters, and those who do say so.
        stage = 1 if stage == 3 and plan.get("pp", 1) > 1 else stage
    else:
        stage = cells.whole({"zero": spellings.zero_stage(said)}, "zero")
    group = _zero_group(row, plan) if stage else 0
    sharding = {"zero": stage, "zero_group": group} if group else {"zero": stage}
    is_kept = keeps_gathered(row["framework"], stage)
    return {**sharding, "zero": 3, "reshard_after_forward": False} if is_kept else sharding


def _zero_group(row: Row, plan: Mapping[str, Any]) -> int:
    said = cells.word(row, "zero_group")
    tensor_ranks = max(1, plan.get("tp", 1))
    if said in ("node", "intra-node", "in-node", "per-node"):
        standard = load_profile(_profile_name(row)).network.gpus_per_node
        group = (cells.whole_if_stated(row, "gpus_per_node") or standard) // tensor_ranks or 1
    elif said in ("", "all", "dp", "world", "full", "none", "0"):
        return 0
    else:
        group = cells.whole(row, "zero_group")
    width = cells.whole(row, "gpus") // (tensor_ranks * max(1, plan.get("pp", 1)))
    return group if group <= width else 0


def _precision(row: Row, base: str) -> dict[str, Any]:
    """Number format; before Ampere and in frameworks of that time it was fp16."""
    said = cells.word(row, "precision")
    if said:
        name = spellings.precision_name(said)
        if name == "fp32" and _multiplies_in_tf32(row, base):
            name = "tf32"
        return {"precision": name} | (_layers_in_bf16(row) if name in NARROW else {})
    of_fp16 = base.startswith(("megatron-lm-", "deepspeed-2021")) or "v100" in _profile_name(row)
    return {"precision": "fp16"} if of_fp16 else {}


def _layers_in_bf16(row: Row) -> dict[str, int]:
    phrases = _LAYERS_IN_BF16.findall(row.get("notes", ""))
    return {
        f"{end.lower()}_bf16_layers": int(count or 1)
        for *ends, count in phrases for end in ends if end
    }  # fmt: skip


def _multiplies_in_tf32(row: Row, base: str) -> bool:
    """Whether products of 32-bit numbers round what they read.

    Megatron's READMEs recommend NVIDIA's containers of PyTorch, which set
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1.
    """
    said = f"{row['framework']} {row.get('framework_version', '')}".lower()
    if not base.startswith("megatron") or not re.search("megatron|nemo", said):
        return False
    device = load_profile(_profile_name(row)).device
    is_amd = (device.architecture or "").startswith("cdna")
    return not is_amd and device.peak.of("tf32") is not None


def _recomputation(row: Row) -> dict[str, Any]:
    said, notes = cells.word(row, "recompute"), row.get("notes", "")
    usual = _unsaid(row).get("recompute")
    extent = spellings.recompute_extent(said) if said else usual
    recomputation: dict[str, Any] = {"recompute": extent} if extent else {}
    if some_layers := _SOME_LAYERS_AGAIN.search(notes):
        recomputation["recompute_layers"] = int(some_layers.group(1) or some_layers.group(2))
    elif every := _EVERY_SO_MANY_LAYERS.search(notes):
        interval = 2 if every.group(1).lower() == "other" else int(every.group(1))
        layers = cells.whole(row, "layers") // interval
        recomputation |= {"recompute": "full", "recompute_layers": layers}
    elif modules := _RECOMPUTED_MODULES.search(notes):
        recomputation |= {
            "recompute": "selective", "recompute_modules": re.split(r" ?\+ ?", modules.group(1)),
        }  # fmt: skip
    return recomputation


def _attention(row: Row, plan: Mapping[str, Any], base: str) -> dict[str, Any]:
    said = cells.word(row, "attention")
    asked = spellings.attention_facts(said) if said else {}
    if plan.get("precision") in ("fp32", "tf32"):
        # FlashAttention reads no 32-bit numbers: asked for it, a framework takes another, which
        # is memory-efficient attention in PyTorch's scaled_dot_product_attention.
        is_named = "flash_kernel" in asked.get("stack", {})
        brought = fused_attention(base, *_framework(row))
        fuses = not is_named and has_wide_kernel(brought)
        return asked if asked.get("attention") != "flash" or fuses else {}
    if said:
        return merged(asked, _grouped_heads(row, asked, base))
    if plan.get("cp", 1) > 1:
        return {"attention": "flash"}  # a ring or a trade of heads is built around one kernel
    repeats_core = "core_attn" in plan.get("recompute_modules", ["core_attn"])
    if plan.get("recompute") == "selective" and repeats_core and cells.word(row, "recompute"):
        # Core attention is only worth computing again where its scores would be kept.
        return {"attention": "fused-softmax"}
    return {}


def _grouped_heads(row: Row, asked: Mapping[str, Any], base: str) -> dict[str, Any]:
    """What models of transformers do with grouped heads, where a row names fused attention.

    That is the package flash-attn, which takes them as they are, unless it is PyTorch's.
    """
    follows = "transformers" in libraries_of_stack(base)
    is_theirs = follows or runs_transformers(*_framework(row))
    is_package = asked.get("attention") == "flash" and "sdpa" not in cells.word(row, "attention")
    return {"stack": {"repeats_kv_heads": "unfused"}} if is_theirs and is_package else {}


def _stack_of_the_model(row: Row, plan: Mapping[str, Any], base: str) -> dict[str, Any]:
    """What a stack does otherwise around this model, or in this number format."""
    facts: dict[str, Any] = {}
    if base.startswith("megatron-lm-") and plan.get("precision") == "bf16":
        # ``arguments.py``: bf16 sets accumulate_allreduce_grads_in_fp32.
        facts |= {"main_grad_precision": "fp32", "grad_reduce_precision": "fp32"}
    if base in ("deepspeed", "megatron-deepspeed") and cells.flag(row, "gated_mlp"):
        # Models like Llama, of 2023 and later, train without dropout and on flash attention.
        facts |= {"dropout": False, "attention": "flash"}
    of_transformers = runs_transformers(*_framework(row))
    if of_transformers and base in ("deepspeed", "deepspeed-2021", "torch-fsdp"):
        facts |= eager_model_facts(*_framework(row))
    if sums_unsharded(*_framework(row)):
        facts["sums_unsharded"] = True
    said = f"{row['framework']} {row.get('framework_version', '')} {row.get('notes', '')}".lower()
    if plan.get("tp", 1) > 1 and wraps_tensors(base, said):
        facts["host_work_per_exchange"] = host_launches("dtensor_exchange")
    if drops_out(*_framework(row), cells.text(row, "model")):
        facts["dropout"] = True
    return facts


def _expert_tensor_degree(row: Row, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Ranks that share an expert, where the notes or the framework's generation say so.

    Recipes before Megatron-Bridge (NeMo up to 25.02) and Megatron-LM's own scripts leave it at
    Megatron-Core's default: experts are split as the rest of the layer is (``arguments.py``:
    expert_tensor_parallel_size is tensor_model_parallel_size where nobody says). Ranks of one
    tensor-parallel group must hold other tokens than each other, so they cut the sequence where
    the row does not say.
    """
    tp = plan.get("tp", 1)
    cuts = {"sequence_parallel": True} if tp > 1 else {}
    stated = re.search(r"\bETP ?=? ?(\d+)|expert tensor parallel (\d+)", row.get("notes", ""))
    if stated:
        return {**cuts, "etp": int(stated.group(1) or stated.group(2))}
    said = f"{row['framework']} {row.get('framework_version', '')}"
    inherits = re.search(r"(?i)\bnemo\b.*?(?<![\d.])(24\.\d\d|25\.0[0-2])|megatron-lm\b", said)
    return {**cuts, "etp": tp} if inherits else cuts


def _stated_layout(row: Row, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Layers per stage, or what counts as a layer, where the notes say so."""
    notes = row.get("notes", "")
    stated = re.search(r"units per stage incl\. embedding and head ([\d/]+)", notes)
    if stated:
        first, *middle, last = [int(units) for units in stated.group(1).split("/")]
        return {"layout": [first - 1, *middle, last - 1]}
    if re.search(r"first and last stages? (each )?(hold|have)s? one layer (fewer|less)", notes):
        stages = plan["pp"] * plan.get("vpp", 1)
        middle = [(cells.whole(row, "layers") + 2) // stages] * stages
        return {"layout": [middle[0] - 1, *middle[1:-1], middle[-1] - 1]}
    counted = re.search(r"embedding and (loss|head) (are )?count(ed)? as .*layers", notes)
    # Two stages without a layer are those of the embedding and of the loss.
    layers, stages = cells.whole_if_stated(row, "layers"), plan["pp"] * plan.get("vpp", 1)
    counts = counted or (layers is not None and layers + 2 == stages)
    return {"account_for_embedding": True, "account_for_loss": True} if counts else {}
