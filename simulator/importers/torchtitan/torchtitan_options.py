"""Which model, schedule and option of torchtitan is which of ours, and what costs what?

Source: torchtitan's configuration (train_configs of 2024 to the JobConfig of 0.2.2) and
its model flavours, as facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.importers.settings import Cost, Rules

MODELS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("llama3", "8B"): "llama3.1-8b",
        ("llama3", "70B"): "llama3.1-70b",
        ("llama3", "405B"): "llama3.1-405b",
        ("llama2", "7B"): "llama2-7b",
        ("llama2", "13B"): "llama2-13b",
        ("llama2", "70B"): "llama2-70b",
        ("deepseek_v3", "236B"): "deepseek-v2",
        ("deepseek_v3", "16B"): "deepseek-v2-lite",
        ("qwen3", "0.6B"): "qwen3-0.6b",
        ("qwen3", "1.7B"): "qwen3-1.7b",
        ("qwen3", "4B"): "qwen3-4b",
        ("qwen3", "8B"): "qwen3-8b",
        ("qwen3", "14B"): "qwen3-14b",
        ("qwen3", "32B"): "qwen3-32b",
        ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
        ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
        ("gpt_oss", "20b"): "gpt-oss-20b",
        ("gpt_oss", "120b"): "gpt-oss-120b",
    }
)
"""Our model for each name and flavour."""

WITHOUT_EXTRAS: Mapping[tuple[str, str], str] = MappingProxyType(
    {("deepseek_v3", "671B"): "deepseek-v3"}
)
"""Our model where torchtitan leaves out its multi-token-prediction layer."""

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "1F1B": "1f1b",
        "GPipe": "gpipe",
        "Interleaved1F1B": "interleaved-1f1b",
        "interleaved_1f1b": "interleaved-1f1b",
        "LoopedBFS": "looped-bfs",
        "InterleavedZeroBubble": "zb-1p",
        "ZBVZeroBubble": "zb-v",
        "DualPipeV": "dualpipev",
    }
)
"""Our pipeline schedule for each of PyTorch's, in whose names case does not matter."""

ONE_CHUNK = ("1f1b", "gpipe")
"""Schedules with one stage per rank; the others have two unless layers per stage are given."""

CONVERTERS: Mapping[str, str] = MappingProxyType(
    {
        "float8": "fp8", "quantize.linear.float8": "fp8", "quantize.dense.float8": "fp8",
        "mx": "mxfp8", "quantize.linear.mx": "mxfp8", "quantize.dense.mx": "mxfp8",
    }
)  # fmt: skip
"""Format of the products for each model converter."""

DISPATCHERS: Mapping[str, str] = MappingProxyType(
    {"standard": "all_to_all", "deepep": "hierarchical", "hybridep": "hierarchical"}
)
"""Way of tokens to their experts for each ``expert_parallel_comm_backend``."""

DEGREES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tp": ("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"),
        "pp": ("parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree",
               "training.pipeline_parallel_degree"),
        "cp": ("parallelism.context_parallel_degree", "experimental.context_parallel_degree"),
        "ep": ("parallelism.expert_parallel_degree",),
        "etp": ("parallelism.expert_tensor_parallel_degree",),
    }
)  # fmt: skip
"""Settings of each parallel degree; the first is today's."""

RULES = Rules(
    costs=(
        Cost(r"training\.dtype", "keeps weights and states in 16 bits", ("float32",)),
        Cost(r"optimizer\.(early_step_in_backward|swap.*|offload.*)", "moves the update"),
        Cost(r"optimizer\.implementation", "updates by slower kernels", ("fused",)),
        Cost(
            r"parallelism\.(disable_loss_parallel|enable_compiled_autograd)"
            r"|training\.(disable_loss_parallel|enable_loss_parallel)"
            r"|experimental\.enable_compiled_autograd",
            "changes loss or backward",
        ),
        Cost(
            r"parallelism\.(module_fqns_per_model_part|pipeline_parallel_split_points)"
            r"|experimental\.pipeline_parallel_split_points",
            "cuts the model by module names",
        ),
        Cost(r"parallelism\.enable_fsdp_symm_mem", "exchanges by other kernels"),
        Cost(r"parallelism\.(expert|pipeline).*a2a.*", "exchanges by other kernels"),
        Cost(
            r"activation_checkpoint\.(memory_budget)",
            "recomputes as much as a budget asks for",
            (0.5,),
        ),
        Cost(r"(fault_tolerance|validation|validator)\.enable", "adds work to some steps"),
        Cost(
            r"debug\.(deterministic|detect_anomaly|batch_invariant)|training\.deterministic",
            "takes slower kernels",
        ),
        Cost(r"(lora|peft|activation_offload).*", "trains or keeps something else"),
    ),
    free=(
        r"(job|profiling|metrics|lr_scheduler|checkpoint|comm|fault_tolerance|debug|dataloader)"
        r"(\..*)?",
        r"(memory_estimation|validat(ion|or)|tokenizer|hf_assets.*|logging|description)(\..*)?",
        r"(dump_folder|profiler|loss|model_spec\.model|override|(.*\.)?_target_)(\..*)?",
        r"experimental(\.custom.*)?|(quantize|float8|mx)(\..*)?|optimizer\.(lr|eps|beta.*|w.*|n.*)",
        r"model\.(norm_type|tokenizer_path|hf_assets_path|print_after.*|path|converters)",
        r"training\.(steps|dataset.*|gc_.*|seed|warmup_steps|data_parallel_type|mixed.*)",
        r"training\.(dataloader.*|fp8_linear|bf16|name|log.*|deterministic.*)",
        r"activation_checkpoint\.(.*sac_force.*|debug|preserve.*|determ.*|visual.*|early_stop)",
        r"activation_checkpoint\.(selective_ac_option|memory_budget)|compile\..*",
        r"parallelism\.context_parallel_load_balancer",
        r"parallelism\.(spmd_backend|enable_sequence_parallel)",
    ),
    simplified=MappingProxyType({}),
)
"""What becomes of the settings that the importer does not read."""
