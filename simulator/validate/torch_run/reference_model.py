"""Which torch model does a job describe?

A small, plain implementation of :class:`simulator.described.model.Model`: dense or with routed
experts, grouped-query attention, gated or plain MLP. It is what predictions about traffic, memory
and time are held against, so it is written for reading, not for speed.

In 8 bits a linear layer has one scale per operand. The output is x (e4m3) by w (e4m3), gradients
are g (e5m2) by w and g by x (e4m3), each by ``torch._scaled_mm`` with a result as wide as the
input. Scales come from the operand's own maximum in every use, so weights stay what they are and
optimizers see nothing of it. Kept for backward are the input and the weight, as in a plain linear
layer.

Source: arXiv 2209.05433 (formats of both passes and scaling to their range).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from simulator.described.model import Experts, Model
from simulator.errors import UnsupportedError

_FORWARD, _GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2

_LEAST_MAXIMUM = 1e-12
"""Operands of zeros have a scale, too."""


def written_gelu(x: Tensor) -> Tensor:
    """GELU's hyperbolic form, one operator after the other (``gelu_new`` of transformers)."""
    cubic = x + _GELU_CUBIC * torch.pow(x, 3.0)
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * cubic))


_GELU_CUBIC = 0.044715

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu-new": written_gelu,
    "silu": functional.silu,
    "relu": functional.relu,
    "squared-relu": lambda x: functional.relu(x).square(),
}
"""torch's function for each activation of a model."""

_ROTARY_BASE = 10_000.0

_NORM_EPSILON = 1e-5


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


def reference_model(model: Model) -> ReferenceModel:
    """The torch model, on the default device and in the default format.

    Raises:
        UnsupportedError: The model has a part that is not implemented here.
    """
    check_has_reference(model)
    return ReferenceModel(model)


def check_has_reference(model: Model) -> None:
    """Refuses a model that has a part without an implementation here.

    Raises:
        UnsupportedError: The first such part.
    """
    for field, is_there in _missing_parts(model):
        if is_there:
            raise UnsupportedError.single(
                f"model.{field}", "has no reference implementation", hint="remove it"
            )


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens; logits (b, s, v), labels (b, s)."""
    at_least_fp32 = torch.promote_types(logits.dtype, torch.float32)
    return functional.cross_entropy(logits.flatten(0, 1).to(at_least_fp32), labels.flatten())


def _missing_parts(model: Model) -> Iterator[tuple[str, bool]]:
    yield "latent_attention", model.latent_attention is not None
    yield "embedding_dim", model.embedding_dim > 0
    yield "positions", model.positions == "alibi"
    yield "parallel_block", model.parallel_block
    yield "norms_per_layer", model.norms_per_layer != 2
    yield "embedding_norm", model.embedding_norm
    yield "final_norm", not model.final_norm
    yield "head_bias", model.head_bias
    yield "capped_logits", model.capped_logits
    yield "classes", model.classes > 0
    yield "qk_norm", model.qk_norm != "none"
    yield "attention_sinks", model.attention_sinks
    yield "sliding_window", model.sliding_window > 0
    yield "multi_token_layers", model.multi_token_layers > 0
    yield "extra_parameters", model.extra_parameters > 0
    experts = model.experts
    yield "experts.capacity_factor", experts is not None and experts.capacity_factor is not None
    yield "experts.router_bias", experts is not None and experts.router_bias
    yield "mlp_bias", experts is not None and model.mlp_bias


class ReferenceModel(nn.Module):
    """Tokens (b, s) to logits (b, s, v)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        learned = model.positions == "learned"
        self.positions = nn.Embedding(model.max_positions, model.hidden) if learned else None
        self.layers = nn.ModuleList(
            Layer(model, has_experts=model.has_experts(index)) for index in range(model.layers)
        )
        self.norm = norm_of(model)
        self.head = nn.Linear(model.hidden, model.vocab, bias=False)
        if model.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token."""
        hidden = self.embedding(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            hidden = layer(hidden)
        return cast(Tensor, self.head(self.norm(hidden)))


class Layer(nn.Module):
    """Attention, then an MLP or experts, each behind a norm and beside a residual."""

    def __init__(self, model: Model, *, has_experts: bool) -> None:
        super().__init__()
        self.attention_norm = norm_of(model)
        self.attention = Attention(model)
        self.mlp_norm = norm_of(model)
        experts = model.experts
        self.mlp: nn.Module = (
            RoutedExperts(model, experts)
            if experts and has_experts
            else Mlp(model, model.ffn_hidden, has_bias=model.mlp_bias)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden state (b, s, h) after the layer."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return cast(Tensor, hidden + self.mlp(self.mlp_norm(hidden)))


class Attention(nn.Module):
    """Grouped-query attention; works on whatever heads its weights hold."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim, self.is_causal = model.head_dim, model.causal
        self.is_rotary = model.positions == "rotary"
        query, key_value = (heads * model.head_dim for heads in (model.heads, model.kv_heads))
        self.query = nn.Linear(model.hidden, query, bias=model.qkv_bias)
        self.key = nn.Linear(model.hidden, key_value, bias=model.qkv_bias)
        self.value = nn.Linear(model.hidden, key_value, bias=model.qkv_bias)
        self.output = nn.Linear(query, model.hidden, bias=model.attention_output_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """What attention adds to the hidden state (b, s, h)."""
        query, key, value = (
            product(hidden).unflatten(-1, (-1, self.head_dim))
            for product in (self.query, self.key, self.value)
        )
        if self.is_rotary:
            query, key = _rotated(query), _rotated(key)
        context = self.core(*(heads.transpose(1, 2) for heads in (query, key, value)))
        return cast(Tensor, self.output(context.transpose(1, 2).flatten(2)))

    def core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Core attention of heads (b, heads, s, d)."""
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.is_causal, enable_gqa=query.shape[1] != key.shape[1]
        )


class Mlp(nn.Module):
    """Up (and gate), activation, down."""

    def __init__(self, model: Model, width: int, *, has_bias: bool) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[model.activation]
        gated = model.gated_mlp
        self.gate = nn.Linear(model.hidden, width, bias=has_bias) if gated else None
        self.up = nn.Linear(model.hidden, width, bias=has_bias)
        self.down = nn.Linear(width, model.hidden, bias=has_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """What the MLP adds to the hidden state (b, s, h)."""
        if self.gate is None:
            return cast(Tensor, self.down(self.activation(self.up(hidden))))
        return cast(Tensor, self.down(self.activation(self.gate(hidden)) * self.up(hidden)))


class RoutedExperts(nn.Module):
    """Every token passes its ``top_k`` experts, weighted by the router, and shared ones.

    Attributes:
        is_even: Whether all experts get equally many rows, whichever the router prefers, so that
            no shape depends on data.
    """

    def __init__(self, model: Model, experts: Experts) -> None:
        super().__init__()
        self.is_even = False
        self.top_k, self.activation = experts.top_k, ACTIVATIONS[model.activation]
        self.router = nn.Linear(model.hidden, experts.count, bias=False)
        shape = (experts.count, experts.ffn_hidden, model.hidden)
        scale = model.hidden**-0.5
        self.gate = nn.Parameter(torch.randn(shape) * scale) if model.gated_mlp else None
        self.up = nn.Parameter(torch.randn(shape) * scale)
        self.down = nn.Parameter(torch.randn(shape) * scale)
        width = experts.shared_ffn_hidden
        self.shared = Mlp(model, width, has_bias=False) if width else None
        gated = experts.shared_gate
        self.shared_gate = nn.Linear(model.hidden, 1, bias=False) if gated else None

    def forward(self, hidden: Tensor) -> Tensor:
        """What the experts add to the hidden state (b, s, h)."""
        rows = hidden.flatten(0, 1)
        weights, chosen = self.route(rows)
        matrices, of_experts = self.matrices(), list(self._rows_of_experts(chosen))
        outputs = [
            self.expert(rows[row], matrices[expert]) * weights[row, rank, None]
            for expert, (row, rank) in enumerate(of_experts)
        ]
        copies = torch.cat([row * self.top_k + rank for row, rank in of_experts])
        result = added_up(torch.cat(outputs), copies, self.top_k)
        return result.to(rows.dtype).view_as(hidden) + self.shared_output(hidden)

    def _rows_of_experts(self, chosen: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Rows of each expert, and which of their choices it is."""
        if self.is_even:
            for copies in chosen.flatten().argsort(stable=True).chunk(self.up.shape[0]):
                yield copies // self.top_k, copies % self.top_k
            return
        for expert in range(self.up.shape[0]):
            yield (chosen == expert).nonzero(as_tuple=True)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of each row, both (rows, top_k)."""
        weights, chosen = self.router(rows).softmax(-1).topk(self.top_k)
        return weights / weights.sum(-1, keepdim=True), chosen

    def matrices(self) -> list[tuple[Tensor, ...]]:
        """Weights of each expert: up, down and, where there is one, gate.

        Taken apart at once, so that backward joins their gradients once.
        """
        held = [weight for weight in (self.up, self.down, self.gate) if weight is not None]
        return list(zip(*(weight.unbind() for weight in held), strict=True))

    def expert(self, rows: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """The rows after one expert's MLP, in their format: FSDP2 leaves some weights wide."""
        up, down, *gate = (weight.to(rows.dtype) for weight in matrices)
        inner = rows @ up.T
        if not gate:
            return self.activation(inner) @ down
        return (self.activation(rows @ gate[0].T) * inner) @ down

    def shared_output(self, hidden: Tensor) -> Tensor:
        """What the shared expert adds; zero without one."""
        if self.shared is None:
            return torch.zeros_like(hidden)
        output = cast(Tensor, self.shared(hidden))
        if self.shared_gate is None:
            return output
        return output * torch.sigmoid(cast(Tensor, self.shared_gate(hidden)))


def added_up(outputs: Tensor, copies: Tensor, top_k: int) -> Tensor:
    """Sums of the outputs of each token's copies, shape (tokens, h).

    Outputs are put in order, so that backward needs none of them, as that of ``index_add`` does.

    Args:
        outputs: Of all copies, shape (copies, h).
        copies: Which copy each of them is of, token by token, of shape (copies,).
        top_k: Copies of a token.
    """
    return outputs[copies.argsort()].view(-1, top_k, outputs.shape[1]).sum(1)


def norm_of(model: Model) -> nn.Module:
    """A norm over the hidden state."""
    if model.normalisation == "rmsnorm":
        return nn.RMSNorm(model.hidden, eps=_NORM_EPSILON)
    return nn.LayerNorm(model.hidden, eps=_NORM_EPSILON, bias=model.norm_bias)


def _rotated(heads: Tensor) -> Tensor:
    """Rotary position embedding of (b, s, heads, d), in halves (arXiv 2104.09864)."""
    length, half = heads.shape[1], heads.shape[3] // 2
    angle = torch.arange(length, device=heads.device)[:, None] * _ROTARY_BASE ** (
        -torch.arange(half, device=heads.device) / half
    )
    cosine, sine = (each.to(heads.dtype)[:, None] for each in (angle.cos(), angle.sin()))
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
