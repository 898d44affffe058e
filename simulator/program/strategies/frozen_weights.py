"""What changes in a layer whose weights are frozen, and what do adapters beside them add?

The product with a frozen weight has no weight gradient, and backward does not read its input: what
was kept for that alone is not kept. Its output and the gradient that passes it stay. A quantised
weight is dequantised before every use, in backward as well, into a matrix that is gone afterwards.

An adapter is two narrow products beside that of its matrix. Backward of the first reads the
layer's own input, which is kept for it, unless the adapter makes one: dropout makes a copy and a
mask for each, and so do adapters in fp32 (peft's ``autocast_adapter_dtype``). Autocast makes their
products 16-bit again. Without it, which is without fp32 copies of weights, both products, the
scaling and the addition are of fp32 numbers, and the sum is cast to 16 bits. DoRA
scales what both give together, keeps both outputs, and makes the adapted weight in every forward
to take the norm of its rows; no gradient goes through that. Factors of outputs (IA3) keep these
as they were, factors of inputs the input.

With adapters the input of the first layer has a gradient, which checkpoints need (peft's
``enable_input_require_grads``).

Ignores: input gradients before the first trained weight inside a layer; the operations of DoRA's
product of both matrices, which its traffic outlasts.
Source: PyTorch's autograd, ``derivatives.yaml`` of ``linear``; bitsandbytes,
``autograd/_functions.py``, ``MatMul4Bit``; peft, ``tuners/lora/layer.py``, ``dora.py``
and ``tuners/ia3/layer.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.cost.kernel_time import output_bytes
from simulator.cost.rates import FULL_BYTES
from simulator.described.job import Job
from simulator.described.plan.plan_blocks import Lora, quantised_bytes
from simulator.program.layer.adapters import Adapter, adaptable, casts_inputs, computes_in_fp32
from simulator.program.layer.block import MASK_BYTES
from simulator.program.layer.pieces import (
    Gemm,
    GroupedGemm,
    Layer,
    MemoryBound,
    Piece,
    Region,
    Role,
    Saved,
    Split,
)
from simulator.program.layer.tensors import ParameterTensor, TensorRole

_SUM_PASSES, _EAGER_SCALE_PASSES = 3, 2
"""Adding an adapter's output reads two and writes one; eager code scales it by a kernel before."""

_FACTOR_PASSES = (2, 5)
"""Forward and backward of a factor for every column: what is scaled is read and written; then its
gradient is, the factors' product is read from both and written, and added up."""

_DORA_PASSES = 5
"""Elements of a matrix that DoRA's norm reads and writes: the adapter's product, the sum with the
weight, and the norm."""

_SCALED_OUTPUT_PASSES = 5
"""DoRA scales what matrix and adapter give, and adds both."""


_ACTIVATION = "activation"
"""Name of a dense MLP's nonlinearity."""

_IN_PLACE = (1.0, 0.0)
"""The gradient of what it reads lies where that did."""


def with_frozen_weights(
    layer: Layer,
    tensors: Sequence[ParameterTensor],
    adapters: Sequence[Adapter],
    job: Job,
    *,
    starts_gradients: bool = False,
) -> Layer:
    """The layer of a single device where some of its parameters are frozen.

    Args:
        layer: With all of its weights trained.
        tensors: Its parameters; frozen ones say so.
        adapters: Beside which of them.
        job: The job.
        starts_gradients: Whether its input needs no gradient, so that its first norm keeps
            nothing, unless that is trained.
    """
    if not adapters and not any(tensor.is_frozen for tensor in tensors):
        return layer
    if starts_gradients:
        layer = _without_first_norm(layer, tensors)
    frozen = _Frozen({tensor.name: tensor for tensor in tensors}, tuple(adapters), job)
    return replace(
        layer,
        pieces=tuple(new for piece in layer.pieces for new in frozen.pieces(piece)),
        saved=(*(frozen.kept(saved) for saved in layer.saved), *frozen.saved_by_adapters(layer)),
        buffer_bytes=(*layer.buffer_bytes, *frozen.buffers),
    )


def _without_first_norm(layer: Layer, tensors: Sequence[ParameterTensor]) -> Layer:
    """The layer where no gradient passes the norm that it begins with."""
    first, norm = layer.pieces[0], layer.pieces[0].name
    trains_norm = any(t.role is TensorRole.NORM and not t.is_frozen for t in tensors)
    if trains_norm or not isinstance(first, MemoryBound):
        return layer
    saved = (
        replace(each, kept_share=0.0) if each.name.startswith(f"{norm}_") else each
        for each in layer.saved
    )
    return replace(
        layer, pieces=(replace(first, backward_bytes=0.0), *layer.pieces[1:]), saved=tuple(saved)
    )


@dataclass(frozen=True)
class _Frozen:
    """Parameters of one layer by name, and the adapters beside them."""

    tensors: Mapping[str, ParameterTensor]
    adapters: tuple[Adapter, ...]
    job: Job

    def pieces(self, piece: Piece) -> Iterator[Piece]:
        """What a piece becomes."""
        if isinstance(piece, MemoryBound) and piece.name == _ACTIVATION and self._runs_in_place:
            yield replace(piece, gradient_widths=_IN_PLACE)
            return
        if not isinstance(piece, Gemm | GroupedGemm) or not piece.tensors:
            yield piece
            return
        yield from self._dequantised(piece)
        yield replace(piece, trained_share=self._trained_share(piece))
        for adapter in self._adapters_of(piece):
            yield from _AdapterPieces(adapter, piece, self.job).pieces()

    def kept(self, saved: Saved) -> Saved:
        """An activation without what only gradients of frozen weights would read."""
        if saved.role is Role.DOWN_INPUT and self._runs_in_place:
            return replace(saved, kept_share=0.0)
        if not saved.weights or any(map(self._reads_input, saved.weights)):
            return saved
        return replace(saved, kept_share=saved.kept_share * (1.0 - saved.weights_share))

    def saved_by_adapters(self, layer: Layer) -> Iterator[Saved]:
        """What the adapters keep of their own."""
        for piece in layer.pieces:
            if isinstance(piece, Gemm | GroupedGemm):
                for adapter in self._adapters_of(piece):
                    yield from _AdapterPieces(adapter, piece, self.job).saved()

    @cached_property
    def buffers(self) -> tuple[float, ...]:
        """The largest matrix that is there while one product runs, on one rank [B]."""
        lora = self._lora
        if lora is None or not (lora.is_dequantised or lora.kind == "dora"):
            return ()
        numels = [self._rank_numel(t) for t in self.tensors.values() if self._is_base(t)]
        return (max(numels, default=0.0) * output_bytes(self.job.plan.precision),)

    @property
    def _lora(self) -> Lora | None:
        return self.job.plan.lora

    @cached_property
    def _runs_in_place(self) -> bool:
        """Whether one function with adapters is all of the dense MLP."""
        lora = self._lora
        if lora is None or lora.dropout or not self.job.plan.stack.adapted_mlp_in_place:
            return False
        bases = filter(self._is_base, self.tensors.values())
        products = {base.name for base in bases if base.name.startswith("mlp.")}
        adapted = {each.name for one in self.adapters if one.rank for each in one.matrices}
        return bool(products) and products <= adapted

    @property
    def _keeps_quantised_inputs(self) -> bool:
        lora = self._lora
        is_dequantised = lora is not None and lora.is_dequantised
        return is_dequantised and self.job.plan.stack.quantised_products_keep_inputs

    def _is_base(self, tensor: ParameterTensor) -> bool:
        return tensor.is_frozen and adaptable(tensor)

    def _rank_numel(self, tensor: ParameterTensor) -> float:
        """Elements of one matrix on one rank; of routed experts, of one expert."""
        if tensor.is_routed:
            return tensor.numel / tensor.shape[0] / self.job.plan.expert_tp
        return tensor.numel / self.job.choices.tensor_ranks

    def _dequantised(self, product: Gemm | GroupedGemm) -> Iterator[MemoryBound]:
        matrices = [self.tensors[name] for name in product.tensors]
        if self._lora is None or not self._lora.is_dequantised:
            return
        numel = sum(matrix.numel for matrix in matrices if self._is_base(matrix))
        if not numel:
            return
        moved = numel * (quantised_bytes(self._lora) + output_bytes(self.job.plan.precision))
        region = Region.WHOLE if product.split is Split.NONE else Region.TENSOR
        per_expert = isinstance(product, GroupedGemm)
        kernels = len(matrices) * (product.groups if isinstance(product, GroupedGemm) else 1)
        name = f"{product.name}_dequantise"
        yield MemoryBound(name, moved, moved, region, kernels, per_expert=per_expert)

    def _trained_share(self, product: Gemm | GroupedGemm) -> float:
        matrices = [self.tensors[name] for name in product.tensors]
        trained = sum(matrix.numel for matrix in matrices if not matrix.is_frozen)
        return trained / sum(matrix.numel for matrix in matrices)

    def _adapters_of(self, product: Gemm | GroupedGemm) -> Iterator[Adapter]:
        return (adapter for adapter in self.adapters if adapter.name in product.tensors)

    def _reads_input(self, name: str) -> bool:
        """Whether the gradient of a matrix, or of an adapter of it, reads the input as it is."""
        tensor = self.tensors.get(name)
        if tensor is None or not tensor.is_frozen:
            return True
        if self._keeps_quantised_inputs and self._is_base(tensor):
            return True
        readers = (one for one in self.adapters if one.rank or one.scales_inputs)
        adapted = any(name == each.name for one in readers for each in one.matrices)
        return adapted and not _copies_input(self.job)


def _copies_input(job: Job) -> bool:
    """Whether every adapter makes an input of its own."""
    lora = job.plan.lora
    return lora is not None and (lora.dropout > 0 or casts_inputs(job))


@dataclass(frozen=True)
class _AdapterPieces:
    """One adapter beside the product that it adapts."""

    adapter: Adapter
    product: Gemm | GroupedGemm
    job: Job

    @property
    def _rows(self) -> float:
        product = self.product
        return product.m if isinstance(product, Gemm) else product.groups * product.rows

    @property
    def _element_bytes(self) -> float:
        return output_bytes(self.job.plan.precision)

    @property
    def _regions(self) -> tuple[Region, Region]:
        """Of the input and of the output of the matrix."""
        if isinstance(self.product, GroupedGemm):
            return Region.ROUTED, Region.SEQUENCE
        match self.product.split:
            case Split.ROW:
                return Region.TENSOR, Region.SEQUENCE
            case Split.COLUMN:
                return Region.SEQUENCE, Region.TENSOR
            case Split.NONE:
                return Region.SEQUENCE, Region.SEQUENCE

    def pieces(self) -> Iterator[Piece]:
        """In forward order, after the product."""
        adapter, name = self.adapter, self.adapter.name
        of_input, of_output = self._regions
        inputs, outputs = self._rows * adapter.inputs, self._rows * adapter.outputs
        size, fused = self._element_bytes, self.job.plan.stack.fused_elementwise
        if not adapter.rank:
            scaled, region = (inputs, of_input) if adapter.scales_inputs else (outputs, of_output)
            there, back = (passes * scaled * size for passes in _FACTOR_PASSES)
            yield MemoryBound(f"{name}.factors", there, back, region, 1 if fused else 2)
            return
        if _copies_input(self.job):
            yield self._copy(inputs, of_input)
        is_row = self.product.split is Split.ROW
        down, up = (Split.ROW, Split.NONE) if is_row else (Split.NONE, self.product.split)
        yield self._narrow("down", adapter.rank, adapter.inputs, down)
        yield self._narrow("up", adapter.outputs, adapter.rank, up)
        yield from self._added(outputs, of_output)
        yield MemoryBound(f"{name}.gradient_sum", 0.0, _SUM_PASSES * inputs * size, of_input, 1)
        if adapter.has_sizes:
            numel = float(adapter.inputs * adapter.outputs)
            region = Region.WHOLE if self.product.split is Split.NONE else Region.TENSOR
            yield MemoryBound(f"{name}.row_norms", _DORA_PASSES * numel * size, 0.0, region, 4)
            scaled = _SCALED_OUTPUT_PASSES * outputs * size
            yield MemoryBound(f"{name}.sizes", scaled, 2 * scaled, of_output, 1 if fused else 3)

    def _added(self, outputs: float, region: Region) -> Iterator[MemoryBound]:
        """The output of the adapter is scaled and added to that of the matrix."""
        name, size = self.adapter.name, self._element_bytes
        if self._adapter_bytes == size:
            if not self.job.plan.stack.fused_elementwise:
                moved = _EAGER_SCALE_PASSES * outputs * size
                yield MemoryBound(f"{name}.scale", moved, moved, region)
            yield MemoryBound(f"{name}.sum", _SUM_PASSES * outputs * size, 0.0, region)
            return
        # Eager kernels alone: a compiler makes the casts in those of the products beside them.
        scale = _EAGER_SCALE_PASSES * outputs * FULL_BYTES
        cast = outputs * (size + FULL_BYTES)
        yield MemoryBound(f"{name}.scale", scale, scale, region)
        # Backward casts the gradient that goes on to the product of the matrix.
        yield MemoryBound(f"{name}.sum", outputs * (size + 2 * FULL_BYTES), cast, region)
        yield MemoryBound(f"{name}.output_cast", cast, cast, region)

    @property
    def _adapter_bytes(self) -> float:
        """Bytes of a number that the adapter's products read and write."""
        return FULL_BYTES if computes_in_fp32(self.job) else self._element_bytes

    def _narrow(self, side: str, n: int, k: int, split: Split) -> Piece:
        name, product = f"{self.adapter.name}.{side}", self.product
        is_wide = computes_in_fp32(self.job)
        if isinstance(product, GroupedGemm):
            is_wide = is_wide or product.is_wide
            return replace(product, name=name, n=n, k=k, split=split, tensors=(), is_wide=is_wide)
        return Gemm(
            name, product.m, n, k, split=split, half_precision=not is_wide, is_wide=is_wide,
            role=Role.ADAPTER,
        )  # fmt: skip

    def _copy(self, inputs: float, region: Region) -> MemoryBound:
        """Cast up, drop and cast down, as far as there is any of them."""
        size, lora = self._element_bytes, self.job.plan.lora
        assert lora is not None
        is_cast = casts_inputs(self.job)
        wide = FULL_BYTES if is_cast else size
        casts = int(is_cast) * (1 if computes_in_fp32(self.job) else 2)
        drops = 2 * wide + MASK_BYTES if lora.dropout else 0.0
        moved, kernels = casts * (size + wide) + drops, casts + bool(drops)
        if self.job.plan.stack.fused_elementwise:
            moved, kernels = size + self._adapter_bytes, 1
            moved += MASK_BYTES if lora.dropout else 0.0
        return MemoryBound(
            f"{self.adapter.name}.input", inputs * moved, inputs * moved, region, kernels
        )

    def saved(self) -> Iterator[Saved]:
        """What backward reads of the adapter."""
        adapter, name, size = self.adapter, self.adapter.name, self._element_bytes
        of_input, of_output = self._regions
        inputs, outputs = self._rows * adapter.inputs, self._rows * adapter.outputs
        lora = self.job.plan.lora
        assert lora is not None
        if not adapter.rank and not adapter.scales_inputs:
            yield Saved(f"{name}.unscaled", outputs * size, of_output, reader=f"{name}.factors")
        if not adapter.rank:
            return
        if _copies_input(self.job):
            copy_bytes = inputs * self._adapter_bytes
            yield Saved(f"{name}.input", copy_bytes, of_input, reader=f"{name}.down")
        if lora.dropout:
            mask_bytes = inputs * MASK_BYTES
            yield Saved(f"{name}.mask", mask_bytes, of_input, reader=f"{name}.input")
        narrow = Region.ROUTED if isinstance(self.product, GroupedGemm) else Region.SEQUENCE
        narrow_bytes = self._rows * adapter.rank * self._adapter_bytes
        yield Saved(f"{name}.narrow", narrow_bytes, narrow, reader=f"{name}.up")
        if adapter.has_sizes:
            for made in ("base_output", "output"):
                scaled_bytes = outputs * size
                yield Saved(f"{name}.{made}", scaled_bytes, of_output, reader=f"{name}.sizes")
