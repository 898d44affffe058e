"""What does a plan hold in blocks: offloading, tensor grid, load of experts, written order?"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simulator.described.base import Flag, Layers, Ratio, Spec


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
