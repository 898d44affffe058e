"""How is a layer put together from pieces that any of its kinds may have?

Everything here is what *one* device would do for one microbatch; the strategy passes
divide it. Bytes of memory-bound kernels count each tensor read or written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cost.kernel_time import ELEMENT_BYTES, output_bytes
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.program.layer.float8_casts import Operands, eager_casts, row_casts
from simulator.program.layer.pieces import (
    Gemm,
    Layer,
    MemoryBound,
    Piece,
    Region,
    Saved,
    Split,
)

MASK_BYTES = 1
"""A dropout mask is one byte per element in every framework modelled here."""

NORMS_BEFORE = 2
"""Norms before attention and before the MLP; any more stand behind them."""

_EAGER_NORM_PASSES, _EAGER_NORM_KERNELS = 7.5, 7
"""An RMS norm written out: cast up, square, mean, scale, cast down and weigh move 30 bytes
per element where a fused kernel moves 4."""

_EAGER_NORM_INPUT_BYTES = 4
"""An RMS norm written out keeps its input in fp32, and the normalised input cast down."""

_STATISTIC_BYTES = 4
"""Norms keep one fp32 number per token and statistic: 1/deviation, and the mean of a layer
norm."""

_EAGER_CLAMP_PASSES, _EAGER_CLAMP_BACKWARD_PASSES, _EAGER_CLAMP_KERNELS = 8, 15, 9
"""Reads and writes of clamping gates and what they are multiplied with by eager kernels, in
elements of their product. Forward: both halves (4), joined again (4). Backward: where each lay
within its limits, one byte per element and limit (6), the gradients there (5), and both joined (4)
(``weighted_bias_quick_geglu_impl`` of Megatron-Core)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one microbatch.

    Attributes:
        sequences: b, sequences.
        seq_len: s, tokens per sequence on this rank.
        element_bytes: Bytes of one activation [B].
        gemm_bytes: Bytes of one operand of a weight product [B].
        kept_bytes: Bytes of one operand of a weight product as it is kept for backward [B].
    """

    sequences: int
    seq_len: int
    element_bytes: float
    gemm_bytes: float
    kept_bytes: float

    @property
    def tokens(self) -> int:
        """T = b s."""
        return self.sequences * self.seq_len

    @property
    def keeps_inputs(self) -> bool:
        """Whether a product keeps its input itself, not a copy in its own number format."""
        return self.kept_bytes == self.element_bytes

    @property
    def cast_bytes(self) -> float:
        """Read and written per element that is cast once in both layouts [B]."""
        return self.element_bytes + 2 * self.gemm_bytes


def microbatch_shape(plan: Plan, sequences: int, seq_len: int) -> Shape:
    """Sizes of one microbatch under the plan's number format."""
    operand, element = ELEMENT_BYTES[plan.precision], output_bytes(plan.precision)
    kept = element if plan.stack.float8_scaling == "eager" else operand
    return Shape(sequences, seq_len, element, operand, kept)


class Block:
    """Pieces and saved activations of a layer while it is put together."""

    def __init__(self, model: Model, plan: Plan, shape: Shape) -> None:
        self.model, self.plan, self.stack, self.shape = model, plan, plan.stack, shape
        self.pieces: list[Piece] = []
        self.saved: list[Saved] = []
        self.core: set[str] = set()
        self.passing_bytes: tuple[float, ...] = ()
        self.working_bytes: tuple[float, ...] = ()
        self.working_region = Region.TENSOR

    def layer(self) -> Layer:
        """What has been put together."""
        input_bytes = self.shape.tokens * self.model.hidden * self.shape.element_bytes
        return Layer(
            tuple(self.pieces),
            tuple(self.saved),
            input_bytes,
            frozenset(self.core),
            passing_bytes=self.passing_bytes,
            working_bytes=self.working_bytes,
            working_region=self.working_region,
            second_cast_share=self.shape.element_bytes / self.shape.cast_bytes,
        )

    def work(self, passing: tuple[float, ...], working: tuple[float, ...], region: Region) -> None:
        """Hold these blocks while forward runs, and those while backward does."""
        self.passing_bytes, self.working_bytes = passing, working
        self.working_region = region

    def save(self, name: str, num_bytes: float, region: Region, *, core: bool = False) -> None:
        """Keep an activation for backward."""
        self.saved.append(Saved(name, num_bytes, region, in_attention_core=core))

    def memory_bound(
        self, name: str, forward: float, backward: float, region: Region, kernels: int = 1
    ) -> None:
        """Append kernels that move so many bytes."""
        self.pieces.append(MemoryBound(name, forward, backward, region, kernels))

    def norm(self, name: str) -> None:
        """A norm over the residual stream, and what its backward reads."""
        model_width = self.model.hidden
        row = self.shape.tokens * model_width * self.shape.element_bytes
        fused = self.stack.fused_rmsnorm or self.model.normalisation == "layernorm"
        forward, backward, kernels = norm_traffic(row, fused=fused)
        reduces_rows = fused and not self.stack.persistent_norms
        piece = MemoryBound(name, forward, backward, Region.SEQUENCE, kernels, reduces_rows)
        self.pieces.append(piece)
        self.save_norm(name, self.shape.tokens, model_width, Region.SEQUENCE, fused=fused)

    def save_norm(self, name: str, rows: int, width: int, region: Region, *, fused: bool) -> None:
        """What the backward of a norm over so many rows reads."""
        size = self.shape.element_bytes + (0 if fused else _EAGER_NORM_INPUT_BYTES)
        self.save(f"{name}_input", rows * width * size, region)
        statistics = 2 if self.model.normalisation == "layernorm" else 1
        self.save(f"{name}_statistics", float(rows * statistics * _STATISTIC_BYTES), region)

    def close(self) -> None:
        """What follows the MLP: a norm where the model has four, and the residual."""
        if self.model.norms_per_layer > NORMS_BEFORE + 1:
            self.norm("mlp_post_norm")
        self.residual("mlp_residual")

    def linear(
        self,
        name: str,
        n: int,
        k: int,
        split: Split,
        *,
        kv_columns: int = 0,
        kv_heads: int = 1,
        after_kernel: bool = False,
        products: int = 1,
    ) -> None:
        """A product with a weight, and the casts its number format needs.

        The input and the output's gradient are cast, in both layouts. Where the input
        comes ``after_kernel`` (a norm or an activation), that kernel may cast it. It stands
        for several ``products`` where the model has them and the stack fuses them.
        """
        tokens, element = self.shape.tokens, self.shape.element_bytes
        operand = self.shape.gemm_bytes
        products = 1 if self.stack.fused_projections else products
        region = Region.TENSOR if split is Split.ROW else Region.SEQUENCE
        forward = 0.0 if after_kernel and self.stack.fused_casts else self.cast_bytes(tokens * k)
        backward = self.cast_bytes(tokens * n)
        if backward and self.stack.float8_scaling != "tensor":
            casts = row_casts if self.stack.float8_scaling == "rows" else eager_casts
            self.pieces += casts(name, Operands(tokens, n, k, products, split), element, operand)
        elif backward:
            self.memory_bound(f"{name}_cast", forward, backward, region)
        if products > 1:
            # Backward adds up the gradients that products apart give for the same input.
            added = (products + 1) * tokens * k * element
            self.memory_bound(f"{name}_gradient_sum", 0.0, added, Region.WHOLE, products - 1)
        self.pieces.append(
            Gemm(
                name, tokens, n, k, split=split, kv_columns=kv_columns, kv_heads=kv_heads,
                products=products,
            )
        )  # fmt: skip

    def bias(self, name: str, elements: float, region: Region, *, added: bool = False) -> None:
        """What a bias on so many outputs costs where products do not see to it.

        Its gradient is summed up over tokens. It is ``added`` by a kernel of its own where no
        kernel that follows the product does that.
        """
        if self.stack.fused_biases:
            return
        made_bytes = elements * self.shape.element_bytes
        if added:
            kernel = MemoryBound(f"{name}_bias", 2 * made_bytes, 0.0, region, strided=True)
            self.pieces.append(kernel)
        self.memory_bound(f"{name}_bias_gradient", 0.0, made_bytes, region)

    def cast_bytes(self, elements: float) -> float:
        """Bytes that casting an operand in both layouts moves; 0 where formats agree [B]."""
        is_cast = self.shape.gemm_bytes < self.shape.element_bytes
        return elements * self.shape.cast_bytes if is_cast else 0.0

    @property
    def branches(self) -> int:
        """Products into the MLP's width: up, and gate if there is one."""
        return 2 if self.model.gated_mlp else 1

    def mlp(self, width: int, prefix: str = "", *, shares_input: bool = False) -> None:
        """Up (and gate) product, activation, down product.

        Its input is kept once where it ``shares_input`` with a product that kept it before.
        """
        hidden, tokens, operand = self.model.hidden, self.shape.tokens, self.shape.kept_bytes
        up, down = f"{prefix}mlp_up", f"{prefix}mlp_down"
        if not (shares_input and self.shape.keeps_inputs):
            self.save(f"{prefix}mlp_input", tokens * hidden * operand, Region.GATHERED)
        columns, branches = self.branches * width, self.branches
        self.linear(up, columns, hidden, Split.COLUMN, after_kernel=True, products=branches)
        if self.model.mlp_bias:
            self.bias(up, tokens * columns, Region.TENSOR)
        self.activation(f"{prefix}activation", tokens * width, Region.TENSOR)
        self.save(f"{down}_input", tokens * width * operand, Region.TENSOR)
        self.linear(down, hidden, width, Split.ROW, after_kernel=True)
        if self.model.mlp_bias:
            self.bias(down, tokens * hidden, Region.SEQUENCE)

    def activation(self, name: str, elements: float, region: Region) -> None:
        """The MLP's nonlinearity with so many outputs, and its product with the gate."""
        inner, branches = elements * self.shape.element_bytes, self.branches
        if self.model.clamped_gate and not self.stack.fused_expert_extras:
            forward, backward = _EAGER_CLAMP_PASSES * inner, _EAGER_CLAMP_BACKWARD_PASSES * inner
            self.memory_bound(f"{name}_clamp", forward, backward, region, _EAGER_CLAMP_KERNELS)
            self.save(f"{name}_clamp_input", branches * inner, region)
        if not self._output_suffices:
            self.save(f"{name}_input", branches * inner, region)
        if self.model.gated_mlp and not self.stack.fused_elementwise:
            self.save(f"{name}_output", inner, region)
        passes = 1 if self.stack.fused_elementwise else branches + 1
        forward, backward = (branches + 1) * inner, (2 * branches + 1) * inner
        self.memory_bound(name, forward * passes, backward * passes, region, passes)

    @property
    def _output_suffices(self) -> bool:
        """Whether an activation's gradient needs its output only, which the next product keeps."""
        alone = self.model.activation == "relu" and not self.model.gated_mlp
        return alone and self.shape.keeps_inputs

    def residual(self, name: str) -> None:
        """Bias, dropout and addition to the residual stream; backward adds the branches.

        The one residual of a parallel block reads both branches.
        """
        row = self.shape.tokens * self.model.hidden * self.shape.element_bytes
        kernels = 1 if self.stack.fused_elementwise else 2 + self.stack.dropout
        dropped = 2 * row if self.stack.dropout else 0.0
        merged = row if self.model.parallel_block else 0.0
        forward, backward = 3 * row * kernels + merged, 3 * row + dropped
        self.memory_bound(name, forward, backward, Region.SEQUENCE, kernels)
        if self.stack.dropout:
            mask = self.shape.tokens * self.model.hidden * MASK_BYTES
            self.save(f"{name}_mask", mask, Region.SEQUENCE)


def norm_traffic(normed_bytes: float, *, fused: bool) -> tuple[float, float, int]:
    """Bytes that a norm moves forward and backward [B], and its kernels per direction.

    Read and write once forward; read input and gradient, write one, backward.
    """
    passes, kernels = (1.0, 1) if fused else (_EAGER_NORM_PASSES, _EAGER_NORM_KERNELS)
    return 2 * normed_bytes * passes, 3 * normed_bytes * passes, kernels
