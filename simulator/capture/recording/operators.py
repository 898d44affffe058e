"""What does an operator that reached the device read and write there, and pass to the host?"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from simulator.capture import table
from simulator.capture.host_link import host_copy_call
from simulator.capture.table import Call

_SILENT = {
    "aten.detach", "aten.alias", "aten.lift_fresh", "aten.record_stream", "aten.set_",
    "aten.resize_", "aten._unsafe_view", "aten._reshape_alias", "aten.empty", "aten.empty_like",
    "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided", "aten._local_scalar_dense",
    "aten.is_same_size", "aten.sym_size", "aten._nested_tensor_from_mask_left_aligned",
}  # fmt: skip
"""Launch nothing."""
_LOOKUPS = {
    "aten.embedding", "aten.index_select", "aten.gather", "aten.index", "aten.nll_loss_forward",
}  # fmt: skip
"""Read as many elements of their table as they write."""
_PLACED = {"aten.index_put_", "aten.scatter_", "aten.scatter_add_", "aten.index_copy_"}
"""Write as many elements of their first argument as their last one has."""
_UNREAD = {"aten.nll_loss_backward": "self", "fsdp.all_gather_copy_in": "all_gather_output"}
"""An argument of which they read next to nothing."""
_PASTES = {"fsdp.all_gather_copy_in"}
"""Write into that as much as they read of the others."""
_OVERWRITES = {
    "aten.fill_", "aten.zero_", "aten.copy_", "aten._foreach_copy_", "aten._foreach_zero_",
    "aten.uniform_", "aten.normal_", "aten.random_", "aten.bernoulli_", "aten._foreach_fill_",
}  # fmt: skip
"""Write their first argument without reading it."""
_WITH_SETTINGS = ("attention", "convolution", "flash", "cudnn", "dropout", "efficient")
_PRODUCTS = {"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.linear"}
"""Of them, whether fp32 may run as TF32."""
_COPIES = {"aten.copy_", "aten._to_copy", "aten._foreach_copy_"}
"""May copy between the device and its host."""


class Operator:
    """An operator that reached the device, and the tensors on it."""

    def __init__(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.func, self.name, self.args, self.kwargs = func, _name_of(func), args, kwargs
        self._result = result
        self.inputs = [t for t in tensors_in((args, kwargs)) if on_device(t)]
        self.outputs = [t for t in tensors_in(result) if on_device(t)]

    def fresh(self) -> list[Tensor]:
        """Outputs that are no inputs."""
        known = {id(t) for t in self.inputs}
        return [t for t in self.outputs if id(t) not in known]

    def read(self) -> list[Tensor]:
        """Inputs whose elements are read."""
        unread = {id(t) for t in _at(_unread_places(self.func, self.name), self.args, self.kwargs)}
        return [t for t in self.inputs if id(t) not in unread]

    @property
    def is_silent(self) -> bool:
        """Whether it launches nothing."""
        looks = _is_view(self.func) and _lie_together(self.inputs, self.outputs)
        return self.name in _SILENT or looks

    def written(self) -> list[Tensor]:
        """Inputs that are written in place."""
        written = {id(t) for t in _at(_written_places(self.func), self.args, self.kwargs)}
        return [t for t in self.inputs if id(t) in written]

    def sources(self) -> list[Tensor]:
        """Tensors that say how much is read."""
        if self.name in _LOOKUPS:
            return [*self.fresh(), *self.inputs[1:]]
        return self.read()

    def call(self, shards: Callable[[Tensor], int]) -> Call:
        """What the device does.

        Args:
            shards: Says how many data ranks hold a part of a tensor each.
        """
        inputs, fresh, written, reads = self.inputs, self.fresh(), self.written(), self.sources()
        read_bytes = sum(map(touched_bytes, reads))
        written_bytes = sum(map(touched_bytes, [*fresh, *written]))
        if self.name in _PASTES:
            written_bytes = read_bytes
        if self.name in _PLACED:
            written_bytes = inputs[-1].numel() * inputs[0].element_size()
            read_bytes += written_bytes - touched_bytes(inputs[0])
        return Call(
            str(self.func),
            tuple(map(described, inputs)),
            tuple(map(described, fresh)),
            _settings(self.name, self.args, self.kwargs),
            read_bytes,
            written_bytes,
            sum(touched_bytes(t) for t in (*reads, *fresh, *written) if shards(t) > 1),
        )

    def host_copies(self, shards: Callable[[Tensor], int]) -> list[Call]:
        """Copies between the device and its host, and what the device does around them.

        Args:
            shards: Says how many data ranks hold a part of a tensor each.
        """
        if self.name not in _COPIES:
            return []
        to, source = self.args[:2] if len(self.args) > 1 else (self._result, self.args[0])
        flag = self.args[2] if len(self.args) > 2 else self.kwargs.get("non_blocking", False)
        pairs = zip(tree_leaves(to), tree_leaves(source), strict=True)
        return [
            call
            for to, source in pairs
            if on_device(to) != on_device(source)
            for call in _crossing(to, source, not flag, shards(source if on_device(source) else to))
        ]


def _crossing(to: Tensor, source: Tensor, waits: bool, shards: int) -> list[Call]:
    """One copy; the device lays bytes out in the order in which they pass the link.

    Tensors of one type that lie alike need none of that. A cast is done where the tensor comes
    from, but on the host where that waits. Source: torch's ``Copy.cu``,
    ``copy_requires_temporaries`` and ``copy_kernel_cuda``.
    """
    to_host, is_cast = on_device(source), to.dtype != source.dtype
    sent_bytes = to.numel() * (source if to_host and waits else to).element_size()
    sharded_bytes = sent_bytes if shards > 1 else 0
    copy = host_copy_call(sent_bytes, to_host=to_host, waits=waits, sharded_bytes=sharded_bytes)
    whole = source.expand_as(to)
    if not is_cast and (layout := _layout(to)) is not None and layout == _layout(whole):
        return [copy]
    local = whole if to_host else to
    if local.is_contiguous() and not (to_host and is_cast and not waits):
        return [copy]
    moved = touched_bytes(local), sent_bytes
    sharded_bytes = sum(moved) if shards > 1 else 0
    laid_out = Call("aten.clone.default", (described(local),), (), (), *moved, sharded_bytes)
    return [laid_out, copy] if to_host else [copy, laid_out]


def _layout(tensor: Tensor) -> list[int] | None:
    """Distances of neighbours along each axis; None where elements lie apart or in one place."""
    axes = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
    reach = 1 + sum((n - 1) * step for n, step in axes)
    return [step for _, step in axes] if reach == tensor.numel() else None


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Every tensor of a nest of lists, tuples and mappings, each once."""
    seen: set[int] = set()
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield leaf


def on_device(tensor: Tensor) -> bool:
    """Whether a tensor lies on the device."""
    return tensor.device.type == "cuda"


def described(tensor: Tensor) -> table.Tensor:
    """A tensor as a captured step names it."""
    return table.Tensor(str(tensor.dtype)[6:], tuple(tensor.shape))


def touched_bytes(tensor: Tensor) -> int:
    """Bytes of the elements that differ: along an expanded axis there is one [B]."""
    counts = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, step in counts if step or not size) * tensor.element_size()


@cache
def _name_of(func: Any) -> str:
    return f"{func.namespace}.{func._schema.name.split('::')[1]}"


def _lie_together(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether nothing was copied: ``contiguous`` is another look at a tensor, or a copy of it."""
    lie_in = {tensor.untyped_storage()._cdata for tensor in inputs}
    return all(tensor.untyped_storage()._cdata in lie_in for tensor in outputs)


@cache
def _is_view(func: Any) -> bool:
    """Whether all results are other looks at arguments."""
    returns = func._schema.returns
    return bool(returns) and all(
        each.alias_info is not None and not each.alias_info.is_write for each in returns
    )


@cache
def _written_places(func: Any) -> tuple[tuple[int, str], ...]:
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info and a.alias_info.is_write)


@cache
def _unread_places(func: Any, name: str) -> tuple[tuple[int, str], ...]:
    """Arguments that are written over, and those of which next to nothing is read."""
    written = _written_places(func)
    if name not in _OVERWRITES:
        written = tuple(place for place in written if place[1] == "out")
    arguments = enumerate(func._schema.arguments)
    return (*written, *((i, a.name) for i, a in arguments if a.name == _UNREAD.get(name)))


def _at(places: Sequence[tuple[int, str]], args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Tensors at places of an operator's signature."""
    for place, name in places:
        given = args[place] if place < len(args) else kwargs.get(name)
        yield from (t for t in tree_leaves(given) if isinstance(t, Tensor))


def _settings(name: str, args: Any, kwargs: Any) -> tuple[float | None, ...]:
    if name in _PRODUCTS:
        return (float(torch.get_float32_matmul_precision() != "highest"),)
    if not any(word in name for word in _WITH_SETTINGS):
        return ()
    leaves = tree_leaves((args, tuple(kwargs.values())))
    return tuple(float(x) for x in leaves if isinstance(x, (bool, int, float)))


_ENGINE = "_engine_run_backward"
_WRAPPERS = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")
_ONLY_HOLDER = 2
"""Holders of a storage that one tensor has: it, and Python's name for it."""


def takes_the_first(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator is a sum of two gradients that lies in the first where nobody watches.

    Autograd adds them up in the memory of the first if that has no other holder. Of tensors that a
    dispatch mode sees it makes a new one. To be asked by the dispatch mode itself.

    Ignores: PyTorch before 2.0, which always does.
    Source: PyTorch, ``can_accumulate_inplace`` of ``torch/csrc/autograd/input_buffer.cpp`` and
    ``isTensorSubclassLike``.
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
