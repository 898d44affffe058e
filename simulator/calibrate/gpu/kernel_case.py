"""What is one thing to measure of a device?

Nothing but the standard library is needed, so that a machine without this package's
dependencies can measure, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["fwd", "dgrad", "wgrad", "bwd", "fwd+bwd", ""]


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One thing to measure, in the columns of a kernel table.

    Attributes:
        op: Operation; a key of :data:`simulator.calibrate.gpu.kernel_calls.OPERATIONS`.
        dtype: Number format of the operands.
        m, n, k: Output rows, output columns and inner dimension of a product; rows and
            columns, or elements (m), of the others.
        batch: Sequences, or groups of a grouped product.
        seq: Tokens of a sequence.
        heads, kv_heads, head_dim: Attention heads and their size.
        causal: Whether attention is masked.
        direction: Pass of training.
    """

    op: str
    dtype: str = "bf16"
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    seq: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    causal: bool | None = None
    direction: Direction = "fwd"

    @property
    def id(self) -> str:
        """Name of the case, the same in every run."""
        sizes = [self.m, self.n, self.k, self.seq, self.heads, self.kv_heads, self.head_dim]
        words = [self.op, self.dtype, "x".join(str(size) for size in sizes if size)]
        words += [f"b{self.batch}"] if self.batch > 1 else []
        words += ["causal"] if self.causal else []
        words += [self.direction] if self.direction else []
        return "-".join(word for word in words if word)
