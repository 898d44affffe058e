"""What does each training framework do when it is left to its defaults?

Every known :class:`~simulator.described.plan.stack.Stack` by its name. The facts come from knowing
the frameworks, not from a reference per line: where one decides a plan, check it against the
version at hand.

A plan names a stack, or starts from one and changes facts in place::

    plan: {stack: {base: torchtitan, fused_rmsnorm: false}}
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from simulator.described.plan.stack import Stack

_ZERO_3_OF_2021: Mapping[str, Any] = MappingProxyType(
    {
        "sharding_units": "parameters",
        "whole_below_numel": 1e5,
        "reuse_numel": 1e9,
        "live_numel": 1e9,
        "keeps_tied_embedding": True,
        # ``reduce_bucket_size``: 5e8 elements of 16 bits.
        "bucket_bytes": "1 GB",
        "lists_of_shards": True,
        # Fetching a module's parameters waits for the device before and after each gather.
        "overlap_param_gather": False,
        "overlap_grad_reduce": False,
    }
)
"""ZeRO-3 before it was written anew (DeepSpeed 0.5.9), at its defaults: ``overlap_comm`` false.

Source: ``stage3.py`` and ``partition_parameters.py`` of DeepSpeed 0.3.13; "the async version is
not async at all, because each all_gather calls torch.cuda.synchronize()" (DeepSpeed's pull
request 1188, June 2021)."""

_BATCH_READ = "500 us"
"""What every forward waits for on every stage of Megatron-LM until late 2023: the host reads the
sizes of a batch back from the device, sends it to the tensor-parallel ranks and makes masks.

Source: ``batch-generator`` of its logs, a timer that waits for the device on both sides, per
microbatch of GPT: 0.51 ms on two tensor-parallel ranks (520 ms in a step of 1,024, September 2021),
0.59 to 0.68 ms on four (bigscience-workshop/bigscience, experiments/gpt2-16gb-nodes.md). Some of
it precedes the read; what the model's Python does before its first kernel comes on top."""

STACKS: Mapping[str, Stack] = MappingProxyType(
    {
        "megatron-core": Stack(
            offloads="optimizer",
            description="Megatron-Core and NeMo, 2023 and later, with Transformer Engine",
            gathers_casted=True,
            persistent_norms=True,
            fused_latent_rotary=False,
            fused_expert_extras=False,
            bucket_per_rank_bytes="4 MB",  # type: ignore[arg-type]
        ),
        "megatron-lm-2021": Stack(
            attention="fused-softmax",
            fused_biases=False,
            fused_accumulation=False,
            description="Megatron-LM v2 (arXiv 2104.04473), gradients reduced at the end",
            loads_all_kernels=True,
            sequence_parallel=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            overlap_p2p=False,
            scatter_p2p=True,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            cross_entropy="in-place",
            dropout=True,
            forward_host_s=_BATCH_READ,  # type: ignore[arg-type]
        ),
        "megatron-lm-2020": Stack(
            attention="fused-softmax",
            fused_biases=False,
            fused_accumulation=False,
            description="Megatron-LM v1 (arXiv 1909.08053), without a pipeline",
            loads_all_kernels=True,
            sequence_parallel=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            overlap_p2p=False,
            overlap_tp_backward=False,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            fused_softmax=True,
            cross_entropy="in-place",
            dropout=True,
            forward_host_s=_BATCH_READ,  # type: ignore[arg-type]
        ),
        "megatron-deepspeed": Stack(
            offloads="infinity",
            attention="fused-softmax",
            fused_biases=False,
            host_work_per_launch=13.86,  # fitted to the small runs of one source, vtrain-single
            fused_accumulation=False,
            description="Megatron-DeepSpeed, DeepSpeed's pipeline engine, eager PyTorch",
            scales_gradients="always",
            unscales_apart=False,
            always_takes_norm=True,
            zero_in_pipeline=1,
            sequence_parallel=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            overlap_p2p=False,
            overlap_tp_backward=False,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            cross_entropy="in-place",
            dropout=True,
        ),
        "deepspeed": Stack(
            offloads="infinity",
            attention="fused-softmax",
            copies_gradients=False,
            fused_accumulation=False,
            description="DeepSpeed ZeRO without model parallelism, 2022 and later",
            scales_gradients="always",
            unscales_apart=False,
            always_takes_norm=True,
            zero_in_pipeline=1,
            reduces_in_place=False,
            sequence_parallel=False,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            cross_entropy="in-place",
            dropout=True,
        ),
        "deepspeed-2021": Stack(
            description="DeepSpeed 0.3 to 0.5 (2021): ZeRO-3 fetches one parameter after another",
            loads_all_kernels=True,
            scales_gradients="always",
            unscales_apart=False,
            always_takes_norm=True,
            offloads="infinity",
            attention="fused-softmax",
            fused_biases=False,
            copies_gradients=False,
            fused_accumulation=False,
            zero_in_pipeline=1,
            reduces_in_place=False,
            sequence_parallel=False,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            cross_entropy="in-place",
            dropout=True,
            frees_gradients=True,
            **_ZERO_3_OF_2021,
        ),
        "zero-bubble": Stack(
            description="Sea AI Lab's fork of Megatron-LM (arXiv 2401.10241), 2023",
            attention="fused-softmax",
            fused_biases=False,
            sequence_parallel=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            overlap_p2p=False,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            cross_entropy="in-place",
            dropout=True,
            post_validation=True,
            forward_host_s=_BATCH_READ,  # type: ignore[arg-type]
        ),
        "torch-fsdp": Stack(
            offloads="shards",
            description="PyTorch FSDP1 around an eager model, as in llm-foundry of 2023",
            scales_gradients="clipping",
            sharding_units="root",
            gathers_on_own_stream=True,
            reduces_in_place=False,
            reduce_copy_bytes=14.0,  # cast 16-bit to fp32 (2 + 4), divide in place (4 + 4)
            keeps_half_weights=False,
            pads_vocab=False,
            copies_gradients=False,
            main_grad_precision="fp32",
            grad_reduce_precision="fp32",
            recompute_stops_early=True,  # activation_checkpointing_reentrant: false
            flash_kernel="flash-1",
            fused_elementwise=False,
            cross_entropy="fused",  # flash-attn's, llm-foundry's ``fused_crossentropy``
            keeps_gathered=True,
            frees_gradients=True,
        ),
        "torchtitan": Stack(
            offloads="shards",
            description="torchtitan: PyTorch FSDP2 with torch.compile",
            scales_gradients="clipping",
            gathers_casted=True,
            persistent_norms=True,
            keeps_graph_for_weights=True,
            buffers_every_microbatch=True,
            sharding_units="ends",
            frees_copied_gradients=True,
            pads_shards=True,
            shards_matrices=True,
            keeps_gathered=True,
            fused_projections=False,
            coalesced_norm_gradients=False,
            fp32_ring_sums=True,
            overlap_tp_backward=False,
            gather_copy_bytes=4.0,  # copy out of the gathered buffer (2 + 2)
            reduces_in_place=False,
            reduce_copy_bytes=6.0,  # cast and copy into the reduced buffer (2 + 4)
            keeps_half_weights=False,
            pads_vocab=False,
            copies_gradients=False,
            selective_policy="alternate-products",
            recompute_stops_early=True,
            grouped_experts=True,
            fused_casts=False,
            flash_kernel="flash-2",
            cross_entropy="fused",  # compiled since 2025, components/loss.py
            repeats_kv_heads=True,
            frees_gradients=True,
        ),
        "internevo": Stack(
            fused_accumulation=False,
            description="InternEvo: ZeRO inside nodes, gradients reduced during backward",
            scales_gradients="clipping",
            unscales_apart=False,
            # HybridZeroOptimizer: _partition_param_list, _reduce_and_copy, broadcast_params.
            shards_whole_parameters=True,
            norm_copies=True,
            flat_states=True,
            update_copies=2,
            uneven_layers="last",
            gathers_on_own_stream=True,
            flat_broadcasts=True,
            bucket_bytes="1 GiB",  # type: ignore[arg-type]  # 512 Mi elements of 16 bits
            main_grad_precision="bf16",
            grad_reduce_precision="bf16",
            overlap_param_gather=False,
            flash_kernel="flash-1",
            fused_elementwise=False,
            # InternLM, doc/usage.md: steps of 7B on 8 A100s take 0.15 to 0.16 s more than their
            # ``fwd_bwd_time`` (July 2023); updating and broadcasting take 0.1 s of that.
            step_host_s="60 ms",  # type: ignore[arg-type]
        ),
        "jax": Stack(
            description="JAX with XLA (Paxml, MaxText)",
            scales_gradients="in-update",
            unscales_apart=False,
            # fp32 weights are cast and then gathered for each use; products give gradients in 16
            # bits, which are reduced before they are cast.
            keeps_half_weights=False,
            grad_reduce_precision="bf16",
            reduces_in_place=False,
            copies_gradients=False,
            # Weights are combined up to a size below that of one; vectors are not sharded.
            sharding_units="parameters",
            whole_below_numel=1e5,
            bucket_bytes="30 MiB",  # type: ignore[arg-type]  # XLA's reduce_scatter combiner
            recompute_stops_early=True,
            shards_matrices=True,
            pads_vocab=False,
            holds_tied_gradients=False,
        ),
        "torch": Stack(
            offloads="shards",
            fused_accumulation=False,
            recompute_stops_early=True,
            description="Plain PyTorch with DDP or FSDP2, eager",
            scales_gradients="clipping",
            float8_scaling="eager",
            keeps_graph_for_weights=True,
            buffers_every_microbatch=True,
            sharding_units="root",
            frees_copied_gradients=True,
            pads_shards=True,
            shards_matrices=True,
            keeps_gathered=True,
            fused_projections=False,
            coalesced_norm_gradients=False,
            fp32_ring_sums=True,
            overlap_tp_backward=False,
            first_bucket_bytes="1 MiB",  # type: ignore[arg-type]
            sequence_parallel=False,
            overlap_param_gather=False,
            pads_vocab=False,
            copies_gradients=False,
            flash_kernel="flash-2",
            fused_elementwise=False,
            fused_rmsnorm=False,
            fused_rotary=False,
            fused_softmax=False,
            cross_entropy="eager",
            frees_gradients=True,
            buckets_gradients=True,
            bucket_bytes="25 MiB",  # type: ignore[arg-type]  # quantities are said with units
        ),
    }
)
"""Every known stack by the name a plan uses."""


def named_stack(value: object) -> object:
    """The stack of a name, or of a block that changes facts of a ``base``.

    The base is Megatron-Core where none is named, as it is for a plan without a stack.

    Raises:
        ValueError: No stack has the name.
    """
    if isinstance(value, str):
        if value not in STACKS:
            raise ValueError(f"no such stack; known: {', '.join(STACKS)}")
        return STACKS[value]
    if isinstance(value, Mapping):
        base = named_stack(value.get("base", "megatron-core"))
        changes = {key: item for key, item in value.items() if key != "base"}
        return {**base.model_dump(by_alias=True), **changes} if isinstance(base, Stack) else base
    return value
