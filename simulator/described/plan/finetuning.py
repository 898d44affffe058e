"""Which parameters does a plan train: all, some, or small adapters beside frozen ones?"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from simulator.described.base import Count, Flag, Spec

BasePrecision = Literal["fp32", "int8", "nf4", "fp4"]

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
    default that of ``plan.precision``. nf4 and fp4 are 4-bit (QLoRA). fp32 is what FSDP shards
    where a model is loaded so; then all frozen weights are."""
    double_quantisation: Flag = True
    """With nf4 and fp4, whether the constants of blocks are 8-bit themselves."""

    @property
    def is_quantised(self) -> bool:
        """Whether frozen matrices have a format that is dequantised for every use."""
        return self.base_precision not in (None, "fp32")


_BLOCK, _BLOCKS = 64, 256
"""Elements that share a constant, and constants that share one, where they are 8-bit themselves.

Source: arXiv 2305.14314, section 3; bitsandbytes' ``blocksize`` and torchao's ``NF4Tensor``."""
_CONSTANT_BYTES = 4.0


def quantised_bytes(lora: Lora) -> float:
    """Bytes per element of a frozen matrix that is quantised, constants included.

    int8 has one constant per row, which is left out.
    """
    if lora.base_precision == "int8":
        return 1.0
    if lora.double_quantisation:
        return 0.5 + (1.0 + _CONSTANT_BYTES / _BLOCKS) / _BLOCK
    return 0.5 + _CONSTANT_BYTES / _BLOCK
