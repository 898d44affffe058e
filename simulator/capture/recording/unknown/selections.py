"""How many elements does an operator select where the contents of a tensor decide it?

The user states it of the line (:mod:`simulator.capture.stated_values`). What is selected then has
that shape, and as little contents as anything else. A mask that selects again, as in the backward
pass, selects as many. ``bincount`` counts no values beyond its ``minlength``, as code states by
giving one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from simulator.capture.recording.unknown.values import UnknownNumber, user_place

_MASKS = (torch.bool, torch.uint8)


def selected(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What an operator makes whose shape depends on data; None where nobody states how much.

    Args:
        func: The operator.
        args: What it was given.
        kwargs: What it was given by name.
    """
    make = _MADE.get(_name(func))
    return None if make is None else make(*args, **kwargs)


def _name(func: Any) -> str:
    return f"{func.namespace}.{func._schema.name.split('::')[1]}"


def _count(most: int) -> int | None:
    return UnknownNumber.stated.count(*user_place()[:2], most)


def _of_elements(
    tensor: Tensor, most: int, *shape: int, dtype: torch.dtype | None = None
) -> Tensor | None:
    """As many elements, or rows, as are stated."""
    count = _count(most)
    return None if count is None else tensor.new_empty((count, *shape), dtype=dtype)


_COUNTED = "_clustersim_count"
"""Attribute of a mask: how many elements it selects, and of which of its versions that was said."""


def _nonzero(mask: Tensor) -> Tensor | None:
    count, version = getattr(mask, _COUNTED, (None, None))
    known = count if version == mask._version else None
    count = UnknownNumber.stated.count(*user_place()[:2], mask.numel(), known)
    if count is None:
        return None
    setattr(mask, _COUNTED, (count, mask._version))
    return mask.new_empty((count, mask.dim()), dtype=torch.int64)


def _masked_select(tensor: Tensor, mask: Tensor) -> Tensor | None:
    return _of_elements(tensor, torch.where(mask, tensor, tensor).numel())


def _index(tensor: Tensor, indices: list[Tensor | None]) -> Tensor | None:
    """What masks select; each becomes the places that it selects, as on the device."""
    places: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            places.append(index)
            continue
        found = _nonzero(index)
        if found is None:
            return None
        places.extend(found.unbind(1))
    made: Tensor = torch.ops.aten.index.Tensor(tensor, places)
    return made


def _unique(tensor: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...] | None:
    values = _of_elements(tensor, tensor.numel())
    if values is None:
        return None
    whole = tensor.new_empty(tensor.shape, dtype=torch.int64)
    return values, whole, values.new_empty(values.shape, dtype=torch.int64)


def _unique_rows(tensor: Tensor, dim: int = 0, *_: Any, **__: Any) -> tuple[Tensor, ...] | None:
    count = _count(tensor.shape[dim])
    if count is None:
        return None
    shape = list(tensor.shape)
    shape[dim] = count
    counts = tensor.new_empty((count,), dtype=torch.int64)
    return tensor.new_empty(shape), counts.new_empty(tensor.shape[dim]), counts


def _repeat_interleave(repeats: Tensor, *_: Any, **__: Any) -> Tensor | None:
    return _of_elements(repeats, repeats.numel())


def _bincount(tensor: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor | None:
    count = minlength or _count(tensor.numel())
    like = tensor if weights is None else weights
    dtype = torch.int64 if weights is None or not weights.is_floating_point() else weights.dtype
    return None if count is None else like.new_empty((count,), dtype=dtype)


def _nms(boxes: Tensor, *_: Any) -> Tensor | None:
    return _of_elements(boxes, boxes.shape[0], dtype=torch.int64)


_MADE: Mapping[str, Callable[..., Any]] = {
    "aten.nonzero": _nonzero,
    "aten.masked_select": _masked_select,
    "aten.index": _index,
    "aten._unique2": _unique,
    "aten.unique_consecutive": _unique,
    "aten.unique_dim": _unique_rows,
    "aten.repeat_interleave": _repeat_interleave,
    "aten.bincount": _bincount,
    "torchvision.nms": _nms,
}
