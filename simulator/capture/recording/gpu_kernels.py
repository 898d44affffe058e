"""Which operators does a GPU run as one kernel, where other devices run several?

Scaled dot-product attention picks among kernels by data type, shape and mask, before anything
reaches the device, so the choice is made here as torch makes it on a GPU. Other operators, such
as RMS norm, are one kernel where CUDA has one and otherwise fall apart into what they are made of;
builds without CUDA are told that there is one.

Source: torch's ``sdp_utils.cpp`` (conditions and order of the backends) and the documentation of
``torch.nn.attention.SDPBackend``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._triton import has_triton_package

from simulator.capture.recording.absent_streams import everywhere, replaced

_WIDEST_FLASH_HEAD = 256
_PREFERS_CUDNN = {9: 256, 10: 128}
"""Widest head of cuDNN's attention, by major compute capability of GPUs where torch asks it first.
Source: ``check_prefer_cudnn_attention`` and ``check_cudnn_tensor_shapes`` of torch 2.11 and later,
whose packages bring cuDNN 9.15.1 or later."""
_HALF = (torch.float16, torch.bfloat16)
_GROUPS_HEADS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
"""Kernels that read fewer heads of keys and values than of queries as they are. Memory-efficient
attention refuses them: ``enable_gqa`` "currently works only for Flash_attention and math kernel on
CUDA tensor" (PyTorch, ``scaled_dot_product_attention``), as an H200 shows (``reports/gpu``)."""
_ONE_KERNEL = (
    "_fused_rms_norm", "_fused_rms_norm_backward", "silu_backward", "mish_backward",
    "native_channel_shuffle",
)  # fmt: skip
"""Operators with a CUDA kernel that are composed of others where there is none. Source: torch's
``native_functions.yaml``, those with ``CompositeImplicitAutograd`` beside a kernel."""


@contextlib.contextmanager
def gpu_kernels(capability: tuple[int, int]) -> Iterator[None]:
    """Inside, fused operators are what they are on a GPU of a compute capability."""
    attention = torch.nn.functional.scaled_dot_product_attention
    kernels = _Kernels(capability, attention)

    @wraps(attention)  # context parallelism replaces it by its name once more
    def chosen(*args: Any, **kwargs: Any) -> Tensor:
        return kernels.attention(*args, **kwargs)

    with _whole_operators(), _foreach_kernels(), replaced(everywhere(attention, chosen)):
        yield


@contextlib.contextmanager
def launched_by_triton(launch: Callable[[str, Any], None]) -> Iterator[None]:
    """Inside, kernels that the user wrote for Triton are not compiled.

    Args:
        launch: Told the name of a kernel and its arguments instead.
    """
    if not has_triton_package():
        yield
        return
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        del grid, warmup
        name = getattr(kernel, "base_fn", kernel).__name__
        launch(f"triton.{name}.default", (args, kwargs))

    with replaced({(JITFunction, "run"): run, (Autotuner, "run"): run}):
        yield


@contextlib.contextmanager
def _whole_operators() -> Iterator[None]:
    """Inside, autograd takes operators for whole that have a kernel on CUDA."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for name in _ONE_KERNEL:
            if not has_kernel(f"aten::{name}", "CUDA"):
                library.impl(name, _kernel_of_a_gpu, "CUDA")  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _foreach_kernels() -> Iterator[None]:
    """Inside, torch passes lists of captured tensors to the kernels that take many at once.

    It does so with tensors of its own types alone. Clipping and optimizers look here.
    """
    lists = (_foreach_utils._foreach_supported_types, optimizer._foreach_supported_types)
    for types in lists:
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in lists:
            types.remove(FakeTensor)


def _kernel_of_a_gpu(*_: Any) -> Any:
    """Fake tensors never come here."""
    raise AssertionError("a tensor without contents reached a kernel")


class _Kernels:
    """The choices that a GPU build makes.

    Args:
        capability: Compute capability of the device.
        attention: What runs where no kernel is chosen.
    """

    def __init__(self, capability: tuple[int, int], attention: Callable[..., Tensor]) -> None:
        self._capability, self._plain_attention = capability, attention

    def attention(  # noqa: PLR0917 - the signature is torch's
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """``torch.nn.functional.scaled_dot_product_attention``."""
        if not _is_plain(query):
            return self._plain_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        backend = self._backend(query, value, attn_mask)
        is_grouped = enable_gqa and query.shape[-3] != key.shape[-3]
        if is_grouped and backend is SDPBackend.EFFICIENT_ATTENTION:
            backend = SDPBackend.MATH
        if is_grouped and backend not in _GROUPS_HEADS:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
        if torch.is_autocast_enabled("cuda"):
            query, key, value = (t.to(_computed_in(t)) for t in (query, key, value))
        needs_sums = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if backend is SDPBackend.CUDNN_ATTENTION:
            of_cudnn: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(
                query, key, value, None, needs_sums, dropout_p, is_causal, False, scale=scale
            )[0]
            return of_cudnn
        if backend is SDPBackend.FLASH_ATTENTION:
            width = query.shape[-1]
            query, key, value = (_padded(t, 8) for t in (query, key, value))
            given_scale = width**-0.5 if scale is None else scale
            found = torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=given_scale
            )[0]
            result: Tensor = found[..., :width] if found.shape[-1] != width else found
            return result
        if backend is SDPBackend.EFFICIENT_ATTENTION:
            if attn_mask is not None:
                attn_mask = _bias(attn_mask, query, key)
            summed: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, needs_sums, dropout_p, is_causal, scale=scale
            )[0]
            return summed
        return self._plain_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale
        )

    def _backend(self, query: Tensor, value: Tensor, mask: Tensor | None) -> SDPBackend:
        dtype = _computed_in(query)
        half = dtype in _HALF and not (dtype is torch.bfloat16 and self._capability < (8, 0))
        flash_runs = half and query.shape[-1] <= _WIDEST_FLASH_HEAD and self._capability >= (8, 0)
        has_axes = query.dim() == 4 and query.shape[-1] == value.shape[-1]
        widest = _PREFERS_CUDNN.get(self._capability[0], 0)
        cudnn = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
        if cudnn and half and query.shape[-1] <= widest and mask is None and has_axes:
            return SDPBackend.CUDNN_ATTENTION
        flash = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        if flash and flash_runs and mask is None and has_axes:
            return SDPBackend.FLASH_ATTENTION
        fits = query.dim() == 4 and (mask is None or not mask.requires_grad)
        efficient = torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        if efficient and fits:
            return SDPBackend.EFFICIENT_ATTENTION
        return SDPBackend.MATH


def _computed_in(tensor: Tensor) -> torch.dtype:
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return tensor.dtype


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    missing = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, [0, missing]) if missing else tensor


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as the kernel wants it: added numbers in the type of the query."""
    if mask.dtype is torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill(mask.logical_not(), float("-inf"))
    batch, heads, rows = query.shape[:3]
    return mask.expand(batch, heads, rows, key.shape[-2])


def _is_plain(tensor: Any) -> bool:
    return bool(isinstance(tensor, Tensor) and tensor.device.type == "cuda")
