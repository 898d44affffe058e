"""Which pieces does a transformer layer consist of?

Everything here is what *one* device would do for one microbatch; the strategy passes
divide it. Bytes of memory-bound kernels count each tensor read or written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cost.kernels import ELEMENT_BYTES, output_bytes
from simulator.cost.parameters import LayerKind
from simulator.program.float8_casts import Operands, eager_casts, row_casts
from simulator.program.layer import (
    FlashAttention,
    Gemm,
    Layer,
    MemoryBound,
    Piece,
    Region,
    Saved,
    Split,
)
from simulator.spec.model import LatentAttention, Model
from simulator.spec.plan import Plan
from simulator.spec.stack import Stack

MASK_BYTES = 1
"""A dropout mask is one byte per element in every framework modelled here."""

_SCORE_PASSES_FUSED = 2
"""A fused scale-mask-softmax kernel reads and writes each score once."""

_SCORE_PASSES_UNFUSED = 8
"""Assumption: separate scale, mask, cast to fp32, softmax (fp32) and cast back: reads plus writes,
counted in 16-bit scores."""

_IN_PLACE_MASK_PASSES, _IN_PLACE_MASK_BACKWARD_PASSES, _IN_PLACE_MASK_KERNELS = 2, 13, 4
"""Reads and writes of masking full-precision scores in place, for which no framework has a fused
kernel: Megatron's asks for 16-bit input (``is_kernel_available`` of ``fused_softmax.py``) and else
calls ``masked_fill_`` on a view of the product. Autograd takes its gradient through copies of the
base: zeros and a copy into them (3), a copy and a clone (4), the masked clone (4), and a copy back
(2), as torch dispatches it. Kernels are one forward and seven backward, in the mean."""

_NORMS_BEFORE = 2
"""Norms before attention and before the MLP; any more stand behind them."""

_EAGER_NORM_PASSES, _EAGER_NORM_KERNELS = 7.5, 7
"""An RMS norm written out: cast up, square, mean, scale, cast down and weigh move 30 bytes
per element where a fused kernel moves 4."""

_EAGER_NORM_INPUT_BYTES = 4
"""An RMS norm written out keeps its input in fp32, and the normalised input cast down."""

_STATISTIC_BYTES = 4
"""Norms keep one fp32 number per token and statistic: 1/deviation, and the mean of a layer
norm."""

_EAGER_ROTARY_PASSES, _EAGER_ROTARY_KERNELS = 5.0, 8
"""A rotary embedding written out: cast up, multiply and cast down move 20 bytes per element
where a fused kernel moves 4; queries and keys apart."""


_EAGER_LATENT_PASSES, _EAGER_LATENT_BACKWARD_PASSES, _EAGER_LATENT_KERNELS = 14, 21, 17
"""Reads and writes of what Megatron-Core rotates of queries, without fusion. Forward: even and odd
columns are put apart (2), multiplied by the cosine (2), negated by half (1), swapped (2),
multiplied by the sine (2), added (3), and joined with columns that are not rotated, of which
there are none (2). Backward: the products (4), the swap (3), the sum of both branches (3), and
columns put back from three slices, each into zeros, and added (11). Kernels are those of queries,
of keys, of joining both, and of the values' copy (``_apply_rotary_pos_emb_bshd`` of
``rope_utils.py``)."""


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


def transformer_layer(model: Model, kind: LayerKind, plan: Plan, shape: Shape) -> Layer:
    """The pieces and saved activations of one dense layer."""
    block = attention_block(model, kind, plan, shape)
    block.mlp(model.ffn_hidden, shares_input=model.norms_per_layer == 1)
    block.close()
    return block.layer()


def attention_block(model: Model, kind: LayerKind, plan: Plan, shape: Shape) -> Block:
    """A layer up to where its MLP starts: attention and what stands between the two.

    Where attention and MLP run in parallel they share the residual at the end, and the
    norm if the model has one per layer. Their reductions over tensor-parallel ranks, which
    some frameworks merge, stay two.
    """
    block = Block(model, plan, plan.stack, shape)
    block.norm("attention_norm")
    if model.latent_attention:
        block.latent_attention(model.latent_attention)
    else:
        block.attention(kind)
    if model.norms_per_layer > _NORMS_BEFORE:
        block.norm("attention_post_norm")
    if not model.parallel_block:
        block.residual("attention_residual")
    if model.norms_per_layer > 1:
        block.norm("mlp_norm")
    return block


class Block:
    """Pieces and saved activations of a layer while it is put together."""

    def __init__(self, model: Model, plan: Plan, stack: Stack, shape: Shape) -> None:
        self.model, self.plan, self.stack, self.shape = model, plan, stack, shape
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
        """Read and write once forward; read input and gradient, write one, backward."""
        model_width = self.model.hidden
        row = self.shape.tokens * model_width * self.shape.element_bytes
        fused = self.stack.fused_rmsnorm or self.model.normalisation == "layernorm"
        passes, kernels = (1.0, 1) if fused else (_EAGER_NORM_PASSES, _EAGER_NORM_KERNELS)
        self.pieces.append(
            MemoryBound(
                name, 2 * row * passes, 3 * row * passes, Region.SEQUENCE, kernels,
                reduces_rows=fused and not self.stack.persistent_norms,
            )
        )  # fmt: skip
        self._save_norm(name, self.shape.tokens, model_width, Region.SEQUENCE, fused=fused)

    def _save_norm(self, name: str, rows: int, width: int, region: Region, *, fused: bool) -> None:
        """What the backward of a norm over so many rows reads."""
        size = self.shape.element_bytes + (0 if fused else _EAGER_NORM_INPUT_BYTES)
        self.save(f"{name}_input", rows * width * size, region)
        statistics = 2 if self.model.normalisation == "layernorm" else 1
        self.save(f"{name}_statistics", float(rows * statistics * _STATISTIC_BYTES), region)

    def query_key_norm(self) -> None:
        """A norm over queries and keys, read and written once by a fused kernel."""
        model, shape = self.model, self.shape
        heads = model.heads + model.kv_heads
        normed = shape.tokens * heads * model.head_dim * shape.element_bytes
        fused = self.stack.fused_rmsnorm
        passes, kernels = (1.0, 1) if fused else (_EAGER_NORM_PASSES, _EAGER_NORM_KERNELS)
        forward, backward = 2 * normed * passes, 3 * normed * passes
        self.memory_bound("query_key_norm", forward, backward, Region.TENSOR, 2 * kernels)
        rows = shape.tokens * heads
        self._save_norm("query_key_norm", rows, model.head_dim, Region.TENSOR, fused=fused)

    def close(self) -> None:
        """What follows the MLP: a norm where the model has four, and the residual."""
        if self.model.norms_per_layer > _NORMS_BEFORE + 1:
            self.norm("mlp_post_norm")
        self.residual("mlp_residual")

    def rotary(self, rotated_bytes: float) -> None:
        """Rotate queries and keys, each read and written once by a fused kernel."""
        fused = self.stack.fused_rotary
        passes, kernels = (1.0, 2) if fused else (_EAGER_ROTARY_PASSES, _EAGER_ROTARY_KERNELS)
        traffic = 2 * rotated_bytes * passes
        self.memory_bound("rotary", traffic, traffic, Region.TENSOR, kernels)

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

    def cast_bytes(self, elements: float) -> float:
        """Bytes that casting an operand in both layouts moves; 0 where formats agree [B]."""
        is_cast = self.shape.gemm_bytes < self.shape.element_bytes
        return elements * self.shape.cast_bytes if is_cast else 0.0

    def attention(self, kind: LayerKind) -> None:
        """Projections, rotary embedding, core attention and output projection."""
        model, shape = self.model, self.shape
        tokens, size = shape.tokens, shape.element_bytes
        query, key_value = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
        self.save("qkv_input", tokens * model.hidden * shape.kept_bytes, Region.GATHERED)
        self.linear(
            "qkv", query + key_value, model.hidden, Split.COLUMN,
            kv_columns=key_value, kv_heads=model.kv_heads, after_kernel=True, products=3,
        )  # fmt: skip
        if model.qk_norm != "none":
            self.query_key_norm()
        if model.positions == "rotary":
            rotated = tokens * (query + key_value // 2) * size
            self.rotary(rotated)
        repeats = model.heads // model.kv_heads if self.stack.repeats_kv_heads else 1
        self.save("query", tokens * query * size, Region.TENSOR)
        for name in ("key", "value"):
            self.save(name, repeats * tokens * key_value // 2 * size, Region.TENSOR)
        key_heads = repeats * model.kv_heads
        self.core_attention(model.heads, key_heads, model.head_dim, model.head_dim, kind)
        self.save("attention_context", tokens * query * size, Region.TENSOR)
        self.linear("attention_output", model.hidden, query, Split.ROW)

    def latent_attention(self, latent: LatentAttention) -> None:
        """Low-rank query, key and value projections around attention with wide keys."""
        model, shape = self.model, self.shape
        tokens, size = shape.tokens, shape.element_bytes
        query = model.heads * latent.qk_head_dim
        self.save("latent_input", tokens * model.hidden * shape.kept_bytes, Region.SEQUENCE)
        if latent.q_lora_rank:
            self.linear("query_down", latent.q_lora_rank, model.hidden, Split.NONE)
            self._latent_norm("query_latent_norm", latent.q_lora_rank)
            self.save("query_latent", 2 * tokens * latent.q_lora_rank * size, Region.SEQUENCE)
        self.linear("query_up", query, latent.q_lora_rank or model.hidden, Split.COLUMN)
        down = latent.kv_lora_rank + latent.qk_rope_head_dim
        self.linear("key_value_down", down, model.hidden, Split.NONE)
        self._latent_norm("key_value_latent_norm", latent.kv_lora_rank)
        self.save("key_value_latent", 2 * tokens * down * size, Region.SEQUENCE)
        up = model.heads * (latent.qk_nope_head_dim + latent.v_head_dim)
        self.linear("key_value_up", up, latent.kv_lora_rank, Split.COLUMN)
        value = model.heads * latent.v_head_dim
        self._latent_rotary(latent)
        for name, width in (("query", query), ("key", query), ("value", value)):
            self.save(name, tokens * width * size, Region.TENSOR)
        kind = LayerKind(has_experts=False, window=0)
        self.core_attention(model.heads, model.heads, latent.qk_head_dim, latent.v_head_dim, kind)
        self.save("attention_context", tokens * value * size, Region.TENSOR)
        self.linear("attention_output", model.hidden, value, Split.ROW)

    def _latent_norm(self, name: str, width: int) -> None:
        """A norm over a latent; its input and output are kept with the latent."""
        row = self.shape.tokens * width * self.shape.element_bytes
        fused = self.stack.fused_rmsnorm
        passes, kernels = (1.0, 1) if fused else (_EAGER_NORM_PASSES, _EAGER_NORM_KERNELS)
        self.memory_bound(name, 2 * row * passes, 3 * row * passes, Region.SEQUENCE, kernels)

    def _latent_rotary(self, latent: LatentAttention) -> None:
        """Rotate part of the queries and keys, and put queries, keys and values together.

        Fused kernels read and write queries and keys once. Eager ones rotate that part of the
        queries, join it with the others, spread that of the one rotated key over all heads, and
        copy the values, as attention wants them contiguous; backward takes it all apart again.

        Source: Megatron-Core, ``qkv_up_proj_and_rope_apply`` of ``multi_latent_attention.py``.
        """
        nope, rope, value = latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim
        query = latent.qk_head_dim
        columns = self.shape.tokens * self.model.heads * self.shape.element_bytes
        if self.stack.fused_rotary and self.stack.fused_latent_rotary:
            self.rotary(2 * query * columns)
            return
        forward = _EAGER_LATENT_PASSES * rope + 2 * query + (nope + query) + 2 * value
        backward = _EAGER_LATENT_BACKWARD_PASSES * rope + 2 * query + rope + 2 * (nope + value)
        self.memory_bound(
            "rotary", forward * columns, backward * columns, Region.TENSOR, _EAGER_LATENT_KERNELS
        )

    def core_attention(
        self, heads: int, kv_heads: int, head_dim: int, v_head_dim: int, kind: LayerKind
    ) -> None:
        """Scores, softmax and weighted values: one fused kernel, or the separate ones."""
        if self.plan.attention_kernel == "flash":
            self._flash_attention(heads, kv_heads, head_dim, v_head_dim, kind)
        else:
            self._separate_attention(heads, head_dim, v_head_dim)

    def _flash_attention(
        self, heads: int, kv_heads: int, head_dim: int, v_head_dim: int, kind: LayerKind
    ) -> None:
        shape = self.shape
        seq_kv = min(shape.seq_len, kind.window or shape.seq_len)
        window = kind.window if kind.window < shape.seq_len * self.plan.cp else 0
        self.pieces.append(
            FlashAttention(
                "attention", shape.sequences, heads, kv_heads, shape.seq_len, seq_kv,
                head_dim, v_head_dim, self.model.causal and seq_kv == shape.seq_len, window,
            )
        )  # fmt: skip
        self.core.add("attention")
        self.save("attention_log_sum", 4.0 * shape.tokens * heads, Region.TENSOR, core=True)

    def _separate_attention(self, heads: int, head_dim: int, v_head_dim: int) -> None:
        shape, fused = self.shape, self.plan.attention_kernel == "fused-softmax"
        batch, length = shape.sequences * heads, shape.seq_len
        scores = float(batch) * length * length
        size = shape.element_bytes
        has_kernel = fused or self.stack.fused_softmax
        passes = _SCORE_PASSES_FUSED if has_kernel else _SCORE_PASSES_UNFUSED
        self.pieces.append(
            Gemm("scores", length, length, head_dim, batch, has_weight=False, split=Split.COLUMN)
        )
        if has_kernel and size >= 4.0:
            forward = _IN_PLACE_MASK_PASSES * scores * size
            backward = _IN_PLACE_MASK_BACKWARD_PASSES * scores * size
            self.memory_bound(
                "attention_masking", forward, backward, Region.TENSOR, _IN_PLACE_MASK_KERNELS
            )
            self.core.add("attention_masking")
        softmax = scores * size * passes
        self.memory_bound("softmax", softmax, softmax * 1.5, Region.TENSOR, max(1, passes // 2))
        self.core |= {"scores", "softmax", "weighted_values"}
        drops = self.stack.dropout and self.model.attention_dropout
        self.save("softmax", scores * (size if has_kernel else 4.0), Region.TENSOR, core=True)
        if not (has_kernel or drops) and size < 4.0:
            self.save("softmax_cast", scores * size, Region.TENSOR, core=True)
        if drops:
            traffic = scores * (2 * size + MASK_BYTES)
            self.memory_bound("attention_dropout", traffic, traffic, Region.TENSOR)
            self.core.add("attention_dropout")
            self.save("attention_mask", scores * MASK_BYTES, Region.TENSOR, core=True)
            self.save("attention_dropped", scores * size, Region.TENSOR, core=True)
        self.pieces.append(
            Gemm(
                "weighted_values", length, v_head_dim, length, batch,
                has_weight=False, split=Split.COLUMN,
            )
        )  # fmt: skip

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
        self.activation(f"{prefix}activation", tokens * width, Region.TENSOR)
        self.save(f"{down}_input", tokens * width * operand, Region.TENSOR)
        self.linear(down, hidden, width, Split.ROW, after_kernel=True)

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
