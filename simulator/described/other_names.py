"""What is a field of a job called here that other frameworks call otherwise?

Names of Megatron-LM, DeepSpeed, torchtitan, Hugging Face's transformers and common speech. They are
not accepted, a file has one spelling per field, but a fault names the right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OTHER_NAMES: Mapping[str, str] = MappingProxyType({
    "plan.tp": "tensor_parallel tensor_model_parallel tensor model_parallel mp",
    "plan.pp": "pipeline_parallel pipeline_model_parallel pipeline stages pipeline_stages",
    "plan.vpp": "virtual_pipeline virtual_pipeline_model_parallel virtual_stages interleave",
    "plan.cp": "context_parallel context ring_attention",
    "plan.ep": "expert_parallel expert_model_parallel moe_parallel",
    "plan.etp": "expert_tensor_parallel",
    "plan.sequence_parallel": "sp",
    "plan.stack": "framework backend engine library dialect",
    "plan.precision": "dtype torch_dtype mixed_precision bf16 fp16 fp8 amp",
    "plan.recompute": (
        "activation_checkpointing activation_checkpoint gradient_checkpointing recomputation "
        "recompute_activations recompute_granularity remat ac"
    ),
    "plan.zero": "zero_stage zero_optimization fsdp sharding distributed_optimizer",
    "plan.zero_group": "hsdp data_parallel_shard sharding_group",
    "plan.optimizer": "optim",
    "plan.clip_gradients": "gradient_clipping clip_grad max_norm",
    "plan.attention": "flash_attention flash_attn attn_implementation attention_backend",
    "plan.offload": "offload_optimizer offload_param cpu_offload",
    "batch.global": "global_batch train_batch batch gbs",
    "batch.micro": (
        "micro_batch microbatch mbs local_batch per_device_train_batch "
        "train_micro_batch_size_per_gpu pipeline_parallel_microbatch"
    ),
    "batch.seq_len": "sequence_length seq_length max_seq_len context_length",
    "cluster.gpus": "num_gpus gpu_count world devices",
    "cluster.profile": "system hardware gpu_type device_type machine",
})  # fmt: skip
"""By the path of the field, without endings such as ``_size``."""

_DERIVED: Mapping[str, str] = MappingProxyType({
    "dp data_parallel data_parallel_replicate replicas": (
        "leave it out: what cluster.gpus leaves beside tp, pp and cp is data-parallel"
    ),
    "gradient_accumulation gradient_accumulation_steps grad_accum num_microbatches microbatches": (
        "leave it out: it follows from batch.global, batch.micro and the data-parallel ranks"
    ),
    "nodes num_nodes nnodes": "give cluster.gpus, the GPUs of all nodes together",
})  # fmt: skip
_ENDINGS = "_size", "_degree"


def other_name_hint(word: str) -> str:
    """Which field somebody means who calls it ``word``; empty if nobody knows."""
    plain = word.lower().replace("-", "_")
    spellings = {plain, *(plain.removesuffix(ending) for ending in _ENDINGS)}
    called = {names: f"it is called {path} here" for path, names in OTHER_NAMES.items()}
    return next(
        (hint for names, hint in {**_DERIVED, **called}.items() if spellings & set(names.split())),
        "",
    )
