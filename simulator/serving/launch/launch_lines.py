"""How does a launch line or a settings file of a serving engine become a deployment?

A script is read, never run; of its commands the one that starts the engine counts. Settings files
are YAML, as ``vllm serve --config``, ``sglang --config`` and ``trtllm-serve
--extra_llm_api_options`` take them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from simulator.described.documents import yaml_mapping
from simulator.errors import Fault, InputError
from simulator.files import read_text
from simulator.importers.assembly import flat
from simulator.importers.hub_models import shipped_model
from simulator.importers.shell.command_options import options_of
from simulator.importers.shell.launch_script import Script, read_script
from simulator.serving.checkpoint_formats import format_of_name
from simulator.serving.launch.engine_options import (
    DTYPES,
    MODEL,
    OPTIONS,
    OWN_CHOICE,
    PROMPT_WAITS,
    REPLICAS,
    SETTINGS_FILES,
    SHARES_EXPERTS,
    WITHOUT_COST,
    Option,
    tree_of,
)


class Launch(NamedTuple):
    """What a launch line starts.

    Attributes:
        document: The deployment as a file says it.
        own_choice: Options that are taken as the engine would choose them.
    """

    document: dict[str, Any]
    own_choice: tuple[str, ...]


STARTS = {
    "vllm": ("vllm serve", "vllm.entrypoints.openai.api_server"),
    "sglang": ("sglang.launch_server", "sglang serve"),
    "tensorrt-llm": ("trtllm-serve serve", "trtllm-serve"),
}
_IMAGES: Mapping[str, Collection[str]] = {
    "vllm": ("vllm/vllm-openai", "vllm/vllm-openai-rocm"),
    "sglang": (),
    "tensorrt-llm": (),
}
"""Images whose entry point starts the engine, so that its options follow at once.

Source: vLLM's documentation, *Using Docker*."""


def read_launch(
    engine: str,
    path: Path,
    *,
    profile: str,
    model: str | None = None,
    gpus: int | None = None,
    ignore: Sequence[str] = (),
) -> Launch:
    """The deployment that a launch line, a script or a settings file starts.

    Args:
        engine: Whose file it is.
        path: The file.
        profile: The system.
        model: The model, if the file does not state one that is shipped.
        gpus: GPUs of all replicas; by default those that the file needs.
        ignore: Options that may be left out although they cost something.

    Raises:
        InputError: The file starts no such engine, or has options that are not modelled.
    """
    text = read_text(path, "give a script or a YAML file")
    is_file = path.suffix in (".yaml", ".yml")
    script = Script() if is_file else read_script(text, {}, str(path))
    options = _settings(text, str(path)) if is_file else _started(engine, script, str(path))
    ignored = {each.replace("-", "_") for each in ignore}
    faults: list[Fault] = []
    options |= _further_settings(options, path, script.documents, ignored, faults)
    fields: dict[str, Any] = {}
    for option in OPTIONS[engine]:
        for name in option.names:
            if name in options:
                fields |= _field(option, name, options.pop(name), faults, str(path))
    named = [str(options.pop(name)) for name in MODEL if name in options]
    if engine in _OF_SEVERAL:
        fields |= _OF_SEVERAL[engine](options)
    known = model or (shipped_model(named[0]) if named else None)
    if known is None:
        hint = "give --model NAME, or a path to its config.json"
        faults.append(Fault("model", "is not a shipped model", named[:1], hint, str(path)))
    own = format_of_name(named[0]) if named else None
    if own and (fields.get("weights") in (None, *DTYPES.values()) or own == "fp8_block"):
        fields["weights"] = own
    said = {name: options.pop(name) for name in REPLICAS if name in options}
    said |= {name: fields[name] for name in ("tp", "pp", "ep") if name in fields}
    for name, value in said.items():
        if type(value) is not int or value < 1:
            rule, hint = "must be a whole number from 1 on", "for example 8"
            raise InputError.single(name, rule, value, hint, str(path))
    copies = max([said[name] for name in REPLICAS if name in said], default=1)
    shares = bool([name for name in SHARES_EXPERTS if options.pop(name, False)])
    groups, ranks = _groups(engine, fields, copies) if shares else ({}, _ranks(fields))
    fields |= groups
    left = OWN_CHOICE - ignored
    own_choice = tuple(name for name in options if {name, name.partition(".")[0]} & left)
    for name in sorted(set(options) - WITHOUT_COST - ignored - set(own_choice)):
        hint = f"give --ignore {name} to remove it"
        faults.append(Fault(name, "is not modelled", options[name], hint, str(path)))
    if faults:
        raise InputError(faults)
    wanted = gpus or ranks * (1 if shares else copies)
    about = {"model": known, "profile": profile, "gpus": wanted, "engine": engine}
    return Launch({"deployment": about | tree_of(fields)}, own_choice)


def _ranks(fields: Mapping[str, Any]) -> int:
    return int(fields.get("tp", 1) * fields.get("pp", 1))


def _groups(engine: str, fields: Mapping[str, Any], copies: int) -> tuple[dict[str, Any], int]:
    """Fields of ranks that share the experts, and how many GPUs they are.

    Args:
        engine: vLLM counts the ranks of one group as tp, the others those of all groups, and each
            rank of TensorRT-LLM attends to requests of its own.
        fields: What the options say of the deployment.
        copies: Copies of the attention that they ask for.
    """
    tp, ranks = fields.get("tp", 1), _ranks(fields)
    counts_one = engine == "vllm"
    groups = tp if engine == "tensorrt-llm" else copies
    found = {}
    if groups > 1:
        found = {"attention_dp": groups, "tp": tp if counts_one else tp // groups}
        ranks *= groups if counts_one else 1
    if counts_one:
        found["ep"] = tp * groups
    return found, ranks


def _further_settings(
    options: dict[str, Any],
    path: Path,
    documents: Mapping[str, str],
    ignored: Collection[str],
    faults: list[Fault],
) -> dict[str, Any]:
    """What a file that a launch line names sets, where the line itself does not.

    The script itself may have written it. TensorRT-LLM's file goes over the line.
    """
    found: dict[str, Any] = {}
    for option in SETTINGS_FILES:
        name = options.pop(option, None)
        if name is None or option in ignored:
            continue
        file = path.parent / str(name)
        written = {Path(each): text for each, text in documents.items()}.get(Path(str(name)))
        if written is None and not file.is_file():
            hint = f"put it beside the script, or remove it with --ignore {option}"
            faults.append(Fault(option, "names a file that does not exist", name, hint, str(path)))
            continue
        text = read_text(file, "give a YAML file") if written is None else written
        settings = _settings(text, str(file))
        goes_over = option == "extra_llm_api_options"
        found |= {key: value for key, value in settings.items() if goes_over or key not in options}
    return found


def _started(engine: str, script: Script, origin: str) -> dict[str, Any]:
    """Options of the command that starts the engine."""
    for words in script.commands:
        rest = _behind_start(engine, words)
        if rest is None:
            continue
        options = options_of(rest)
        if rest and not rest[0].startswith("-"):
            options["model"] = rest[0]
        elif not {*MODEL} & set(options):
            options |= _model_behind_options(options)
        return options
    rule, hint = f"starts no {engine}", f"it should have {STARTS[engine][0]} and a model"
    raise InputError.single("", rule, hint=hint, file=origin)


def _behind_start(engine: str, words: Sequence[str]) -> list[str] | None:
    """Words behind what starts the engine, which an image may do by itself; None without it."""
    line = " ".join(words)
    for start in STARTS[engine]:
        if f"{start} " in f"{line} ":
            return line.split(start, 1)[1].split()
    images = [i for i, word in enumerate(words) if word.partition(":")[0] in _IMAGES[engine]]
    return list(words[images[0] + 1 :]) if images else None


def _model_behind_options(options: dict[str, Any]) -> dict[str, Any]:
    """The model where it stands behind an option, whose value it then seems to be part of."""
    for name, value in options.items():
        if isinstance(value, list) and len(value) == 2:
            return {name: value[0], "model": value[1]}
    return {}


def _settings(text: str, origin: str) -> dict[str, Any]:
    """Settings of a YAML file by their names with underscores."""
    return {k.replace("-", "_"): v for k, v in flat(yaml_mapping(text, origin)).items()}


def _field(
    option: Option, name: str, value: Any, faults: list[Fault], origin: str
) -> dict[str, Any]:
    if not option.values:
        return {option.field: value}
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if value not in list(option.values):
        hint = f"known are {', '.join(map(str, option.values))}"
        faults.append(Fault(name, "is not modelled", value, hint, origin))
        return {}
    return {option.field: option.values[value]}


def _swap(options: dict[str, Any]) -> dict[str, Any]:
    """Host memory that preempted requests move to; unused unless the mode says so.

    Source: vLLM 0.6.0, ``engine/arg_utils.py``: 4 GiB for each GPU by default.
    """
    space = options.pop("swap_space", 4)
    if options.get("preemption_mode") not in ("swap", "recompute"):
        return {}
    is_used = options.pop("preemption_mode") == "swap"
    return {"swap": f"{space} GiB", "scheduler": "vllm-v0"} if is_used else {}


_USUAL_WAIT_STEPS = 50


def _prompt_waits(options: dict[str, Any]) -> dict[str, Any]:
    """How long prompts wait for those of other groups; not at all unless the balance is on.

    Waiting for more prompts beyond that is not modelled, and refused where it is asked for.

    Source: TensorRT-LLM 1.1, ``AttentionDpConfig`` of llmapi/llm_args.py.
    """
    balance, steps, further = PROMPT_WAITS
    is_balanced = str(options.pop(balance, False)).lower() == "true"
    waits = options.pop(steps, _USUAL_WAIT_STEPS)
    if not is_balanced or options.get(further) == 0:
        options.pop(further, None)
    return {"prompt_wait_steps": waits} if is_balanced else {}


_OF_SEVERAL = MappingProxyType({"vllm": _swap, "tensorrt-llm": _prompt_waits})
"""What several options of an engine say together."""
