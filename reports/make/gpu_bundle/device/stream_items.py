"""How long does the device take for small kernels in a row, and for kernels beside products?

The host is hidden behind a memset, as for every kernel of a table. The slope over the number of
kernels is what one more takes on a busy stream; what is left at none is the two events'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simulator.calibrate.gpu.kernel_calls import Stopwatch, Work

_NUMBERS = (0, 1, 2, 4, 8, 16, 32)
_BUDGET_S = 0.03


def in_a_row_item(device: torch.device, width: int) -> dict[str, Any]:
    """Equal kernels of several sizes and kinds, and two kinds in turn."""
    stopwatch = Stopwatch(device, budget_s=_BUDGET_S)
    rows = [
        [name, number, list(stopwatch.timing(_repeated(work, number)).samples_s)]
        for name, work in _small_works(device, width)
        for number in _NUMBERS
    ]
    return {"columns": ["name", "number", "samples_s"], "rows": rows}


def _repeated(work: Work, number: int) -> Work:
    def call() -> None:
        for _ in range(number):
            work()

    return call


def _small_works(device: torch.device, width: int) -> Iterator[tuple[str, Work]]:
    for elements in (1, 2**14, 2**18, 2**20, 2**22):
        held = torch.zeros(elements, device=device, dtype=torch.bfloat16)
        yield f"add_ of {elements}", lambda held=held: held.add_(1)  # type: ignore[misc]
    for rows in (128, width // 8, width // 4, width // 2):
        left = torch.randn(rows, rows, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(left)
        yield (
            f"product of {rows}",
            lambda left=left, out=out: torch.mm(left, left, out=out),  # type: ignore[misc]
        )
    left = torch.randn(width // 4, width // 4, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)

    def in_turn() -> None:
        torch.mm(left, left, out=out)
        out.add_(1)

    yield f"product of {width // 4} and add_", in_turn
    norm = nn.LayerNorm(width // 4, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        yield f"layer norm of {width // 4}", lambda: norm(left)


def kernels_item(device: torch.device, width: int) -> dict[str, Any]:
    """Kernels of a training step that no table of products or norms holds, at three sizes."""
    stopwatch = Stopwatch(device, budget_s=_BUDGET_S)
    rows: list[list[Any]] = []
    for tokens in (2 * width, width, width // 4):
        for name, make in KERNELS.items():
            try:
                work = make(device, tokens, width // 2)
                rows.append([name, tokens, width // 2, list(stopwatch.timing(work).samples_s)])
            except Exception as error:  # the next row must be measured whatever this one met
                rows.append([name, tokens, width // 2, f"{type(error).__name__}: {error}"[:200]])
    return {"columns": ["name", "tokens", "width", "samples_s"], "rows": rows}


_Make = Callable[[torch.device, int, int], Work]
_EXPERTS, _TOP_K, _HEAD = 64, 4, 128


def _rows(device: torch.device, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(tokens, width, device=device, dtype=dtype)


def _backward(function: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.bfloat16) -> _Make:
    def make(device: torch.device, tokens: int, width: int) -> Work:
        rows = _rows(device, tokens, width, dtype).requires_grad_()
        found = function(rows)
        gradient = torch.randn_like(found)
        return lambda: torch.autograd.grad(found, rows, gradient, retain_graph=True)

    return make


def _forward(function: Callable[[Tensor], object], dtype: torch.dtype = torch.bfloat16) -> _Make:
    def make(device: torch.device, tokens: int, width: int) -> Work:
        rows = _rows(device, tokens, width, dtype)
        return lambda: function(rows)

    return make


def _by_expert(device: torch.device, tokens: int) -> Tensor:
    return torch.randint(0, _EXPERTS, (tokens * _TOP_K,), device=device).argsort() // _TOP_K


def _gathered(device: torch.device, tokens: int, width: int) -> Work:
    rows, sources = _rows(device, tokens, width, torch.bfloat16), _by_expert(device, tokens)
    return lambda: rows[sources]


def _gathered_backward(device: torch.device, tokens: int, width: int) -> Work:
    rows = _rows(device, tokens, width, torch.bfloat16).requires_grad_()
    found = rows[_by_expert(device, tokens)]
    gradient = torch.randn_like(found)
    return lambda: torch.autograd.grad(found, rows, gradient, retain_graph=True)


def _selected_backward(device: torch.device, tokens: int, width: int) -> Work:
    rows = _rows(device, tokens, width, torch.bfloat16).requires_grad_()
    found = rows.index_select(0, _by_expert(device, tokens))
    gradient = torch.randn_like(found)
    return lambda: torch.autograd.grad(found, rows, gradient, retain_graph=True)


def _index_added(dtype: torch.dtype) -> _Make:
    def make(device: torch.device, tokens: int, width: int) -> Work:
        sources = _by_expert(device, tokens)
        added = _rows(device, tokens * _TOP_K, width, dtype)
        total = torch.zeros(tokens, width, device=device, dtype=dtype)
        return lambda: total.index_add_(0, sources, added)

    return make


def _router(device: torch.device, tokens: int, width: int) -> Work:
    logits = _rows(device, tokens, _EXPERTS, torch.float32)
    return lambda: logits.softmax(-1).topk(_TOP_K)


def _sorted(device: torch.device, tokens: int, width: int) -> Work:
    chosen = torch.randint(0, _EXPERTS, (tokens * _TOP_K,), device=device)
    return lambda: chosen.argsort(stable=True)


def _counted(device: torch.device, tokens: int, width: int) -> Work:
    chosen = torch.randint(0, _EXPERTS, (tokens * _TOP_K,), device=device).float()
    return lambda: torch.histc(chosen, _EXPERTS, 0, _EXPERTS - 1)


def _embedded(device: torch.device, tokens: int, width: int) -> Work:
    table = _rows(device, 128256, width, torch.float32)
    words = torch.randint(0, 128256, (tokens,), device=device)
    return lambda: functional.embedding(words, table)


def _embedded_backward(device: torch.device, tokens: int, width: int) -> Work:
    table = _rows(device, 128256, width, torch.float32).requires_grad_()
    words = torch.randint(0, 128256, (tokens,), device=device)
    found = functional.embedding(words, table)
    gradient = torch.randn_like(found)
    return lambda: torch.autograd.grad(found, table, gradient, retain_graph=True)


def _loss(backward: bool, *, wide: bool) -> _Make:
    def make(device: torch.device, tokens: int, width: int) -> Work:
        rows = min(tokens, 4096)
        logits = _rows(device, rows, 128256, torch.bfloat16).requires_grad_(backward)
        words = torch.randint(0, 128256, (rows,), device=device)

        def once() -> Tensor:
            return functional.cross_entropy(logits.float() if wide else logits, words)

        if not backward:
            return once
        found = once()
        return lambda: torch.autograd.grad(found, logits, retain_graph=True)

    return make


def _rotated(rows: Tensor) -> Tensor:
    heads = rows.view(1, rows.shape[0], -1, _HEAD).transpose(1, 2)
    angle = torch.arange(rows.shape[0], device=rows.device)[:, None] * torch.ones(
        _HEAD, device=rows.device
    )
    cosine, sine = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
    first, second = heads.chunk(2, -1)
    return heads * cosine + torch.cat((-second, first), -1) * sine


def _swiglu(rows: Tensor) -> Tensor:
    gate, up = rows.chunk(2, -1)
    return functional.silu(gate) * up


def _quantised(rows: Tensor) -> Tensor:
    scale = rows.abs().amax().float() / 448
    return (rows / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def _biased(rows: Tensor) -> Tensor:
    return rows.sum(0)


def _scores(backward: bool) -> _Make:
    def make(device: torch.device, tokens: int, width: int) -> Work:
        length = 2048
        scores = torch.randn(4, max(1, tokens // length), length, length, device=device,
                             dtype=torch.bfloat16).requires_grad_(backward)  # fmt: skip
        mask = torch.zeros(length, length, device=device, dtype=torch.bfloat16)

        def once() -> Tensor:
            return (scores + mask).softmax(-1, dtype=torch.float32).to(scores.dtype)

        if not backward:
            return once
        found = once()
        gradient = torch.randn_like(found)
        return lambda: torch.autograd.grad(found, scores, gradient, retain_graph=True)

    return make


def _many(function: Callable[[list[Tensor]], object], dtype: torch.dtype) -> _Make:
    """Over 64 tensors whose numbers are those of the rows."""

    def make(device: torch.device, tokens: int, width: int) -> Work:
        parts = [_rows(device, tokens // 64, width, dtype) for _ in range(64)]
        return lambda: function(parts)

    return make


KERNELS: dict[str, _Make] = {
    "rows gathered by expert": _gathered,
    "rows gathered by expert, backward": _gathered_backward,
    "rows selected by expert, backward": _selected_backward,
    "rows added by expert, bf16": _index_added(torch.bfloat16),
    "rows added by expert, fp32": _index_added(torch.float32),
    "router's softmax and topk": _router,
    "experts sorted": _sorted,
    "experts counted": _counted,
    "embedding": _embedded,
    "embedding, backward": _embedded_backward,
    "cross entropy of fp32 copies": _loss(backward=False, wide=True),
    "cross entropy of fp32 copies, backward": _loss(backward=True, wide=True),
    "cross entropy of bf16": _loss(backward=False, wide=False),
    "cross entropy of bf16, backward": _loss(backward=True, wide=False),
    "rotation": _forward(_rotated),
    "rotation, backward": _backward(_rotated),
    "silu times up": _forward(_swiglu),
    "silu times up, backward": _backward(_swiglu),
    "gelu": _forward(functional.gelu),
    "gelu, backward": _backward(functional.gelu),
    "gelu of fp32": _forward(functional.gelu, torch.float32),
    "gelu of fp32, backward": _backward(functional.gelu, torch.float32),
    "dropout": _forward(lambda rows: functional.dropout(rows, 0.1)),
    "transposed copy": _forward(lambda rows: rows.t().contiguous()),
    "heads moved": _forward(
        lambda rows: rows.view(rows.shape[0], -1, _HEAD).transpose(0, 1).contiguous()
    ),
    "quantised to 8 bits, tensor by tensor": _forward(_quantised),
    "sum of rows for a bias": _forward(_biased),
    "scores masked and softmax": _scores(backward=False),
    "scores masked and softmax, backward": _scores(backward=True),
    "sum of two fp32": _forward(lambda rows: rows + rows, torch.float32),
    "fp32 added to bf16": _forward(lambda rows: rows.float() + rows),
    "norms of 64 tensors": _many(torch._foreach_norm, torch.float32),
    "64 tensors scaled": _many(lambda parts: torch._foreach_mul_(parts, 1.0), torch.float32),
    "64 tensors added": _many(lambda parts: torch._foreach_add_(parts, parts), torch.float32),
    "64 tensors copied": _many(lambda parts: torch._foreach_copy_(parts, parts), torch.float32),
}
"""By name; each takes device, tokens and width and returns the work to time."""

STREAM_ITEMS = {"small kernels in a row": in_a_row_item, "kernels of a step": kernels_item}
"""By name; each takes the device and a width."""
