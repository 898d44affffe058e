"""Which operators does a GPU run as one kernel, where other devices run several?

Scaled dot-product attention picks among kernels by data type, shape and mask; RMS norm is one
kernel on CUDA. Both choices are made before anything reaches the device, so they are made here
as torch makes them on a GPU.

Source: torch's ``sdp_utils.cpp`` (conditions and order of the backends) and the documentation of
``torch.nn.attention.SDPBackend``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from simulator.capture.recording.absent_streams import replaced

_WIDEST_FLASH_HEAD = 256
_HALF = (torch.float16, torch.bfloat16)


@contextlib.contextmanager
def gpu_kernels(capability: tuple[int, int]) -> Iterator[None]:
    """Inside, fused operators are what they are on a GPU of a compute capability."""
    functional = torch.nn.functional
    kernels = _Kernels(capability, functional.scaled_dot_product_attention, torch.rms_norm)
    places: dict[tuple[Any, str], Any] = {
        (functional, "scaled_dot_product_attention"): kernels.attention,
        (functional, "rms_norm"): kernels.rms_norm,
        (torch, "rms_norm"): kernels.rms_norm,
    }
    with replaced(places):
        yield


class _FusedRmsNorm(torch.autograd.Function):
    """One kernel each way; builds without a GPU know only what it is made of."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
    ) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result, scale = torch.ops.aten._fused_rms_norm(x, shape, weight, eps)
        ctx.shape = shape
        ctx.save_for_backward(x, scale, weight)
        normed: Tensor = result
        return normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, scale, weight = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        with torch._C._AutoDispatchBelowAutograd():
            of_input, of_weight = torch.ops.aten._fused_rms_norm_backward(
                gradient, x, ctx.shape, scale, weight, wanted
            )
        return of_input if wanted[0] else None, None, of_weight if wanted[1] else None, None


class _Kernels:
    """The choices that a GPU build makes.

    Args:
        capability: Compute capability of the device.
        attention, rms_norm: What runs where no kernel is chosen.
    """

    def __init__(
        self,
        capability: tuple[int, int],
        attention: Callable[..., Tensor],
        rms_norm: Callable[..., Tensor],
    ) -> None:
        self._capability = capability
        self._plain_attention, self._plain_rms_norm = attention, rms_norm

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
        if enable_gqa and backend is not SDPBackend.FLASH_ATTENTION:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
        if torch.is_autocast_enabled("cuda"):
            query, key, value = (t.to(_computed_in(t)) for t in (query, key, value))
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
            needs_sums = torch.is_grad_enabled() and any(
                t.requires_grad for t in (query, key, value)
            )
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
        flash = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        if flash and flash_runs and mask is None and has_axes:
            return SDPBackend.FLASH_ATTENTION
        fits = query.dim() == 4 and (mask is None or not mask.requires_grad)
        efficient = torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        if efficient and fits:
            return SDPBackend.EFFICIENT_ATTENTION
        return SDPBackend.MATH

    def rms_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        """``torch.nn.functional.rms_norm``."""
        is_mixed = weight is not None and weight.dtype != input.dtype
        if not _is_plain(input) or is_mixed:
            return self._plain_rms_norm(input, normalized_shape, weight, eps)
        shape = list(normalized_shape)
        found: Tensor = _FusedRmsNorm.apply(input, shape, weight, eps)  # type: ignore[no-untyped-call]
        return found


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
