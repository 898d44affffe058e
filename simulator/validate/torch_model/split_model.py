"""What does the reference model compute when several ranks share it?

The splits that the simulator predicts, done for real and in their plainest form: products
by columns and then by rows, embedding and head by vocabulary, routed experts by expert.
Weights are those of the unsplit model, cut; outputs and gradients are the same numbers.

Source: Megatron-LM (arXiv 1909.08053, section 3); GShard (arXiv 2006.16668, section 3).
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simulator.validate.torch_model.reference_model import (
    Attention,
    Layer,
    Mlp,
    ReferenceModel,
    RoutedExperts,
)

Group = dist.ProcessGroup | None
"""Ranks that share something; None is all of them."""


class HasLayers(Protocol):
    """A model, or a part of one."""

    layers: nn.ModuleList


def split_layers(net: ReferenceModel, group: Group = None) -> None:
    """Keeps of every attention and MLP the heads and the width of this rank."""
    for module in net.layers:
        layer = cast(Layer, module)
        _split_attention(layer.attention, group)
        layer.attention = _Shared(layer.attention, group)  # type: ignore[assignment]
        if isinstance(layer.mlp, Mlp):
            _split_mlp(layer.mlp, group)
            layer.mlp = _Shared(layer.mlp, group)


def split_vocabulary(net: ReferenceModel, group: Group = None) -> None:
    """Keeps this rank's rows of embedding and head; logits come out cut, too."""
    tied = net.head.weight is net.embedding.weight
    net.embedding = _VocabularyEmbedding(net.embedding, group)  # type: ignore[assignment]
    if tied:
        net.head.weight = net.embedding.weight
    else:
        net.head.weight = _part(net.head.weight, 0, group)
    net.head.register_forward_pre_hook(lambda _, inputs: _copied(inputs[0], group))


def split_experts(net: HasLayers, group: Group = None, *, arrivals_known: bool = False) -> None:
    """Keeps this rank's experts; every rank brings tokens of its own.

    Args:
        net: What has the layers.
        group: Ranks that the experts are spread over.
        arrivals_known: Whether every rank is taken to route as evenly as can be, instead of
            asking it: where no other rank is there to answer.
    """
    for module in net.layers:
        layer = cast(Layer, module)
        if isinstance(layer.mlp, RoutedExperts):
            layer.mlp = SpreadExperts(layer.mlp, group, arrivals_known=arrivals_known)


def vocabulary_loss(logits: Tensor, labels: Tensor, group: Group = None) -> Tensor:
    """Mean cross-entropy of logits (b, s, v / ranks) that are cut by vocabulary."""
    logits, labels = logits.flatten(0, 1), labels.flatten()
    maximum = logits.detach().amax(-1)
    dist.all_reduce(maximum, dist.ReduceOp.MAX, group)
    shifted = logits - maximum[:, None]
    normaliser = _reduced(shifted.exp().sum(-1), group).log()
    width = logits.shape[-1]
    own = labels - dist.get_rank(group) * width
    is_own = (own >= 0) & (own < width)
    label = shifted.gather(-1, own.clamp(0, width - 1)[:, None])[:, 0] * is_own
    return (normaliser - _reduced(label, group)).mean()


class _Copy(torch.autograd.Function):
    """The same on every rank; backward adds the gradients of all ranks up."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Reduce(torch.autograd.Function):
    """The sum over ranks; backward hands its gradient to all."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Trade(torch.autograd.Function):
    """Rows to other ranks, so many to each; backward sends their gradients back."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Group
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradient, ctx.received, ctx.sent, ctx.group), None, None, None


def _copied(value: Tensor, group: Group) -> Tensor:
    return cast(Tensor, _Copy.apply(value, group))  # type: ignore[no-untyped-call]


def _reduced(value: Tensor, group: Group) -> Tensor:
    return cast(Tensor, _Reduce.apply(value, group))  # type: ignore[no-untyped-call]


def _traded(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    traded = _Trade.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return cast(Tensor, traded)


def _exchanged(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    result = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group)
    return result


class _Shared(nn.Module):
    """A block that begins with column products and ends with row products."""

    def __init__(self, block: nn.Module, group: Group) -> None:
        super().__init__()
        self.block, self.group = block, group

    def forward(self, hidden: Tensor) -> Tensor:
        """The block's output, whole on every rank."""
        partial = self.block(_copied(hidden, self.group))
        return _reduced(partial, self.group)


class _VocabularyEmbedding(nn.Module):
    """Rows of the table that this rank holds; the others contribute zero."""

    def __init__(self, table: nn.Embedding, group: Group) -> None:
        super().__init__()
        self.weight, self.group = _part(table.weight, 0, group), group

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (b, s, h), whole on every rank."""
        rows = self.weight.shape[0]
        own = tokens - dist.get_rank(self.group) * rows
        is_own = (own >= 0) & (own < rows)
        found = self.weight[own.clamp(0, rows - 1)] * is_own[..., None]
        return _reduced(found, self.group)


class SpreadExperts(nn.Module):
    """Routes a rank's tokens to the experts of all ranks, and back."""

    def __init__(self, whole: RoutedExperts, group: Group, *, arrivals_known: bool) -> None:
        super().__init__()
        self.experts, self.group, self.arrivals_known = whole, group, arrivals_known
        self.routed = torch.zeros(whole.up.shape[0])
        """Rows that this rank last sent to each expert of the layer."""
        for name in ("gate", "up", "down"):
            weight = getattr(whole, name)
            if weight is not None:
                setattr(whole, name, _part(weight, 0, group))

    def forward(self, hidden: Tensor) -> Tensor:
        """What the experts add to the rank's own hidden state (b, s, h)."""
        rows = hidden.flatten(0, 1)
        weights, chosen = self.experts.route(rows)
        order = chosen.flatten().argsort(stable=True)
        copies = rows[order // self.experts.top_k]
        own = self.experts.up.shape[0]
        counts = chosen.flatten().bincount(minlength=own * dist.get_world_size(self.group))
        self.routed = counts
        returned = self._pass_experts(copies, counts.view(-1, own))
        weighted = returned * weights.flatten()[order, None]
        result = torch.zeros_like(rows).index_add(
            0, order // self.experts.top_k, weighted.to(rows.dtype)
        )
        return result.view_as(hidden) + self.experts.shared_output(hidden)

    def _pass_experts(self, copies: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, after their experts; counts are (ranks, experts of each)."""
        arriving = torch.zeros_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        if self.arrivals_known:
            arriving = _even_counts(counts)
        sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = _traded(copies, sent, received, self.group)
        expert = torch.arange(counts.shape[1], device=rows.device).repeat(counts.shape[0])
        of_expert = expert.repeat_interleave(arriving.flatten())
        output = torch.zeros_like(rows)
        for index in range(counts.shape[1]):
            row = (of_expert == index).nonzero()[:, 0]
            done = self.experts.expert(rows[row], index)
            output = output.index_add(0, row, done.to(output.dtype))
        return _traded(output, received, sent, self.group)


def _even_counts(counts: Tensor) -> Tensor:
    """As many rows as were sent, from every rank to every expert alike."""
    total, parts = int(counts.sum()), counts.numel()
    part = torch.arange(parts, device=counts.device)
    return ((part + 1) * total // parts - part * total // parts).view_as(counts)


def _split_attention(attention: Attention, group: Group) -> None:
    for product in (attention.query, attention.key, attention.value):
        _keep_columns(product, group)
    _keep_rows(attention.output, group)


def _split_mlp(mlp: Mlp, group: Group) -> None:
    for product in (mlp.gate, mlp.up):
        if product is not None:
            _keep_columns(product, group)
    _keep_rows(mlp.down, group)


def _keep_columns(product: nn.Linear, group: Group) -> None:
    """Outputs of this rank; ``torch.nn.Linear`` keeps them as rows of its weight."""
    product.weight = _part(product.weight, 0, group)
    if product.bias is not None:
        product.bias = _part(product.bias, 0, group)


def _keep_rows(product: nn.Linear, group: Group) -> None:
    """Inputs of this rank; the first one alone adds the bias."""
    product.weight = _part(product.weight, 1, group)
    if product.bias is not None and dist.get_rank(group) > 0:
        product.register_parameter("bias", None)


def _part(weight: Tensor, axis: int, group: Group) -> nn.Parameter:
    parts = weight.detach().chunk(dist.get_world_size(group), axis)
    return nn.Parameter(parts[dist.get_rank(group)].clone())
