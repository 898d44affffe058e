"""What does torch run for each case of a kernel table, and how is it timed?

Every operation is a function that lays out its operands and returns the work to be timed, with the
arithmetic and the traffic that the table states. Operands are random normal numbers: constant ones
draw less power and so run faster.

On a GPU the work stands between two events of its stream, behind a memset that is longer than the
host needs to queue it: launching is hidden, and the cache holds nothing of the last repetition, as
between the kernels of a training step. On a CPU a clock is read; with one thread it is that of the
process, which stands still while others use the core.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from simulator.calibrate.gpu.kernel_case import KernelCase

Work = Callable[[], object]

_COVER_BYTES = 2**29
"""Memset before each repetition, larger than any cache."""

_COVER_S = 1e-4
"""Least time of one memset: that of 5 TB/s, about what an H200 writes; B200s write 8 TB/s."""

_MOST_COVERS = 32

_WARM_CALLS = 3
_FEWEST, _MOST = 5, 60

DTYPES: Mapping[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}
"""torch's type of the operands, by number format."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Repetitions of one piece of work.

    Attributes:
        samples_s: Seconds of each repetition, in order.
    """

    samples_s: Sequence[float]

    @property
    def median_s(self) -> float:
        """Median time [s]."""
        return statistics.median(self.samples_s)

    @property
    def spread(self) -> float:
        """Distance of the quartiles over the median: 0 where all repetitions agree."""
        if len(self.samples_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return (high - low) / self.median_s


@dataclass
class Stopwatch:
    """Times work on one device.

    Attributes:
        device: Where the work runs.
        budget_s: Time that the repetitions of one piece of work may take, beyond the fewest
            that a spread needs.
    """

    device: torch.device
    budget_s: float = 0.1
    _cover: torch.Tensor | None = field(default=None, init=False, repr=False)
    _covers: int = field(default=1, init=False, repr=False)

    def timing(self, work: Work) -> Timing:
        """Repetitions of ``work`` after a few warm calls."""
        for _ in range(_WARM_CALLS):
            work()
        self.wait()
        self._covers = self._covers_of(work)
        samples: list[float] = []
        started = time.perf_counter()
        while len(samples) < _MOST:
            if len(samples) >= _FEWEST and time.perf_counter() - started > self.budget_s:
                break
            samples.append(self.once_s(work))
        return Timing(samples)

    def once_s(self, work: Work) -> float:
        """Seconds of one call."""
        if self.device.type == "cuda":
            return self._once_on_stream_s(work)
        return self.elapsed_s(work)

    def elapsed_s(self, work: Work) -> float:
        """Seconds that pass on the host."""
        is_own = self.device.type == "cpu" and torch.get_num_threads() == 1
        clock = time.process_time if is_own else time.perf_counter
        started = clock()
        work()
        return clock() - started

    def wait(self) -> None:
        """Return when the device has done all that was queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _once_on_stream_s(self, work: Work) -> float:
        if self._cover is None:
            self._cover = torch.empty(_COVER_BYTES, dtype=torch.uint8, device=self.device)
        for _ in range(self._covers):
            self._clear()
        return seconds_on_stream(work)

    def _covers_of(self, work: Work) -> int:
        """Memsets that last longer than the host needs to queue the work, with room to spare."""
        if self.device.type != "cuda":
            return 1
        started = time.perf_counter()
        work()
        queued_s = time.perf_counter() - started
        self.wait()
        return min(_MOST_COVERS, 1 + math.ceil(queued_s / _COVER_S))

    def _clear(self) -> None:
        assert self._cover is not None
        self._cover.zero_()


def seconds_on_stream(work: Work) -> float:
    """Seconds between two events of the current stream, with ``work`` queued in between."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def new_stream() -> torch.cuda.Stream:
    """A second queue of the current GPU."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class UnsupportedCaseError(Exception):
    """The device or this torch cannot run the case; the message says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """Work to be timed.

    Attributes:
        work: Runs the kernel once.
        flop: Its arithmetic as tables count it [FLOP]; 0 for memory-bound ones.
        num_bytes: Its least traffic [B]; 0 for products.
        notes: Facts that the columns of a table do not hold.
    """

    work: Work
    flop: float = 0.0
    num_bytes: float = 0.0
    notes: str = ""


Operation = Callable[[KernelCase, torch.device], Call]


def call_of(case: KernelCase, device: torch.device) -> Call:
    """The work of a case, with its operands on the device.

    Raises:
        UnsupportedCaseError: This torch has no such operation.
    """
    return OPERATIONS[case.op](case, device)


def _normal(*shape: int, case: KernelCase, device: torch.device) -> Tensor:
    values = torch.randn(shape, device=device, dtype=torch.float32)
    return values.to(DTYPES[case.dtype])


def _gemm(case: KernelCase, device: torch.device) -> Call:
    """A product in the operand layout that its direction has in training.

    With weights (out, in), as torch stores them: forward multiplies by the transposed
    weight, the input gradient by the weight, the weight gradient has the transposed output
    gradient in front.
    """
    flop = 2.0 * case.m * case.n * case.k
    if case.dtype == "fp8":
        return Call(_scaled_product(case, device), flop, notes="bf16 output, per-tensor scales")
    torch.set_float32_matmul_precision("high" if case.dtype == "tf32" else "highest")
    if case.direction == "wgrad":
        left = _normal(case.k, case.m, case=case, device=device).t()
    else:
        left = _normal(case.m, case.k, case=case, device=device)
    if case.direction == "fwd":
        right = _normal(case.n, case.k, case=case, device=device).t()
    else:
        right = _normal(case.k, case.n, case=case, device=device)
    return Call(lambda: left @ right, flop)


def _scaled_product(case: KernelCase, device: torch.device) -> Work:
    scaled_mm = getattr(torch, "_scaled_mm", None)
    if scaled_mm is None:
        raise UnsupportedCaseError("this torch has no _scaled_mm")
    left = _normal(case.m, case.k, case=case, device=device)
    right = _normal(case.n, case.k, case=case, device=device).t()
    one = torch.ones((), device=device)
    return lambda: scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _grouped_gemm(case: KernelCase, device: torch.device) -> Call:
    grouped_mm = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if grouped_mm is None:
        raise UnsupportedCaseError("this torch has no grouped_mm")
    rows = _normal(case.batch * case.m, case.k, case=case, device=device)
    weights = _normal(case.batch, case.n, case.k, case=case, device=device).transpose(-2, -1)
    ends = torch.arange(1, case.batch + 1, device=device, dtype=torch.int32) * case.m
    flop = 2.0 * case.batch * case.m * case.n * case.k
    work = lambda: grouped_mm(rows, weights, offs=ends)  # noqa: E731
    return Call(work, flop, notes="batch = groups, m = rows per group")


def _attention(backend: SDPBackend) -> Operation:
    def operation(case: KernelCase, device: torch.device) -> Call:
        shape = (case.batch, case.heads, case.seq, case.head_dim)
        kv_shape = (case.batch, case.kv_heads, case.seq, case.head_dim)
        query = _normal(*shape, case=case, device=device).requires_grad_()
        key, value = (
            _normal(*kv_shape, case=case, device=device).requires_grad_() for _ in range(2)
        )

        def forward() -> Tensor:
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(
                    query, key, value, is_causal=bool(case.causal),
                    enable_gqa=case.heads != case.kv_heads,
                )  # fmt: skip

        scores = case.batch * case.heads * case.seq**2 * (0.5 if case.causal else 1.0)
        flop = 4.0 * scores * case.head_dim
        notes = f"heads {case.heads}, kv heads {case.kv_heads}"
        if case.direction == "fwd":
            return Call(_without_gradients(forward), flop, notes=notes)
        output = forward()
        given = torch.randn_like(output)
        work = _gradients(output, [query, key, value], given)
        return Call(work, 2.5 * flop, notes=notes)

    return operation


def _without_gradients(work: Work) -> Work:
    def run() -> None:
        with torch.no_grad():
            work()

    return run


def _gradients(output: Tensor, inputs: list[Tensor], given: Tensor) -> Work:
    return lambda: torch.autograd.grad(output, inputs, given, retain_graph=True)


def _norm(case: KernelCase, device: torch.device) -> Call:
    rows = _normal(case.m, case.n, case=case, device=device).requires_grad_()
    weight = torch.ones(case.n, device=device, dtype=DTYPES[case.dtype], requires_grad=True)

    def forward() -> Tensor:
        if case.op == "layernorm":
            return functional.layer_norm(rows, (case.n,), weight)
        return functional.rms_norm(rows, (case.n,), weight)

    return _rowwise(forward, rows, [weight], case)


def _softmax(case: KernelCase, device: torch.device) -> Call:
    rows = _normal(case.m, case.n, case=case, device=device).requires_grad_()
    return _rowwise(lambda: rows.softmax(-1), rows, [], case)


def _rowwise(
    forward: Callable[[], Tensor], rows: Tensor, weights: list[Tensor], case: KernelCase
) -> Call:
    """Forward reads and writes the rows; backward reads them and a gradient, and writes one."""
    size = float(rows.numel() * rows.element_size())
    if case.direction == "fwd":
        return Call(_without_gradients(forward), num_bytes=2 * size)
    output = forward()
    work = _gradients(output, [rows, *weights], torch.randn_like(output))
    return Call(work, num_bytes=3 * size)


def _cross_entropy(case: KernelCase, device: torch.device) -> Call:
    logits = _normal(case.m, case.n, case=case, device=device).requires_grad_()
    labels = torch.randint(case.n, (case.m,), device=device)

    def work() -> None:
        torch.autograd.grad(functional.cross_entropy(logits, labels), [logits])

    size = float(logits.numel() * logits.element_size())
    return Call(work, num_bytes=4.0 * size, notes="log-softmax, its gradient; eager")


def _elementwise(
    function: Callable[[Tensor, Tensor], object], written_bytes: int | None = None
) -> Operation:
    """A kernel over elements that reads one tensor and writes one, into ``out``."""

    def operation(case: KernelCase, device: torch.device) -> Call:
        one = _normal(case.m, case=case, device=device)
        other = torch.empty_like(one)
        size = one.element_size()
        written = size if written_bytes is None else written_bytes
        return Call(
            _without_gradients(lambda: function(one, other)),
            num_bytes=float(case.m * (size + written)),
        )

    return operation


def _adamw(case: KernelCase, device: torch.device) -> Call:
    """Weights, gradients and both moments read, all but the gradients written, fused."""
    weight = _normal(case.m, case=case, device=device).requires_grad_()
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    size = weight.element_size()
    return Call(optimizer.step, num_bytes=7.0 * case.m * size, notes="fused AdamW")


OPERATIONS: Mapping[str, Operation] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "flash_attention (sdpa)": _attention(SDPBackend.FLASH_ATTENTION),
    "flash_attention_2 (sdpa)": _attention(SDPBackend.FLASH_ATTENTION),
    "cudnn_attention (sdpa)": _attention(SDPBackend.CUDNN_ATTENTION),
    "unfused_attention (sdpa math)": _attention(SDPBackend.MATH),
    "rms_norm": _norm,
    "layernorm": _norm,
    "softmax": _softmax,
    "eager_cross_entropy": _cross_entropy,
    "stream_copy": _elementwise(lambda one, other: other.copy_(one)),
    "stream_add": _elementwise(lambda one, other: torch.add(one, one, out=other)),
    "activation_gelu": _elementwise(lambda one, _: functional.gelu(one)),
    "activation_silu": _elementwise(lambda one, _: functional.silu(one)),
    "cast_fp32": _elementwise(lambda one, _: one.float(), written_bytes=4),
    "optimizer_adamw": _adamw,
}
"""Kernels by the name that tables give them."""


def reason_of(error: BaseException) -> str:
    """Why torch could not run a case, in one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory on the device"
    text: Any = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    return f"not supported here: {first[:160]}"
