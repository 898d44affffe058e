"""What is a Mamba-2 layer made of?

One product gives the gate z, the input x, B, C and the step sizes dt. A depthwise convolution
passes over x, B and C; the scan of the state-space duality (SSD) turns x into y; y, gated by z,
passes a norm and the output product. The scan works on chunks of Q tokens with four products and
a recurrence between chunks: C B' and (C B') x inside a chunk, the state B' x that a chunk leaves,
and what C reads of the state before it.

Heads of a group share B and C, so each product is one per chunk and group, as wide as the group's
heads. Decays scale operands on their way and move no bytes of their own. Assumption: the products
of chunks run as fast as batched products of the profile; no measured scan is among its rows.

Shape letters: h hidden, w inner width, a heads, d head size, n state, g groups, Q chunk.

Source:
    Dao and Gu (arXiv 2405.21060): sections 6 (chunks), 7 (block) and 8.1 (tensor parallelism by
    heads and groups). Kernels and what they keep: ``mamba_split_conv1d_scan_combined`` of
    state-spaces/mamba; shares of ranks: ``MambaMixer`` of Megatron-Core.

Ignores: the FLOP of decays and of the convolution, blocks of scores above the diagonal that a
kernel may skip, and the products of scores and states that its backward repeats, a few percent of
the layer's operations; their traffic is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simulator.cost.rates import FULL_BYTES
from simulator.described.model import Model, StateSpace
from simulator.program.layer.block import Block, norm_traffic
from simulator.program.layer.layer_part import ALL_RECOMPUTE, LayerPart
from simulator.program.layer.pieces import Gemm, Region, Split
from simulator.program.layer.tensors import ParameterTensor, TensorRole, TensorSplit

_CONV_PASSES, _CONV_BACKWARD_PASSES = 2, 5
"""Reads and writes of x, B and C. Forward: in and out. Backward: the convolution again (2), then
its input and gradient read, and one written (3)."""

_GATE_PASSES, _GATE_BACKWARD_PASSES = 1, 3
"""What the gate adds to the norm's traffic: z read forward; z read, its gradient written and the
gated value made again backward."""


def _ssm(model: Model) -> StateSpace:
    assert model.ssm is not None
    return model.ssm


def _mixed_width(model: Model) -> int:
    """Columns of x, B and C, which the convolution passes over."""
    ssm = _ssm(model)
    return ssm.width(model.hidden) + 2 * ssm.groups * ssm.state


def _projected_width(model: Model) -> int:
    """Columns of the first product: z, x, B, C and dt."""
    ssm = _ssm(model)
    return ssm.width(model.hidden) + _mixed_width(model) + ssm.heads(model.hidden)


def _tensors(model: Model) -> Iterator[ParameterTensor]:
    ssm, split = _ssm(model), TensorSplit.TENSOR
    width, heads, mixed = ssm.width(model.hidden), ssm.heads(model.hidden), _mixed_width(model)
    yield ParameterTensor("ssm.in", (_projected_width(model), model.hidden), split=split)
    filters = (mixed, ssm.conv_kernel)
    yield ParameterTensor("ssm.conv", filters, split=split, role=TensorRole.CHANNEL)
    yield ParameterTensor("ssm.conv.bias", (mixed,), split=split, role=TensorRole.BIAS)
    for name in ("step_bias", "decay", "skip"):
        yield ParameterTensor(f"ssm.{name}", (heads,), split=split, role=TensorRole.CHANNEL)
    yield ParameterTensor("ssm.norm", (width,), split=split, role=TensorRole.NORM)
    yield ParameterTensor("ssm.out", (width, model.hidden), split=split, inputs_first=True)


def _add(block: Block, _window: int) -> None:
    """In product, convolution, scan, gated norm, out product."""
    model, shape, ssm = block.model, block.shape, _ssm(block.model)
    tokens, size, width = shape.tokens, shape.element_bytes, ssm.width(block.model.hidden)
    into, out_of, kept_bytes = ("ssm.in",), ("ssm.out",), tokens * model.hidden * shape.kept_bytes
    block.save("ssm_input", kept_bytes, Region.GATHERED, weights=into)
    block.linear(
        "ssm_in", _projected_width(model), model.hidden, Split.COLUMN,
        made_by="norm", tensors=into,
    )  # fmt: skip
    block.save("ssm_projected", tokens * _projected_width(model) * size, Region.TENSOR)
    mixed = tokens * _mixed_width(model) * size
    forward, backward = _CONV_PASSES * mixed, _CONV_BACKWARD_PASSES * mixed
    block.memory_bound("ssm_conv", forward, backward, Region.TENSOR)
    _add_scan(block, ssm)
    block.save("ssm_scanned", tokens * width * size, Region.TENSOR)
    _add_gated_norm(block, tokens * width * size)
    block.save("ssm_norm_statistics", tokens * ssm.groups * FULL_BYTES, Region.TENSOR)
    kept_bytes = tokens * width * shape.kept_bytes
    block.save("ssm_out_input", kept_bytes, Region.TENSOR, weights=out_of)
    block.linear("ssm_out", model.hidden, width, Split.ROW, made_by="norm", tensors=out_of)


def _chunk(ssm: StateSpace, seq_len: int) -> int:
    """Tokens of a chunk; a shorter sequence is one."""
    return min(ssm.chunk, seq_len)


def _add_scan(block: Block, ssm: StateSpace) -> None:
    """Products of every chunk and group, and the states that pass from chunk to chunk."""
    shape, hidden = block.shape, block.model.hidden
    length, heads = _chunk(ssm, shape.seq_len), ssm.heads(hidden)
    chunks = shape.sequences * -(-shape.seq_len // length)
    columns = ssm.width(hidden) // ssm.groups
    product = partial(Gemm, batch=chunks * ssm.groups, has_weight=False, split=Split.COLUMN)
    steps = shape.tokens * heads * (shape.element_bytes + 2 * FULL_BYTES)
    block.memory_bound("ssm_steps", steps, 2 * steps, Region.TENSOR)
    block.pieces.append(product("ssm_states", ssm.state, columns, length))
    states = float(chunks * heads * ssm.head_dim * ssm.state)
    passed = states * (FULL_BYTES + shape.element_bytes)
    # Backward passes them on again, and then their gradients the other way.
    block.memory_bound("ssm_state_passing", passed, 2 * passed, Region.TENSOR)
    block.pieces.append(product("ssm_scores", length, length, ssm.state))
    block.pieces.append(product("ssm_in_chunk", length, columns, length))
    block.pieces.append(product("ssm_from_states", length, columns, ssm.state))


def _add_gated_norm(block: Block, row_bytes: float) -> None:
    """The norm over y silu(z); ranks that share heads norm their own groups."""
    forward, backward, kernels = norm_traffic(row_bytes, block.shape.element_bytes, fused=True)
    block.memory_bound(
        "ssm_gated_norm",
        forward + _GATE_PASSES * row_bytes,
        backward + _GATE_BACKWARD_PASSES * row_bytes,
        Region.TENSOR,
        kernels,
    )


def _flop(model: Model, keys: int) -> float:
    """Products of the scan, in chunks, the masked half of the scores included."""
    ssm = _ssm(model)
    length, width = _chunk(ssm, keys), ssm.width(model.hidden)
    scores = 2.0 * ssm.groups * length * ssm.state
    return scores + 2.0 * width * length + 4.0 * width * ssm.state


def _sizes(model: Model) -> dict[str, int]:
    ssm = _ssm(model)
    return {"groups": ssm.groups, "heads": ssm.heads(model.hidden)}


MAMBA2 = LayerPart(
    title="Mamba-2",
    is_in=lambda model, index: not model.has_attention(index),
    tensors=_tensors,
    add=_add,
    flop=_flop,
    tensor_sizes=_sizes,
    no_context="ranks with parts of a sequence would have to pass on the state of the scan",
    recompute=ALL_RECOMPUTE,
)
