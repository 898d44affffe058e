"""Between what do frameworks choose where a fact of a stack is not a number or a switch?"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, cast

from pydantic import Field

from simulator.described.cluster.kernel_parameters import FlashKernel

GradPrecision = Literal["fp32", "bf16", "fp16"]


def gradient_format(precision: str, fact: GradPrecision) -> GradPrecision:
    """Format of gradients that a stack keeps in ``fact``, in training of a number format.

    Where that is one of 16 bits, it is the one that the plan trains in, and fp32 in fp32 training.
    """
    if fact == "fp32" or precision in ("fp32", "tf32"):
        return "fp32"
    return "fp16" if precision == "fp16" else "bf16"


CrossEntropy = Literal[
    "fused",
    "in-place",
    "compiled",
    "whole-graph",
    "whole-graph-scattered",
    "copied",
    "eager",
    "eager-autocast",
    "eager-shifted",
    "eager-16bit",
    "eager-32bit",
    "shifted",
    "overwritten",
    "overwritten-16bit",
    "chunked",
    "chunked-head",
    "linear-fused",
    "cut",
    "tiled",
    "sum",
]
"""``fused`` keeps 16-bit logits and makes their gradient beside them; ``in-place`` makes
an fp32 copy and overwrites that (Megatron's vocabulary-parallel loss); ``compiled`` is as quick as
``fused``, but keeps that copy, and makes another in backward (Megatron-Core's
``cross_entropy_loss_fusion``, implementation ``native``); ``whole-graph`` is that of a compiled
model that returns its logits and their loss: it keeps 16-bit logits and makes their gradient beside
zeros for that of the returned ones (nanoGPT's ``model.py``); ``whole-graph-scattered`` is the same
by PyTorch before 2.5, which first scatters targets into fp32 zeros as large; ``copied`` makes
another beside it in forward (nanotron's ``sharded_cross_entropy``); ``eager`` keeps fp32
log-probabilities and makes fp32 gradients beside them (PyTorch's own of fp32 logits);
``eager-autocast`` is PyTorch's own of 16-bit logits under CUDA's autocast, which keeps 16-bit
log-probabilities and an fp32 copy;
``eager-shifted`` is that of an fp32 copy of fp32
logits, those of all tokens but the last, while the 16-bit ones are there, too (``logits.float()``
and ``shift_logits`` of transformers 4.46). ``eager-16bit`` is that of a copy of 16-bit logits,
which nothing casts, neither autocast nor the model; ``eager-32bit`` that of fp32 logits, which the
model casts and returns (``cast_float_and_contiguous`` of prime-rl). ``shifted`` is one kernel that
makes gradients in place, but of an fp32 copy (a kernel of Unsloth's or Liger's behind transformers
4.45); ``overwritten`` is that of fp32 logits that nothing copies (Liger's ``cross_entropy`` behind
transformers 4.49 and later, which shifts labels), ``overwritten-16bit`` the same of 16-bit ones
(``fast_cross_entropy_loss`` of Unsloth).
``chunked`` keeps 16-bit logits and casts up an eighth of them at a time (torchtune's
``CEWithChunkedOutputLoss``, compiled); ``chunked-head`` makes those of an eighth of the tokens at
a time, and the gradients of all at once (``ChunkedLossWrapper`` of torchtitan 0.3).
``linear-fused`` never has all logits: forward makes those
of a part of the tokens, and the gradients of them at once (Liger's
``fused_linear_cross_entropy``). ``cut`` keeps a number per token and makes the logits again in
backward (arXiv 2411.09009); ``tiled`` does so by products of 4096 tokens and 32768 words, and adds
up the gradients of both in fp32 (``ChunkedLogProbFunction`` of TRL 1.15 and later).
``sum`` is no loss: logits are added up, as benchmarks of forward and backward do."""

ShardingUnits = Literal["layers", "parameters", "root", "ends"]
"""``layers``: the embedding goes with the first layer, norm and head with the last. ``root``:
embedding, norm and head are one unit, gathered first, kept from forward to backward and
reduced last, as whatever a model's layers leave to FSDP's root. ``ends``: the embedding is a
unit, and norm and head are one that is kept from forward to backward (torchtitan).
``parameters``: as ``layers``, but every parameter has collectives of its own."""

Float8Scaling = Literal["delayed", "tensor", "rows", "eager"]
"""What the scale of an operand of an fp8 product follows from. ``delayed``: the maxima of the steps
before, so that one kernel reads, casts in both layouts, and finds the next (Transformer Engine's
``DelayedScaling``). ``tensor``: the operand's own maximum, for which it is read first (current
scaling of Transformer Engine, torchao's recipe ``tensorwise``). ``rows``: one for every row of the
left and column of the right operand (torchao's recipe ``rowwise``), so each use has scales and a
cast of its own (:meth:`simulator.program.layer.block.Block.linear`). ``eager``: one for each
operand, weights too, which kernels of their own find, apply and cast by in every use, and backward
keeps the 16-bit input (plain PyTorch around ``torch._scaled_mm``)."""

NarrowProducts = Literal["all", "dense", "experts"]
"""``dense``: all but those of routed experts, which are parameters of a grouped product, not linear
layers (torchtitan's converters of linear layers); ``experts``: those alone."""

MaximaFinders = Literal["none", "norms", "fused"]
"""Which kernels find the maximum of what they write, where fp8 operands are scaled by their own:
none, those of norms (Transformer Engine since 2.8), or whatever a compiler fuses that with: norms,
activations and what gives gradients back to products."""

ExpertWaits = Literal["none", "layer", "expert"]
"""Where the host waits until the device has counted the tokens of experts without a capacity, so
that nothing behind is launched before: nowhere, once in each layer, or for each expert of it
(:mod:`simulator.program.price.expert_waits`)."""

RowSummation = Literal["none", "atomic", "sorted", "compiled"]
"""How copies of tokens are added up where no fused kernel does: each element by an atomic addition
(PyTorch's ``index_add`` and ``scatter_add``, and so the gradient of ``index_select``); row by row
after their indices are sorted (the gradient of ``x[indices]``, and both under PyTorch's
deterministic algorithms); by kernels of a compiler, whose atomic additions take many 16-bit
elements at once and are taken to keep up with memory (Inductor since PyTorch 2.10, on Hopper and
later); or not at all, where rows are picked up in the order of tokens and summed as they lie, and
tokens repeated before they are sorted, by kernels of their own each."""

ExpertExchange = Literal["deepep", "hybridep"]
"""Whose kernels pass tokens to their experts where ``ep_dispatch`` is hierarchical: DeepEP's normal
ones, or those of its HybridEP branch, which move what they pass on by the copy engine of
multiprocessors (TMA)."""

SelectivePolicy = Literal[
    "core-attention", "alternate-products", "all-but-projections", "named-outputs"
]
"""What ``recompute: selective`` repeats (:mod:`simulator.program.strategies.recompute`)."""

NamedOutput = Literal["query", "key", "value", "context", "output", "gate", "up", "down"]
"""Outputs of a layer that ``selective_policy: named-outputs`` may keep: of the products in front of
attention, of attention itself, of the product behind it, of those into a dense MLP, and of the last
one of routed experts (``down``), which the gradients of the router's weights read."""

FusedAttention = Literal[
    FlashKernel, "sdpa-2.0", "sdpa-2.2", "sdpa-2.9", "sdpa-2.11", "cudnn", "cudnn-on-blackwell"
]
"""Which fused attention a framework brings. ``sdpa-N``: what PyTorch's
``scaled_dot_product_attention`` chooses from release N on, by the GPU and by the sizes of heads.
``cudnn``: the best kernel of GPUs of the Hopper family and of data-centre GPUs of the Blackwell
family, ``cudnn-on-blackwell`` that of the latter alone, and FlashAttention 2 elsewhere and for
heads that cuDNN does not take."""

RepeatedHeads = Annotated[bool, Field(strict=True)] | Literal["unfused"]
"""Before which attention grouped heads are repeated: any, none, or that in separate kernels."""

AdaptedModels = Annotated[bool, Field(strict=True)] | Literal["unquantised"]
"""Which models adapters are fp32 beside: all, none, or those that nothing quantises."""

MaskedModels = Annotated[bool, Field(strict=True)] | Literal["rotary"]
"""Which models attention in separate kernels does something to masked scores of: all, none, or
those with rotary positions."""

Offloading = Literal["nothing", "optimizer", "shards", "infinity"]
"""What a framework can move to the host. ``optimizer``: its states, or a share of them, and
activations (Megatron-Core). ``shards``: parameters, gradients and states of FSDP together, and
activations. ``infinity``: whatever ZeRO-Offload and ZeRO-Infinity can (DeepSpeed)."""

GradientScaling = Literal["past-limit", "clipping", "always", "in-update"]
"""When gradients are read and written once more, to be multiplied by what clips them.
``past-limit``: in steps whose norm is above the limit, which are taken to be few (Megatron:
``clip_coeff < 1.0`` in ``clip_grads.py``; versions that keep the norm on the device multiply
always). ``clipping``: in every step of a plan that clips, by 1 below the limit (PyTorch's
``_clip_grads_with_norm_``, lest the host waits; InternEvo's ``_unscale_and_clip_grads``).
``always``: clipping or not, together with the loss scale (DeepSpeed's ``unscale_and_clip_grads``
of ``stage_1_and_2.py``, ``stage3.py`` and ``fused_optimizer.py``; its ``bf16_optimizer.py`` only
past the limit, its fp32 path where it clips). ``in-update``: while they are read for the update
(compilers)."""

ModelParallelism = Literal["all", "without-pipeline", "none"]
"""What a framework splits of a model, beside sharding its states: all that a plan has, all but
pipeline stages, or nothing."""

UnevenLayers = Literal["middle", "last", "by-cost"]
"""Which stages take a layer more where layers do not divide by stages, or where head counts."""


class _Choice(NamedTuple):
    """Which kernel runs where heads are of one size, and where those of values are narrower."""

    kernel: FlashKernel
    narrow: FlashKernel
    best: tuple[str, ...] = ()
    """Families on which the best kernel runs instead."""
    best_narrow: tuple[str, ...] = ()


_CHOICES: Mapping[str, _Choice] = MappingProxyType(
    {
        "sdpa-2.0": _Choice("flash-1", "efficient"),
        "sdpa-2.2": _Choice("flash-2", "efficient"),
        "sdpa-2.9": _Choice("flash-2", "efficient", ("hopper", "blackwell"), ("hopper",)),
        "sdpa-2.11": _Choice(
            "flash-2", "efficient", ("hopper", "blackwell"), ("hopper", "blackwell")
        ),
        "cudnn": _Choice("flash-2", "flash-2", ("hopper", "blackwell")),
        "cudnn-on-blackwell": _Choice("flash-2", "flash-2", ("blackwell",)),
    }
)

_HEADS_OF_ONE_SIZE = ("ampere", "ada", "hopper", "blackwell")
"""How names of families begin whose FlashAttention takes heads of one size alone. On others,
memory-efficient attention is the kernel that they also have for these (AOTriton)."""

_WITHOUT_FLASH = ("pascal", "volta", "turing")
"""Families on which memory-efficient attention is the only fused kernel, and so the best: PyTorch's
FlashAttention asks for compute capability 8.0 since 2.2 and for 7.5 before, memory-efficient
attention for 5.0 (``sdp_utils.cpp``, ``check_flash_attention_hardware_support``,
``check_gpu_sm75_or_greater`` and ``check_mem_efficient_hardware_support``). Ignored: FlashAttention
1 on Turing, which is about as quick."""

VOCAB_MULTIPLE = 128
"""What the rows of padded embeddings divide by, times tp: the default of Megatron's
``--make-vocab-size-divisible-by``."""


def has_wide_kernel(brought: FusedAttention) -> bool:
    """Whether fused attention of a framework reads 32-bit numbers, too.

    PyTorch's ``scaled_dot_product_attention`` does, by memory-efficient attention: its formats are
    half, bfloat16 and float, those of FlashAttention the first two (``sdp_utils.cpp``,
    ``greater_than_or_equal_sm80_mem_efficient_dtypes`` and ``..._flash_dtypes``).
    """
    return brought == "efficient" or brought.startswith("sdpa")


def flash_kernel_on(
    family: str | None, brought: FusedAttention, *, narrow: bool, wide: bool = False
) -> FlashKernel:
    """The fused attention kernel that runs on GPUs of a family.

    Args:
        family: Its name, as in ``hardware_profiles/architectures``.
        brought: What the framework brings.
        narrow: Whether heads of values are narrower than those of queries (latent attention).
        wide: Whether it reads 32-bit numbers.
    """
    if family in _WITHOUT_FLASH:
        return "best"
    choice = _CHOICES.get(brought)
    if choice is None:
        return cast("FlashKernel", brought)
    if wide:
        return "efficient"
    if narrow and family is not None and family.startswith(_HEADS_OF_ONE_SIZE):
        return "best" if family in choice.best_narrow else choice.narrow
    return "best" if family in choice.best else choice.kernel
