"""Which stack stands for the framework of a published run, and what is its default of the time?

Tables name a framework and a version in many words. The most telling word decides: a run of
"torch-fsdp" whose version says torchtitan is torchtitan's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from simulator.described.documents import merged
from simulator.described.plan.shipped_stacks import (
    STACKS,
    compiled_facts,
    eager_beside,
    named_stack,
)
from simulator.described.plan.stack import Stack
from simulator.described.plan.stack_options import FusedAttention
from simulator.facts import shipped_facts
from simulator.validate.published.run_releases import named_release, releases_of_their_time

_FILE = "framework_names"

_CORE_OF_MAY_2025 = 12
"""Megatron-Core 0.12 (Megatron-LM, CHANGELOG.md and releases)."""
_YEAR_OF_TORCH_2_2 = 2024


def stack_of(framework: str, version: str) -> str:
    """The stack that stands for a framework's generation.

    A framework that nobody has described is taken as Megatron-Core, the default of a plan.
    """
    return str(stack_facts(framework, version)["base"])


def stack_facts(framework: str, version: str, notes: str = "") -> dict[str, Any]:
    """The stack's name as ``base``, and the facts in which the run's generation differs from it.

    Args:
        framework: What the table calls the framework.
        version: What it says of its version.
        notes: What else it says, where a compiler may be named.
    """
    name = framework.strip().lower()
    said = f"{name} {version.lower()}".replace("_", "-")
    base = _first_named("stacks", said, "megatron-core")
    if name in STACKS and base == "megatron-core":
        base = name
    if base == "megatron-core":
        foreign = shipped_facts(_FILE)["not_pytorch_model"] if _says("not_pytorch", said) else {}
        return {**_megatron_of_its_time(said), **foreign}
    if base == "megatron-deepspeed" and _is_like_megatron_deepspeed_of_2022(said):
        return {"base": base, "overlap_tp_backward": False}
    if base == "deepspeed":
        return {"base": _deepspeed_of_its_time(said)}
    facts, words = {"base": base, **_foreign_fsdp(base, said)}, f"{said} {notes.lower()}"
    if base in shipped_facts(_FILE)["compiled_by_default"] and _says("eager", words):
        facts["host_work_per_launch"] = STACKS["torch"].host_work_per_launch
        beside = eager_beside(STACKS[base], base)
        facts |= {**shipped_facts(_FILE)["not_compiled_model"], **beside}
    if base not in ("torch-fsdp", *_around_torch()):
        return facts
    if base != "torch-fsdp" and _first_flash_kernel(said):
        facts["flash_kernel"] = "flash-1"
    if _says("logs_losses", said):
        facts |= shipped_facts(_FILE)["logged_losses"]
    if _says("engine_layers", said) or _says("engine_layers_in_notes", notes.lower()):
        facts |= shipped_facts(_FILE)["engine_model"]
    is_cast = _says("cast_model", notes.lower()) and not _says("autocast", words)
    if base == "torch" and is_cast:
        facts |= shipped_facts(_FILE)["cast_model_facts"]
    if _says("compiled", words):
        facts |= _compiled_model(base, said)
    if _says("compiled_by_xla", said):
        facts |= shipped_facts(_FILE)["xla_model"]
    return facts


def _says(kind: str, said: str) -> bool:
    """Whether there are words of a kind that the facts name."""
    return re.search(shipped_facts(_FILE)[kind], said) is not None


def _first_named(table: str, said: str, otherwise: Any) -> Any:
    """What the facts' table has for the first of its words that is there."""
    named = shipped_facts(_FILE)[table].items()
    return next((found for word, found in named if re.search(word, said)), otherwise)


def sums_unsharded(framework: str, version: str) -> bool:
    """Whether a framework's loop leaves sharded gradients whole until the last microbatch."""
    return _says("sums_unsharded", f"{framework} {version}".lower())


def keeps_gathered(framework: str, stage: int) -> bool:
    """Whether a stage of sharding keeps parameters between forward and backward, and no longer."""
    return stage == 2 and _says("keeps_gathered", framework.lower())


def wraps_tensors(base: str, said: str) -> bool:
    """Whether tensor parallelism passes tensors in wrappers from module to module in Python.

    Args:
        base: The stack.
        said: Framework, version and notes in small letters.
    """
    words = shipped_facts(_FILE)
    if base not in words["wraps_tensors"]:
        return False
    if base in words["compiled_by_default"]:
        return _says("eager", said)
    return not _says("compiled", said)


def _first_flash_kernel(said: str) -> bool:
    """Whether attention is the first flash attention, as PyTorch's before 2.2 and all of 2022."""
    return re.search(r"torch[ -]?v?2\.[01](?!\d)|(?<!\d)2022(?!\d)", said) is not None


def _compiled_model(base: str, said: str) -> dict[str, Any]:
    """What a compiler of a whole model changes."""
    of_loss = {"cross_entropy": _loss_of_graph(said)} if _says("loss_in_model", said) else {}
    return {**compiled_facts(STACKS[base]), **of_loss}


def _loss_of_graph(said: str) -> str:
    """How a compiler computes the loss that a model's forward returns."""
    if _says("loss_alone", said):
        return "fused"
    return "whole-graph-scattered" if _says("scatters_targets", said) else "whole-graph"


def untuned_fabric(kind: str, framework: str, version: str) -> dict[str, Any]:
    """In which numbers a fabric differs under the NCCL of a run, if that has no tuner for it.

    Args:
        kind: The fabric.
        framework: What the table calls the framework.
        version: What it says of its version.
    """
    words = shipped_facts(_FILE)["untuned_nccl"]
    is_old = re.search(words["runs"], f"{framework} {version}".lower())
    return dict(words["fabrics"].get(kind, {})) if is_old else {}


def runs_transformers(framework: str, version: str) -> bool:
    """Whether the framework trains models of Hugging Face's transformers as they are."""
    return _says("hugging_face", f"{framework} {version}".lower().replace("_", "-"))


def drops_out(framework: str, version: str, model: str) -> bool:
    """Whether a framework trains a model whose configuration drops out, as that says."""
    said = f"{framework} {version}".lower()
    return any(
        re.search(word, said) and re.search(models, model.lower())
        for word, models in shipped_facts(_FILE)["dropped_out"].items()
    )


def prints_decimal_gb(framework: str, version: str) -> bool:
    """Whether a gigabyte that a framework prints is 10^9 bytes, not 2^30."""
    return _says("prints_decimal_gb", f"{framework} {version}".lower())


def zero_of(base: str, framework: str, version: str) -> int:
    """What a framework shards where a run does not say."""
    if base in _around_torch():
        return 3 if "fsdp" in f"{framework} {version}".lower() else 0
    return STACKS[base].zero


def _around_torch() -> Sequence[str]:
    """Stacks around models of PyTorch that are whole on every rank by default."""
    names: Sequence[str] = shipped_facts(_FILE)["around_torch"]
    return names


def recipe_settings(
    framework: str, version: str, plan: Mapping[str, Any], model: str = "", published: str = ""
) -> dict[str, Any]:
    """Fields of a plan that a framework's own recipes set, where a run does not say.

    Args:
        framework: What the table calls the framework.
        version: What it says of its version.
        plan: What the run says.
        model: What it calls the model.
        published: Where the run was published, and its notes.
    """
    recipes = shipped_facts(_FILE)["nvidia_recipes"]
    stack = stack_facts(framework, version)
    said = f"{framework} {version}".lower()
    is_older = stack["base"] != "megatron-core" or "attention" in stack  # without flash attention
    if is_older or not re.search(recipes["framework"], said):
        return {}
    splits = plan.get("tp", 1) > 1 and plan.get("sequence_parallel") is not False
    overlaps = splits and plan.get("precision") != "nvfp4"
    of_model = (
        settings for words, settings in recipes["models"].items() if re.search(words, model.lower())
    )
    of_experts = recipes["experts"]
    parts: tuple[Mapping[str, Any], ...] = (
        of_experts["plan"] if re.search(of_experts["said"], said) else {},
        recipes["split_plan"] if overlaps else {},
        next(of_model, {}),
        *_library_recipe(recipes["library"], said, model, published),
    )
    return reduce(merged, parts, dict(recipes["plan"]))


def _library_recipe(
    library: Mapping[str, Any], said: str, model: str, published: str
) -> list[Mapping[str, Any]]:
    """What a recipe sets as it comes with its library, where no preset of NVIDIA's changes it."""
    by_nvidia = re.search(library["presets"], published.lower()) or not published
    if by_nvidia or not re.search(library["framework"], said):
        return []
    of_model = (
        recipe["plan"]
        for words, recipe in library["models"].items()
        if re.search(words, model.lower()) and re.search(recipe["said"], said)
    )
    return [library["plan"], *of_model]


def fused_attention(base: str, framework: str, version: str) -> FusedAttention:
    """What fused attention the stack of a run brings at its release.

    Args:
        base: The stack that stands for its framework.
        framework: What the table calls the framework.
        version: What it says of its version.
    """
    of_its_time = named_stack(base, releases_of_their_time(base, framework, version))
    return of_its_time.flash_kernel if isinstance(of_its_time, Stack) else "best"


def usual_adapters(framework: str, version: str) -> Mapping[str, Any]:
    """Adapters that a framework's own recipes train; empty where it has none."""
    adapters: Mapping[str, Any] = _first_named("adapters", f"{framework} {version}".lower(), {})
    return adapters


def unsaid_settings(framework: str, version: str) -> Mapping[str, Any]:
    """What a framework's own defaults say of ``recompute`` and ``one_microbatch``."""
    unsaid: Mapping[str, Any] = _first_named("unsaid", f"{framework} {version}".lower(), {})
    return unsaid


def context_parallelism_of(base: str) -> str:
    """How a framework's attention sees the whole sequence where a run does not say."""
    if base.startswith(("deepspeed", "megatron-deepspeed")):
        return "all_to_all"  # Ulysses
    return "all_gather" if base == "jax" else "ring"


def _megatron_of_its_time(said: str) -> dict[str, Any]:
    """Megatron by year, by release of Megatron-LM, or by month of an NVIDIA container."""
    year = next((int(y) for y in re.findall(r"(?<!\d)20[12]\d(?!\d)", said)), None)
    release = re.search(r"megatron(?:-lm)?[ -]?v?([123])\.\d", said)
    container = re.search(r"(?<![\d.])(2[0-3])\.(0[1-9]|1[0-2])(?!\d)", said)
    if release:
        year = {"1": 2020, "2": 2021, "3": 2022}[release.group(1)]
    elif container and year is None:
        months = int(container.group(1)) * 12 + int(container.group(2))
        year = min(2000 + int(container.group(1)), 2022) if months < 23 * 12 + 7 else 2023
    if year is None or year > 2022:
        facts = shipped_facts(_FILE)
        loss = {} if _says("fused_loss", said) else facts["unfused_loss"]
        if _says("quantised_weights", said):
            loss = {**loss, **facts["quantised_weights_model"]}
        return {"base": "megatron-core", **loss, **_transformer_engine_of_its_time(said, year)}
    if "nemo" in said:
        return {
            "base": "megatron-core", "attention": "fused-softmax", "cross_entropy": "in-place",
            "fused_biases": False, "fused_bias_gradients": False,
            "keeps_placeholder_gradients": False,
        }  # fmt: skip
    if year == 2022:
        # Weight gradients are added up by the product itself since v3.0.
        return {"base": "megatron-lm-2021", "fused_accumulation": True}
    return {"base": f"megatron-lm-{max(year, 2020)}"}


def _transformer_engine_of_its_time(said: str, year: int | None) -> dict[str, Any]:
    """Version 2.3 of May 2025 keeps the tensors that stand in for gradients.

    It came with NVIDIA's containers of 25.05, whose PyTorch records no streams any more
    (Megatron-LM, issue 1586); containers are named after their month. PyTorch 2.2, which records
    fewer, is of January 2024. Frameworks that are only like Megatron have products of their own.
    """
    if not re.search(r"megatron|nemo|mcore|primus", said):
        return {"keeps_placeholder_gradients": False, "widens_moments": True}
    release = re.search(r"\b(?:te|transformer[ -]?engine) ?v?(\d+)\.(\d+)", said)
    container = re.search(r"(?<![\d.])(2[3-9])\.(0[1-9]|1[0-2])(?!\d)", said)
    core = re.search(r"\b(?:megatron-core|mcore) ?v?0\.(\d+)", said)
    if release:
        is_old = tuple(map(int, release.groups())) < (2, 3)
    elif container:
        is_old = tuple(map(int, container.groups())) < (25, 5)
    elif core:
        is_old = int(core.group(1)) < _CORE_OF_MAY_2025
    else:
        is_old = year is not None and year < 2025
    # Version 2.13 of March 2026 updates 16-bit moments as they are.
    named = release or container
    is_late = named is not None and tuple(map(int, named.groups())) >= (
        (2, 13) if release else (26, 3)
    )
    facts = {} if is_late else {"widens_moments": True}
    if not is_old:
        return facts
    facts["keeps_placeholder_gradients"] = False
    if not re.search(shipped_facts(_FILE)["nvidia_recipes"]["framework"], said):
        facts["records_sums"] = True
        if year is not None and year < _YEAR_OF_TORCH_2_2:
            facts["records_streams"] = True
    return facts


def _is_like_megatron_deepspeed_of_2022(said: str) -> bool:
    """Whether products are those of Megatron-LM 2, as in the forks that began as it."""
    return re.search(r"(?<!\d)20(19|20|21|22)(?!\d)|neox|axonn|colossal", said) is not None


def _deepspeed_of_its_time(said: str) -> str:
    """ZeRO 3 was written anew with DeepSpeed 0.5.9, at the end of 2021."""
    old = re.search(r"(?<!\d)20(20|21)(?!\d)|deepspeed[ -]?v?0\.[1-5](?!\d)", said)
    return "deepspeed-2021" if old else "deepspeed"


def _foreign_fsdp(base: str, said: str) -> dict[str, Any]:
    """PyTorch's FSDP around other models than llm-foundry's, whose kernels the stack tells."""
    if base != "torch-fsdp" or re.search(r"llm-?foundry|composer|mosaic", said):
        return {}
    named, unsaid = named_release("torch", said), shipped_facts(_FILE)["unsaid_releases"]["torch"]
    of_torch = named_stack("torch", {"torch": named or unsaid})
    assert isinstance(of_torch, Stack)
    is_old = named is None and _first_flash_kernel(said)
    kernel = "flash-1" if is_old else of_torch.flash_kernel
    return {**shipped_facts(_FILE)["eager_model"], "flash_kernel": kernel}


def eager_model_facts(framework: str, version: str) -> dict[str, Any]:
    """Facts of a stack around a model of transformers, whose kernels are PyTorch's own."""
    said = f"{framework} {version}".lower()
    model = named_stack("trl", releases_of_their_time("trl", framework, version))
    assert isinstance(model, Stack)
    facts = {"fused_elementwise": False, **shipped_facts(_FILE)["eager_model"]}
    of_model = shipped_facts(_FILE)["transformers_model"]
    of_trainer = shipped_facts(_FILE)["trainer_model"] if _says("trainers", said) else ()
    return {**facts, **{fact: getattr(model, fact) for fact in (*of_model, *of_trainer)}}
