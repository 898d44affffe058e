"""How does a launch line or a settings file of a serving engine become a deployment, and back?

A script is read, never run; of its commands the one that starts the engine counts. Settings files
are YAML, as ``vllm serve --config``, ``sglang --config`` and ``trtllm-serve
--extra_llm_api_options`` take them.

Source of the options: vLLM 0.33.0, ``engine/arg_utils.py``; SGLang 0.5.23, ``server_args.py``;
TensorRT-LLM 1.x, ``commands/serve.py`` and ``llmapi/llm_args.py``.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from simulator.described.base import file_name_of_field
from simulator.described.documents import yaml_mapping
from simulator.errors import Fault, InputError
from simulator.files import read_text
from simulator.importers.assembly import flat
from simulator.importers.hub_models import shipped_model
from simulator.importers.shell.command_options import options_of
from simulator.importers.shell.launch_script import read_script
from simulator.serving.checkpoint_formats import format_of_name
from simulator.serving.defaults import scheduler_name
from simulator.serving.described import Deployment


class Option(NamedTuple):
    """One option.

    Attributes:
        names: Its spellings with underscores for dashes, the one that is written first.
        field: The field of a deployment.
        values: Our value for each of its values; empty takes values as they are.
        is_flag: Whether it stands without a value.
    """

    names: tuple[str, ...]
    field: str
    values: Mapping[Any, Any] = MappingProxyType({})
    is_flag: bool = False


_CACHE = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "fp8": "fp8", "fp8_e4m3": "fp8",
          "fp8_e5m2": "fp8", "nvfp4": "nvfp4"}  # fmt: skip
_QUANTIZATION = {"fp8": "fp8", "w8a8_int8": "int8", "awq": "int4", "gptq": "int4",
                 "awq_marlin": "int4", "gptq_marlin": "int4", "modelopt_fp4": "nvfp4",
                 "modelopt": "fp8", "mxfp4": "mxfp4"}  # fmt: skip
_DTYPE = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
          "float": "fp32"}  # fmt: skip


_SAME = {True: True, False: False}


def _on(name: str, field: str, *, value: bool = True) -> Option:
    return Option((name,), field, {True: value}, is_flag=True)


OPTIONS: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {
        "vllm": (
            Option(("tensor_parallel_size", "tp"), "tp"),
            Option(("pipeline_parallel_size", "pp"), "pp"),
            Option(("max_num_seqs",), "max_requests"),
            Option(("max_num_batched_tokens",), "max_tokens"),
            Option(("max_model_len",), "max_model_tokens"),
            Option(("gpu_memory_utilization",), "memory_share"),
            Option(("num_gpu_blocks_override",), "kv_blocks"),
            Option(("block_size",), "block_tokens"),
            Option(("long_prefill_token_threshold",), "long_prefill_tokens"),
            Option(("max_loras",), "adapters.loaded"),
            Option(("max_lora_rank",), "adapters.rank"),
            Option(("dtype",), "weights", _DTYPE),
            Option(("quantization", "q"), "weights", _QUANTIZATION),
            Option(("kv_cache_dtype",), "cache", _CACHE),
            _on("enable_prefix_caching", "prefix_caching"),
            _on("no_enable_prefix_caching", "prefix_caching", value=False),
            _on("enable_chunked_prefill", "chunked_prefill"),
            _on("no_enable_chunked_prefill", "chunked_prefill", value=False),
            _on("async_scheduling", "plans_ahead"),
            _on("no_async_scheduling", "plans_ahead", value=False),
            _on("enforce_eager", "graphs", value=False),
            _on("disable_custom_all_reduce", "custom_all_reduce", value=False),
        ),
        "sglang": (
            Option(("tp_size", "tp", "tensor_parallel_size"), "tp"),
            Option(("pp_size", "pp", "pipeline_parallel_size"), "pp"),
            Option(("ep_size", "ep", "expert_parallel_size"), "ep"),
            Option(("max_running_requests",), "max_requests"),
            Option(("chunked_prefill_size",), "max_tokens"),
            Option(("context_length",), "max_model_tokens"),
            Option(("mem_fraction_static",), "memory_share"),
            Option(("page_size",), "block_tokens"),
            Option(("scheduler_recv_interval",), "receive_steps"),
            Option(("max_loras_per_batch",), "adapters.loaded"),
            Option(("max_lora_rank",), "adapters.rank"),
            Option(("dtype",), "weights", _DTYPE),
            Option(("quantization",), "weights", _QUANTIZATION),
            Option(("kv_cache_dtype",), "cache", _CACHE),
            _on("disable_radix_cache", "prefix_caching", value=False),
            _on("disable_overlap_schedule", "plans_ahead", value=False),
            _on("disable_cuda_graph", "graphs", value=False),
            _on("disable_custom_all_reduce", "custom_all_reduce", value=False),
        ),
        "tensorrt-llm": (
            Option(("tp_size", "tensor_parallel_size"), "tp"),
            Option(("pp_size", "pipeline_parallel_size"), "pp"),
            Option(("ep_size", "moe_expert_parallel_size"), "ep"),
            Option(("max_batch_size",), "max_requests"),
            Option(("max_num_tokens",), "max_tokens"),
            Option(("max_seq_len",), "max_model_tokens"),
            Option(
                ("kv_cache_free_gpu_memory_fraction", "kv_cache_config.free_gpu_memory_fraction"),
                "memory_share",
            ),
            Option(("kv_cache_config.tokens_per_block",), "block_tokens"),
            Option(("kv_cache_config.dtype",), "cache", _CACHE),
            Option(("kv_cache_config.enable_block_reuse",), "prefix_caching", _SAME),
            Option(("enable_chunked_prefill",), "chunked_prefill", _SAME),
            Option(
                ("scheduler_config.capacity_scheduler_policy",),
                "scheduler",
                {"GUARANTEED_NO_EVICT": "trtllm", "MAX_UTILIZATION": "trtllm-max-utilisation"},
            ),
            Option(("disable_overlap_scheduler",), "plans_ahead", {True: False, False: True}),
        ),
    }
)
"""By engine; of several options for a field the later overrules."""

MODEL = ("model", "model_path", "model_tag")
"""Options that name the model, where it is not the first word."""

REPLICAS = ("data_parallel_size", "dp", "dp_size")
"""Options that ask for copies: of the model, or of its attention alone."""

SHARES_EXPERTS = ("enable_expert_parallel", "enable_dp_attention", "enable_attention_dp")
"""Options with which copies of the attention share the experts."""

_WITHOUT_COST = """
    host port served_model_name trust_remote_code api_key seed download_dir tokenizer backend
    load_format log_level disable_log_requests disable_log_stats uvicorn_log_level revision
    chat_template tool_call_parser reasoning_parser enable_auto_tool_choice random_seed
    tokenizer_mode log_requests enable_metrics distributed_executor_backend
    enable_lora lora_modules lora_paths num_postprocess_workers
    response_format generation_config
"""
WITHOUT_COST = frozenset(_WITHOUT_COST.split())
"""Options that change no time."""

_SETTINGS_FILES = ("config", "extra_llm_api_options")
"""Options that name a file of further settings."""

_OWN_CHOICE = """
    attention_backend prefill_attention_backend decode_attention_backend sampling_backend
    moe_backend moe_runner_backend fp8_gemm_backend fp4_gemm_backend all2all_backend
    moe_a2a_backend deepep_mode compilation_config optimization_level max_cudagraph_capture_size
    cudagraph_capture_sizes cuda_graph_sizes cuda_graph_max_bs cuda_graph_bs cuda_graph_config
    stream_interval
"""
OWN_CHOICE = frozenset(_OWN_CHOICE.split())
"""Options that pick kernels, graphs or how often words are sent: taken as the engine picks them."""


class Launch(NamedTuple):
    """What a launch line starts.

    Attributes:
        document: The deployment as a file says it.
        own_choice: Options that are taken as the engine would choose them.
    """

    document: dict[str, Any]
    own_choice: tuple[str, ...]


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
    options = _options(engine, read_text(path, "give a script or a YAML file"), str(path))
    ignored = {each.replace("-", "_") for each in ignore}
    faults: list[Fault] = []
    options |= _further_settings(options, path, ignored, faults)
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
    if own and (fields.get("weights") in (None, *_DTYPE.values()) or own == "fp8_block"):
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
    own_choice = tuple(name for name in options if name.partition(".")[0] in OWN_CHOICE - ignored)
    for name in sorted(set(options) - WITHOUT_COST - ignored - set(own_choice)):
        hint = f"give --ignore {name} to remove it"
        faults.append(Fault(name, "is not modelled", options[name], hint, str(path)))
    if faults:
        raise InputError(faults)
    wanted = gpus or ranks * (1 if shares else copies)
    about = {"model": known, "profile": profile, "gpus": wanted, "engine": engine}
    return Launch({"deployment": about | _tree(fields)}, own_choice)


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
    options: dict[str, Any], path: Path, ignored: Collection[str], faults: list[Fault]
) -> dict[str, Any]:
    """What a file that a launch line names sets, where the line itself does not.

    TensorRT-LLM's file goes over the line.
    """
    found: dict[str, Any] = {}
    for option in _SETTINGS_FILES:
        name = options.pop(option, None)
        if name is None or option in ignored:
            continue
        file = path.parent / str(name)
        if not file.is_file():
            hint = f"put it beside the script, or remove it with --ignore {option}"
            faults.append(Fault(option, "names a file that does not exist", name, hint, str(path)))
            continue
        settings = _settings(read_text(file, "give a YAML file"), str(file))
        goes_over = option == "extra_llm_api_options"
        found |= {key: value for key, value in settings.items() if goes_over or key not in options}
    return found


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
        line += "".join(f"#   {row}\n" for row in yaml.safe_dump(_tree(nested)).splitlines())
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


def _options(engine: str, text: str, origin: str) -> dict[str, Any]:
    """Options of the command that starts the engine, or settings of a YAML file."""
    if origin.endswith((".yaml", ".yml")):
        return _settings(text, origin)
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


_PROMPT_WAITS = (
    "attention_dp_config.enable_balance",
    "attention_dp_config.timeout_iters",
    "attention_dp_config.batching_wait_iters",
)
_USUAL_WAIT_STEPS = 50


def _attention_groups(deployment: Deployment) -> dict[str, Any]:
    """TensorRT-LLM's settings of groups that attend to requests of their own."""
    steps = deployment.prompt_wait_steps
    waits = dict(zip(_PROMPT_WAITS, (True, steps, 0), strict=True)) if steps else {}
    return waits | ({"enable_attention_dp": True} if deployment.attention_dp > 1 else {})


def _prompt_waits(options: dict[str, Any]) -> dict[str, Any]:
    """How long prompts wait for those of other groups; not at all unless the balance is on.

    Waiting for more prompts beyond that is not modelled, and refused where it is asked for.

    Source: TensorRT-LLM 1.1, ``AttentionDpConfig`` of llmapi/llm_args.py.
    """
    balance, steps, further = _PROMPT_WAITS
    is_balanced = str(options.pop(balance, False)).lower() == "true"
    waits = options.pop(steps, _USUAL_WAIT_STEPS)
    if not is_balanced or options.get(further) == 0:
        options.pop(further, None)
    return {"prompt_wait_steps": waits} if is_balanced else {}


_OF_SEVERAL = MappingProxyType({"vllm": _swap, "tensorrt-llm": _prompt_waits})
"""What several options of an engine say together."""


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
