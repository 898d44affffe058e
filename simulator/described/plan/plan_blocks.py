"""What does a plan hold in blocks: adapters, offloading, tensor grid, experts, order, allocator?"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from simulator.described.base import Count, Flag, Layers, Ratio, Spec

BasePrecision = Literal["fp32", "fp8", "int8", "nf4", "fp4"]

ALL_MATRICES = "all"
"""As a target: every matrix of every layer."""


def _targets(given: object) -> object:
    """One name stands for a list of it."""
    return (given,) if isinstance(given, str) else given


class Lora(Spec):
    """Adapters: products of two narrow matrices beside frozen ones, or factors of their columns.

    Source: LoRA, arXiv 2106.09685; rsLoRA, arXiv 2312.03732; DoRA, arXiv 2402.09353; QLoRA, arXiv
    2305.14314; IA3, arXiv 2205.05638.
    """

    rank: Count | None = None
    """Columns of the first matrix of an adapter, and rows of the second; none with ``ia3``."""
    targets: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_targets)] = (
        ALL_MATRICES,
    )
    """Which matrices of layers have an adapter: ``all``, or their names, such as query, key, value,
    output, gate, up and down."""
    kind: Literal["lora", "rslora", "dora", "ia3"] = "lora"
    """``rslora`` differs from ``lora`` in a factor, which costs nothing; ``dora`` learns the size
    of every output beside, for which it makes the adapted weight in every forward. ``ia3`` learns
    a factor for every output of a matrix, or for every input of ``down``, and nothing else."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of an adapter's input that is dropped; with any, each adapter keeps an input and a mask
    of its own."""
    base_precision: BasePrecision | None = None
    """Format in which frozen matrices of layers are kept, and cast from before every use; by
    default 16-bit where products are narrower, else that of ``plan.precision``. nf4 and fp4 are
    4-bit (QLoRA). fp8 is what 8-bit products read as it is, so that nothing is cast (Transformer
    Engine's ``fp8_model_init``, Megatron-Core's ``fp8_param``). fp32 is what FSDP shards where a
    model is loaded so; then all frozen weights are."""
    double_quantisation: Flag = True
    """With nf4 and fp4, whether the constants of blocks are 8-bit themselves."""

    @field_validator("double_quantisation")
    @classmethod
    def _belongs_to_blocks_of_4_bits(cls, is_double: bool, info: ValidationInfo) -> bool:
        if not is_double and info.data.get("base_precision") not in ("nf4", "fp4"):
            raise ValueError("is about constants of nf4 and fp4; remove it, or set base_precision")
        return is_double

    @property
    def is_quantised(self) -> bool:
        """Whether frozen matrices have a format of their own, narrower than 16 bits."""
        return self.base_precision not in (None, "fp32")

    @property
    def is_dequantised(self) -> bool:
        """Whether they are made wider before every use; 8-bit products read fp8 as it is."""
        return self.is_quantised and self.base_precision != "fp8"


_BLOCK, _BLOCKS = 64, 256
"""Elements that share a constant, and constants that share one, where they are 8-bit themselves.

Source: arXiv 2305.14314, section 3; bitsandbytes' ``blocksize`` and torchao's ``NF4Tensor``."""
_CONSTANT_BYTES = 4.0


def quantised_bytes(lora: Lora) -> float:
    """Bytes per element of a frozen matrix that is quantised, constants included.

    int8 has one constant per row and fp8 one per matrix, which are left out.
    """
    if lora.base_precision in ("int8", "fp8"):
        return 1.0
    if lora.double_quantisation:
        return 0.5 + (1.0 + _CONSTANT_BYTES / _BLOCKS) / _BLOCK
    return 0.5 + _CONSTANT_BYTES / _BLOCK


class Offload(Spec):
    """Where things live that are not on the GPU; by default everything is."""

    optimizer: Literal["cpu", "nvme"] | None = None
    """Optimizer states, fp32 weights, and the gradients that a rank updates with. The CPUs do
    the update, whichever of the two it is."""
    parameters: Literal["cpu", "nvme"] | None = None
    """Shards of the weights that layers read, fetched before every use."""
    activations: Literal["cpu"] | None = None
    """What layers keep for backward, copied out after forward and fetched before backward."""
    activation_layers: Layers | None = None
    """How many layers, the first ones of the model, ``activations`` are copied of; by default all
    but the last (Megatron-Core's ``--cpu-offloading-num-layers``)."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of the optimizer that leaves the GPU; the rest is updated there at the same time
    (DeepSpeed's ``ratio``, Megatron-Core's ``--optimizer-offload-fraction``)."""
    overlap: Flag = True
    """Whether the CPUs update one part of the optimizer while others are copied. Without,
    they wait for all gradients, and the GPU for all weights (Megatron-Core without
    ``--overlap-cpu-optimizer-d2h-h2d``)."""
    delayed_update: Flag = False
    """Whether the CPUs update with the gradients of one step while the next one runs on the
    GPUs (ZeRO-Offload, section 5.2)."""

    @property
    def is_used(self) -> bool:
        """Whether anything leaves the GPU."""
        return bool(self.optimizer or self.parameters or self.activations)


FSDP_OFFLOAD = Offload(optimizer="cpu", parameters="cpu")
"""All that PyTorch's ``CPUOffloadPolicy`` knows."""


TensorMethod = Literal["1d", "2d", "2.5d", "3d"]


class TensorGrid(NamedTuple):
    """A grid of tensor-parallel ranks.

    Attributes:
        method: How they multiply matrices.
        side: q, ranks along each side of a square.
        depth: Squares behind each other: 1 in 2D, d in 2.5D, q in 3D.
    """

    method: TensorMethod
    side: int
    depth: int

    @property
    def ranks(self) -> int:
        """All ranks of the grid."""
        return self.side**2 * self.depth

    @property
    def token_ways(self) -> int:
        """Into how many parts the tokens of an activation are cut."""
        return self.side * self.depth

    @property
    def width_ways(self) -> int:
        """Into how many parts the width of an activation is cut."""
        return self.side

    @property
    def weight_ways(self) -> int:
        """Into how many parts a weight matrix is cut; in 2.5D every square holds it whole."""
        return self.ranks if self.method == "3d" else self.side**2

    @property
    def vector_ways(self) -> int:
        """Into how many parts a bias or the weight of a norm is cut.

        Source: ``Linear2D``, ``LayerNorm2D``, ``Linear2p5D``, ``Linear3D`` and ``LayerNorm3D``
        of Colossal-AI: h / q^2 in 2D, else h / q.
        """
        return self.side**2 if self.method == "2d" else self.side


def tensor_grid(method: TensorMethod, tp: int, depth: int) -> TensorGrid | None:
    """The grid of tp ranks; None where they are in a line, or do not fill the grid."""
    if method == "1d" or tp == 1:
        return None
    if method == "3d":
        side = round(tp ** (1 / 3))
        depth = side
    else:
        side = math.isqrt(tp // depth)
    grid = TensorGrid(method, side, depth)
    return grid if side > 1 and grid.ranks == tp else None


_Load = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]


class ExpertLoad(Spec):
    """One of three ways to set it; every expert layer has the same load."""

    hot: Ratio | None = None
    """One expert receives this many times its share, the others share the rest evenly."""
    zipf: Ratio | None = None
    """The r-th most popular expert receives a share of 1 / r to this power. Popular experts
    are dealt to the ranks in turn (assumption)."""
    loads: tuple[_Load, ...] | None = None
    """Copies that each expert of a layer received, in any unit, in order of the experts. A
    job may name a ``file`` that holds them instead."""

    @model_validator(mode="after")
    def _is_said_once(self) -> Self:
        given = [name for name in ("hot", "zipf", "loads") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of hot, zipf, loads and file")
        if self.loads is not None and not math.fsum(self.loads):
            raise ValueError("at least one expert must receive tokens")
        return self

    def over_mean(self, experts: int) -> tuple[float, ...]:
        """Copies of each of so many experts over the mean, the most popular first if made up."""
        if self.hot is not None:
            rest = (experts - self.hot) / max(1, experts - 1)
            return (self.hot, *[rest] * (experts - 1))
        if self.zipf is not None:
            given = [rank**-self.zipf for rank in range(1, experts + 1)]
        else:
            given = list(self.loads or ())
        mean = math.fsum(given) / len(given)
        return tuple(load / mean for load in given)


class WrittenSchedule(Spec):
    """A pipeline order as torch and torchtitan write it, one line per rank."""

    file: str
    """Where it was read, for messages."""
    rows: tuple[str, ...]
    """Its lines."""

    def __str__(self) -> str:
        return self.file


class AllocatorSettings(NamedTuple):
    """What decides which blocks are cut, and when unused ones go back to the driver.

    Attributes:
        expandable_segments: Whether pages are mapped into one segment that grows, instead of asking
            the driver for separate ones.
        max_split_bytes: Blocks of this size and more are never cut, nor given to requests that are
            smaller (``max_split_size_mb``) [B]. In segments that expand all are cut.
        collects_above_share: Part of the device's memory above which segments that have been unused
            for long are returned before more is asked for (``garbage_collection_threshold``).
        is_planned: Whether a compiler places all tensors before the program runs, instead.
    """

    expandable_segments: bool = False
    max_split_bytes: float = math.inf
    collects_above_share: float = math.inf
    is_planned: bool = False
