"""What does each training framework do when it is left to its defaults?

A stack is a named, documented set of *facts* about a framework: what it overlaps,
fuses, stores and launches. It never holds a factor that makes predictions fit. The one
fitted number, host time per launched kernel, is a property of the framework's Python
path and is fitted for all workloads of the stack at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from simulator.spec.kernels import FlashKernel
from simulator.spec.plan import Plan, StackName

GradPrecision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Defaults and kernels of one framework generation.

    Attributes:
        description: What it is, and the versions it stands for.
        sequence_parallel: Default when tp > 1.
        overlap_grad_reduce: Gradient reduction starts during the last backward.
        overlap_param_gather: Sharded parameters are gathered during forward.
        overlap_p2p: Pipeline transfers run beside computation (interleaved schedules).
        overlap_tp: Tensor-parallel collectives are pipelined with matrix products.
        overlap_tp_backward: Without ``overlap_tp``, the collective of an input gradient
            still hides behind the weight gradient.
        scatter_p2p: Tensor-parallel ranks send 1/tp of a boundary activation each and
            gather it on arrival.
        main_grad_precision: Format gradients are accumulated in.
        grad_reduce_precision: Format gradients are reduced in.
        keeps_half_weights: 16-bit weights live beside the fp32 ones; without, each use
            casts (and gathers) them anew.
        copies_gradients: 16-bit gradients get an fp32 copy for the optimizer.
        pads_vocab: The vocabulary is padded to a multiple of 128 tp.
        bucket_bytes: Gradients are reduced in buckets of at least this size [B].
        flash_kernel: The fused attention kernel of ``attention: flash``.
        fused_elementwise: Bias, activation, dropout and residual run as fused kernels.
        fused_rmsnorm, fused_rotary: One kernel each, not an expression of eager ones.
        fused_softmax: Scale, mask and softmax of unfused attention are one kernel.
        fused_cross_entropy: The loss never materialises fp32 softmax copies.
        dropout: Models are trained with dropout (masks are stored and read).
        host_s_per_kernel: Host time per launched kernel [s], Python path included.
        host_s_per_step: Host time per optimizer step beyond kernels [s].
    """

    description: str
    sequence_parallel: bool = True
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    overlap_p2p: bool = True
    overlap_tp: bool = False
    overlap_tp_backward: bool = True
    scatter_p2p: bool = False
    main_grad_precision: GradPrecision = "fp32"
    grad_reduce_precision: GradPrecision = "fp32"
    keeps_half_weights: bool = True
    copies_gradients: bool = True
    pads_vocab: bool = True
    bucket_bytes: float = 160e6
    flash_kernel: FlashKernel = "best"
    fused_elementwise: bool = True
    fused_rmsnorm: bool = True
    fused_rotary: bool = True
    fused_softmax: bool = True
    fused_cross_entropy: bool = True
    dropout: bool = False
    host_s_per_kernel: float = 12e-6
    host_s_per_step: float = 0.0


STACKS: Mapping[StackName, Stack] = MappingProxyType(
    {
        "megatron-core": Stack(
            description="Megatron-Core and NeMo, 2023 and later, with Transformer Engine",
        ),
        "megatron-lm-2021": Stack(
            description="Megatron-LM v2 (arXiv 2104.04473), gradients reduced at the end",
            sequence_parallel=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            overlap_p2p=False,
            scatter_p2p=True,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            fused_cross_entropy=False,
            dropout=True,
        ),
        "megatron-lm-2020": Stack(
            description="Megatron-LM v1 (arXiv 1909.08053), without a pipeline",
            sequence_parallel=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            overlap_p2p=False,
            overlap_tp_backward=False,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            fused_softmax=True,
            fused_cross_entropy=False,
            dropout=True,
        ),
        "megatron-deepspeed": Stack(
            description="Megatron-DeepSpeed, DeepSpeed's pipeline engine, eager PyTorch",
            sequence_parallel=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            overlap_p2p=False,
            overlap_tp_backward=False,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            fused_cross_entropy=False,
            dropout=True,
        ),
        "deepspeed": Stack(
            description="DeepSpeed ZeRO without model parallelism, 2021",
            sequence_parallel=False,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
            main_grad_precision="fp16",
            grad_reduce_precision="fp16",
            fused_cross_entropy=False,
            dropout=True,
        ),
        "torch-fsdp": Stack(
            description="PyTorch FSDP1 around an eager model, as in llm-foundry",
            keeps_half_weights=False,
            pads_vocab=False,
            copies_gradients=False,
            main_grad_precision="fp32",
            grad_reduce_precision="fp32",
            flash_kernel="flash-1",
            fused_elementwise=False,
            fused_cross_entropy=False,
        ),
        "torchtitan": Stack(
            description="torchtitan: PyTorch FSDP2 with torch.compile",
            keeps_half_weights=False,
            pads_vocab=False,
            copies_gradients=False,
            flash_kernel="flash-2",
            fused_cross_entropy=False,
        ),
        "internevo": Stack(
            description="InternEvo: ZeRO inside nodes, gradients reduced during backward",
            main_grad_precision="bf16",
            grad_reduce_precision="bf16",
            overlap_param_gather=False,
            flash_kernel="flash-1",
            fused_elementwise=False,
        ),
        "jax": Stack(
            description="JAX with XLA (Paxml, MaxText)",
            pads_vocab=False,
        ),
        "torch": Stack(
            description="Plain PyTorch with DDP, eager",
            sequence_parallel=False,
            overlap_param_gather=False,
            pads_vocab=False,
            copies_gradients=False,
            flash_kernel="flash-2",
            fused_elementwise=False,
            fused_rmsnorm=False,
            fused_rotary=False,
            fused_softmax=False,
            fused_cross_entropy=False,
            bucket_bytes=25 * 2**20,
        ),
    }
)
"""Every known stack by the name a plan uses."""


def plan_stack(plan: Plan) -> Stack:
    """The stack that the plan names."""
    return STACKS[plan.stack]
