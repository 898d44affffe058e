"""How does a linear layer compute in 8 bits, with one scale for every operand?

The output is x (e4m3) by w (e4m3), gradients are g (e5m2) by w and g by x (e4m3), each by
``torch._scaled_mm`` with a result as wide as the input. Scales come from the operand's own
maximum in every use, so weights stay what they are and optimizers see nothing of it. What is
kept for backward is what a plain linear layer keeps: its input and its weight.

Source: arXiv 2209.05433 (formats of both passes and scaling to their range).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_FORWARD, _GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2

_LEAST_MAXIMUM = 1e-12
"""Operands of zeros have a scale, too."""


def use_float8(module: nn.Module) -> None:
    """Puts 8-bit linear layers in the place of all plain ones in a module, weights kept."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, Float8Linear(child))
        else:
            use_float8(child)


class Float8Linear(nn.Module):
    """A linear layer in 8 bits; features and tokens are multiples of 16.

    Args:
        plain: Whose weight and bias it has.
    """

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.weight = plain.weight
        self.bias = plain.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """The product (..., n) of (..., k), in the format of autocast or else of the input."""
        device, dtype = hidden.device.type, hidden.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        rows = hidden.to(dtype).flatten(0, -2)
        weight = self.weight.to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        with torch.autocast(device, enabled=False):
            output: Tensor = _Product.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
        return output.view(*hidden.shape[:-1], -1)


class _Product(torch.autograd.Function):
    """Rows (T, k) by the transpose of a weight (n, k), plus a bias (n)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        given, held = _Scaled(rows, _FORWARD), _Scaled(weight, _FORWARD)
        return torch._scaled_mm(
            given.by_rows(), held.by_rows().t(), scale_a=given.scale, scale_b=held.scale,
            bias=bias, out_dtype=rows.dtype, use_fast_accum=True,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        given = _Scaled(gradient, _GRADIENT)
        of_input = of_weight = None
        if needs_input:
            held = _Scaled(weight, _FORWARD)
            of_input = torch._scaled_mm(
                given.by_rows(), held.by_columns().t(), scale_a=given.scale, scale_b=held.scale,
                out_dtype=rows.dtype,
            )  # fmt: skip
        if needs_weight:
            held = _Scaled(rows, _FORWARD)
            of_weight = torch._scaled_mm(
                given.by_columns(), held.by_columns().t(), scale_a=given.scale, scale_b=held.scale,
                out_dtype=weight.dtype,
            )  # fmt: skip
        return of_input, of_weight, gradient.sum(0) if needs_bias else None


class _Scaled:
    """A matrix divided so that its largest magnitude is that of an 8-bit format, and its casts.

    The scale is rounded to the matrix's own format before it is applied, so that the product
    undoes exactly what was done. What that lifts above the 8-bit maximum, by half a unit in the
    last of 8 bits at most, is nearer to the maximum than to what comes next, and cast to it.

    Attributes:
        scale: What the 8-bit numbers are multiples of, in fp32.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        maximum = torch.linalg.vector_norm(matrix, torch.inf).clamp(min=_LEAST_MAXIMUM)
        scale = maximum / torch.finfo(dtype).max
        self.scale = scale.float()
        self._values, self._dtype = matrix / scale, dtype

    def by_rows(self) -> Tensor:
        """The matrix in 8 bits, each row in one piece."""
        return self._cast(self._values)

    def by_columns(self) -> Tensor:
        """Its transpose in 8 bits, each row of that in one piece."""
        return self._cast(self._values.t())

    def _cast(self, values: Tensor) -> Tensor:
        result: Tensor = values.to(self._dtype, memory_format=torch.contiguous_format)
        return result
