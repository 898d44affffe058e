"""What is a parameter tensor, and what share of it does one rank hold?

One table of tensors drives everything that depends on parameters: weights, gradients, optimizer
states and their communication. Biases and norms are listed too, so the counts are exact
to the last parameter. Shape letters: h hidden, a heads, k kv heads, d head size, f MLP
width, v vocabulary, e experts.

Shapes are written so that the axis which is split over ranks comes first (for experts:
the experts first, then the axis that tensor parallelism splits). They are not the
layout a framework keeps in memory; only their products matter here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from simulator.described.model import Model
from simulator.described.plan.plan_blocks import TensorGrid


class ParameterGroup(StrEnum):
    """Parameters that are placed, sharded and reduced in the same way."""

    EMBEDDING = "embedding"
    DENSE = "dense"
    """Everything of a layer but its routed experts: reduced over all data-parallel ranks."""
    EXPERT = "expert"
    """Routed experts: reduced only over the ranks that hold the same experts."""
    HEAD = "head"


class TensorSplit(StrEnum):
    """Over which ranks a tensor is divided.

    Source:
        Megatron-LM (arXiv 1909.08053, section 3) for tensor parallelism; Megatron-Core
        for key and value heads, router and latent down-projections.
    """

    REPLICATED = "replicated"
    """Whole on every rank."""
    TENSOR = "tensor"
    """First axis over tp."""
    KV_HEADS = "kv_heads"
    """First axis (heads of keys and values) over tp; with fewer heads than ranks, ranks
    share a head and hold copies of it."""
    EXPERT = "expert"
    """First axis (experts) over ep, second axis over tp."""
    EXPERT_REPLICATED = "expert_replicated"
    """First axis (experts) over ep, the rest whole on every tp rank."""


class TensorRole(StrEnum):
    """What a tensor does in a layer."""

    MATRIX = "matrix"
    BIAS = "bias"
    NORM = "norm"
    """Scales what a norm gives."""
    HEAD_NORM = "head_norm"
    """Scales every query or key; whole on every rank."""
    CHANNEL = "channel"
    """Weighs each channel by itself: the filters of a depthwise convolution."""
    ROUTER = "router"
    """Scores every expert."""
    POSITIONS = "positions"
    """A table with a row per position."""


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """One parameter tensor of the whole model or of one layer.

    Attributes:
        name: What it is, unique inside its layer, for example ``attention.query``.
        shape: Axes; the one that is split comes first.
        group: Parameters it is reduced and sharded with.
        split: How it is divided among tensor- and expert-parallel ranks.
        inputs_first: Whether the leading axes of ``shape`` are the inputs of a product.
            ``torch.nn.Linear`` keeps outputs first.
        role: What it does.
        in_mixer: Whether it is of the part of a layer in which tokens see each other.
        is_frozen: Whether it is not trained, and so has no gradient and no optimizer states.
    """

    name: str
    shape: tuple[int, ...]
    group: ParameterGroup = ParameterGroup.DENSE
    split: TensorSplit = TensorSplit.REPLICATED
    inputs_first: bool = False
    role: TensorRole = TensorRole.MATRIX
    in_mixer: bool = False
    is_frozen: bool = False

    @property
    def numel(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def is_routed(self) -> bool:
        """Whether it belongs to routed experts."""
        return self.group is ParameterGroup.EXPERT

    @property
    def is_vector(self) -> bool:
        """Whether it is added to or scales what a product gives: a bias, or a norm's weight.

        Biases, norms of heads and filters of channels have two axes, and are none the less vectors.
        """
        return len(self.shape) == 1 or self.role in _VECTORS


_VECTORS = frozenset({TensorRole.BIAS, TensorRole.NORM, TensorRole.HEAD_NORM, TensorRole.CHANNEL})


def norm_tensors(model: Model, name: str, group: ParameterGroup) -> Iterator[ParameterTensor]:
    """The weight of a norm over the model's width, and its bias if it has one."""
    yield ParameterTensor(name, (model.hidden,), group, role=TensorRole.NORM)
    if model.norm_bias:
        yield ParameterTensor(f"{name}.bias", (model.hidden,), group, role=TensorRole.BIAS)


def tensor_shard_numel(tensor: ParameterTensor, tp: int = 1, ep: int = 1) -> int:
    """Elements of a tensor that one rank holds, the largest share where it is uneven.

    Args:
        tensor: The whole tensor.
        tp: Tensor-parallel degree; for routed experts the degree inside an expert.
        ep: Expert-parallel degree.
    """
    match tensor.split:
        case TensorSplit.REPLICATED:
            ways: tuple[int, ...] = ()
        case TensorSplit.TENSOR | TensorSplit.KV_HEADS:
            ways = (tp,)
        case TensorSplit.EXPERT:
            ways = (ep, tp)
        case TensorSplit.EXPERT_REPLICATED:
            ways = (ep,)
    split_axes = (-(-size // way) for size, way in zip(tensor.shape, ways, strict=False))
    return math.prod(split_axes) * math.prod(tensor.shape[len(ways) :])


def matrix_shape(tensor: ParameterTensor, tp: int = 1, ep: int = 1) -> tuple[int, int, int]:
    """What one rank holds of a tensor as (matrices, rows, columns).

    Biases and the weights of norms are one row, whatever their axes; each routed expert has a
    matrix of its own.

    Args: as :func:`tensor_shard_numel`.
    """
    numel, last = tensor_shard_numel(tensor, tp, ep), tensor.shape[-1]
    if tensor.is_vector:
        return 1, 1, numel
    matrices = -(-tensor.shape[0] // ep) if tensor.split is TensorSplit.EXPERT else 1
    return matrices, numel // (matrices * last), last


def grid_shard_numel(tensor: ParameterTensor, grid: TensorGrid) -> int:
    """Elements of a tensor that one rank of a tensor-parallel grid holds.

    Matrices are cut along both axes. Norms of single heads are whole on every rank, and in 3D
    learned positions are cut by their width only.

    Source:
        Colossal-AI's ``Linear2D``, ``VocabParallelEmbedding2D``, ``Embedding2D`` and their 2.5D
        and 3D variants.
    """
    if tensor.role is TensorRole.HEAD_NORM:
        return tensor.numel
    is_table = tensor.role is TensorRole.POSITIONS
    if tensor.is_vector or (is_table and grid.method == "3d"):
        return -(-tensor.numel // grid.vector_ways)
    return -(-tensor.numel // grid.weight_ways)


def padded_shard_numel(tensor: ParameterTensor, tp: int, shards: int) -> int:
    """Elements of a tensor-parallel share whose rows are padded to a multiple of ``shards``.

    Rows are the first axis as ``torch.nn.Linear`` keeps it: outputs. FSDP2 cuts every
    parameter along it into equal shards, and sends the padding, too
    (``torch.distributed.fsdp.fully_shard``).

    Args:
        tensor: The whole tensor, not one of routed experts.
        tp: Tensor-parallel degree.
        shards: Ranks that shard it.
    """
    numel, last = tensor_shard_numel(tensor, tp), tensor.shape[-1]
    has_one_axis = len(tensor.shape) == 1 or tensor.role is TensorRole.BIAS
    columns = 1 if has_one_axis else last
    rows = last if tensor.inputs_first else numel // columns
    return -(-rows // shards) * shards * (numel // rows)
