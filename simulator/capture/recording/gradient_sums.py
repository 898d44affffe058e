"""Which sums of gradients does autograd make in place where nobody watches it?

Where a tensor has several uses autograd adds up their gradients, in the memory of the first if it
is its only holder. Of tensors that a dispatch mode sees, as those here, it makes a new one.

Ignores: PyTorch before 2.0, which always does.
Source: PyTorch, ``can_accumulate_inplace`` of ``torch/csrc/autograd/input_buffer.cpp`` and
``isTensorSubclassLike``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

_ENGINE = "_engine_run_backward"
_WRAPPERS = ("torch/_dynamo/eval_frame.py", "torch/_compile.py", "torch/utils/_stats.py")
_ONLY_HOLDER = 2
"""Holders of a storage that one tensor has: it, and Python's name for it."""


def takes_the_first(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator is a sum of two gradients that would lie in the first of them.

    To be asked by the dispatch mode itself.
    """
    if func is not torch.ops.aten.add.Tensor or torch.is_grad_enabled():
        return False
    first, second = args[:2]
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return False
    holders = torch._C._storage_Use_Count(first.untyped_storage()._cdata)
    return (
        first.shape == second.shape
        and first.dtype == second.dtype
        and holders <= _ONLY_HOLDER
        and _is_called_by_engine(sys._getframe(2))
    )


def _is_called_by_engine(frame: FrameType | None) -> bool:
    """Whether no code of backward stands between: that of a function of its own would."""
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name == _ENGINE
