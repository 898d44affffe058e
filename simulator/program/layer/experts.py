"""Which pieces does a mixture-of-experts layer consist of, on one device?

The router scores every expert for every token; each token is copied for its ``top_k``
experts, the copies are sorted by expert, pass the experts as grouped products, and are
added up again with the router's weights. Shared experts are a dense MLP beside them.

Here every expert gets as many copies as the others, as when the router is force-balanced;
:mod:`simulator.program.grid.expert_tokens` says what the experts of a rank get otherwise. Without
a capacity nothing is dropped; with one, every expert gets exactly its capacity, padded.
:mod:`simulator.program.strategies.expert_parallel` spreads the experts over ranks.

Ignores: the host waiting for the counts of copies per expert.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from simulator.cost.parameters import LayerKind
from simulator.described.model import Experts, Model
from simulator.described.plan.plan import Plan
from simulator.program.layer.block import Block, Shape
from simulator.program.layer.pieces import (
    Gemm,
    GroupedGemm,
    Layer,
    MemoryBound,
    Region,
    Saved,
    Split,
)
from simulator.program.layer.transformer import attention_block

PERMUTE, UNPERMUTE = "permute", "unpermute"
"""The pieces that begin and end the routed experts."""

_SCORE_BYTES = 4
"""Router scores are fp32 in every framework modelled here."""

_SCORE_PASSES, _SCORE_KERNELS = 8, 15
"""Reads and writes of the (tokens, experts) scores, and kernels, per direction: softmax,
top-k, maps of weights and of choices, balancing loss, counts per expert (assumption: one
read or write each; Megatron-Core's router launches about 20 forward and 10 backward)."""

_SAVED_SCORES = 2
"""Scores and their softmax are kept for backward."""

_PERMUTE_KERNELS = 2
"""Sorting the choices, and copying the rows."""

_EAGER_BIAS_BYTES, _EAGER_BIAS_BACKWARD_BYTES, _EAGER_BIAS_KERNELS = 28, 40, 2
"""Traffic per element of adding the last bias of each expert, times the router's fp32 weights, by
eager kernels, and kernels per expert [B]. Forward: the product (4), its sum with the output (10),
all experts joined (8) and cast down (6). Backward: the gradient cast up (6) and down again (6), its
products with the weights and with the bias (16), their sums (8), and all experts joined (4)
(``TEGroupedMLP._apply_bias`` of Megatron-Core)."""


def expert_layer(model: Model, kind: LayerKind, plan: Plan, shape: Shape) -> Layer:
    """The pieces and saved activations of one layer with experts."""
    experts = model.experts
    assert experts is not None
    block = attention_block(model, kind, plan, shape)
    _add_router(block, experts)
    _add_routed_experts(block, experts)
    if experts.shared_ffn_hidden:
        _add_shared_expert(block, experts)
    block.close()
    return block.layer()


def token_copies(experts: Experts, tokens: int) -> int:
    """Rows that the routed experts compute for so many tokens.

    ``top_k`` copies of each token; with a capacity, every expert's capacity of
    ceil(capacity_factor x tokens x top_k / experts).
    """
    if experts.capacity_factor is None:
        return tokens * experts.top_k
    capacity = experts.capacity_factor * tokens * experts.top_k / experts.count
    return experts.count * math.ceil(capacity)


def is_of_routed_experts(saved: Saved) -> bool:
    """Whether an activation has a row for each copy that a rank's experts receive."""
    return saved.name.startswith("expert_")


def _add_router(block: Block, experts: Experts) -> None:
    """Scores from a small product in 16 bits, then softmax, top-k and balancing loss."""
    hidden, tokens = block.model.hidden, block.shape.tokens
    row = tokens * hidden * block.shape.element_bytes
    scores = float(tokens * experts.count)
    shares_input = experts.shared_ffn_hidden and block.shape.keeps_inputs
    region = Region.GATHERED if shares_input else Region.SEQUENCE
    block.save("router_input", row, region)
    block.pieces.append(Gemm("router", tokens, experts.count, hidden, half_precision=True))
    traffic = _SCORE_PASSES * scores * _SCORE_BYTES
    # Backward adds the router's gradient of the tokens to that of the experts.
    block.memory_bound("routing", traffic, traffic + 3 * row, Region.SEQUENCE, _SCORE_KERNELS)
    block.save("router_scores", _SAVED_SCORES * scores * _SCORE_BYTES, Region.SEQUENCE)


def _add_routed_experts(block: Block, experts: Experts) -> None:
    """Copies to their experts, up (and gate) product, activation, down product, and back."""
    hidden, width, shape = block.model.hidden, experts.ffn_hidden, block.shape
    copies = token_copies(experts, shape.tokens)
    moved = (shape.tokens + copies) * hidden * shape.element_bytes
    block.pieces.append(_reordering(PERMUTE, moved))
    block.save("expert_input", copies * hidden * shape.kept_bytes, Region.ROUTED)
    _grouped(block, "expert_up", copies, block.branches * width, hidden, Split.COLUMN)
    block.activation("expert_activation", copies * width, Region.SEQUENCE)
    block.save("expert_down_input", copies * width * shape.kept_bytes, Region.SEQUENCE)
    _grouped(block, "expert_down", copies, hidden, width, Split.ROW)
    if block.model.mlp_bias and not block.stack.fused_expert_extras:
        block.pieces.append(_eager_bias(copies * hidden, experts.count))
    block.pieces.append(_reordering(UNPERMUTE, moved))


def _eager_bias(elements: float, count: int) -> MemoryBound:
    """The last bias of every expert, added by kernels of its own."""
    forward, backward = _EAGER_BIAS_BYTES * elements, _EAGER_BIAS_BACKWARD_BYTES * elements
    kernels = _EAGER_BIAS_KERNELS * count
    return MemoryBound("expert_bias", forward, backward, Region.SEQUENCE, kernels, per_expert=True)


def _reordering(name: str, moved_bytes: float) -> MemoryBound:
    """Copies of tokens sorted by expert, or put back and added up."""
    kernels = _PERMUTE_KERNELS
    return MemoryBound(name, moved_bytes, moved_bytes, Region.SEQUENCE, kernels, scatters_rows=True)


def _grouped(block: Block, name: str, copies: int, n: int, k: int, split: Split) -> None:
    """A product of every expert, and the casts its number format needs."""
    experts = block.model.experts
    assert experts is not None
    groups = experts.count
    launches = 1 if block.stack.grouped_experts else groups
    block.pieces += _casts(block, name, (copies * k, copies * n), split, launches)
    block.pieces.append(GroupedGemm(name, groups, copies / groups, n, k, split, launches))


def _casts(
    block: Block, name: str, elements: tuple[float, float], split: Split, launches: int
) -> Iterator[MemoryBound]:
    """Casts of so many elements of the input, and of the output's gradient.

    Ranks that share an expert hold a share of its width each, but every row of the rest.
    """
    of_input, of_gradient = (block.cast_bytes(count) for count in elements)
    wide, shared = Region.ROUTED, Region.SEQUENCE
    at_input, at_output = (wide, shared) if split is Split.COLUMN else (shared, wide)
    if not of_gradient:
        return
    per_expert = launches > 1
    yield MemoryBound(f"{name}_cast", of_input, 0.0, at_input, launches, per_expert=per_expert)
    gradient = f"{name}_gradient_cast"
    yield MemoryBound(gradient, 0.0, of_gradient, at_output, launches, per_expert=per_expert)


def _add_shared_expert(block: Block, experts: Experts) -> None:
    """A dense MLP that every token passes, weighted by a gate if there is one, and added.

    It reads what the router reads, which is kept once.
    """
    tokens, hidden = block.shape.tokens, block.model.hidden
    row = tokens * hidden * block.shape.element_bytes
    block.mlp(experts.shared_ffn_hidden, "shared_", shares_input=True)
    if experts.shared_gate:
        block.pieces.append(Gemm("shared_gate", tokens, 1, hidden, half_precision=True))
        block.memory_bound("shared_gate_product", 2 * row, 3 * row, Region.SEQUENCE, 2)
        block.save("shared_output", row, Region.SEQUENCE)
        block.save("shared_gate_output", tokens * block.shape.element_bytes, Region.SEQUENCE)
    block.memory_bound("shared_sum", 3 * row, 3 * row, Region.SEQUENCE)
