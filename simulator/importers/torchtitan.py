"""What job does a torchtitan configuration describe?

The TOML that a user writes and the JSON that torchtitan resolves it to have the same
sections. The model is looked up by its name and flavour; the number of GPUs is the
launcher's and must be given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.described.plan.plan_blocks import FSDP_OFFLOAD
from simulator.errors import InputError
from simulator.files import read_text
from simulator.importers.assembly import Draft, Given, finished, flat, parse_mapping
from simulator.importers.hub_models import ModelDocument, layers_of
from simulator.importers.python_source.evaluation import TARGET, read_python_config
from simulator.importers.settings import (
    Settings,
    expert_exchange,
    leave_out,
    option_rules,
    option_table,
    spellings_table,
)


def _models(table: str) -> dict[tuple[str, str], str]:
    names = option_table("torchtitan", table).items()
    return {(name, size): ours for name, sizes in names for size, ours in sizes.items()}


MODELS = _models("models")
"""Our model for each name and flavour of torchtitan."""
WITHOUT_EXTRAS = _models("models_without_extras")
"""Our model where torchtitan leaves out its multi-token-prediction layer."""
SCHEDULES: Mapping[str, str] = option_table("torchtitan", "schedules")
"""Our pipeline schedule for each of PyTorch's, in whose names case does not matter."""
ONE_CHUNK = ("1f1b", "gpipe")
"""Schedules with one stage per rank; the others have two unless layers per stage are given."""
_WANTED = "give a TOML of torchtitan, the JSON it resolves one to, or FILE.py:FUNCTION"
COMPILED_LOSS, EAGER_LOSS = "fused", "eager"
"""Kernels of the loss with torch.compile and without, which may compile layers and not the loss, or
the loss alone."""


def read_torchtitan_config(path: str | Path, given: Given) -> tuple[Job, ImportReport]:
    """The job of a torchtitan configuration; a registry in Python is read and never run."""
    origin = str(path)
    file, colon, function = origin.rpartition(":") if ".py:" in origin else (origin, "", "")
    notes: list[str] = []
    if colon or Path(file).suffix == ".py":
        written, notes = read_python_config(Path(file), function)
        values = _from_python(written, Path(file))
    else:
        values = parse_mapping(read_text(Path(file), _WANTED), origin, _WANTED)
    settings = Settings(flat(values, origin), "torchtitan")
    settings.assumed += notes
    draft = torchtitan_draft(settings, given, _model(settings, given), Path(path).parent)
    return finished(draft, settings, option_rules("torchtitan"), given, origin)


def torchtitan_draft(
    settings: Settings, given: Given, model: ModelDocument | None, folder: Path
) -> Draft:
    """What torchtitan's settings say of a job; faults go to ``settings``.

    Args:
        settings: What a file says, by dotted path.
        given: What the user says.
        model: The model as a job writes it; None where nobody says it.
        folder: Where files lie that the settings name.
    """
    draft = Draft(model=model, stack="torchtitan", gpus=given.gpus)
    degrees = {
        name: settings.whole(*keys, default=1, least=1)
        for name, keys in spellings_table("torchtitan", "degrees").items()
    }
    width = (given.gpus or 0) // (degrees["tp"] * degrees["pp"])
    narrow, facts = _precision(settings)
    draft.plan = {
        **degrees,
        "etp": degrees["etp"] if degrees["ep"] > 1 else None,
        **_pipeline_fields(settings, degrees["pp"], layers_of(draft.model), folder),
        **_sharding(settings, degrees, width),
        **_dispatch(settings, degrees["ep"]),
        "cp_method": _context_method(settings, degrees["cp"]),
        "recompute": _recomputation(settings),
        **narrow,
        "master_weights": settings.choice(
            "training.dtype", meanings={"float32": None, "bfloat16": False}, default=None
        ),
        "optimizer": _optimizer(settings),
        "optimizer_kernels": settings.choice(
            "optimizer.implementation",
            meanings={"fused": None, "foreach": "foreach", "for-loop": "for-loop"},
            default=None,
        ),
        "clip_gradients": settings.number("training.max_norm", default=1.0) > 0,
        "overlap_tp": settings.switch(
            "parallelism.enable_async_tensor_parallel",
            "experimental.enable_async_tensor_parallel",
            "compile.enable_async_tensor_parallel",
        )
        or None,
        "grad_reduce_precision": settings.choice(
            "training.mixed_precision_reduce",
            meanings={"float32": "fp32", "bfloat16": "bf16"},
            default="fp32",
        ),
    }
    if settings.switch("training.enable_cpu_offload"):
        draft.plan["offload"] = FSDP_OFFLOAD.model_dump(exclude_defaults=True)
    draft.plan["compile"] = None if _is_compiled(settings, "model") else False
    if settings.switch("loss.is_chunked"):
        draft.plan["cross_entropy"] = "chunked-head"
    elif not _is_compiled(settings, "loss"):
        draft.facts["cross_entropy"] = EAGER_LOSS
    elif draft.plan["compile"] is False:
        draft.plan["cross_entropy"] = COMPILED_LOSS
    draft.facts |= expert_exchange(settings, "parallelism.expert_parallel_comm_backend")
    draft.facts |= facts
    if settings.switch("activation_checkpoint.early_stop"):
        draft.facts["repeats_last_product"] = False
    if _replays_graphs(settings, degrees):
        draft.plan["cuda_graphs"] = "full"
    draft.seq_len = settings.whole("training.seq_len", default=2048, least=1)
    _batch(settings, draft, width // degrees["cp"], degrees["pp"])
    return draft


def _replays_graphs(settings: Settings, degrees: Mapping[str, int]) -> bool:
    """Whether forward and backward are replayed as CUDA graphs.

    Source: torchtitan 0.3, ``_validate_cuda_graphs`` of trainer.py: not in pipelines, nor where the
    host waits for counts of tokens. Ignored: dispatchers of expert parallelism that need no wait.
    """
    wanted = settings.get("training.disable_cuda_graphs") is False
    replays = wanted and degrees["pp"] == 1 and degrees["ep"] == 1
    if replays:
        settings.assumed.append(
            "CUDA graphs replay forward and backward, as torchtitan 0.3 does unless "
            "training.disable_cuda_graphs is true; their memory is not modelled"
        )
    elif wanted:
        settings.assumed.append(
            "kernels are launched one by one: torchtitan 0.3 has no CUDA graphs of pipelines, nor "
            "of experts whose tokens the host counts"
        )
    return replays


_POLICIES = {"FullAC": "full", "SelectiveAC": "selective"}
"""Modes of recomputation by the classes that registries in Python have for them."""


def _from_python(values: dict[str, Any], file: Path) -> dict[str, Any]:
    """A configuration in Python under the names that its TOML had."""
    spec = values.get("model_spec")
    if isinstance(spec, dict):
        # ``model_registry("8B")`` in the folder of the model.
        flavor = spec.get("flavor") or spec.get("0")
        values["model_spec"] = {"name": file.resolve().parent.name, "flavor": flavor}
    optimizer = values.get("optimizer")
    if isinstance(optimizer, dict):
        _add_optimizer(optimizer)
    section = values.get("activation_checkpoint")
    if isinstance(section, dict):
        name = str(section.get(TARGET)).partition(".")[0]
        section |= {"mode": _POLICIES[name]} if name in _POLICIES else {}
    loss = values.get("loss")
    name = str(loss.get(TARGET)) if isinstance(loss, dict) else ""
    if name.startswith("Chunked"):
        values["loss"] = {"is_chunked": True}
    if name.startswith("ChunkedLossWrapper") and isinstance(values.get("training"), dict):
        # A name of 0.3, whose default this is.
        values["training"].setdefault("disable_cuda_graphs", False)
    converters = values.pop("model_converters", None)
    if isinstance(converters, dict):
        listed = converters.get("converters") or []
        named = {
            _converter(str(each.get(TARGET))): each
            for each in (listed if isinstance(listed, list) else ())
            if isinstance(each, dict)
        }
        values |= {"model": {"converters": [*named] or listed}, **named}
    return values


def _add_optimizer(optimizer: dict[str, Any]) -> None:
    """Today's groups of parameters as the one optimizer that TOMLs name."""
    if "InBackward" in str(optimizer.get(TARGET)):
        optimizer["early_step_in_backward"] = True
    groups = optimizer.pop("param_groups", None)
    names = [group.get("optimizer_name") for group in groups or () if isinstance(group, dict)]
    matrices = [name for name in names if name not in ("Adam", "AdamW")]
    if names:
        optimizer["name"] = matrices[0] if matrices else names[0]


def _converter(target: str) -> str:
    short = {"Float8LinearConverter": "float8", "MXLinearConverter": "mx"}
    return short.get(target.partition(".")[0], target.replace(".", "_"))


def _model(settings: Settings, given: Given) -> ModelDocument | None:
    name = settings.get("model.name") or settings.get("model_spec.name")
    flavor = settings.get("model.flavor") or settings.get("model_spec.flavor")
    if given.model:
        return given.model
    key = (str(name), str(flavor))
    if key in WITHOUT_EXTRAS:
        return {"base": WITHOUT_EXTRAS[key], "multi_token_layers": 0}
    if key in MODELS:
        return MODELS[key]
    rule = f"is a model whose dimensions are in torchtitan's code: {name} {flavor}"
    settings.fault("model.flavor", rule, flavor, "give --model NAME, or a path to a config.json")
    return None


def _sharding(settings: Settings, degrees: dict[str, int], width: int) -> dict[str, Any]:
    """What fully_shard keeps on each rank, of ``width`` = dp x cp ranks."""
    replicate = settings.whole(
        "parallelism.data_parallel_replicate_degree",
        "training.data_parallel_replicate_degree", default=1, least=1,
    )  # fmt: skip
    shard = settings.whole(
        "parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree",
        "training.data_parallel_degree", default=-1,
    )  # fmt: skip
    if shard == 0 or shard < -1:
        rule, hint = "must be -1, for all ranks that are left, or at least 1", "write -1"
        settings.fault("parallelism.data_parallel_shard_degree", rule, shard, hint)
    policies = {"default": None, "always": True, "never": False}
    reshards = settings.choice(
        "parallelism.fsdp_reshard_after_forward", meanings=policies, default=None
    )
    group = width // replicate if shard < 0 else shard * degrees["cp"]
    if replicate > 1 and group == 1:
        return {"zero": 0}
    if shard > 0 and width and shard * replicate * degrees["cp"] != width:
        rule = (
            f"times {replicate} replicas must equal the {width} GPUs of data and context "
            "parallelism"
        )
        gpus = shard * replicate * math.prod(degrees[name] for name in ("tp", "pp", "cp"))
        hint = f"give --gpus {gpus}" if gpus > 0 else "give other --gpus"
        settings.fault("parallelism.data_parallel_shard_degree", rule, shard, hint)
    # By default a pipeline keeps weights between its microbatches.
    keeps = degrees["pp"] > 1 if reshards is None else not reshards
    return {
        "zero": 3,
        "reshard_after_forward": False if keeps else None,
        "zero_group": group if replicate > 1 else 0,
    }


def _context_method(settings: Settings, cp: int) -> str:
    keys = ("parallelism.context_parallel_rotate_method",
            "experimental.context_parallel_rotate_method")  # fmt: skip
    method = settings.choice(
        *keys, meanings={"allgather": "all_gather", "alltoall": "ring"}, default="all_gather"
    )
    return method if cp > 1 else "ring"


def _dispatch(settings: Settings, ep: int) -> dict[str, str]:
    way = settings.meaning(
        "torchtitan/dispatchers", "parallelism.expert_parallel_comm_backend", default="all_to_all"
    )
    return {"ep_dispatch": way} if ep > 1 else {}


def _recomputation(settings: Settings) -> str:
    mode = settings.choice(
        "activation_checkpoint.mode",
        meanings={"none": "none", "selective": "selective", "full": "full"},
        default=_unnamed_recomputation(settings),
    )
    if mode != "selective":
        return mode
    key = "activation_checkpoint.selective_ac_option"
    default = "op" if settings.get("model_spec.name") else "2"
    stated = settings.get(key)
    option = str(stated or default)
    if option not in ("op", "1"):
        what = "recomputes one layer in every N" if stated else "is 2 unless the file states it"
        hint = f"state op, or give --set plan.recompute=... with --ignore {key}"
        settings.fault(key, f"{what}, which is not modelled", stated, hint)
    return "full" if option == "1" else "selective"


def _unnamed_recomputation(settings: Settings) -> str:
    """Mode where none is named: today's JSON shows the fields of a mode, not its name."""
    section = {key for key in settings.keys if key.startswith("activation_checkpoint.")}
    if not settings.get("model_spec.name"):
        return "selective"
    if any("force_recompute" in key for key in section):
        return "selective"
    return "full" if section else "none"


def _precision(settings: Settings) -> tuple[dict[str, str], dict[str, Any]]:
    """Format of the products, and facts of which have it and how their operands are scaled.

    Linear layers and grouped products of experts have converters of their own.
    """
    names = settings.words("model.converters") or ()
    converters = option_table("torchtitan", "converters")
    grouped = {converters.get(name.replace("grouped_mm", "linear")) for name in names
               if "grouped_mm" in name}  # fmt: skip
    formats = {converters.get(name) for name in names if "grouped_mm" not in name}
    if None in formats | grouped or len(formats | grouped) > 1:
        settings.fault("model.converters", "is not modelled", [*names], "use one of float8, mx")
    if settings.switch("training.enable_float8_linear", "float8.enable_float8_linear"):
        formats.add("fp8")
    wide = settings.choice(
        "training.mixed_precision_param", meanings={"bfloat16": "bf16", "float32": "fp32"},
        default="bf16",
    )  # fmt: skip
    gathers = [key for key in settings.keys if key.endswith("enable_fsdp_float8_all_gather")]
    if formats and any(settings.switch(key) for key in gathers):
        settings.fault(gathers[0], "is not modelled: it gathers weights in 8 bits", value=True,
                       hint=leave_out(gathers[0]))  # fmt: skip
    facts = _scaling(settings) if "fp8" in formats else {}
    if grouped:
        facts["narrow_products"] = "all" if formats else "experts"
    return {"precision": next((one for one in formats | grouped if one), wide)}, facts


def _scaling(settings: Settings) -> dict[str, Any]:
    """Facts of the recipe of linear layers in fp8."""
    keys = ("quantize.linear.float8.recipe_name", "float8.recipe_name")
    recipes = option_table("torchtitan", "recipes")
    named = settings.choice(*keys, meanings={name: name for name in recipes}, default=None)
    return dict(recipes[named]) if named else {}


def _optimizer(settings: Settings) -> str:
    names = dict.fromkeys(("Adam", "AdamW", "adam", "adamw"), "adam")
    names |= {"Muon": "muon", "DistMuon": "muon"}
    return settings.choice("optimizer.name", meanings=names, default="adam")


def _is_compiled(settings: Settings, part: str) -> bool:
    parts = settings.words("compile.components")
    is_on = settings.switch("compile.enable", "training.compile")
    return is_on and (parts is None or part in parts)


def _batch(settings: Settings, draft: Draft, dp: int, pp: int) -> None:
    """Sequences at a time and per step; a pipeline cuts a rank's batch into microbatches."""
    local = settings.whole("training.local_batch_size", "training.batch_size", default=8, least=1)
    total = settings.whole("training.global_batch_size", default=-1)
    micro = settings.whole("parallelism.pipeline_parallel_microbatch_size",
                           "experimental.pipeline_parallel_microbatches", default=1)  # fmt: skip
    draft.micro_batch = micro if pp > 1 else local
    draft.global_batch = total if total > 0 else (local * dp or None)


_CSV_KEYS = tuple(
    f"{table}.pipeline_parallel_schedule_csv" for table in ("parallelism", "experimental")
)
"""Settings that name a file with a schedule; the first is today's."""
_NAME = "parallelism.pipeline_parallel_schedule"
_LAYERS_PER_STAGE = "parallelism.pipeline_parallel_layers_per_stage"


def _pipeline_fields(settings: Settings, pp: int, layers: int, folder: Path) -> dict[str, Any]:
    """Schedule, chunks per rank, and how layers are dealt to them; faults go to ``settings``.

    Args:
        settings: What the file says.
        pp: Pipeline stages.
        layers: Layers of the model.
        folder: Where a schedule's CSV lies, unless its path is absolute.
    """
    csv_key, written = settings.first(*_CSV_KEYS)
    schedule = _named(settings, is_written=bool(written))
    first, last = (
        settings.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", default=1)
        for end in ("first", "last")
    )
    per_stage = settings.whole(_LAYERS_PER_STAGE, default=None)
    key = "parallelism.pipeline_parallel_expert_parallel_overlap"
    runs_apart = not settings.switch(key, default=True) and schedule == "dualpipev"
    if pp == 1:
        return {}
    for end, less in (("first", first), ("last", last)):
        if less > 1:
            key = f"parallelism.pipeline_parallel_{end}_stage_less_layers"
            rule = "counts the embedding or head as several layers, which is not modelled"
            settings.fault(key, rule, less, "use 0 or 1")
    stages = -(-(layers + first + last) // per_stage) if per_stage else 0
    if stages % pp:
        rule = f"makes {stages} stages, which cannot be divided evenly over {pp} ranks"
        settings.fault(_LAYERS_PER_STAGE, rule, per_stage)
    vpp = stages // pp if stages else 1 if schedule in ONE_CHUNK else 2
    order: dict[str, Any] | str | None
    if written:
        order, vpp = _written(settings, csv_key, str(written), folder)
    else:
        order = schedule if schedule != ("interleaved-1f1b" if vpp > 1 else "1f1b") else None
    return {
        "schedule": order,
        "vpp": max(1, vpp),
        "overlap_ep": False if runs_apart else None,
        "account_for_embedding": first == 1,
        "account_for_loss": last == 1,
    }


def _named(settings: Settings, *, is_written: bool) -> str:
    key, given = settings.first(_NAME, "experimental.pipeline_parallel_schedule")
    meanings = {name.casefold(): ours for name, ours in SCHEDULES.items()}
    if given is None or is_written:
        return "1f1b"
    if str(given).casefold() not in meanings:
        known = ", ".join(SCHEDULES)
        settings.fault(key, f"is not modelled; known: {known}", given, leave_out(key))
    return meanings.get(str(given).casefold(), "1f1b")


def _written(
    settings: Settings, key: str, name: str, folder: Path
) -> tuple[dict[str, Any] | None, int]:
    try:
        text = read_text(folder / name, "give the file beside the configuration")
    except InputError as error:
        settings.fault(key, f"names a file that {error.faults[0].rule}", name, leave_out(key))
        return None, 1
    rows = text.rstrip().splitlines()
    stages = 1 + max((int(stage) for stage in re.findall(r"\b(\d{1,6})[FBIW]\d", text)), default=0)
    return {"file": name, "rows": rows}, max(1, stages // max(1, len(rows)))
