"""MPT of llm-foundry 0.22 under Composer 0.32's FSDP, as llm-foundry's benchmarks trained it.

clustersim capture workloads/capture/foundry.py --world 8 --out mpt.capture -- --model 125m
clustersim run mpt.capture --profile a100-sxm-80gb

Of llm-foundry: the model with its defaults, its attention module, what is sharded and computed
again. Of Composer: mixed precision, FSDP, clipping, the optimizer. This script stands in for
Composer's trainer, whose loop over microbatches it repeats without metrics and callbacks, and for
kernels of flash-attn, which needs CUDA to be imported: one for the loss, and one for attention. The
benchmarks ran the first FlashAttention in Triton (``submit_benchmarks.py``, ``attn_impl: triton``),
which takes sequences as they are; release 0.22 has the second one only, behind a removal of
padding.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from llama import settings, this_gpu
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16),
    "3b": (32, 2560, 20), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}  # fmt: skip
"""Layers, width, heads. Source: llm-foundry, scripts/train/benchmarking/README.md."""
SHARDED = "FULL_SHARD", "SHARD_GRAD_OP"
MIXED = "DEFAULT", "PURE"
VOCAB = 50368
IGNORED = -100


def unpadded(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """``unpad_input`` of a batch without padding: rows, their places, ends of sequences, length."""
    batch, length = mask.shape
    places = torch.arange(batch * length, device=x.device)
    ends = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=x.device)
    return x.flatten(0, 1), places, ends, length


def attention(q: Tensor, k: Tensor, v: Tensor, max_seqlen_q: int, **given: Any) -> Tensor:
    """The first FlashAttention of (b s, heads, d), as torch's memory-efficient attention."""
    heads_first = (t.unflatten(0, (-1, max_seqlen_q)).transpose(1, 2) for t in (q, k, v))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        found = functional.scaled_dot_product_attention(
            *heads_first, is_causal=given["causal"], scale=given["softmax_scale"]
        )
    return found.transpose(1, 2).flatten(0, 1)


@torch.library.custom_op("xentropy_cuda_lib::forward", mutates_args=())
def xentropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and log of the sum of exponentials of each row: one kernel."""
    raise NotImplementedError


@torch.library.custom_op("xentropy_cuda_lib::backward", mutates_args=())
def xentropy_backward(gradient: Tensor, logits: Tensor, sums: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the logits: one kernel."""
    raise NotImplementedError


@xentropy.register_fake
def _(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(len(labels), dtype=torch.float), logits.new_empty(
        len(labels), dtype=torch.float
    )


@xentropy_backward.register_fake
def _(gradient: Tensor, logits: Tensor, sums: Tensor, labels: Tensor) -> Tensor:
    return torch.empty_like(logits)


class FusedLoss(torch.autograd.Function):
    """Autograd of the two kernels, as ``flash_attn.losses.cross_entropy`` has it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Losses (n,) in fp32."""
        losses, sums = xentropy(logits, labels)
        losses.masked_fill_(labels == IGNORED, 0)
        ctx.save_for_backward(logits, sums, labels)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Of the logits, in their type."""
        logits, sums, labels = ctx.saved_tensors
        gradient = gradient.contiguous().masked_fill_(labels == IGNORED, 0)
        return xentropy_backward(gradient, logits, sums, labels), None


class CrossEntropyLoss(nn.Module):
    """``flash_attn.losses.cross_entropy.CrossEntropyLoss`` without reduction."""

    def __init__(self, ignore_index: int, reduction: str) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Losses (n,) of (n, vocab) and (n,)."""
        return FusedLoss.apply(logits, labels)


def stand_in_for_flash_attention() -> None:
    """Make ``flash_attn`` importable, as far as MPT uses it on batches without padding."""
    package = ModuleType("flash_attn")
    parts = {
        "bert_padding": SimpleNamespace(
            unpad_input=unpadded,
            index_first_axis=lambda rows, places: rows,
            pad_input=lambda rows, places, batch, length: rows.unflatten(0, (batch, length)),
        ),
        "flash_attn_interface": SimpleNamespace(flash_attn_varlen_func=attention),
        "layers": ModuleType("flash_attn.layers"),
        "layers.rotary": SimpleNamespace(RotaryEmbedding=None),
        "losses": ModuleType("flash_attn.losses"),
        "losses.cross_entropy": SimpleNamespace(CrossEntropyLoss=CrossEntropyLoss),
    }
    vars(package).update(parts, __version__="2.0.1", flash_attn_func=None)
    package.__spec__ = ModuleSpec("flash_attn", None)
    sys.modules["flash_attn"] = package
    sys.modules.update({f"flash_attn.{name}": part for name, part in parts.items()})


stand_in_for_flash_attention()
# Kernels of torchvision, which Composer imports, are for another build of torch.
with mock.patch("torch.library.register_fake", return_value=lambda function: function):
    import torchvision  # noqa: F401

from composer.algorithms.gradient_clipping import apply_gradient_clipping  # noqa: E402
from composer.core import Precision, get_precision_context  # noqa: E402
from composer.distributed.dist_strategy import prepare_fsdp_module  # noqa: E402
from composer.optim import DecoupledAdamW  # noqa: E402
from composer.utils.parallelism import FSDPConfig  # noqa: E402
from llmfoundry.metrics import DEFAULT_CAUSAL_LM_EVAL_METRICS  # noqa: E402
from llmfoundry.models.mpt import ComposerMPTCausalLM  # noqa: E402


class Mpt(ComposerMPTCausalLM):
    """llm-foundry's model; its loss without the look at whether any token is left."""

    def loss(self, outputs: Any, batch: dict[str, Tensor]) -> Tensor:
        """Mean over tokens."""
        targets = self.get_targets(batch)
        losses = self.loss_fn(outputs.logits.flatten(0, 1), targets.flatten())
        return losses.sum() / (targets != IGNORED).sum()


def sharded_model(args: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer as Composer's trainer prepares them."""
    layers, width, heads = SIZES[args.model]
    DEFAULT_CAUSAL_LM_EVAL_METRICS.clear()
    model = Mpt(
        d_model=width, n_layers=layers, n_heads=heads, expansion_ratio=4, vocab_size=VOCAB,
        max_seq_len=args.seq_len, attn_config={"attn_impl": "flash"}, init_device="meta",
        use_train_metrics=False,
    )  # fmt: skip
    optimizer = DecoupledAdamW(model.parameters(), lr=2e-4, weight_decay=0.0)
    config = FSDPConfig(
        sharding_strategy=args.strategy, mixed_precision=args.precision,
        activation_checkpointing=bool(args.recompute), activation_checkpointing_reentrant=False,
        limit_all_gathers=True,
        sync_module_states=True,  # at the start, instead of comparing values between ranks
    )  # fmt: skip
    prepare_fsdp_module(model, optimizer, config, Precision.AMP_BF16, "gpu")
    return model, optimizer


def main() -> None:
    """Train for some steps."""
    args = settings(model=(*SIZES,), microbatches=1, recompute=0, strategy=SHARDED, precision=MIXED)
    dist.init_process_group("nccl")
    device = this_gpu()
    model, optimizer = sharded_model(args)
    for _ in range(args.steps):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(args.microbatches):
            tokens = torch.randint(0, VOCAB, (args.batch, args.seq_len), device=device)
            batch = {"input_ids": tokens, "labels": tokens}
            with get_precision_context(Precision.AMP_BF16):
                loss = model.loss(model(batch), batch)
            (loss / args.microbatches).backward()
        apply_gradient_clipping(model, "norm", 1.0, fsdp_enabled=True)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
