"""What does a DeepSpeed configuration (``ds_config.json``) say of a job?

It knows how states are sharded and in which format they are kept. The model, the length
of its sequences and the number of GPUs stand elsewhere, and so does recomputation, which
DeepSpeed leaves to the model's code: these are given beside the file.

Source: DeepSpeed's configuration reference (0.9 to 0.18), as facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.described.plan.shipped_stacks import STACKS
from simulator.files import read_text
from simulator.importers.assembly import Draft, Given, finished, flat, parse_mapping
from simulator.importers.settings import Settings, option_rules, option_table, sort_out

_WANTED = "give a ds_config.json of DeepSpeed"

_OWN_LINEAR = "zero_optimization.memory_efficient_linear"
_BUCKET = "zero_optimization.reduce_bucket_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STACK = "deepspeed"
"""Stack of a file whose user names none; those of other generations begin with it."""


def read_deepspeed_config(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a DeepSpeed configuration, and a report on its settings.

    Args:
        path: A ``ds_config.json``.
        given: The model, GPUs and sequence length, and what else the file leaves open.

    Raises:
        InputError: It is no such file, a setting costs something that is not modelled, or
            something is missing.
    """
    origin = str(path)
    settings = read_settings(read_text(Path(path), _WANTED), origin)
    if "plan.precision" not in given.changes:
        _check_that_the_format_is_said(settings)
    stack, given = _generation(given)
    draft = Draft(model=given.model, stack=stack, gpus=given.gpus)
    draft.plan = deepspeed_plan(settings)
    _assume_what_checkpoints_imply(settings, draft.plan)
    precision = str(given.changes.get("plan.precision", draft.plan["precision"]))
    draft.facts = deepspeed_facts(settings, stack, draft.plan["zero"], precision=precision)
    ranks = (given.gpus or 0) // (draft.plan["tp"] * draft.plan["cp"])
    draft.micro_batch, draft.global_batch = _batch(settings, given, ranks)
    if "plan.attention" not in given.changes:
        settings.assumed.append(assumed_attention(stack, precision))
    if "plan.recompute" not in given.changes:
        settings.assumed.append(
            f"recompute {draft.plan.get('recompute', 'none')}: the model's code decides it; "
            "--set plan.recompute=... says what it does"
        )
    return finished(draft, settings, option_rules("deepspeed"), given, origin)


def assumed_attention(stack: str, precision: str) -> str:
    """What is taken for attention, which the model's code decides, and what that means."""
    plan = Plan.model_validate({"stack": stack, "precision": precision})
    return (
        f"attention {plan.attention_kernel}: the model's code decides it. Llama and most models "
        "of transformers since 4.36 with PyTorch 2.1.1 call PyTorch's fused one (flash), older "
        "ones and those with attn_implementation: eager compute it step by step "
        "(--set plan.attention=unfused), Megatron-DeepSpeed with its own softmax (fused-softmax)"
    )


def _generation(given: Given) -> tuple[str, Given]:
    """The stack that the user names, if it is one of DeepSpeed, and what else he says.

    A file says no version; what it sets otherwise than the stack holds whatever the version.
    """
    name = str(given.changes.get("plan.stack"))
    if not name.startswith(_STACK) or name not in STACKS:
        return _STACK, given
    others = {path: value for path, value in given.changes.items() if path != "plan.stack"}
    return name, replace(given, changes=others)


def read_settings(text: str, origin: str) -> Settings:
    """The settings of a configuration; "auto" leaves one to the trainer, and says nothing.

    Raises:
        InputError: It is no JSON object.
    """
    return with_open_settings(flat(parse_mapping(text, origin, _WANTED), origin))


def with_open_settings(values: Mapping[str, Any]) -> Settings:
    """Settings of which those that say "auto" are left open."""
    open_keys = {key: None for key, value in values.items() if value == "auto"}
    settings = Settings({**values, **open_keys}, "DeepSpeed")
    settings.left_open = tuple(open_keys)
    return settings


def completed(values: Mapping[str, Any], trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what Hugging Face's Trainer writes in place of "auto".

    Args:
        values: Settings by dotted path.
        trainer: Its arguments, by their names.
    """
    said = option_table("deepspeed", "trainer")
    return {
        key: trainer.get(said[key]["setting"], said[key]["default"])
        if value == "auto" and key in said
        else value
        for key, value in values.items()
    }


def add_inner_faults(inner: Settings, settings: Settings, name: str, given: Given) -> None:
    """Account for a configuration inside other settings; ``name`` is its file."""
    rest = sort_out(inner, option_rules("deepspeed"), given.ignore)
    settings.faults += [replace(fault, file=name) for fault in inner.faults]
    settings.assumed += (*inner.assumed, *rest.assumed)
    settings.unsupported += rest.unsupported


def deepspeed_plan(settings: Settings) -> dict[str, Any]:
    """Fields of a plan that a configuration decides; faults go to ``settings``."""
    # Before there were stages, zero_optimization was true or false.
    is_on = settings.switch("zero_optimization") if settings.states("zero_optimization") else False
    zero = settings.whole("zero_optimization.stage", default=int(is_on))
    overlaps = settings.switch("zero_optimization.overlap_comm", default=zero == 3)
    for key in ("allgather_partitions", *(["reduce_scatter"] if zero == 3 else [])):
        if not settings.switch(f"zero_optimization.{key}", default=True):
            rule = "makes ranks send more than they need, which is not modelled"
            settings.fault(f"zero_optimization.{key}", rule, value=False, hint="use true")
    tp = settings.whole("tensor_parallel.autotp_size", default=1) or 1
    section = "activation_checkpointing"
    kept = checkpoint_fields(
        tp,
        in_parts=settings.switch(f"{section}.partition_activations"),
        on_host=settings.switch(f"{section}.cpu_checkpointing"),
        in_one_buffer=settings.switch(f"{section}.contiguous_memory_optimization"),
    )
    offload = {**_offload(settings), **kept.pop("offload", {})}
    return {
        **kept,
        **({"offload": offload} if offload else {}),
        **_expert_parallelism(settings),
        "tp": tp,
        "cp": settings.whole("sequence_parallel_size", default=1, least=1),
        "cp_method": "all_to_all" if settings.get("sequence_parallel_size") else "ring",
        "zero": zero,
        "zero_group": max(0, settings.whole("zero_optimization.mics_shard_size", default=0)),
        "precision": _precision(settings),
        "optimizer": _optimizer(settings),
        "clip_gradients": _clips(settings),
        "overlap_grad_reduce": overlaps,
        "overlap_param_gather": zero == 3,
        "grad_reduce_precision": settings.meaning(
            "deepspeed/formats", "communication_data_type", default=None
        ),
    }


def _expert_parallelism(settings: Settings) -> dict[str, Any]:
    """Degree of AutoEP (DeepSpeed 0.19, ``module_inject/auto_ep_config.py``); nothing without."""
    if not settings.switch("expert_parallel.enabled"):
        return {}
    ep = settings.whole("expert_parallel.autoep_size", default=1, least=1)
    return {"ep": ep, "etp": 1} if ep > 1 else {}


def checkpoint_fields(
    tp: int, *, in_parts: bool, on_host: bool, in_one_buffer: bool
) -> dict[str, Any]:
    """Fields of a plan that say where the inputs of recomputed layers are kept.

    Args:
        tp: Tensor-parallel degree; alone, a rank has nothing to divide.
        in_parts: Each tensor-parallel rank keeps its part.
        on_host: They are in host memory.
        in_one_buffer: They lie in one buffer.
    """
    return {
        **({"partition_activations": True} if in_parts and tp > 1 else {}),
        **({"contiguous_checkpoints": True} if in_one_buffer else {}),
        **({"offload": {"activations": "cpu"}} if on_host else {}),
    }


def _assume_what_checkpoints_imply(settings: Settings, plan: dict[str, Any]) -> None:
    """Checkpoints that are divided or moved are those of layers that are computed again."""
    at_host = plan.get("offload", {}).get("activations")
    if at_host or {"partition_activations", "contiguous_checkpoints"} & set(plan):
        plan["recompute"] = "full"
        settings.assumed.append(
            "the model's code checkpoints every layer with DeepSpeed's function"
        )


def _clips(settings: Settings) -> bool:
    """Whether gradients are clipped; DeepSpeed does not by default."""
    given = settings.get("gradient_clipping")
    if given is None and "gradient_clipping" in settings.left_open:
        settings.assumed.append("gradients are clipped, as the trainer does by default")
        return True
    return settings.number("gradient_clipping", default=0.0) > 0


def _offload(settings: Settings) -> dict[str, Any]:
    places = {"cpu": "cpu", "nvme": "nvme", "none": None}
    block = "zero_optimization.offload_"
    found: dict[str, Any] = {
        "optimizer": settings.choice(f"{block}optimizer.device", meanings=places, default=None),
        "parameters": settings.choice(f"{block}param.device", meanings=places, default=None),
    }
    # Their names before there were blocks.
    if settings.switch("zero_optimization.cpu_offload"):
        found["optimizer"] = "cpu"
    if settings.switch("zero_optimization.cpu_offload_params"):
        found["parameters"] = "cpu"
    share = settings.number(f"{block}optimizer.ratio", default=1.0)
    if found["optimizer"] and share < 1:
        found["share"] = share
    return {name: place for name, place in found.items() if place is not None}


def _check_that_the_format_is_said(settings: Settings) -> None:
    """Ask once for the format that a trainer decides, whichever it leaves open."""
    if settings.switch("bf16.enabled") or settings.switch("fp16.enabled"):
        return
    keys = [key for key in ("bf16.enabled", "fp16.enabled") if key in settings.left_open]
    if keys:
        formats = " or ".join(f"--set plan.precision={key[:4]}" for key in keys)
        settings.fault(keys[0], "is set by the trainer", "auto", f"give {formats}")


def _precision(settings: Settings) -> str:
    is_bf16 = settings.switch("bf16.enabled") or settings.switch("bfloat16.enabled")
    return "bf16" if is_bf16 else "fp16" if settings.switch("fp16.enabled") else "fp32"


def _optimizer(settings: Settings) -> str:
    momentum = settings.get("optimizer.params.momentum")
    found = settings.meaning("deepspeed/optimizers", "optimizer.type", default="adam")
    return "sgd-momentum" if found == "sgd" and momentum else found


def deepspeed_facts(
    settings: Settings,
    stack: str,
    zero: int,
    hidden: int | None = None,
    precision: str = "bf16",
) -> dict[str, Any]:
    """Facts of the stack that a configuration changes.

    Args:
        settings: The configuration.
        stack: Name of the stack.
        zero: Its ZeRO stage.
        hidden: Width of the model, by which the Trainer sizes what is left to it; None without
            a Trainer, or where the model is not known.
        precision: Number format of the training.
    """
    formats = option_table("deepspeed", "formats")
    kept = settings.choice("data_types.grad_accum_dtype", meanings=formats, default=None)
    elements = settings.whole(_BUCKET, default=None)
    if hidden and _BUCKET in settings.left_open:
        elements = hidden**2
    facts: dict[str, Any] = {"main_grad_precision": kept} if kept else {}
    if settings.switch("expert_parallel.enabled"):
        facts["grouped_experts"] = settings.switch("expert_parallel.use_grouped_mm", default=True)
    if elements:
        # Buckets are counted in elements of the format that gradients are reduced in.
        sent = settings.choice("communication_data_type", meanings=formats, default=precision)
        bytes_each = 4 if sent in ("fp32", "tf32") else 2
        facts["bucket"] = f"{elements * bytes_each} B"
    if zero == 3 and STACKS[stack].sharding_units == "parameters":
        facts |= _thresholds(settings, hidden)
    elif zero == 3 and not settings.switch(_OWN_LINEAR, default=True):
        facts["products_keep_gathered"] = True
    if zero < 3:
        facts |= _reductions(settings)
    return facts


def _reductions(settings: Settings) -> dict[str, Any]:
    """Whether ZeRO 1 and 2 all-reduce whole gradients, where the file says so."""
    scatters = settings.switch("zero_optimization.reduce_scatter", default=True)
    key = "zero_optimization.use_multi_rank_bucket_allreduce"
    if scatters and not settings.states(key):
        return {}
    return {"all_reduces_shards": settings.switch(key, default=True) or not scatters}


def _thresholds(settings: Settings, hidden: int | None) -> dict[str, Any]:
    """What ZeRO 3 keeps of single parameters, where it gathers each of them on its own."""
    block = "zero_optimization.stage3"
    whole = f"{block}_param_persistence_threshold"
    default = 10.0 * hidden if hidden and whole in settings.left_open else -1.0
    found = {
        "whole_below_numel": settings.number(whole, default=default),
        "live_numel": settings.number(f"{block}_max_live_parameters", default=-1.0),
        "reuse_numel": settings.number(f"{block}_max_reuse_distance", default=-1.0),
    }
    return {name: numel for name, numel in found.items() if numel >= 0}


def _batch(settings: Settings, given: Given, ranks: int) -> tuple[int | None, int | None]:
    """Sequences at a time and per step; two of DeepSpeed's three numbers give the third."""
    micro = settings.whole("train_micro_batch_size_per_gpu", default=None, least=1)
    steps = settings.whole("gradient_accumulation_steps", default=None, least=1)
    total = settings.whole("train_batch_size", default=None, least=1)
    micro = given.micro_batch or micro
    total = given.global_batch or total
    if _MICRO in settings.left_open and micro is None:
        hint = "give --micro-batch N, or the TrainingArguments as a second file"
        settings.fault(_MICRO, "is set by the trainer", "auto", hint)
        return None, total
    if "gradient_accumulation_steps" in settings.left_open and total is None:
        return micro, None
    if total and not micro and ranks:
        micro = max(1, total // (ranks * (steps or 1)))
    if micro and not total and ranks:
        total = micro * ranks * (steps or 1)
    if micro and total and steps and ranks and micro * ranks * steps != total:
        rule = f"must be micro x steps x ranks = {micro} x {steps} x {ranks}"
        hint = "remove gradient_accumulation_steps, or give another --gpus"
        if not (given.global_batch or given.micro_batch):
            settings.fault("train_batch_size", rule, total, hint)
    return micro, total
