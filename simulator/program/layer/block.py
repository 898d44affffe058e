"""How is a layer put together from pieces that any of its parts may have?

Norms, products with the casts of their number formats, biases and residuals. Everything here is
what *one* device would do for one microbatch; the strategy passes divide it. Bytes of memory-bound
kernels count each tensor read or written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from simulator.cost.kernel_time import ELEMENT_BYTES, activation_precision, output_bytes
from simulator.cost.rates import FULL_BYTES
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_fields import RecomputeModule
from simulator.described.plan.stack_options import MaximaFinders
from simulator.program.layer.eight_bit_casts import (
    Casting,
    Maker,
    Operands,
    eager_casts,
    row_casts,
    scaled_casts,
)
from simulator.program.layer.pieces import (
    ContextRules,
    Gemm,
    Layer,
    MemoryBound,
    ModuleRecompute,
    Piece,
    Region,
    Role,
    Saved,
    Split,
)

MASK_BYTES = 1
"""A dropout mask is one byte per element in every framework modelled here."""

_SCALED_TWICE = ("nvfp4",)
"""Formats with a scale of the whole operand beside those of its blocks (Transformer Engine,
``quantizer.cpp``: ``nvte_hadamard_transform_amax`` reads it first; norms leave both to it)."""

_SCALED_BY_BLOCKS = ("mxfp8",)
"""Formats that have only the latter."""

_FINDS: Mapping[MaximaFinders, frozenset[Maker | Literal["gradient"]]] = MappingProxyType(
    {
        "none": frozenset(),
        "norms": frozenset(("norm",)),
        "fused": frozenset(("norm", "activation", "gradient")),
    }
)
"""Makers whose kernels find the maximum of what they make. Kernels of a compiler make all gradients
of outputs but those that attention gives back, which are taken for the others."""

_EAGER_NORM_KERNELS = 7
_EAGER_NORM_BYTES: Mapping[float, tuple[float, float]] = MappingProxyType(
    {2: (36.0, 92.0), 4: (28.0, 92.0)}
)
"""Bytes per element that an RMS norm written out moves, by bytes of an element.

Forward casts up, squares, takes the mean, scales, casts down and weighs. Backward also spreads the
gradient of the mean, and takes the input to the power of one to multiply it.
Source: torch, of transformers' LlamaRMSNorm (tests/program/test_eager_kernels_are_torchs.py).
"""

_EAGER_NORM_INPUT_BYTES = 4
"""An RMS norm written out keeps its input in fp32, and the normalised input cast down."""

_STATISTIC_BYTES = 4
"""Norms keep one fp32 number per token and statistic: 1/deviation, and the mean of a layer
norm."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one microbatch.

    Attributes:
        sequences: b, sequences.
        seq_len: s, tokens per sequence on this rank.
        element_bytes: Bytes of one activation [B].
        gemm_bytes: Bytes of one operand of a weight product [B].
        kept_bytes: Bytes of one operand of a weight product as it is kept for backward [B].
        documents: Parts of a sequence that do not see each other.
        stream_bytes: Bytes of one element of what layers pass on [B].
        scaled_twice: Whether a kernel reads all of an operand before another casts it.
    """

    sequences: int
    seq_len: int
    element_bytes: float
    gemm_bytes: float
    kept_bytes: float
    documents: int
    stream_bytes: float
    scaled_twice: bool = False

    @property
    def tokens(self) -> int:
        """T = b s."""
        return self.sequences * self.seq_len

    @property
    def keeps_inputs(self) -> bool:
        """Whether a product keeps its input itself, not a copy in its own number format."""
        return self.kept_bytes == self.element_bytes

    @property
    def read_bytes(self) -> float:
        """Read per element that is cast [B]."""
        return (2 if self.scaled_twice else 1) * self.element_bytes

    @property
    def cast_bytes(self) -> float:
        """Read and written per element that is cast once in both layouts [B]."""
        return self.read_bytes + 2 * self.gemm_bytes


def microbatch_shape(
    plan: Plan, sequences: int, seq_len: int, document_len: int | None = None
) -> Shape:
    """Sizes of one microbatch under the plan's number format."""
    if plan.stack.narrow_products == "experts":
        plan = plan.model_copy(update={"precision": activation_precision(plan.precision)})
    return _shape_in_its_format(plan, sequences, seq_len, document_len)


def _shape_in_its_format(
    plan: Plan, sequences: int, seq_len: int, document_len: int | None = None
) -> Shape:
    operand, element = ELEMENT_BYTES[plan.precision], output_bytes(plan.precision)
    kept = element if plan.stack.float8_scaling == "eager" else operand
    documents = max(1, round(seq_len / document_len)) if document_len else 1
    stream = FULL_BYTES if plan.streams_wide or plan.is_widened else element
    finds_first = plan.precision == "fp8" and plan.stack.float8_scaling == "tensor"
    scaled_twice = plan.precision in _SCALED_TWICE or finds_first
    return Shape(sequences, seq_len, element, operand, kept, documents, stream, scaled_twice)


class Block:
    """Pieces and saved activations of a layer while it is put together."""

    def __init__(self, model: Model, plan: Plan, shape: Shape) -> None:
        self.model, self.plan, self.stack, self.shape = model, plan, plan.stack, shape
        self.pieces: list[Piece] = []
        self.saved: list[Saved] = []
        self._readers: list[int] = []
        """Index of the piece that reads each saved activation: the next one after it."""
        self.modules: dict[RecomputeModule, ModuleRecompute] = {}
        self.mlp_start: int | None = None
        self.mlp_piece = 0
        self.context: tuple[ContextRules, ...] = ()
        self.passing_bytes: tuple[float, ...] = ()
        self.freed_bytes: tuple[float, ...] = ()
        self.working_bytes: tuple[float, ...] = ()
        self.working_region = Region.TENSOR

    @property
    def tensor_ranks(self) -> int:
        """Ranks that share the work of a layer."""
        return self.plan.tp

    @cached_property
    def expert_shape(self) -> Shape:
        """Sizes of the microbatch in the number format of routed experts' products."""
        plan, shape = self.plan, self.shape
        if plan.has_wide_experts:
            plan = plan.model_copy(update={"precision": "fp32"})
        elif plan.stack.narrow_products == "dense":
            plan = plan.model_copy(update={"precision": activation_precision(plan.precision)})
        of_experts = _shape_in_its_format(plan, shape.sequences, shape.seq_len)
        return replace(of_experts, documents=shape.documents)

    @property
    def has_eager_experts(self) -> bool:
        """Whether routed experts are eager code around grouped products."""
        stack = self.stack
        return stack.grouped_experts and stack.eager_experts and not stack.fused_elementwise

    @property
    def masks_copies(self) -> bool:
        """Whether that sets copies of tokens to zero that belong to no expert of a rank."""
        return self.has_eager_experts and self.stack.masks_copies

    def layer(self) -> Layer:
        """What has been put together."""
        input_bytes = self.shape.tokens * self.model.hidden * self.shape.stream_bytes
        last = len(self.pieces) - 1
        readers = [self.pieces[min(index, last)].name for index in self._readers]
        saved = map(lambda each, name: replace(each, reader=name), self.saved, readers)
        return Layer(
            tuple(self.pieces),
            tuple(saved),
            input_bytes,
            passing_bytes=self.passing_bytes,
            freed_bytes=self.freed_bytes,
            working_bytes=self.working_bytes,
            working_region=self.working_region,
            mlp_start=self.mlp_start,
            modules=self.modules,
            context=self.context,
        )

    def start_mlp(self) -> None:
        """End the part that mixes tokens: the norm before the MLP, if the model has one there."""
        self.mlp_piece = len(self.pieces)
        if self.model.norms_per_layer > 1:
            self.mlp_start = len(self.saved)
            self.norm("mlp_norm", "norm.1")

    def work(self, passing: tuple[float, ...], working: tuple[float, ...], region: Region) -> None:
        """Hold these blocks while forward runs, and those while backward does."""
        self.passing_bytes, self.working_bytes = passing, working
        self.working_region = region

    def save(
        self,
        name: str,
        num_bytes: float,
        region: Region,
        *,
        role: Role = Role.OTHER,
        weights: tuple[str, ...] = (),
        weights_share: float = 1.0,
        repeats: int = 1,
    ) -> None:
        """Keep an activation for backward of the next piece; arguments as of :class:`Saved`."""
        self._readers.append(len(self.pieces))
        saved = Saved(name, num_bytes, region, role, weights, weights_share, repeats=repeats)
        self.saved.append(saved)

    def repeat(
        self,
        module: RecomputeModule,
        pieces: Mapping[str, float],
        *,
        kept: Mapping[str, float] | None = None,
        dropped: Iterable[str] = (),
    ) -> None:
        """Say what a module of selective recomputation does here, beside what it does already.

        Args:
            module: Its name.
            pieces: Share of each piece's forward work that backward repeats, by name.
            kept: Share that stays of saved activations, by name.
            dropped: Saved activations of which nothing stays.
        """
        known = self.modules.get(module, ModuleRecompute())
        stays = dict(kept or {}) | dict.fromkeys(dropped, 0.0)
        self.modules[module] = ModuleRecompute(
            {**known.repeated, **pieces}, {**known.kept, **stays}
        )

    def checkpoint(self, module: RecomputeModule, first_piece: int, first_dropped: int) -> None:
        """Repeat all pieces from one on, and keep no activation from one on."""
        self.repeat(
            module,
            dict.fromkeys([piece.name for piece in self.pieces[first_piece:]], 1.0),
            dropped=[saved.name for saved in self.saved[first_dropped:]],
        )

    def memory_bound(
        self, name: str, forward: float, backward: float, region: Region, kernels: int = 1
    ) -> None:
        """Append kernels that move so many bytes."""
        self.pieces.append(MemoryBound(name, forward, backward, region, kernels))

    def casts(self, name: str, num_bytes: float, region: Region, kernels: int) -> None:
        """Append copies of fp32 as 16 bits, and back: a compiler's take their bytes' time."""
        widens = self.plan.autocasts
        self.pieces.append(
            MemoryBound(name, num_bytes, num_bytes, region, kernels, widens_backward=widens)
        )

    def norm(self, name: str, weight: str) -> None:
        """A norm over the residual stream with a weight of that name, and what backward reads."""
        model_width, size = self.model.hidden, self._normed_bytes
        rows, region = self.shape.tokens, Region.SEQUENCE
        fused = self.stack.fused_rmsnorm or self.model.normalisation == "layernorm"
        forward, backward, kernels = norm_traffic(rows * model_width * size, size, fused=fused)
        reduces_rows = fused and not self.stack.persistent_norms
        piece = MemoryBound(
            name, forward, backward, region, kernels, reduces_rows,
            statistics_bytes=self._statistics_bytes(rows),
        )  # fmt: skip
        role = Role.NORM_STATISTICS
        kept = max(size, FULL_BYTES) if self.plan.keeps_wide_norms else size
        self.save_norm(name, rows, model_width, region, fused, role=role, weight=weight, size=kept)
        self.pieces.append(piece)

    @property
    def _normed_bytes(self) -> float:
        """Bytes of one element that a norm of the residual stream reads and writes [B]."""
        return self.shape.stream_bytes if self.plan.autocasts else self.shape.element_bytes

    def save_norm(
        self, name: str, rows: int, width: int, region: Region, fused: bool, *,
        role: Role = Role.OTHER, weight: str = "", size: float | None = None,
    ) -> None:  # fmt: skip
        """What the backward of a norm over so many rows reads.

        A norm written out keeps the normalised input for the gradient of its weight.
        """
        read = self.shape.element_bytes if size is None else size
        size = read + (0 if fused else _EAGER_NORM_INPUT_BYTES)
        weights = () if fused or not weight else (weight,)
        share = read / size
        self.save(
            f"{name}_input", rows * width * size, region, weights=weights, weights_share=share
        )
        self.save(f"{name}_statistics", self._statistics_bytes(rows), region, role=role)

    def _statistics_bytes(self, rows: int) -> float:
        statistics = 2 if self.model.normalisation == "layernorm" else 1
        return float(rows * statistics * _STATISTIC_BYTES)

    def linear(
        self,
        name: str,
        n: int,
        k: int,
        split: Split,
        *,
        kv_columns: int = 0,
        kv_heads: int = 1,
        made_by: Maker = "other",
        products: int = 1,
        weights: int = 1,
        role: Role = Role.OTHER,
        tensors: tuple[str, ...] = (),
    ) -> None:
        """A product with a weight, and the casts its number format needs.

        What the input is ``made_by`` may cast it. It stands for several ``products`` where the
        model has them and the stack fuses them, and has as many ``weights`` as a policy of
        recomputation counts.
        """
        tokens, element = self.shape.tokens, self.shape.element_bytes
        products = 1 if self.stack.fused_projections else products
        self._cast_operands(name, Operands(tokens, n, k, products, split, made_by))
        if self.plan.autocasts:
            self.autocast(name, n * k, tokens * k * (split is not Split.ROW), products)
            element = self._normed_bytes if split is not Split.ROW else element
        elif self.plan.casts_in_kernels and self.shape.gemm_bytes == self.shape.element_bytes:
            # Of narrower operands, the kernel that scales them reads fp32 weights.
            self.autocast(name, n * k, 0, products)
        if products > 1:
            # Backward adds up the gradients that separate products give for the same input, two at
            # a time where nothing fuses the additions.
            passes = products + 1 if self.stack.fused_elementwise else 3 * (products - 1)
            added = passes * tokens * k * element
            self.memory_bound(f"{name}_gradient_sum", 0.0, added, Region.WHOLE, products - 1)
        self.pieces.append(
            Gemm(
                name, tokens, n, k, split=split, kv_columns=kv_columns, kv_heads=kv_heads,
                products=products, weights=weights, role=role, tensors=tensors,
                half_precision=self.stack.narrow_products == "experts",
            )
        )  # fmt: skip

    def _cast_operands(self, name: str, of: Operands) -> None:
        """Casts of what a product multiplies, where that is narrower than what is there."""
        element, operand = self.shape.element_bytes, self.shape.gemm_bytes
        if operand >= element:
            return
        scaling = self.stack.float8_scaling
        if scaling in ("rows", "eager"):
            gradients = not self.stack.wide_weight_gradients
            self.pieces += (
                row_casts(name, of, element, operand, casts_columns=gradients)
                if scaling == "rows"
                else eager_casts(name, of, element, operand)
            )
        else:
            self.pieces += scaled_casts(name, of, self.casting(self.shape))

    def casting(self, shape: Shape) -> Casting:
        """How operands of products in such a number format are cast."""
        stack, precision = self.stack, self.plan.precision
        casts: set[Maker] = {"norm"} if stack.fused_casts else set()
        casts |= {"activation"} if stack.fused_casts and stack.fused_activation_casts else set()
        apart = stack.casts_layouts_apart
        return Casting(
            shape.element_bytes,
            shape.gemm_bytes,
            shape.scaled_twice,
            finds=_FINDS["none" if precision in _SCALED_TWICE else stack.finds_maxima],
            casts=frozenset(casts),
            apart=apart and precision in _SCALED_BY_BLOCKS,
            weights_apart=apart,
            casts_weights=stack.casts_weights_each_pass,
            to_four_bits=precision == "nvfp4",
        )

    def autocast(self, name: str, weights: int, inputs: int, products: int = 1) -> None:
        """Casts of products' weights and of what they read of the residual stream, and back.

        Each has a kernel. Copies stay; those of weights that ranks hand out are booked with them.
        Backward, one that makes fp32 of 16 bits computes element by element where it lies.

        Source: ``cached_cast`` of PyTorch's ``autocast_mode.h``.
        """
        moved = FULL_BYTES + self.shape.element_bytes
        together, apart = (inputs, 0) if self.plan.tp == 1 else (0, moved * products * inputs)
        kernels, cast = products * (2 if together else 1), moved * (weights + products * together)
        self.casts(f"{name}_weight_autocast", cast, Region.TENSOR, kernels)
        if apart:
            self.casts(f"{name}_input_autocast", apart, Region.SEQUENCE, products)
        if self.plan.saves_cast_weights:
            num_bytes = weights * self.shape.element_bytes
            self.save(f"{name}_weight_copy", num_bytes, Region.TENSOR, role=Role.WEIGHT_COPY)

    def kept_inputs(self, products: int) -> int:
        """Copies that so many products keep of their one input: each its own where it copies."""
        stack, divides = self.stack, self.plan.tp > 1
        copies = divides and stack.copies_column_inputs and not stack.fused_projections
        return products if self.plan.autocasts or copies else 1

    def bias(self, name: str, elements: float, region: Region, *, added: bool = False) -> None:
        """What a bias on so many outputs costs where products do not include it.

        Its gradient is summed up over tokens. It is ``added`` by a kernel of its own where no
        kernel that follows the product does that, as eager code has none: before PyTorch 1.12,
        ``linear`` of more than two dimensions is a product and an addition in place
        (``aten/src/ATen/native/Linear.cpp``).
        """
        made_bytes = elements * self.shape.element_bytes
        if not self.stack.fused_biases and (added or not self.stack.fused_elementwise):
            kernel = MemoryBound(f"{name}_bias", 2 * made_bytes, 0.0, region, strided=True)
            self.pieces.append(kernel)
        if not self.stack.fused_bias_gradients:
            gradient = MemoryBound(
                f"{name}_bias_gradient", 0.0, made_bytes, region, sums_columns=True
            )
            self.pieces.append(gradient)

    def second_cast_share(self, shape: Shape) -> float:
        """What backward adds to a cast where forward makes one of its two layouts.

        It keeps the original, which backward reads once more for the other layout (Transformer
        Engine's ``save_original_input``), and for its maximum where it is scaled as a whole.
        """
        return shape.read_bytes / shape.cast_bytes

    def residual(self, name: str) -> None:
        """Dropout and addition to the residual stream; backward adds the branches.

        Eager code drops by a kernel of its own. The one residual of a parallel block reads both
        branches.
        """
        row = self.shape.tokens * self.model.hidden * self.shape.element_bytes
        dropped = 2 * row if self.stack.dropout else 0.0
        drops_alone = self.stack.dropout and not self.stack.fused_elementwise
        merged = row if self.model.parallel_block else 0.0
        forward, backward = 3 * row + merged + dropped * drops_alone, 3 * row + dropped
        stream = self.shape.tokens * self.model.hidden * self.shape.stream_bytes
        if self.plan.streams_wide:
            forward += 2 * (stream - row)
        if self.plan.autocasts:
            # Branches are 16-bit, and so are their gradients, which are cast.
            backward += 3 * (stream - row) + stream + row
        if self.stack.dropout:
            mask = self.shape.tokens * self.model.hidden * MASK_BYTES
            self.save(f"{name}_mask", mask, Region.SEQUENCE)
        kernels = 1 + drops_alone
        self.pieces.append(
            MemoryBound(name, forward, backward, Region.SEQUENCE, kernels, role=Role.RESIDUAL)
        )


def norm_traffic(
    normed_bytes: float, element_bytes: float, *, fused: bool
) -> tuple[float, float, int]:
    """Bytes that a norm moves forward and backward [B], and its kernels per direction.

    A fused one reads and writes once forward, and reads input and gradient and writes one backward.
    """
    if fused:
        return 2 * normed_bytes, 3 * normed_bytes, 1
    forward, backward = _EAGER_NORM_BYTES[element_bytes]
    elements = normed_bytes / element_bytes
    return forward * elements, backward * elements, _EAGER_NORM_KERNELS
