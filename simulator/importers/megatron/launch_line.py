"""What job does a launch script or launch line of Megatron-LM start?

The script is read, never run (:mod:`simulator.importers.shell.launch_script`); the command with
``--num-layers`` is the one that counts. Scripts of Megatron-DeepSpeed, which write their
``ds_config.json`` themselves, are read with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.described.documents import parse_yaml
from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.errors import InputError, UnsupportedError
from simulator.files import read_text
from simulator.importers.assembly import Given, finished
from simulator.importers.deepspeed import (
    add_inner_faults,
    checkpoint_fields,
    deepspeed_plan,
    read_settings,
)
from simulator.importers.megatron.megatron_core import is_language_model, megatron_draft
from simulator.importers.megatron.megatron_model import encoder_fields
from simulator.importers.settings import Settings, option_rules
from simulator.importers.shell.command_options import launched_gpus, options_of
from simulator.importers.shell.launch_script import Script, read_launch_file

_WANTED = "give a shell script or a file with one launch line of Megatron-LM"
_MARK = "--num-layers"
_FROM_DEEPSPEED = (
    "zero", "zero_group", "overlap_grad_reduce", "overlap_param_gather", "offload",
    "clip_gradients",
)  # fmt: skip
_SAID_TWICE = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "zero_optimization.reduce_bucket_size",
)  # fmt: skip
"""Settings of a script's DeepSpeed configuration that its options say, or that follow."""

_EXPERTS = (
    "num_experts", "moe_expert_parallel_size", "topk", "expert_interval",
    "moe_train_capacity_factor", "disable_moe_token_dropping",
)  # fmt: skip
"""Options of Megatron-DeepSpeed's experts that cost something."""


def read_megatron_script(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job that a launch script of Megatron-LM starts, or a single launch line."""
    origin = str(path)
    script = _functional_test(path) or read_launch_file(path, given.definitions, _WANTED)
    launcher, name, words = _launch(script, origin)
    if not is_language_model(name):
        raise _another_network(name, origin)
    options = _options(words)
    settings = Settings(
        _megatron_experts(options) if "deepspeed" in options else options, "Megatron-LM"
    )
    settings.assumed += script.notes
    settings.wait_for(script.waits)
    settings.define(given.definitions)
    draft = megatron_draft(
        settings,
        given.gpus or launched_gpus(launcher, script),
        None if given.model else Path(origin).stem,
    )
    if _is_encoder(name) and isinstance(draft.model, dict):
        draft.model = encoder_fields(settings, draft.model)
    inner_keys: set[str] = set()
    if settings.switch("deepspeed"):
        draft.stack = "megatron-deepspeed"
        inner_keys = _add_deepspeed(settings, script, draft.plan, given)
        _add_checkpoints(settings, draft.plan)
        _shard_bf16_states(settings, draft.plan)
    return finished(draft, settings, option_rules("megatron"), given, origin, inner_keys)


def _launch(script: Script, origin: str) -> tuple[list[str], str, list[str]]:
    for command in reversed(script.commands):
        # A launcher may get the whole command as one word: srun "torchrun ...".
        words = [w for word in command for w in (word.split() if _MARK in word else [word])]
        if _MARK not in words and not any(word.startswith(f"{_MARK}=") for word in words):
            continue
        scripts = [i for i, word in enumerate(words) if word.endswith(".py")]
        at = scripts[-1] if scripts else -1
        return words[: at + 1], words[at] if scripts else "", words[at + 1 :]
    trained = [word for command in script.commands for word in command if word.endswith(".py")]
    if other := next((word for word in trained if not is_language_model(word)), None):
        raise _another_network(other, origin)
    rule = f"has no command with {_MARK}, so it does not start Megatron-LM"
    raise InputError.single("", rule, file=origin, hint=_WANTED)


def _is_encoder(name: str) -> bool:
    return name.rpartition("/")[2] == "pretrain_bert.py"


def _functional_test(path: str | Path) -> Script | None:
    """The launch in a ``model_config.yaml`` of Megatron-LM's functional tests; None for others."""
    if Path(path).suffix not in (".yaml", ".yml"):
        return None
    values = parse_yaml(read_text(Path(path), _WANTED), str(path))
    options = values.get("MODEL_ARGS") if isinstance(values, dict) else None
    if not isinstance(options, dict):
        return None
    words = [str(values.get("TRAINING_SCRIPT_PATH", "pretrain_gpt.py"))]
    for option, value in options.items():
        is_flag = isinstance(value, bool)
        words += [str(option)] if not is_flag or value else []
        words += [] if is_flag else [str(value)]
    return Script(commands=[words])


def _another_network(name: str, origin: str) -> InputError:
    rule = "trains a network that is not a language model of decoder layers"
    return UnsupportedError.single("", rule, name, file=origin)


def _megatron_experts(options: dict[str, Any]) -> dict[str, Any]:
    """Options of Megatron-DeepSpeed's experts under the names that Megatron-LM has for them.

    One expert is none there; else every second layer has them, each token goes to one, and
    an expert takes no more than its share.
    """
    rest = {key: value for key, value in options.items() if key not in _EXPERTS}
    count = options.get("num_experts", 1)
    if count == 1:
        return rest
    drops = "disable_moe_token_dropping" not in options
    factor = options.get("moe_train_capacity_factor", 1.0) if drops else None
    return rest | {
        "num_experts": count,
        "expert_model_parallel_size": options.get("moe_expert_parallel_size", 1),
        "moe_router_topk": options.get("topk", 1),
        "moe_layer_freq": options.get("expert_interval", 2),
        "moe_expert_capacity_factor": factor,
        "moe_token_dispatcher_type": "alltoall",
    }


def _options(words: Sequence[str]) -> dict[str, Any]:
    found = options_of(words)
    if not found.pop("group_query_attention", None):
        # Without the flag, Megatron-LM takes no notice of the number of groups.
        found.pop("num_query_groups", None)
    return found


def _add_deepspeed(
    settings: Settings, script: Script, plan: dict[str, Any], given: Given
) -> set[str]:
    """Read the DeepSpeed configuration that the script writes, if it does; returns its keys."""
    name = str(settings.get("deepspeed_config") or "")
    text = script.documents.get(name)
    if text is None:
        settings.forget("deepspeed_config")
        return set()
    inner = read_settings(text, name)
    found = deepspeed_plan(inner)
    # Megatron-DeepSpeed configures checkpoints by its own options, not by this file.
    found["offload"] = {k: v for k, v in found.get("offload", {}).items() if k != "activations"}
    plan |= {key: found[key] for key in _FROM_DEEPSPEED if found.get(key) not in (None, {})}
    for key in _SAID_TWICE:
        inner.get(key)
    if plan.get("offload", {}).get("optimizer") == "cpu":
        settings.get("cpu_optimizer")  # says the same once more
    add_inner_faults(inner, settings, name, given)
    return inner.keys


def _shard_bf16_states(settings: Settings, plan: dict[str, Any]) -> None:
    """Shard fp32 weights and moments where a pipeline of bf16 has no ZeRO, as DeepSpeed does.

    Source: DeepSpeed 0.19, ``_do_optimizer_sanity_check`` of engine.py and bf16_optimizer.py:
    each data rank has a part of them and all of the gradients.
    """
    has_pipeline = not settings.switch("no_pipeline_parallel")
    if has_pipeline and plan["precision"] == "bf16" and not plan["zero"]:
        plan["zero"] = 1
        settings.assumed.append("DeepSpeed's BF16_Optimizer shards states, as ZeRO 1 does")


def _add_checkpoints(settings: Settings, plan: dict[str, Any]) -> None:
    """Where Megatron-DeepSpeed's options put the inputs of recomputed layers.

    They count instead of the configuration's ``activation_checkpointing``, and only with
    recomputation.
    """
    kept = checkpoint_fields(
        plan["tp"],
        in_parts=settings.switch("partition_activations"),
        on_host=settings.switch("checkpoint_in_cpu"),
        in_one_buffer=settings.switch("contigious_checkpointing"),
    )
    if plan["recompute"] == "full":
        offload = {**plan.get("offload", {}), **kept.pop("offload", {})}
        plan |= {**kept, **({"offload": offload} if offload else {})}
