"""How does a layer take a time that is known, without computing?

It sleeps. Cores stay free, so that on any machine a step with sleeping layers consists of known
times and of communication: what is overlapped and what waits is seen without a GPU. The layer
has its weights, whose gradients are zero and travel as usual.

A layer that exchanges activations with other ranks has to compute what it sends. It sleeps, and
computes and exchanges besides: a sleep that is long beside the computing does the same service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from simulator.validate.torch_run.predict import BACKWARD_SLEEP


def put_to_sleep(layers: Iterable[nn.Module], forward_s: float, *, computes: bool = False) -> None:
    """Replace what the layers compute, or add to it.

    Args:
        layers: Each takes and returns a hidden state of the same shape.
        forward_s: How long each sleeps in forward [s].
        computes: Whether they compute, too. Both ways they sleep at their end: forward after they
            have computed, backward before their first gradient.
    """
    for layer in layers:
        if computes:
            layer.forward = partial(_tired, layer.forward, forward_s)
        else:
            layer.forward = partial(_asleep, layer, forward_s)


def _tired(compute: Callable[[Tensor], Tensor], forward_s: float, hidden: Tensor) -> Any:
    return _Sleep.apply(forward_s, compute(hidden))  # type: ignore[no-untyped-call]


def _asleep(layer: nn.Module, forward_s: float, hidden: Tensor) -> Any:
    # Weights are looked up in the call: FSDP2 puts gathered ones in their place before it.
    return _Sleep.apply(forward_s, hidden, *layer.parameters())  # type: ignore[no-untyped-call]


class _Sleep(torch.autograd.Function):
    """Hands the hidden state on, and its gradient back."""

    @staticmethod
    def forward(ctx: Any, forward_s: float, hidden: Tensor, *weights: Tensor) -> Tensor:
        ctx.forward_s, ctx.weights = forward_s, weights
        time.sleep(forward_s)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        time.sleep(BACKWARD_SLEEP * ctx.forward_s)
        return None, *gradients, *map(torch.zeros_like, ctx.weights)
