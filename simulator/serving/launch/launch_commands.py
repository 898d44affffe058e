"""Which command starts a serving engine as a deployment says?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from simulator.described.base import file_name_of_field
from simulator.errors import Fault, InputError
from simulator.importers.assembly import flat
from simulator.serving.defaults import scheduler_name
from simulator.serving.described import Deployment
from simulator.serving.launch.engine_options import OPTIONS, PROMPT_WAITS, Option, tree_of

_COMMANDS = {
    "vllm": ["vllm", "serve"],
    "sglang": ["python3", "-m", "sglang.launch_server", "--model-path"],
    "tensorrt-llm": ["trtllm-serve"],
}


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
    if engine != "vllm":
        said["tp"] = deployment.tp * groups
    if deployment.weights == "fp8_block":
        said["weights"] = "fp8"
    if faults := [*_unsayable(deployment, said)]:
        raise InputError(faults)
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
    if engine == "tensorrt-llm":
        nested |= _attention_groups(deployment)
    line = shlex.join(words)
    if nested:
        line += " --extra_llm_api_options settings.yaml\n# settings.yaml:\n"
        line += "".join(f"#   {row}\n" for row in yaml.safe_dump(tree_of(nested)).splitlines())
    return line.rstrip("\n")


_OF_THE_JOB = ("model", "profile", "gpus", "engine", "version", "usd_per_gpu_hour", "has_front_end")
"""Fields that no option of an engine stands for: what it is given, and who asks it."""
_DEGREES = ("tp", "pp", "ep", "attention_dp")


def _unsayable(deployment: Deployment, said: Mapping[str, Any]) -> Iterator[Fault]:
    """Fields of a deployment that the options of its engine do not say."""
    engine = deployment.engine
    options = {
        each.field for each in OPTIONS[engine] if _written(each, said.get(each.field)) is not None
    }
    elsewhere = {*_OF_THE_JOB, *_DEGREES}
    if engine == "vllm":
        elsewhere.add("swap_bytes")
    if engine == "tensorrt-llm":
        elsewhere |= {"prompt_wait_steps", "weights"}  # The checkpoint says how wide weights are.
    usual = deployment.model_copy(update={"scheduler": ""})
    if deployment.swap_bytes or scheduler_name(usual) == scheduler_name(deployment):
        elsewhere.add("scheduler")
    for name, value in said.items():
        if name not in options and name.partition(".")[0] not in elsewhere:
            rule, shown = f"is said by no option of {engine}", value if value != () else None
            yield Fault(f"deployment.{file_name_of_field(name)}", rule, shown, "remove it")
    if engine == "tensorrt-llm" and deployment.attention_dp > 1 and deployment.tp > 1:
        rule, hint = f"has groups of one rank in {engine}", "use deployment.tp: 1"
        yield Fault("deployment.attention_dp", rule, deployment.attention_dp, hint)


def _attention_groups(deployment: Deployment) -> dict[str, Any]:
    """TensorRT-LLM's settings of groups that attend to requests of their own."""
    steps = deployment.prompt_wait_steps
    waits = dict(zip(PROMPT_WAITS, (True, steps, 0), strict=True)) if steps else {}
    return waits | ({"enable_attention_dp": True} if deployment.attention_dp > 1 else {})


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
