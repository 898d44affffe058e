"""What does torch's autograd keep of a layer between forward and backward?

Small layers written in plain torch, run under fake tensors (no memory, no arithmetic), with
every tensor that autograd packs counted once per storage. Parameters and integer inputs do
not count: they exist anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Sizes of a layer; h hidden, a heads, k kv heads, f MLP width, of each expert if there are."""

    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    experts: int = 0
    top_k: int = 0

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class SavedRows(torch.autograd.Function):
    """An RMS norm that keeps its input and one number per row, as CUDA's fused kernel does."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, weight, scale)
        return (x.float() * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        weighted = gradient.float() * weight.float()
        inner = (weighted * normed).mean(-1, keepdim=True)
        along = tuple(range(gradient.dim() - 1))
        return (scale * (weighted - normed * inner)).to(x.dtype), (gradient * normed).sum(along)


class RmsNorm(nn.Module):
    """One fused kernel, or written out as in Llama's reference code."""

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return SavedRows.apply(x, self.weight)
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return normed.type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, *, repeats_kv_heads: bool) -> None:
        super().__init__()
        h, d = sizes.hidden, sizes.head_dim
        self.head_dim, self.repeats_kv_heads = d, repeats_kv_heads
        self.wq = nn.Linear(h, sizes.heads * d, bias=False)
        self.wk = nn.Linear(h, sizes.kv_heads * d, bias=False)
        self.wv = nn.Linear(h, sizes.kv_heads * d, bias=False)
        self.wo = nn.Linear(sizes.heads * d, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self.heads_of(w(x)) for w in (self.wq, self.wk, self.wv))
        groups = query.shape[1] // key.shape[1]
        if groups > 1 and self.repeats_kv_heads:
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        context = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.wo(context.transpose(1, 2).reshape(*x.shape[:2], -1))

    def heads_of(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], -1, self.head_dim).transpose(1, 2)


class JointAttention(nn.Module):
    """Queries, keys and values of one product; of the latter attention reads a view.

    Queries and keys change their sign for a rotation, of which nothing is kept either. A core that
    something else calls copies the view for its kernel, as Transformer Engine's does.
    """

    def __init__(self, sizes: Sizes, core: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.core = core
        self.heads, self.head_dim = sizes.heads, sizes.head_dim
        self.wqkv = nn.Linear(sizes.hidden, 3 * sizes.hidden, bias=False)
        self.wo = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.wqkv(x).view(*x.shape[:2], self.heads, 3 * self.head_dim).transpose(1, 2)
        query, key, value = parts.split(self.head_dim, dim=-1)
        attend = self.core or (lambda run, *args: run(*args))
        context = attend(self._attention, -query, -key, value)
        return self.wo(context.transpose(1, 2).reshape(x.shape))

    def _attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        value = value.contiguous() if self.core else value
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class GatedMlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.hidden, sizes.ffn_hidden, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.ffn_hidden, bias=False)
        self.down = nn.Linear(sizes.ffn_hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class WeightedGate(torch.autograd.Function):
    """A gated activation times the router's weights, as a fused kernel: its input stays."""

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weights = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weights)


class RoutedMlp(nn.Module):
    """Experts as grouped products, all of which get as many rows; the router's scores are fp32."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        count, h, f = sizes.experts, sizes.hidden, sizes.ffn_hidden
        self.top_k, self.router = sizes.top_k, nn.Linear(h, count, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.empty(count, *shape)) for shape in ((h, 2 * f), (f, h))
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k)
        order = chosen.flatten().argsort()
        places = (order // self.top_k).unsqueeze(1).expand(-1, x.shape[-1])
        rows = tokens.gather(0, places).unflatten(0, (len(self.up), -1))
        sorted_weights = weights.flatten()[order].view(*rows.shape[:2], 1)
        made = WeightedGate.apply(rows @ self.up, sorted_weights) @ self.down
        return torch.zeros_like(tokens).scatter_add(0, places, made.flatten(0, 1)).view_as(x)


class LlamaLayer(nn.Module):
    """RMS norm, grouped heads with one fused attention kernel, gated MLP or experts."""

    def __init__(
        self, sizes: Sizes, *, fused_rmsnorm: bool = True, repeats_kv_heads: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(sizes.hidden, fused=fused_rmsnorm)
        self.attention = Attention(sizes, repeats_kv_heads=repeats_kv_heads)
        self.mlp_norm = RmsNorm(sizes.hidden, fused=fused_rmsnorm)
        self.mlp = RoutedMlp(sizes) if sizes.experts else GatedMlp(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GptLayer(nn.Module):
    """Layer norm, separate attention, plain MLP; dropout keeps masks of one byte."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        dropout: float = 0.1,
        core: Callable[..., Tensor] | None = None,
        activation: Callable[[Tensor], Tensor] = functional.gelu,
    ) -> None:
        super().__init__()
        h = sizes.hidden
        self.head_dim, self.dropout, self.core = sizes.head_dim, dropout, core
        self.activation = activation
        self.attention_norm, self.mlp_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, sizes.ffn_hidden), nn.Linear(sizes.ffn_hidden, h)

    def forward(self, x: Tensor) -> Tensor:
        attend = self.core or (lambda run, *args: run(*args))
        heads = (self._heads(t) for t in self.qkv(self.attention_norm(x)).chunk(3, -1))
        context = attend(self._attention, *(t.contiguous() for t in heads))
        x = x + self._drop(self.out(context.transpose(1, 2).reshape(x.shape)))
        hidden = self.activation(self.up(self.mlp_norm(x)))
        return x + self._drop(self.down(hidden))

    def _attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2) * self.head_dim**-0.5
        return self._drop(scores.softmax(-1)) @ value

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], -1, self.head_dim).transpose(1, 2)

    def _drop(self, x: Tensor) -> Tensor:
        if not self.dropout:
            return x
        return torch.ops.aten.native_dropout(x, self.dropout, True)[0]


def eager_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of fp32 logits, as PyTorch computes it."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))


def saved_bytes(run: Callable[[], object], exclude: Iterable[Tensor]) -> int:
    """Bytes of the storages that autograd keeps of ``run``, those of ``exclude`` left out.

    Of a distributed tensor this rank's part counts. Scalars are left out.
    """
    known = {id_of(tensor) for tensor in exclude}
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        part = local(tensor)
        if id_of(part) not in known and part.numel() > 1:
            sizes[id_of(part)] = part.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(sizes.values())


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor."""
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return getattr(tensor, "elem", tensor)


def id_of(tensor: Tensor) -> int:
    """What tells one storage from another while both live."""
    return local(tensor).untyped_storage()._cdata


def fake_layer_bytes(
    build: Callable[[], nn.Module],
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    *,
    wrap: Callable[[nn.Module, Tensor], object] | None = None,
) -> int:
    """Saved bytes of one layer at an input of (b, s, h), without memory or arithmetic."""
    before = torch.get_default_dtype()
    with FakeTensorMode():
        torch.set_default_dtype(dtype)
        try:
            layer = build()
        finally:
            torch.set_default_dtype(before)
        x = torch.randn(*shape, dtype=dtype, requires_grad=True)
        run = (lambda: wrap(layer, x)) if wrap else (lambda: layer(x))
        return saved_bytes(run, layer.parameters())


def tensor_parallel(layer: LlamaLayer, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut a layer as torchtitan does, its norms along the sequence if asked."""
    gathers = PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
    )
    out = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")},
        **{name: RowwiseParallel(output_layouts=out) for name in ("attention.wo", "mlp.down")},
    }
    if sequence_parallel:
        plan |= {"attention": gathers, "mlp": gathers}
        norms = SequenceParallel(use_local_output=True)
        plan |= {"attention_norm": norms, "mlp_norm": norms}
    parallelize_module(layer, mesh, plan)
