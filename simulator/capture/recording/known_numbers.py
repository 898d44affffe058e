"""Which tensors have numbers although nothing runs?

Small ones on the host that code makes of what it states itself: how much of a path each layer drops
(``torch.linspace(0, rate, depth)``), positions, tables of sizes. Their numbers are computed, and
those of what is made of them alone, so that code may decide by them. Nothing on the device, nothing
random and nothing read from elsewhere has numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from simulator.capture.recording.absent_streams import replaced

MOST_NUMBERS = 1 << 20
"""Elements of a tensor that still has numbers: as many as tables of relative positions have."""

_UNSTATED = ("empty", "empty_strided", "empty_permuted", "empty_like", "new_empty")


@contextlib.contextmanager
def known_numbers() -> Iterator[None]:
    """Inside, torch computes with the numbers of small tensors that have them, not of one alone."""
    with replaced({(fake_tensor, "CONSTANT_NUMEL_LIMIT"): MOST_NUMBERS}):
        yield


def with_its_numbers(func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """What an operator made, with its numbers where the operator was given nothing but numbers.

    Args:
        func: The operator.
        args: What it was given.
        kwargs: What it was given by name.
        made: The tensor without numbers.
    """
    if not (isinstance(made, FakeTensor) and made.constant is None):
        return made
    if made.device.type != "cpu" or made.numel() > MOST_NUMBERS or not _states_numbers(func):
        return made
    if any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
        return made
    mode: Any = made.fake_mode
    with unset_fake_temporarily(), torch._C._DisableTorchDispatch():
        numbers = func(*args, **kwargs)
    convert: Callable[..., Any] = mode.fake_tensor_converter.from_real_tensor
    return convert(mode, numbers, make_constant=True)


def _states_numbers(func: Any) -> bool:
    """Whether an operator's numbers follow from what it is given."""
    is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
    return (
        func.namespace == "aten" and not is_random and func.overloadpacket.__name__ not in _UNSTATED
    )
