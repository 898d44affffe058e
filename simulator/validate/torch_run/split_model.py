"""What does the reference model compute when several ranks share it?

Routed experts are spread over ranks, runs of layers over pipeline stages. Weights are those of the
unsplit model, cut; outputs and gradients are the same numbers. Tensor parallelism is torch's own
(:mod:`simulator.validate.torch_run.parallelise`).

Source: GShard (arXiv 2006.16668, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simulator.described.model import Model
from simulator.program.grid.stage_layers import Slice
from simulator.validate.torch_run.reference_model import (
    Layer,
    RoutedExperts,
    added_up,
    check_has_reference,
    norm_of,
)

Group = dist.ProcessGroup | None
"""Ranks that share something; None is all of them."""


class HasLayers(Protocol):
    """A model, or a part of one."""

    layers: nn.ModuleList


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


def _traded(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    traded = _Trade.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return cast(Tensor, traded)


def _exchanged(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    result = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(result, rows.contiguous(), received, sent, group)
    return result


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
        own, count = self.experts.up.shape[0], self.routed.shape[0]
        if self.experts.is_even:
            counts = chosen.new_full((count,), copies.shape[0] // count)
        else:
            counts = chosen.flatten().bincount(minlength=count)
            self.routed = counts
        returned = self._pass_experts(copies, counts.view(-1, own))
        weighted = returned * weights.flatten()[order, None]
        result = added_up(weighted, order, self.experts.top_k).to(rows.dtype)
        return result.view_as(hidden) + self.experts.shared_output(hidden)

    def _pass_experts(self, copies: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, after their experts; counts are (ranks, experts of each)."""
        arriving = torch.zeros_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        ranks, own = counts.shape
        if self.experts.is_even:
            sent = received = [copies.shape[0] // ranks] * ranks
        else:
            if self.arrivals_known:
                arriving = _even_counts(counts)
            sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = _traded(copies, sent, received, self.group)
        matrices = self.experts.matrices()
        if own == 1:
            output = self.experts.expert(rows, matrices[0])
            return _traded(output.to(rows.dtype), received, sent, self.group)
        of_experts = list(self._rows_of_experts(rows, arriving, own))
        outputs = [
            self.experts.expert(rows[row], matrices[index]) for index, row in enumerate(of_experts)
        ]
        output = torch.cat(outputs)[torch.cat(of_experts).argsort()]
        return _traded(output.to(rows.dtype), received, sent, self.group)

    def _rows_of_experts(self, rows: Tensor, arriving: Tensor, own: int) -> Iterator[Tensor]:
        """Numbers of the rows of each of the rank's experts, which came rank by rank."""
        if self.experts.is_even:
            places = torch.arange(rows.shape[0], device=rows.device)
            places = places.view(arriving.shape[0], own, -1)
            yield from (places[:, index].flatten() for index in range(own))
            return
        expert = torch.arange(own, device=rows.device).repeat(arriving.shape[0])
        of_expert = expert.repeat_interleave(arriving.flatten())
        for index in range(own):
            yield (of_expert == index).nonzero()[:, 0]


def _even_counts(counts: Tensor) -> Tensor:
    """As many rows as were sent, from every rank to every expert."""
    total, parts = int(counts.sum()), counts.numel()
    part = torch.arange(parts, device=counts.device)
    return ((part + 1) * total // parts - part * total // parts).view_as(counts)


def _part(weight: Tensor, axis: int, group: Group) -> nn.Parameter:
    parts = weight.detach().chunk(dist.get_world_size(group), axis)
    return nn.Parameter(parts[dist.get_rank(group)].clone())


class StageModel(nn.Module):
    """Tokens (b, s) or hidden states (b, s, h) to hidden states or logits (b, s, v).

    Raises:
        UnsupportedError: The model has a part without a reference implementation.
    """

    def __init__(self, model: Model, part: Slice) -> None:
        super().__init__()
        check_has_reference(model)
        first = part.has_embedding
        learned = first and model.positions == "learned"
        self.embedding = nn.Embedding(model.vocab, model.hidden) if first else None
        self.positions = nn.Embedding(model.max_positions, model.hidden) if learned else None
        self.layers = nn.ModuleList(
            Layer(model, has_experts=model.has_experts(index))
            for index in range(part.first, part.end)
        )
        self.norm = norm_of(model) if part.has_head else None
        self.head = nn.Linear(model.hidden, model.vocab, bias=False) if part.has_head else None
        if model.tied_embeddings and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """What the next stage takes; of the last stage the logits."""
        if self.embedding is not None:
            tokens = hidden
            hidden = self.embedding(tokens)
            if self.positions is not None:
                places = torch.arange(tokens.shape[1], device=tokens.device)
                hidden = hidden + self.positions(places)
        for layer in self.layers:
            hidden = layer(hidden)
        if self.norm is None or self.head is None:
            return hidden
        return cast(Tensor, self.head(self.norm(hidden)))
