"""What is a mixture of experts made of, on one device?

The router scores every expert for every token; each token is copied for its ``top_k``
experts, the copies are sorted by expert, pass the experts as grouped products, and are
added up again with the router's weights. Shared experts are a dense MLP beside them.

Here every expert gets as many copies as the others, as when the router is force-balanced;
:mod:`simulator.program.grid.expert_tokens` says what the experts of a rank get otherwise. Without
a capacity nothing is dropped; with one, every expert gets exactly its capacity, padded.
:mod:`simulator.program.strategies.expert_parallel` spreads the experts over ranks.

The host that waits for the counts of copies is in :mod:`simulator.program.price.expert_waits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from simulator.described.model import Experts, Model
from simulator.program.layer.block import Block
from simulator.program.layer.expert_loop import autocast_pieces, loop_pieces, weights_of_experts
from simulator.program.layer.grouped_experts import add_weighing, masking
from simulator.program.layer.layer_part import ALL_RECOMPUTE, TOKEN_WISE, LayerPart
from simulator.program.layer.mlp import (
    add_activation,
    add_mlp,
    branches,
    mlp_matrices,
    mlp_tensors,
)
from simulator.program.layer.pieces import (
    Gemm,
    GroupedGemm,
    MemoryBound,
    Region,
    Role,
    RowSums,
    Saved,
    Split,
)
from simulator.program.layer.tensors import (
    ParameterGroup,
    ParameterTensor,
    TensorRole,
    TensorSplit,
)
from simulator.program.layer.weighed_copies import weighing_pieces

ROUTER_SCORES = "router_scores"
"""Name of what is kept of scores for backward."""

_SCORE_BYTES = 4
"""Router scores are fp32 in every framework modelled here."""

_SCORE_PASSES = 8
"""Reads and writes of the (tokens, experts) scores per direction: softmax, top-k, maps of weights
and of choices, balancing loss, counts per expert (assumption: one read or write each)."""

_SAVED_SCORES = 2
"""Scores and their softmax are kept for backward."""

_WEIGHED_BYTES = 4
"""An element of a copy in fp32."""

_PERMUTE_KERNELS = 2
"""Sorting the choices, and copying the rows."""

_SORT_KERNELS = 2
"""Picking rows up is one kernel, adding them to zeros is two."""

_WEIGHING, _WEIGHING_BACKWARD = 4, 12
"""Traffic of weighing 16-bit results per element [B]. Backward: the products of the gradient with
the weights (4) and with the results (6), and the sum of these over rows (2)."""

_EAGER_BIAS_BYTES, _EAGER_BIAS_BACKWARD_BYTES, _EAGER_BIAS_KERNELS = 28, 40, 2
"""Traffic per element of adding the last bias of each expert, times the router's fp32 weights, by
eager kernels, and kernels per expert [B]. Forward: the product (4), its sum with the output (10),
all experts joined (8) and cast down (6). Backward: the gradient cast up (6) and down again (6), its
products with the weights and with the bias (16), their sums (8), and all experts joined (4)
(``TEGroupedMLP._apply_bias`` of Megatron-Core)."""


def _tensors(model: Model) -> Iterator[ParameterTensor]:
    experts = model.experts
    assert experts is not None
    h, e, f = model.hidden, experts.count, experts.ffn_hidden
    group, bias = ParameterGroup.EXPERT, TensorRole.BIAS
    yield ParameterTensor("router", (e, h), role=TensorRole.ROUTER)
    if experts.router_bias:
        yield ParameterTensor("router.bias", (e,), role=bias)
    for part in ("gate", "up") if model.gated_mlp else ("up",):
        yield ParameterTensor(f"experts.{part}", (e, f, h), group, TensorSplit.EXPERT)
        if model.mlp_bias:
            name, split = f"experts.{part}.bias", TensorSplit.EXPERT
            yield ParameterTensor(name, (e, f), group, split, role=bias)
    yield ParameterTensor("experts.down", (e, f, h), group, TensorSplit.EXPERT)
    if model.mlp_bias:
        split = TensorSplit.EXPERT_REPLICATED
        yield ParameterTensor("experts.down.bias", (e, h), group, split, role=bias)
    if experts.shared_ffn_hidden:
        yield from mlp_tensors(model, "shared_expert", experts.shared_ffn_hidden, biased=False)
    if experts.shared_gate:
        yield ParameterTensor("shared_expert.scalar_gate", (1, h))


def _add(block: Block, _window: int) -> None:
    """Router, routed experts and the shared one; a checkpoint of it keeps the router's input."""
    experts = block.model.experts
    assert experts is not None
    first_piece, router_input = len(block.pieces), len(block.saved)
    _add_router(block, experts)
    _add_routed_experts(block, experts)
    if experts.shared_ffn_hidden:
        _add_shared_expert(block, experts)
    block.checkpoint("moe", first_piece, router_input + 1)
    # The norm before the router is a kernel of its own, not part of a product.
    cast = {"shared_mlp_up_cast": block.second_cast_share(block.shape)}
    dropped = ("router_input", "shared_mlp_input")
    block.repeat("layernorm", {"mlp_norm": 1.0, **cast}, dropped=dropped)


def token_copies(experts: Experts, tokens: int) -> int:
    """Rows that the routed experts compute for so many tokens.

    ``top_k`` copies of each token; with a capacity, every expert's capacity of
    ceil(capacity_factor x tokens x top_k / experts).
    """
    if experts.capacity_factor is None:
        return tokens * experts.top_k
    capacity = experts.capacity_factor * tokens * experts.top_k / experts.count
    return experts.count * math.ceil(capacity)


def _add_router(block: Block, experts: Experts) -> None:
    hidden, tokens = block.model.hidden, block.shape.tokens
    row = tokens * hidden * block.shape.element_bytes
    scores = float(tokens * experts.count)
    shares_input = experts.shared_ffn_hidden and block.shape.keeps_inputs
    region = Region.GATHERED if shares_input else Region.SEQUENCE
    of_shared, _ = mlp_matrices(block.model, is_shared=True) if shares_input else ((), ())
    router = ("router",)
    block.save("router_input", row, region, weights=(*router, *of_shared))
    block.pieces.append(
        Gemm("router", tokens, experts.count, hidden, half_precision=True, tensors=router)
    )
    traffic = _SCORE_PASSES * scores * _SCORE_BYTES
    # Backward adds the router's gradient of the tokens to that of the experts.
    block.save(ROUTER_SCORES, _SAVED_SCORES * scores * _SCORE_BYTES, Region.SEQUENCE)
    kernels = _router_kernels(block, experts)
    block.memory_bound("routing", traffic, traffic + 3 * row, Region.SEQUENCE, kernels)


def _router_kernels(block: Block, experts: Experts) -> int:
    stack = block.stack
    # Biases of the model's other matrices are trained, too, and balance nothing (gpt-oss).
    balances = experts.router_bias and not block.model.mlp_bias
    return stack.biased_router_kernels or stack.router_kernels if balances else stack.router_kernels


def _add_routed_experts(block: Block, experts: Experts) -> None:
    copies = token_copies(experts, block.expert_shape.tokens)
    _bring_copies(block, experts, copies)
    first = len(block.saved)
    _add_products_of_experts(block, experts, copies)
    _bring_results_back(block, experts, copies)
    routed = [replace(saved, role=Role.ROUTED) for saved in _kept(block, first)]
    block.saved[first:] = routed
    _repeat_activation(block, [saved.name for saved in routed])


def _bring_copies(block: Block, experts: Experts, copies: int) -> None:
    """Put copies of tokens into the order of their experts, and keep what that needs."""
    if _picks_by_masks(block):
        _add_masks(block, experts)
        block.pieces.append(_pick(block, experts, "one_hot_dispatch", mask_share=0.0))
    if not _picks_its_rows(block):
        block.pieces.append(_reordering(block, Role.PERMUTE, copies))
    if _sorts_copies(block):
        _sort_gathered(block, copies)
    if block.stack.weighs_copies_in_fp32:
        weighed_bytes = copies * block.model.hidden * _WEIGHED_BYTES
        block.save("expert_copies_weighed", weighed_bytes, Region.SEQUENCE)
    if _is_loop(block, experts) and block.plan.saves_cast_weights:
        weights_bytes = weights_of_experts(block, experts) * block.expert_shape.element_bytes
        block.save("expert_weight_copies", weights_bytes, Region.TENSOR)


def _add_products_of_experts(block: Block, experts: Experts, copies: int) -> None:
    """The products of all experts of a rank, and the activation between them."""
    hidden, width, shape = block.model.hidden, experts.ffn_hidden, block.expert_shape
    gated = block.model.gated_mlp
    into = ("experts.gate", "experts.up") if gated else ("experts.up",)
    out_of = ("experts.down",)
    columns = branches(block.model) * width
    kept = branches(block.model) if _casts_in_loop(block, experts) else 1
    input_bytes = kept * copies * hidden * shape.kept_bytes
    block.save("expert_input", input_bytes, Region.ROUTED, weights=into)
    block.pieces += masking(block, "expert_input", copies * hidden, in_place=True)
    _grouped(block, "expert_up", copies, columns, hidden, Split.COLUMN, tensors=into)
    block.pieces += masking(block, "expert_up", copies * columns, in_place=False)
    add_activation(
        block, "expert_activation", copies * width, Region.SEQUENCE,
        shape=shape, halves_of_one=block.has_eager_experts,
    )  # fmt: skip
    kept_bytes = copies * width * shape.kept_bytes
    block.save("expert_down_input", kept_bytes, Region.SEQUENCE, weights=out_of)
    _grouped(block, "expert_down", copies, hidden, width, Split.ROW, tensors=out_of)
    block.pieces += masking(block, "expert_down", copies * hidden, in_place=False)


def _bring_results_back(block: Block, experts: Experts, copies: int) -> None:
    """Weigh what experts made, and put it into the order of the tokens."""
    numbers = copies * block.model.hidden
    add_weighing(block, numbers)
    if block.model.mlp_bias and not block.stack.fused_expert_extras:
        block.pieces.append(_eager_bias(numbers, experts.count))
    if block.stack.weighs_copies_in_fp32:
        block.pieces += weighing_pieces(float(numbers))
    if _casts_in_loop(block, experts):
        block.pieces += autocast_pieces(block, experts, copies)
    if _is_loop(block, experts):
        block.pieces += loop_pieces(block, experts, copies, block.stack.host_work_per_launch)
    if _sorts_copies(block):
        _unsort_gathered(block, copies)
    block.pieces.append(_reordering(block, Role.UNPERMUTE, copies))
    if _picks_by_masks(block):
        block.pieces.append(_pick(block, experts, "one_hot_combine", mask_share=1.0))


def _sorts_copies(block: Block) -> bool:
    """Whether copies that an all-gather brought are sorted by expert."""
    return block.stack.sorts_gathered_copies and block.plan.ep_dispatch == "all_gather"


def _casts_in_loop(block: Block, experts: Experts) -> bool:
    """Whether each expert of a loop casts its own input."""
    return _is_loop(block, experts) and block.plan.autocasts


def _picks_by_masks(block: Block) -> bool:
    """Whether products with one-hot masks bring tokens to their experts and back."""
    experts = block.model.experts
    has_capacity = experts is not None and experts.capacity_factor is not None
    return has_capacity and block.stack.one_hot_dispatch


def _picks_its_rows(block: Block) -> bool:
    """Whether the tokens of all experts lie on a rank, and products pick their rows."""
    return block.stack.gathers_in_products and block.plan.ep == 1


def _kept(block: Block, first: int) -> list[Saved]:
    """What stays for backward of what experts save; the rest is picked or made again.

    Source: SonicMoE, ``functional/__init__.py``: ``_UpProjection`` keeps ``x``, the tokens that it
    picks rows of, ``_DownProjection`` keeps ``z``, and neither the result of the activation.
    """
    if not block.stack.gathers_in_products:
        return block.saved[first:]
    again = {"expert_activation_output", "expert_down_input"}
    again |= {"expert_input"} if _picks_its_rows(block) else set()
    return [saved for saved in block.saved[first:] if saved.name not in again]


def _add_masks(block: Block, experts: Experts) -> None:
    """One mask of (tokens, slots) per sequence to dispatch with, one of weights to combine with."""
    slots = token_copies(experts, block.shape.seq_len)
    mask_bytes = block.shape.tokens * slots * block.shape.element_bytes
    block.save("one_hot_masks", 2 * mask_bytes, Region.SEQUENCE)


def _pick(block: Block, experts: Experts, name: str, *, mask_share: float) -> Gemm:
    """(slots, seq_len) x (seq_len, hidden) for each sequence, slots of all experts.

    Args:
        block: The layer.
        experts: Its experts.
        name: What the product is for.
        mask_share: 1 where the mask has a gradient, the router's weights, 0 where it has none.
    """
    shape = block.shape
    slots = token_copies(experts, shape.seq_len)
    return Gemm(
        name, slots, block.model.hidden, shape.seq_len, shape.sequences,
        has_weight=False, trained_share=mask_share,
    )  # fmt: skip


def _is_loop(block: Block, experts: Experts) -> bool:
    """Whether the model's code visits one expert after another, each time with a question."""
    asks_each = block.stack.expert_waits == "expert" and not block.stack.grouped_experts
    return asks_each and experts.capacity_factor is None


def _repeat_activation(block: Block, saved: list[str]) -> None:
    """What repeating the activation alone (``moe_act``) means.

    Its input stays. A plain ReLU keeps its output alone; without that its input stays, which is
    as large.
    """
    start, share = "expert_activation", block.second_cast_share(block.expert_shape)
    inputs = [name for name in (f"{start}_clamp_input", f"{start}_input") if name in saved]
    stays = inputs[0] if inputs else "expert_down_input"
    outputs = {f"{start}_input", f"{start}_output", "expert_down_input"} - {stays}
    repeated = {start: 1.0, f"{start}_clamp": 1.0, "expert_down_cast": share}
    block.repeat("moe_act", repeated, dropped=sorted(outputs))


def _eager_bias(elements: float, count: int) -> MemoryBound:
    forward, backward = _EAGER_BIAS_BYTES * elements, _EAGER_BIAS_BACKWARD_BYTES * elements
    kernels = _EAGER_BIAS_KERNELS * count
    return MemoryBound("expert_bias", forward, backward, Region.SEQUENCE, kernels, per_expert=True)


def _reordering(block: Block, role: Role, copies: int) -> MemoryBound:
    """Copies are picked up, and their gradients added up; or the other way round.

    Products with masks leave nothing to copy.
    """
    shape, hidden = block.expert_shape, block.model.hidden
    is_permute, fused = role is Role.PERMUTE, block.stack.fused_permutation
    picked = (shape.tokens + copies) * hidden * shape.element_bytes
    is_laid = not fused and block.stack.row_summation == "none"
    # Whoever sums copies up as they lie has put them there, and repeats tokens before they are
    # sorted: all copies are written once more and read again.
    laid = picked + 2 * copies * hidden * shape.element_bytes
    passes = (picked, picked)
    if _picks_by_masks(block):
        passes = (0.0, 0.0)
    elif is_laid:
        passes = (laid, laid)
    return MemoryBound(
        str(role), *passes, Region.SEQUENCE, _PERMUTE_KERNELS,
        scatters_rows=True, scatters_fused=fused, role=role,
        row_sums=None if fused else _row_sums(block, float(copies * hidden), backward=is_permute),
    )  # fmt: skip


def _row_sums(block: Block, elements: float, *, backward: bool) -> RowSums | None:
    method = block.stack.row_summation
    if method in ("none", "compiled"):
        return None
    return RowSums(method, *((0.0, elements) if backward else (elements, 0.0)))


def _sort_gathered(block: Block, copies: int) -> None:
    """A rank's copies, which it picked from all tokens in their order, by expert."""
    hidden, shape, plan = block.model.hidden, block.shape, block.plan
    row = hidden * block.expert_shape.kept_bytes
    if block.stack.keeps_picked_copies:
        if plan.ep * plan.expert_tp > 1:
            # Else these are the tokens that the router keeps.
            block.save("gathered_tokens", plan.ep * shape.tokens * row, Region.ROUTED)
        block.save("picked_copies", copies * row, Region.ROUTED, role=Role.ROUTED)
    block.pieces.append(_sorting(block, "expert_sort", float(copies * hidden), backward=True))


def _unsort_gathered(block: Block, copies: int) -> None:
    numbers = float(copies * block.model.hidden)
    block.pieces.append(_sorting(block, "expert_unsort", numbers, backward=False))
    block.save("expert_results", numbers * block.expert_shape.kept_bytes, Region.ROUTED)
    traffic = _WEIGHING * numbers, _WEIGHING_BACKWARD * numbers
    block.pieces.append(MemoryBound("expert_weighing", *traffic, Region.ROUTED))


def _sorting(block: Block, name: str, elements: float, *, backward: bool) -> MemoryBound:
    moved = 2 * elements * block.shape.element_bytes
    return MemoryBound(
        name, moved, moved, Region.ROUTED, _SORT_KERNELS, scatters_rows=True,
        row_sums=_row_sums(block, elements, backward=backward),
    )  # fmt: skip


def _grouped(
    block: Block, name: str, copies: int, n: int, k: int, split: Split, *, tensors: tuple[str, ...]
) -> None:
    experts = block.model.experts
    assert experts is not None
    groups = experts.count
    is_wide = block.plan.has_wide_experts
    launches = 1 if block.stack.grouped_experts and not is_wide else groups
    block.pieces += _casts(block, name, (copies * k, copies * n), split, launches)
    block.pieces += _weight_casts(block, name, groups * n * k, launches)
    calls = groups if block.stack.calls_each_expert else launches
    rows = copies / groups
    product = GroupedGemm(
        name, groups, rows, n, k, split, launches, calls,
        half_precision=block.stack.narrow_products == "dense", tensors=tensors, is_wide=is_wide,
        is_batched=experts.capacity_factor is not None,
    )  # fmt: skip
    block.pieces.append(product)


def _casts(
    block: Block, name: str, elements: tuple[float, float], split: Split, launches: int
) -> Iterator[MemoryBound]:
    """Casts of so many elements of the input, and of the output's gradient.

    Ranks that share an expert hold a share of its width each, but every row of the rest.
    """
    shape, (inputs, gradients) = block.expert_shape, elements
    if shape.gemm_bytes >= shape.element_bytes:
        return
    casting = block.casting(shape)
    forward, again = casting.input_bytes("other")
    wide, shared = Region.ROUTED, Region.SEQUENCE
    at_input, at_output = (wide, shared) if split is Split.COLUMN else (shared, wide)
    for kernel, first, second, region in (
        (f"{name}_cast", forward * inputs, again * inputs, at_input),
        (f"{name}_gradient_cast", 0.0, casting.gradient_bytes * gradients, at_output),
    ):
        yield MemoryBound(
            kernel, first, second, region, launches,
            per_expert=launches > 1, to_four_bits=casting.to_four_bits,
        )  # fmt: skip


def _weight_casts(block: Block, name: str, weights: int, launches: int) -> Iterator[MemoryBound]:
    """Casts of so many weights of all experts, of which a rank holds its share.

    Those of shards, which are gathered after that, are left out.
    """
    shape, casting = block.expert_shape, block.casting(block.expert_shape)
    is_cast = shape.gemm_bytes < shape.element_bytes and casting.casts_weights
    if not is_cast or block.plan.gathers_cast_experts:
        return
    own = weights / (block.plan.ep * block.plan.expert_tp)
    forward, backward = (each * own for each in casting.weight_bytes)
    yield MemoryBound(
        f"{name}_weight_cast", forward, backward, Region.WHOLE, launches,
        per_expert=launches > 1, to_four_bits=casting.to_four_bits,
    )  # fmt: skip


def _add_shared_expert(block: Block, experts: Experts) -> None:
    """A dense MLP that every token passes, weighted by a gate if there is one, and added.

    It reads what the router reads, which is kept once.
    """
    tokens, hidden = block.shape.tokens, block.model.hidden
    row = tokens * hidden * block.shape.element_bytes
    first_piece, first_saved = len(block.pieces), len(block.saved)
    add_mlp(block, experts.shared_ffn_hidden, shares_input=True, is_shared=True)
    if experts.shared_gate:
        gate = ("shared_expert.scalar_gate",)
        block.pieces.append(
            Gemm("shared_gate", tokens, 1, hidden, half_precision=True, tensors=gate)
        )
        block.save("shared_output", row, Region.SEQUENCE)
        block.save("shared_gate_output", tokens * block.shape.element_bytes, Region.SEQUENCE)
        block.memory_bound("shared_gate_product", 2 * row, 3 * row, Region.SEQUENCE, 2)
    block.checkpoint("shared_experts", first_piece, first_saved)
    block.memory_bound("shared_sum", 3 * row, 3 * row, Region.SEQUENCE)


EXPERTS = LayerPart(
    title="expert",
    is_in=lambda model, index: model.has_experts(index),
    tensors=_tensors,
    add=_add,
    tensor_sizes=lambda _: {},
    context=TOKEN_WISE,
    recompute=ALL_RECOMPUTE,
)
