"""How fast does a device's software really run its kernels?

Few parameters per device and number format, fitted once for all workloads. What each
one means in time is defined in :mod:`simulator.cost.kernel_time`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, WithJsonSchema, model_validator

from simulator.described.base import (
    MOST_RATIO,
    PositiveFraction,
    Ratio,
    Seconds,
    SomeBytesPerSecond,
    Spec,
)

if TYPE_CHECKING:
    import numpy as np

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8", "mxfp8", "nvfp4"]
NARROW: tuple[Precision, ...] = ("fp8", "int8", "mxfp8", "nvfp4")
"""Formats of less than 16 bits."""

AttentionKernel = Literal["flash", "fused-softmax", "unfused"]
"""One kernel for all of core attention, products around a fused softmax, or separate steps."""

FlashKernel = Literal["best", "flash-2", "flash-1", "efficient"]
"""The best fused attention that frameworks ship for a device, an older one, or the memory-efficient
one that PyTorch has from xFormers, which takes heads of any size."""

NonNegative = Annotated[float, Field(ge=0, le=MOST_RATIO, allow_inf_nan=False)]
"""A plain number, zero or more."""


class GemmModel(Spec):
    """Matrix multiplication of one number format."""

    efficiency: PositiveFraction
    """Share of the dense peak inside the main loop of the largest output tile."""
    tile_half: NonNegative = 0.0
    """Edge at which a square output tile has half the rate of an endless one; 0 makes all
    tiles equally fast."""
    tile_start_s: Seconds = 0.0
    """Time that starting and ending one output tile costs: filling its pipeline, writing it."""
    tail: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the idle part of the last wave that is waited for: 1 where all tiles run in
    lockstep, 0 where some way of cutting the work always fills it."""
    memory_efficiency: PositiveFraction
    """Share of the memory bandwidth that products bound by memory reach."""
    floor_s: Seconds
    """Time of the smallest product on the device."""
    joule_per_operation: NonNegative = 0.0
    """Energy of one operation, all that the device draws beside it included; under its power limit
    it computes no more than the limit over this. 0 where the limit is never felt. Said by tables of
    kernels, and used to read them: training has a clock of its own, ``sustained_clock``."""
    boost_s: Seconds = 0.0
    """How long products back to back are computed faster than that."""


class AttentionModel(Spec):
    """One fused (flash) attention kernel family."""

    forward_efficiency: PositiveFraction
    """Share of the dense peak of the forward main loop, softmax left out."""
    backward_efficiency: PositiveFraction
    """Share of the dense peak of the backward main loop, softmax left out."""
    softmax_dim: NonNegative = 0.0
    """Cost of one score's softmax, as head size that the matrix unit would do meanwhile."""
    kv_ramp: NonNegative = 0.0
    """Key positions that starting and ending one query tile costs."""
    tail: NonNegative = 0.5
    """Longest query tiles that SMs wait at the end: 0 is perfectly even, 1 is list
    scheduling at its worst."""
    backward_tail: NonNegative | None = None
    """As ``tail``, for backward; None is the same."""
    backward_kv_ramp: NonNegative | None = None
    """As ``kv_ramp``, for backward, with what is done before and after its main loop; None is the
    same."""
    wide_backward_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Rate of backward where heads are wider than 128, over that at 128."""
    vector_ratio: Annotated[float, Field(gt=0)] = 1.0
    """Share of the peak of vector units that fp32 products reach where no matrix unit takes them,
    over the share above."""
    floor_s: Seconds
    """Time of the smallest call on the device."""


class MeasuredProduct(NamedTuple):
    """One call that computed ``batch`` products of (m, k) by (k, n) in ``seconds``."""

    precision: Precision
    m: int
    n: int
    k: int
    batch: int
    seconds: float


class MeasuredProducts(NamedTuple):
    """Products of one number format, and base-2 logarithms of their m, n, k and batch in rows."""

    products: tuple[MeasuredProduct, ...]
    log_shapes: np.ndarray


class KernelTable(Spec):
    """Matrix products that were measured on this very system."""

    file: str
    """Where they were read from."""
    products: tuple[MeasuredProduct, ...] = ()
    """Empty until the file is read (:mod:`simulator.described.cluster.kernel_table`)."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"file": given} if isinstance(given, str) else given

    @cached_property
    def by_precision(self) -> Mapping[Precision, MeasuredProducts]:
        """The products of each number format."""
        import numpy as np

        formats = dict.fromkeys(product.precision for product in self.products)
        chosen = {p: tuple(each for each in self.products if each.precision == p) for p in formats}
        return {
            precision: MeasuredProducts(products, np.log2([product[1:5] for product in products]))
            for precision, products in chosen.items()
        }


class KernelModel(Spec):
    """All kernels of a device."""

    gemm: Mapping[Precision, GemmModel]
    """Matrix products by number format."""
    flash_attention: AttentionModel
    """The best fused kernel that frameworks ship for the device."""
    flash_attention_2: AttentionModel | None = None
    """FlashAttention 2 where newer kernels have replaced it; None is the same kernel."""
    memory_efficiency: PositiveFraction
    """Share of the memory bandwidth that streaming kernels reach."""
    cache_speedup: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Rate at which kernels stream from the last cache over that from memory."""
    memory_floor_s: Seconds
    """Time of the smallest memory-bound kernel on the device."""
    row_efficiency: PositiveFraction | None = None
    """The same of kernels that need a whole row before they write it: norms and softmax; None is
    as ``memory_efficiency``."""
    row_reduction_efficiency: PositiveFraction | None = None
    """The same where rows are also summed up (weight gradient of a norm); None is as
    ``memory_efficiency``."""
    many_tensors_bytes_per_s: SomeBytesPerSecond | None = None
    """What a multiprocessor moves in kernels that pass over many fp32 tensors at once, four
    elements of each per thread, until memory answers: a fused update, a gradient norm, a scaling of
    gradients (``multi_tensor_apply`` of PyTorch and apex); None is as ``memory_efficiency``."""
    many_half_tensors_bytes_per_s: SomeBytesPerSecond | None = None
    """The same of 16-bit tensors, of which a thread has half as many bytes under way."""
    launch_s: Seconds
    """Host time to launch one kernel from an eager framework on this system."""
    grouped_results_exposed: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Part of the time of reading and writing fp32 results that computing does not hide where
    grouped products accumulate them: gradients of the weights of experts."""
    mxfp8_over_fp8: Ratio | None = None
    """Rate of mxfp8 products over that of fp8 ones, whose parameters they share, where it is less
    than their peaks say."""
    nvfp4_over_fp8: Ratio | None = None
    """The same of nvfp4 products."""
    torch_grouped_share: PositiveFraction = 1.0
    """Rate of PyTorch's own grouped product (``torch._grouped_mm``, a kernel of CUTLASS) over that
    of the vendor's library."""
    grouped_tile_rows: Annotated[int, Field(ge=0, le=65536, strict=True)] = 0
    """Rows of a tile of grouped products whose tiles do not start anew with each group: one in
    which a group ends is computed for the next group, too (megablox). 0: each group has tiles of
    its own."""
    grouped_tile_columns: Annotated[int, Field(ge=0, le=65536, strict=True)] = 0
    """Length of such a tile along both sides of a group's weight, which is computed in whole ones;
    a shorter side is one tile. 0: no more than what products without groups compute."""
    deepep_bytes_per_s: SomeBytesPerSecond | None = None
    """What a GPU takes in at most of the tokens that DeepEP's kernels pass between eight ranks of a
    node, its own among them, with the multiprocessors that it holds by default; fewer ranks pass
    less in proportion. None is what the links allow."""
    hybridep_bytes_per_s: SomeBytesPerSecond | None = None
    """The same of HybridEP's kernels."""
    table: Annotated[KernelTable, WithJsonSchema({"type": "string"})] | None = None
    """A CSV or Parquet file of measured matrix products, beside the file that names it, with the
    columns ``dtype``, ``m``, ``n``, ``k``, ``time_us`` and, where a call computes several,
    ``batch``; that of ``clustersim calibrate gpu`` is one. Products among those measured take the
    time that these tell; all other kernels that of the numbers above."""
    slowness: Ratio = 1.0
    """Time of kernels over that which follows from all other numbers, as own runs say
    (``clustersim calibrate runs``)."""
    sustained_clock: PositiveFraction = 1.0
    """Share of the benchmark rate that 16-bit matrix products keep in long training.

    Power limits long runs of products; the other parameters describe short, cool ones. Formats
    that draw less power keep more (:func:`simulator.cost.rates.sustained_share`).
    Attention draws less power and so keeps more (:mod:`simulator.cost.attention`);
    memory-bound kernels are taken to keep their rate (assumption).
    """
    sustained_clock_8_bit: PositiveFraction | None = None
    """The same of products in 8 bits and fewer, where runs in these formats tell it; None follows
    from ``sustained_clock`` and the power of both."""
