"""How does a launch line or a settings file of a serving engine become a deployment, and back?

A script is read, never run; of its commands the one that starts the engine counts. Settings files
are YAML, as ``vllm serve --config``, ``sglang --config`` and ``trtllm-serve
--extra_llm_api_options`` take them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from simulator.described.documents import yaml_mapping
from simulator.errors import Fault, InputError
from simulator.files import read_text
from simulator.importers.assembly import flat
from simulator.importers.hub_models import shipped_model
from simulator.importers.shell.command_options import options_of
from simulator.importers.shell.launch_script import read_script
from simulator.serving.described import Deployment
from simulator.serving.launch.options import (
    MODEL,
    OPTIONS,
    REPLICAS,
    SHARES_EXPERTS,
    WITHOUT_COST,
    Option,
)

_STARTS = {
    "vllm": ("vllm serve", "vllm.entrypoints.openai.api_server"),
    "sglang": ("sglang.launch_server", "sglang serve"),
    "tensorrt-llm": ("trtllm-serve serve", "trtllm-serve"),
}
_COMMANDS = {
    "vllm": ["vllm", "serve"],
    "sglang": ["python3", "-m", "sglang.launch_server", "--model-path"],
    "tensorrt-llm": ["trtllm-serve"],
}


def deployment_document(
    engine: str,
    path: Path,
    *,
    profile: str,
    model: str | None = None,
    gpus: int | None = None,
    ignore: Sequence[str] = (),
) -> dict[str, Any]:
    """The deployment that a launch line, a script or a settings file starts, as a file says it.

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
    options = _options(engine, read_text(path, "give a script or a YAML file"), str(path))
    fields: dict[str, Any] = {}
    faults: list[Fault] = []
    for option in OPTIONS[engine]:
        for name in option.names:
            if name in options:
                fields |= _field(option, name, options.pop(name), faults, str(path))
    named = [str(options.pop(name)) for name in MODEL if name in options]
    if engine == "vllm":
        fields |= _swap(options)
    known = model or (shipped_model(named[0]) if named else None)
    if known is None:
        hint = "give --model NAME, or a path to its config.json"
        faults.append(Fault("model", "is not a shipped model", named[:1], hint, str(path)))
    said = {name: options.pop(name) for name in REPLICAS if name in options}
    said |= {name: fields[name] for name in ("tp", "pp", "ep") if name in fields}
    for name, value in said.items():
        if type(value) is not int or value < 1:
            rule, hint = "must be a whole number from 1 on", "for example 8"
            raise InputError.single(name, rule, value, hint, str(path))
    copies = max([said[name] for name in REPLICAS if name in said], default=1)
    shares = bool([name for name in SHARES_EXPERTS if options.pop(name, False)])
    ranks = fields.get("tp", 1) * fields.get("pp", 1)
    if shares and copies > 1:
        is_sglang = engine == "sglang"
        # SGLang's tp counts the ranks of all groups, vLLM's those of one.
        tp = fields.get("tp", 1) // (copies if is_sglang else 1)
        fields |= {"attention_dp": copies, "tp": tp}
        ranks *= 1 if is_sglang else copies
    if shares and engine == "vllm":
        fields["ep"] = fields.get("tp", 1) * fields.get("attention_dp", 1)
    for name in sorted(set(options) - WITHOUT_COST - {each.replace("-", "_") for each in ignore}):
        hint = f"give --ignore {name} to remove it"
        faults.append(Fault(name, "is not modelled", options[name], hint, str(path)))
    if faults:
        raise InputError(faults)
    wanted = gpus or ranks * (1 if shares else copies)
    about = {"model": known, "profile": profile, "gpus": wanted, "engine": engine}
    return {"deployment": about | _tree(fields)}


def launch_line(deployment: Deployment, model: str) -> str:
    """The command that starts an engine as a deployment says; settings of its own are left out.

    Args:
        deployment: With an engine that has a command.
        model: The model's name for the engine, a path or one of the hub.

    Raises:
        InputError: The engine has none, or the deployment has fields that no option stands for.
    """
    engine = deployment.engine
    if engine not in OPTIONS:
        hint = f"choose one of {', '.join(OPTIONS)}"
        raise InputError.single("deployment.engine", "has no launch line", engine, hint)
    words, nested = [*_COMMANDS[engine], model], {}
    said = {**flat(deployment.model_dump(exclude_defaults=True)), "tp": deployment.tp}
    groups, copies = deployment.attention_dp, deployment.replicas
    if engine == "sglang":
        said["tp"] = deployment.tp * groups
    for option in OPTIONS[engine]:
        value = _written(option, said.get(option.field))
        if value is None:
            continue
        name = option.names[0]
        if "." in name or (option.values and engine == "tensorrt-llm"):
            nested[name] = value
        else:
            words += [f"--{_spelt(engine, name)}", *([] if option.is_flag else [str(value)])]
    if deployment.adapters and engine != "tensorrt-llm":
        words.append("--enable-lora")
    if deployment.swap_bytes and engine == "vllm":
        space = f"{deployment.swap_bytes / 2**30:g}"
        words += ["--preemption-mode", "swap", "--swap-space", space]
    words += _copies(engine, groups, copies, shares=groups > 1 or deployment.ep > 1)
    if engine == "tensorrt-llm" and groups > 1:
        nested["enable_attention_dp"] = True
    line = shlex.join(words)
    if nested:
        line += " --extra_llm_api_options settings.yaml\n# settings.yaml:\n"
        line += "".join(f"#   {row}\n" for row in yaml.safe_dump(_tree(nested)).splitlines())
    return line.rstrip("\n")


def _options(engine: str, text: str, origin: str) -> dict[str, Any]:
    """Options of the command that starts the engine, or settings of a YAML file."""
    if origin.endswith((".yaml", ".yml")):
        return {k.replace("-", "_"): v for k, v in flat(yaml_mapping(text, origin)).items()}
    for words in read_script(text, {}, origin).commands:
        line = " ".join(words)
        start = next((each for each in _STARTS[engine] if f"{each} " in f"{line} "), "")
        if start:
            rest = line.split(start, 1)[1].split()
            options = options_of(rest)
            if rest and not rest[0].startswith("-"):
                options["model"] = rest[0]
            return options
    rule, hint = f"starts no {engine}", f"it should have {_STARTS[engine][0]} and a model"
    raise InputError.single("", rule, hint=hint, file=origin)


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


def _written(option: Option, value: Any) -> Any:
    """The value as the option has it; None where it is not given or cannot say it."""
    if value is None or value == "":
        return None
    if not option.values:
        return value
    return next((theirs for theirs, ours in option.values.items() if ours == value), None)


def _spelt(engine: str, name: str) -> str:
    return name if engine == "tensorrt-llm" else name.replace("_", "-")


def _copies(engine: str, groups: int, copies: int, *, shares: bool) -> list[str]:
    if engine == "tensorrt-llm":
        return []
    number = str(groups * copies if groups == 1 else groups)
    name = "--dp-size" if engine == "sglang" else "--data-parallel-size"
    words = [name, number] if number != "1" else []
    if groups > 1 and engine == "sglang":
        words.append("--enable-dp-attention")
    return [*words, "--enable-expert-parallel"] if shares and engine == "vllm" else words


def _tree(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = value
    return tree
