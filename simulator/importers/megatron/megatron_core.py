"""How do settings of Megatron-Core become a model, a plan and a batch?

Megatron-LM's command line, NeMo or Megatron-Bridge say the same things with mostly the
same names (``simulator/facts/importers/megatron.yaml``); their importers bring them into
one flat mapping, and this file says what it means. Defaults are those of Megatron-LM. What a plan
cannot say (16-bit moments, some layers' activations on the host) is a fault.

Source: Megatron-LM's ``arguments.py``, ``HybridDeviceOptimizer`` and ``TransformerConfig``
(core_r0.12 to 0.16), as facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from simulator.described.plan.layout_text import layers_per_stage
from simulator.described.plan.plan_fields import RecomputeModule
from simulator.errors import InputError
from simulator.importers.assembly import Draft
from simulator.importers.hub_models import ModelDocument
from simulator.importers.megatron.megatron_experts import (
    expert_parallelism,
    experts_of,
    pass_over_experts,
)
from simulator.importers.megatron.megatron_model import (
    COUNTS,
    count_of,
    model_fields,
    named_keys,
    switch_of,
)
from simulator.importers.settings import Settings, expert_exchange, leave_out, option_table

SHARDING = option_table("megatron", "sharding")
CP_METHODS = option_table("megatron", "cp_methods")
PIPELINE_BEFORE_DATA = "tp-cp-ep-pp-dp"
"""Rank order of ``--use-tp-pp-dp-mapping``."""
_NETWORKS_OF_OTHER_SORTS = r"(.*/)?[\w-]*(t5|ict|vit|vision|retro|mamba|vlm)[\w-]*\.py"
_CHUNK_GROUPS = tuple(
    f"microbatch_group_size_per_{stage}_stage" for stage in ("vp", "virtual_pipeline")
)
"""Microbatches that run through one chunk before the next chunk's turn, where chunks alternate."""
_CP_SIZES = "hierarchical_context_parallel_sizes"
_LAYOUT_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def is_language_model(script: str) -> bool:
    """Whether a training script's name is not that of another sort of network."""
    return re.fullmatch(_NETWORKS_OF_OTHER_SORTS, script) is None


def megatron_draft(
    settings: Settings, gpus: int | None, name: str | None, known: ModelDocument | None = None
) -> Draft:
    """The model, plan and batch of Megatron-Core's settings; faults go to ``settings``.

    Args:
        settings: What a file says, under the names of Megatron-LM.
        gpus: GPUs of the job, where they are known.
        name: Name of the model; None where the user takes another than the file's.
        known: The model where the file only names one.
    """
    tp, pp = count_of(settings, "plan.tp", 1), count_of(settings, "plan.pp", 1)
    layers = count_of(settings, "model.layers", None)
    says_layers = any(settings.get(key) is not None for key in COUNTS["model.layers"])
    model = model_fields(settings, tp, name) if says_layers else None
    draft = Draft(model=known or model, gpus=gpus)
    if known is not None or name is None:
        settings.pass_over("|".join(named_keys("model.")))
    draft.micro_batch = count_of(settings, "batch.micro", 1)
    draft.global_batch = count_of(settings, "batch.global", None)
    draft.seq_len = count_of(settings, "batch.seq_len", None)
    experts = experts_of(draft.model)
    has_experts = bool(experts)
    if not has_experts:
        pass_over_experts(settings)
    is_narrow = keeps_16_bit_gradients(settings)
    draft.plan = {
        "tp": tp,
        "pp": pp,
        **_virtual_stages(settings, pp, layers),
        **_context_parallelism(settings),
        **expert_parallelism(settings, tp, experts),
        **_sharding(settings, (gpus or 0) // (tp * pp)),
        **_precision(settings, keeps_16_bit=is_narrow),
        **_recomputation(settings),
        **offload_fields(settings, layers),
        "optimizer": _optimizer(settings),
        "moment_precision": moment_format(settings),
        "clip_gradients": settings.number("clip_grad", "optim.grad_clip", default=1.0) > 0,
        "rank_order": PIPELINE_BEFORE_DATA if settings.switch("use_tp_pp_dp_mapping") else None,
        "attention": _attention(settings),
        "deterministic": settings.switch("deterministic_mode"),
        "cuda_graphs": _cuda_graphs(settings),
        **_overlaps(settings, tp),
    }
    draft.facts = _facts(settings, has_experts=has_experts)
    if is_narrow:
        draft.facts["copies_gradients"] = False
    if draft.plan["optimizer"] == "muon" and settings.get("optimizer") == "dist_muon":
        # Megatron-Core, layer_wise_optimizer.py: whole parameters by rank, then one all_gather.
        draft.plan |= {"zero": 1, "zero_group": 0}
        draft.facts |= {"shards_whole_parameters": True, "flat_broadcasts": True}
    return draft


def _virtual_stages(settings: Settings, pp: int, layers: int | None) -> dict[str, Any]:
    keys = "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"
    given = settings.whole(*keys, default=None, least=1)
    per_chunk = settings.whole("num_layers_per_virtual_pipeline_stage", default=None, least=1)
    found: dict[str, Any] = {"vpp": given or 1}
    if (group := settings.whole(*_CHUNK_GROUPS, default=pp)) != pp:
        key, _ = settings.first(*_CHUNK_GROUPS)
        rule = f"is not modelled: chunks alternate after as many microbatches as stages, {pp}"
        settings.fault(key, rule, group, leave_out(key))
    if per_chunk and layers:
        if layers % (pp * per_chunk):
            rule = f"must divide the {layers} layers over {pp} stages"
            settings.fault("num_layers_per_virtual_pipeline_stage", rule, per_chunk)
        found["vpp"] = max(1, layers // (pp * per_chunk))
    for name in ("first_stage_layers", "last_stage_layers"):
        found[name] = count_of(settings, f"plan.{name}", 0)
    for name in ("account_for_embedding", "account_for_loss"):
        found[name] = switch_of(settings, f"plan.{name}")
    if layout := _layout(settings, pp):
        found |= layout
    if settings.switch("enable_zbh1_pipeline") and pp > 1:
        found["schedule"] = "zb-h1"
    return found | _partition(settings)


def _partition(settings: Settings) -> dict[str, bool]:
    """How DeepSpeed's pipeline deals out modules: embedding and head may count as layers do."""
    key = "pp_partition_method"
    methods = option_table("megatron", "partitions")
    given = settings.get(key)
    named = methods.get(str(given).lower().strip("'\"")) if given is not None else ()
    if named is None:
        settings.fault(key, f"is not modelled; known: {', '.join(methods)}", given, leave_out(key))
    return dict.fromkeys(named or (), True)


def _layout(settings: Settings, pp: int) -> dict[str, Any]:
    """A layout string, from the string itself or from lists of module names."""
    layout = settings.get("pipeline_model_parallel_layout")
    if layout is None:
        return {}
    if isinstance(layout, list) and all(isinstance(stage, list) for stage in layout):
        stages = ["".join(_LAYOUT_LETTERS.get(str(name), "?") for name in s) for s in layout]
        layout = "|".join(stages)
    try:
        stages_in_all = len(layers_per_stage(str(layout)))
    except InputError as error:
        settings.faults += error.faults
        return {}
    return {"layout": str(layout), "vpp": max(1, stages_in_all // pp)}


def _context_parallelism(settings: Settings) -> dict[str, Any]:
    ulysses = settings.whole("ds_sequence_parallel_size", default=1, least=1)
    if ulysses > 1:
        return {"cp": ulysses, "cp_method": "all_to_all"}
    given = settings.get("cp_comm_type")
    if isinstance(given, list):
        settings.fault("cp_comm_type", "must be one for all layers", given)
        return {}
    method = settings.choice("cp_comm_type", meanings=CP_METHODS, default="ring")
    cp, sizes = count_of(settings, "plan.cp", 1), settings.get(_CP_SIZES)
    if cp == 1 or method != "all_to_all+ring":
        return {"cp": cp, "cp_method": method if cp > 1 else "ring"}
    if not (isinstance(sizes, list) and len(sizes) == 2 and str(sizes[0]).isdigit()):
        rule = "must be two numbers for a2a+p2p: ranks that exchange heads, and rings between them"
        settings.fault(_CP_SIZES, rule, sizes)
        return {}
    return {"cp": cp, "cp_method": method, "cp_heads": int(sizes[0])}


def _sharding(settings: Settings, width: int) -> dict[str, Any]:
    """ZeRO stage, and the group it shards over, of ``width`` = dp x cp ranks."""
    is_sharded = settings.switch("use_distributed_optimizer")
    optimizer = settings.get("optim.name") or settings.get("optimizer")
    is_sharded = is_sharded or optimizer == "distributed_fused_adam"
    zero = settings.whole("zero_stage", default=1 if is_sharded else 0)
    strategy = settings.choice("data_parallel_sharding_strategy", meanings=SHARDING, default=0)
    if settings.switch("use_megatron_fsdp", "use_custom_fsdp"):
        zero = strategy
    if settings.switch("use_torch_fsdp2"):
        zero = 3
    replicas = settings.whole("num_distributed_optimizer_instances", default=1)
    return {"zero": zero, "zero_group": width // replicas if replicas > 1 and zero else 0}


def _precision(settings: Settings, *, keeps_16_bit: bool) -> dict[str, Any]:
    """Format of the products, and the format that gradients are reduced in."""
    trainer = str(settings.get("trainer.precision") or settings.get("precision") or "")
    is_fp16 = settings.switch("fp16") or trainer.startswith("16")
    is_bf16 = settings.switch("bf16") or trainer.startswith("bf16")
    precision = "bf16" if is_bf16 else "fp16" if is_fp16 else "fp32"
    eight = settings.get("fp8_format") or settings.get("fp8")
    if isinstance(eight, bool) and eight:
        eight = "hybrid"
    settings.pass_over("fp[48]_recipe")  # of no meaning without such a format
    if eight:
        kinds = {"delayed": "fp8", "tensorwise": "fp8", "mxfp8": "mxfp8"}
        precision = settings.choice("fp8_recipe", meanings=kinds, default="fp8")
    four = settings.get("fp4_format") or settings.get("fp4")
    if four:
        precision = settings.choice("fp4_recipe", meanings={"nvfp4": "nvfp4"}, default="nvfp4")
    reduced = "fp32"
    in_fp32 = settings.switch("grad_reduce_in_fp32", default=True)
    if settings.switch("grad_reduce_in_bf16") or keeps_16_bit or (is_bf16 and not in_fp32):
        reduced = "bf16"
    if is_fp16 and not settings.switch("accumulate_allreduce_grads_in_fp32"):
        reduced = "fp16"
    settings.switch("accumulate_allreduce_grads_in_fp32")
    found = {"precision": precision, "grad_reduce_precision": reduced}
    return found | _bf16_layers(settings, is_narrow=bool(eight or four))


def _bf16_layers(settings: Settings, *, is_narrow: bool) -> dict[str, int]:
    """Layers at either end that stay in bf16; without narrow products the options say nothing."""
    counts = {
        f"{ours}_bf16_layers": settings.whole(f"num_layers_at_{theirs}_in_bf16", default=1)
        for ours, theirs in (("first", "start"), ("last", "end"))
    }
    return counts if settings.switch("first_last_layers_bf16") and is_narrow else {}


def _recomputation(settings: Settings) -> dict[str, object]:
    granularity = settings.choice(
        "recompute_granularity", "activations_checkpoint_granularity",
        meanings={"selective": "selective", "full": "full", "none": "none"}, default="none",
    )  # fmt: skip
    if settings.switch("recompute_activations"):
        granularity = "selective"
    if settings.switch("checkpoint_activations", "deepspeed_activation_checkpointing"):
        granularity = "full"
    key, method = settings.first("recompute_method", "activations_checkpoint_method")
    if method and granularity == "none" and key == "activations_checkpoint_method":
        # Before granularity had a flag, naming a method was enough; NeMo names one always.
        granularity = "none" if settings.states("activations_checkpoint_granularity") else "full"
    named = settings.get("recompute_modules")  # of no meaning beside anything but selective
    if settings.switch("moe_layer_recompute"):
        if granularity == "full":
            rule = "must be left out if whole layers are recomputed"
            settings.fault("moe_layer_recompute", rule, value=True)
        granularity, named = "selective", _with_experts(named)
    modules = _modules(settings, named) if granularity == "selective" else {}
    layers = _repeated_layers(settings, str(method)) if granularity == "full" else {}
    divides = settings.switch("distribute_saved_activations")
    return {"recompute": granularity, "partition_activations": divides, **layers, **modules}


def _with_experts(named: object) -> list[object]:
    """The modules that are named, or else Megatron-Core's default, and the experts."""
    given = list(named) if isinstance(named, list | tuple) else [named or "core_attn"]
    return [*given, *({"moe"} - set(given))]


def _modules(settings: Settings, given: object) -> dict[str, object]:
    """The parts of a layer that are named; nothing where Megatron-Core's default holds.

    An empty list is no default: it repeats nothing.
    """
    if given is None:
        return {}
    names = [str(name) for name in given] if isinstance(given, list | tuple) else [str(given)]
    if not names:
        return {"recompute": "none"}
    known = get_args(RecomputeModule)
    for name in names:
        if name not in known:
            rule = f"is not modelled; known: {', '.join(known)}"
            settings.fault("recompute_modules", rule, name, "use recompute_granularity full")
    return {"recompute_modules": names}


def _repeated_layers(settings: Settings, method: str) -> dict[str, object]:
    keys = ("recompute_num_layers", "activations_checkpoint_num_layers", "checkpoint_num_layers")
    key, _ = settings.first(*keys)
    number = settings.whole(*keys, default=None)
    if method == "block" and number is not None:
        return {"recompute_layers": number}
    if method == "uniform" and (number or 1) > 1:
        rule = "keeps one input for several layers, which is not modelled"
        settings.fault(key, rule, number, leave_out(key))
    return {}


def _optimizer(settings: Settings) -> str:
    names = dict.fromkeys(
        ("adam", "adamw", "fused_adam", "distributed_fused_adam", "mcore_distributed_optim"), "adam"
    )
    momentum = settings.number("sgd_momentum", default=0.9)
    names |= {"sgd": "sgd-momentum" if momentum else "sgd", "muon": "muon", "dist_muon": "muon"}
    if settings.switch("use_bnb_optimizer"):
        names["adam"] = "adam-8bit"
    found = settings.choice("optimizer", "optim.name", meanings=names, default="adam")
    if found == "muon":
        check_muon(settings)
    return found


def _attention(settings: Settings) -> str | None:
    kinds = dict.fromkeys(("auto", "AttnBackend.auto"))
    kinds |= dict.fromkeys(("flash", "fused", "AttnBackend.flash", "AttnBackend.fused"), "flash")
    kinds |= dict.fromkeys(("unfused", "local", "AttnBackend.unfused"), "fused-softmax")
    found = settings.choice("attention_backend", meanings=kinds, default=None)
    is_local = settings.get("transformer_impl") == "local"
    if settings.switch("use_flash_attn", "use_flash_attn_v2", "use_flash_attention"):
        return "flash"
    if is_local and found != "flash":
        return "unfused" if settings.switch("no_masked_softmax_fusion") else "fused-softmax"
    return found


def _cuda_graphs(settings: Settings) -> str:
    """What the device replays: passes of routers or layers, or all of a step."""
    kinds = option_table("megatron", "cuda_graphs")
    found: str = settings.choice("cuda_graph_impl", meanings=kinds, default="none")
    scopes = set(settings.words("cuda_graph_scope") or ())
    if found != "none" and scopes:
        if scopes == {"full_iteration"}:
            return "full"
        if scopes <= {"moe_router", "moe_preprocess"}:
            return "router"
    of_layers = settings.switch("enable_cuda_graph", "external_cuda_graph", "use_cuda_graph")
    return "layer" if of_layers and found == "none" else found


def _overlaps(settings: Settings, tp: int) -> dict[str, Any]:
    waits = settings.switch("no_overlap_p2p_communication")
    cuts = switch_of(settings, "plan.sequence_parallel")
    waits = waits or not settings.switch("overlap_p2p_comm", default=True)
    return {
        "overlap_grad_reduce": switch_of(settings, "plan.overlap_grad_reduce"),
        "overlap_param_gather": switch_of(settings, "plan.overlap_param_gather"),
        "overlap_p2p": False if waits else None,
        "overlap_tp": switch_of(settings, "plan.overlap_tp") or None,
        "sequence_parallel": cuts if tp > 1 else None,
    }


_FUSIONS = {
    "fused_accumulation": (
        ("no_gradient_accumulation_fusion",), ("gradient_accumulation_fusion",),
    ),
    "fused_rotary": (("no_rope_fusion",), ("apply_rope_fusion",)),
    "fused_elementwise": (
        ("no_bias_gelu_fusion", "no_bias_swiglu_fusion", "no_bias_dropout_fusion"),
        ("bias_activation_fusion",),
    ),
}  # fmt: skip
"""Options that refuse a fusion on the command line, and those that allow it in a recipe."""


def _facts(settings: Settings, *, has_experts: bool) -> dict[str, Any]:
    dropouts = [settings.number(f"{kind}_dropout", default=0.1) for kind in ("hidden", "attention")]
    unsaid = [f"--{kind}-dropout" for kind in ("hidden", "attention")
              if settings.get(f"{kind}_dropout") is None]  # fmt: skip
    if unsaid:
        settings.assumed.append(f"{' and '.join(unsaid)} 0.1, Megatron's default")
    fuses_loss = settings.switch("cross_entropy_loss_fusion")
    facts: dict[str, Any] = {
        "dropout": any(dropouts),
        "cross_entropy": "fused" if fuses_loss else "in-place",
    }
    for fact, (refusals, consents) in _FUSIONS.items():
        refused = [name for name in refusals if settings.switch(name)]
        withheld = [name for name in consents if not settings.switch(name, default=True)]
        if refused or withheld:
            facts[fact] = False
    if has_experts:
        facts["grouped_experts"] = settings.switch("moe_grouped_gemm")
        facts["fused_permutation"] = settings.switch("moe_permute_fusion")
        facts |= expert_exchange(settings, "moe_flex_dispatcher_backend")
    if settings.get("fp8_recipe") == "tensorwise":
        facts["float8_scaling"] = "tensor"
    if settings.switch("fp8_param_gather", "fp8_param"):
        facts["keeps_cast_weights"] = False
        settings.assumed.append("8-bit weights are gathered as 16-bit ones would be")
    return facts


_FP32 = ("fp32", "float32", "torch.float32")
_BF16 = ("bf16", "bfloat16", "torch.bfloat16")
_FORMATS: Mapping[str, str] = {**dict.fromkeys(_FP32, "fp32"), **dict.fromkeys(_BF16, "bf16")}
_MOMENTS = ("exp_avg_dtype", "exp_avg_sq_dtype")
_STATES = ("main_params_dtype", *_MOMENTS)
"""Formats of what the optimizer keeps; a plan has fp32 weights, and moments that are both alike."""
_MUON = (
    ("muon_num_ns_steps", (5,), "uses a number of Newton-Schulz steps other than five"),
    ("muon_tp_mode", ("blockwise",), "gathers the parts of tensor-parallel ranks"),
    ("muon_fp32_matmul_prec", ("medium", "low"), "orthogonalises in another format than bf16"),
)
"""Settings of Muon that cost something, and what of them is modelled."""


def offload_fields(settings: Settings, layers: int | None) -> dict[str, Any]:
    """The plan's ``offload``, where anything leaves the GPU; faults go to ``settings``.

    Args:
        settings: What a file says.
        layers: Layers of the model, where the file says them.
    """
    found: dict[str, Any] = {}
    share = settings.number("optimizer_offload_fraction", default=1.0)
    overlaps = settings.switch("overlap_cpu_optimizer_d2h_h2d")
    if settings.switch("optimizer_cpu_offload") and share > 0:
        found["optimizer"] = "cpu"
        found |= {"share": share} if share < 1 else {}
        found |= {} if overlaps else {"overlap": False}
        _check_pinning(settings)
    if number := _offloaded_layers(settings, layers):
        found["activations"] = "cpu"
        if layers is None or number != layers - 1:
            found["activation_layers"] = number
    return {"offload": found} if found else {}


def _check_pinning(settings: Settings) -> None:
    """Note copies that go through memory that is not pinned, which are slower."""
    for what in ("cpu_grads", "cpu_params"):
        is_pinned = settings.switch(f"pin_{what}", default=True)
        if settings.switch(f"no_pin_{what}") or not is_pinned:
            key = f"pin_{what}" if settings.states(f"pin_{what}") else f"no_pin_{what}"
            rule = "is not modelled: copies use pinned memory"
            settings.fault(key, rule, settings.get(key), leave_out(key))


def _offloaded_layers(settings: Settings, layers: int | None) -> int:
    number = settings.whole("cpu_offloading_num_layers", default=0)
    # Some launch lines name only the number of layers.
    is_on = settings.switch("cpu_offloading", default=number > 0)
    is_on = is_on and settings.switch("cpu_offloading_activations", default=True)
    if is_on and layers is not None and number >= layers:
        rule = f"must be below the {layers} layers of the model: the last one stays"
        settings.fault("cpu_offloading_num_layers", rule, number,
                       leave_out("cpu_offloading_num_layers"))  # fmt: skip
    return number if is_on else 0


def keeps_16_bit_gradients(settings: Settings) -> bool:
    """Whether the optimizer works on bf16 gradients without an fp32 copy of them.

    That takes the precision-aware optimizer and ``--main-grads-dtype bf16``; gradients are
    then accumulated and reduced in bf16, too. Formats that a plan cannot say are faults.
    """
    formats = {
        key: settings.choice(key, meanings=_FORMATS, default="fp32")
        for key in ("main_grads_dtype", *_STATES)
    }
    if not settings.switch("use_precision_aware_optimizer"):
        return False
    narrow = {formats[key] for key in _MOMENTS} == {"bf16"}
    for key in _STATES:
        if formats[key] != "fp32" and not (narrow and key in _MOMENTS):
            rule = "is not modelled: a plan keeps weights in fp32, and both moments in fp32 or bf16"
            settings.fault(key, rule, settings.get(key), leave_out(key))
    if formats["main_grads_dtype"] == "fp32":
        return False
    if settings.switch("accumulate_allreduce_grads_in_fp32") or not settings.switch("bf16"):
        rule = "must be fp32 if gradients are not accumulated in bf16"
        settings.fault("main_grads_dtype", rule, settings.get("main_grads_dtype"))
    return True


def moment_format(settings: Settings) -> str | None:
    """Format of the moments, where the precision-aware optimizer narrows both."""
    is_on = settings.switch("use_precision_aware_optimizer")
    formats = {settings.choice(key, meanings=_FORMATS, default="fp32") for key in _MOMENTS}
    return "bf16" if is_on and formats == {"bf16"} else None


def check_muon(settings: Settings) -> None:
    """Note what Muon does otherwise than the simulator."""
    for key, modelled, why in _MUON:
        value = settings.get(key)
        if value is not None and value not in modelled:
            settings.fault(key, f"is not modelled: it {why}", value, leave_out(key))
