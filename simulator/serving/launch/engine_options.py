"""Which options of serving engines stand for which fields of a deployment, and which cost nothing?

Source: vLLM 0.33.0, ``engine/arg_utils.py``; SGLang 0.5.23, ``server_args.py``; TensorRT-LLM 1.x,
``commands/serve.py`` and ``llmapi/llm_args.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


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
DTYPES = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
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
            Option(("dtype",), "weights", DTYPES),
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
            Option(("dtype",), "weights", DTYPES),
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
_MEETING = "nnodes node_rank dist_init_addr dist_timeout master_addr master_port enable_p2p_check"
"""How the nodes of a launch find each other."""
WITHOUT_COST = frozenset([*_WITHOUT_COST.split(), *_MEETING.split()])
"""Options that change no time."""

SETTINGS_FILES = ("config", "extra_llm_api_options")
"""Options that name a file of further settings."""

_OWN_CHOICE = """
    attention_backend prefill_attention_backend decode_attention_backend sampling_backend
    moe_backend moe_runner_backend fp8_gemm_backend fp4_gemm_backend all2all_backend
    moe_a2a_backend deepep_mode compilation_config optimization_level max_cudagraph_capture_size
    cudagraph_capture_sizes cuda_graph_sizes cuda_graph_max_bs cuda_graph_bs cuda_graph_config
    stream_interval moe_config.backend
"""
OWN_CHOICE = frozenset(_OWN_CHOICE.split())
"""Options that pick kernels, graphs or how often words are sent: taken as the engine picks them."""


PROMPT_WAITS = (
    "attention_dp_config.enable_balance",
    "attention_dp_config.timeout_iters",
    "attention_dp_config.batching_wait_iters",
)


def tree_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name, as nested mappings."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = value
    return tree
