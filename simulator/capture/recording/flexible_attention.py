"""What does a GPU run where code asks for torch's ``flex_attention``?

One kernel, which Inductor writes in the manner of FlashAttention 2, and which skips blocks that the
mask leaves out. Which these are follows from contents of tensors where it depends on documents.
So a mask that lets a query see a later key leaves out nothing here, and every other one is taken
to be causal, and to leave out nothing else; a note says so. A block mask takes what it holds.
Where the user states how long documents are, at the line that makes the mask, each sequence is as
many equal documents, which do not see each other.

Ignores: what ``score_mod`` computes; blocks that windows leave out, and document masks of which
nothing is stated.
Source: torch's ``_inductor/kernel/flex`` and the documentation of ``torch.nn.attention``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention import flex_attention as flexible

from simulator.capture.recording.absent_streams import everywhere, replaced
from simulator.capture.recording.unknown.values import stated_number

_NOTE = (
    "flex_attention is timed as FlashAttention 2, causal or of all keys: "
    "what windows and document masks leave out besides is not taken off. The length of documents "
    "may be stated at the line of create_block_mask, with --value FILE:LINE=512"
)
_DOCUMENTS = "_clustersim_documents"
"""Attribute of a block mask: into how many documents, which see themselves alone, it parts."""
_PAIRS = ((0, 1), (0, 100), (100, 101), (7, 9999))
"""Queries and later keys that a mask is asked about."""


@contextlib.contextmanager
def flexible_attention(note: Callable[[str], None]) -> Iterator[None]:
    """Inside, flexible attention and its masks are what they are on a GPU.

    Args:
        note: Told how its time is taken.
    """

    def attention(  # noqa: PLR0917 - the signature is torch's
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Any = None,
        block_mask: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        kernel_options: Any = None,
        *,
        return_aux: Any = None,
    ) -> Any:
        del score_mod, enable_gqa, kernel_options
        documents = getattr(block_mask, _DOCUMENTS, 1)
        if documents == 1:
            note(_NOTE)
        is_causal = block_mask is not None and _is_causal(block_mask.mask_mod)
        given_scale = query.shape[-1] ** -0.5 if scale is None else scale
        found, sums = torch.ops.aten._scaled_dot_product_flash_attention(
            *(_apart(each, documents) for each in (query, key, value)),
            0.0,
            is_causal,
            False,
            scale=given_scale,
        )[:2]
        found, sums = (_together(each, documents) for each in (found, sums))
        if return_aux is not None:
            largest = torch.empty_like(sums) if return_aux.max_scores else None
            return found, flexible.AuxOutput(sums if return_aux.lse else None, largest)
        return (found, sums) if return_lse else found

    values = everywhere(flexible.flex_attention, attention)
    with replaced({**values, **everywhere(flexible.create_block_mask, _block_mask)}):
        yield


def _apart(tensor: Any, documents: int) -> Any:
    """Documents one below the other, as sequences of their own: (batch, heads, long, ...)."""
    return tensor.unflatten(2, (documents, -1)).transpose(1, 2).flatten(0, 1)


def _together(tensor: Any, documents: int) -> Any:
    """Sequences of documents as they came."""
    return tensor.unflatten(0, (-1, documents)).transpose(1, 2).flatten(2, 3)


def _stated_documents(long: int) -> int:
    """Equal documents of a sequence, as long as the line that makes its mask is stated to ask.

    As many as divide the sequence, if the stated length does not.
    """
    stated = stated_number()
    if stated is None:
        return 1
    most = max(1, round(long / max(1.0, stated)))
    return next(count for count in range(most, 0, -1) if long % count == 0)


def _is_causal(mask: Callable[..., Any]) -> bool:
    """Whether no query sees a later key, as far as anybody can tell without contents."""
    with unset_fake_temporarily():
        for places in _PAIRS:
            try:
                if mask(*map(torch.tensor, (0, 0, *places))):
                    return False
            except Exception:  # the mask looks into tensors, as one of documents does
                return True
    return True


def _block_mask(  # noqa: PLR0917 - the signature is torch's
    mask_mod: Callable[..., Any],
    B: int | None,  # noqa: N803
    H: int | None,  # noqa: N803
    Q_LEN: int,  # noqa: N803
    KV_LEN: int,  # noqa: N803
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,  # noqa: N803
    *_: Any,
    **__: Any,
) -> flexible.BlockMask:
    """A mask that holds as much as one with contents."""
    sizes = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    rows, columns = (-(-long // size) for long, size in zip((Q_LEN, KV_LEN), sizes, strict=True))
    number = torch.zeros(
        (B or 1, H or 1, rows), dtype=torch.int32, device="cuda" if device is None else device
    )
    places = number.new_zeros((*number.shape, columns))
    mask = flexible.BlockMask.from_kv_blocks(
        number, places, torch.zeros_like(number), torch.zeros_like(places), BLOCK_SIZE, mask_mod,
        (Q_LEN, KV_LEN),
    )  # fmt: skip
    if Q_LEN == KV_LEN:
        setattr(mask, _DOCUMENTS, _stated_documents(Q_LEN))
    return mask
