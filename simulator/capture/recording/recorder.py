"""What does one rank of the user's code launch, send, take and give back?

A dispatch mode below autograd sees every operator as the device would run it. Operators that
only look at a tensor in another way launch nothing; factories take memory and launch nothing.

Ignores: memory that a kernel takes for itself while it runs, and workspaces of libraries.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves

from simulator.capture import table
from simulator.capture.merged_operations import unit_of
from simulator.capture.recording.absent_streams import Streams
from simulator.capture.recording.fused import FusedKernels, Work, is_fusible
from simulator.capture.recording.modules import Modules, in_backward
from simulator.capture.recording.record import Block, Kept, Operation, Record
from simulator.capture.table import BlockOwner, Call, Phase

_NAMESPACES_OF_EXCHANGES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
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
_META_KERNELS = ("Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
_ALLOCATION_BYTES = 512
"""Device memory is handed out in multiples of this. Source: ``kMinBlockSize`` of torch's
``CUDACachingAllocator``."""


def storage_bytes(storage: torch.UntypedStorage) -> int:
    """What a storage takes of the device [B]."""
    return -(-storage.nbytes() // _ALLOCATION_BYTES) * _ALLOCATION_BYTES


class _Operator:
    """An operator that reached the device, and the tensors on it."""

    def __init__(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.func, self.name, self.args, self.kwargs = func, _name(func), args, kwargs
        self.inputs = [t for t in _leaves((args, kwargs)) if _on_device(t)]
        self.outputs = [t for t in _leaves(result) if _on_device(t)]

    def fresh(self) -> list[Tensor]:
        """Outputs that are no inputs."""
        known = {id(t) for t in self.inputs}
        return [t for t in self.outputs if id(t) not in known]

    def read(self) -> list[Tensor]:
        """Inputs whose elements are read."""
        unread = {id(t) for t in _at(_unread_places(self.func, self.name), self.args, self.kwargs)}
        return [t for t in self.inputs if id(t) not in unread]

    def written(self) -> list[Tensor]:
        """Inputs that are written in place."""
        written = {id(t) for t in _at(_written_places(self.func), self.args, self.kwargs)}
        return [t for t in self.inputs if id(t) in written]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what reaches the device.

    Attributes:
        record: What was written down.
        modules: Which module and phase it is now.
        streams: Which stream is current.
        paused: Above zero where what runs is not the step, such as planning of shardings.
        owner: Owner of what is taken now, where the code around says it.
        lookups: Moment, and positions, of each look into an embedding in forward.
        now_bytes, most_bytes: Held now, and at most so far [B].
        fused: Kernels of compiled code.
        on_error: Called with what an operator raises in backward: torch's engine may end the
            process before anybody else is told.
    """

    def __init__(self, record: Record, modules: Modules) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record, self.modules = record, modules
        self.streams = Streams()
        self.paused = 0
        self.owner: BlockOwner | None = None
        self.lookups: list[tuple[int, int]] = []
        self.fused = FusedKernels(record, self._begin_kernel)
        self.now_bytes = self.most_bytes = 0
        self._blocks: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.on_error: Callable[[Exception], None] = lambda _: None
        self.exchange: Any = None
        """Records an exchange; set by :mod:`.groups`."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args, **(kwargs or {}))
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # comes back as operators on what it holds
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == "cuda" and device.index:
            # A rank has one device; code may number it by its place in the node.
            kwargs = {**kwargs, "device": torch.device("cuda", 0)}
        run: Callable[..., Any] = _nothing if _has_no_meta(func) else func
        if self.paused:
            return run(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._number(func, args)
        try:
            result = run(*args, **kwargs)
        except Exception as error:
            if in_backward():
                self.on_error(error)
            raise
        if func.namespace in _NAMESPACES_OF_EXCHANGES:
            self.exchange(func, args, kwargs, result)
        else:
            self._operator(_Operator(func, args, kwargs, result))
        return result

    def _number(self, func: Any, args: Any) -> Any:
        """A value that only a run knows; where it decides something, :mod:`.values` refuses."""
        is_fake = isinstance(args[0], FakeTensor)
        if not is_fake or args[0].constant is not None:
            return func(*args)
        kind = args[0].dtype
        return math.nan if kind.is_floating_point else False if kind is torch.bool else 0

    def _operator(self, one: _Operator) -> None:
        inputs, outputs = one.inputs, one.outputs
        if one.name in _SILENT or (_is_view(one.func) and _lie_together(inputs, outputs)):
            self._notice(outputs)
            return
        if not inputs and not outputs:
            return
        if is_fusible(one.func) and self.modules.is_compiled:
            self._fuse(one)
            return
        if self.fused.is_open:
            self.fused.give(self._numbers(inputs))
        call = self._call(one)
        if one.name == "aten.embedding" and self.modules.phase() is Phase.FORWARD:
            self.lookups.append((self.record.moment, inputs[-1].numel()))
        self._add(call, self.streams.current)
        self._notice(outputs)
        if self.fused.is_open:
            self.fused.pass_by(self._numbers(inputs), self._numbers(outputs))

    def _call(self, one: _Operator) -> int:
        inputs, fresh, written = one.inputs, one.fresh(), one.written()
        reads = [*fresh, *inputs[1:]] if one.name in _LOOKUPS else one.read()
        read_bytes = sum(map(_touched, reads))
        written_bytes = sum(map(_touched, [*fresh, *written]))
        if one.name in _PASTES:
            written_bytes = read_bytes
        if one.name in _PLACED:
            written_bytes = inputs[-1].numel() * inputs[0].element_size()
            read_bytes += written_bytes - _touched(inputs[0])
        sharded = [t for t in (*reads, *fresh) if self._shards(t) > 1]
        sharded_writes = [t for t in written if self._shards(t) > 1]
        call = Call(
            str(one.func),
            tuple(map(_described, inputs)),
            tuple(map(_described, fresh)),
            _settings(one.name, one.args, one.kwargs),
            read_bytes,
            written_bytes,
            sum(map(_touched, [*sharded, *sharded_writes])),
        )
        if sharded and self.modules.phase() is Phase.OPTIMIZER:
            self._notice(fresh, shards=self._shards(sharded[0]))
        return self.record.number_of_call(call)

    def _fuse(self, one: _Operator) -> None:
        """Record an operator of compiled code, as part of the kernel before it or as a new one."""
        modules, stream = self.modules, self.streams.current
        if stream in self.streams.waiting:
            self.fused.end()
        phase, path = modules.phase(), modules.path()
        side = Phase.BACKWARD if phase is Phase.RECOMPUTE else phase
        self.fused.enter((stream, side, unit_of(path)))
        fresh, written = one.fresh(), one.written()
        self._notice(one.outputs)
        leaves = tree_leaves((one.args, one.kwargs))
        if not written and self.fused.was_done(
            (one.func, *map(self._given, leaves)), self._numbers(one.outputs)
        ):
            return
        most = max((t.numel() for t in one.inputs), default=0)
        self.fused.add(
            Work(
                (stream, phase, self.record.number_of(path)),
                self._touched_blocks(one.read()),
                self._touched_blocks(fresh),
                self._touched_blocks(written),
                self._numbers([t for t in fresh if t.numel() == most or not most]),
                self._numbers([t for t in fresh if t.numel() == 1 < most]),
            )
        )

    def _given(self, leaf: Any) -> tuple[Hashable, ...]:
        """What an operator is given, to see whether another one is given the same."""
        if not isinstance(leaf, Tensor):
            return (leaf,)
        if not _on_device(leaf) or leaf.is_inference():
            return id(leaf), object()
        block = self.fused.block(self._numbers([leaf])[0])
        shape = leaf.shape, leaf.stride(), leaf.storage_offset()
        return block, leaf.dtype, leaf._version, *shape

    def _touched_blocks(self, tensors: Iterable[Tensor]) -> dict[int, int]:
        """Blocks that tensors lie in, and bytes of these [B]."""
        return {self.fused.block(self._numbers([t])[0]): _touched(t) for t in tensors}

    def _numbers(self, tensors: Sequence[Tensor]) -> list[int]:
        """Numbers of the blocks that tensors lie in."""
        self._notice(tensors)
        return [self._blocks[tensor.untyped_storage()._cdata] for tensor in tensors]

    def _add(self, call: int, stream: int, exchange: int = -1) -> int:
        """Record an operation; returns its number."""
        modules = self.modules
        at = stream, modules.phase(), self.record.number_of(modules.path())
        return self._add_at(call, *at, exchange)

    def _add_at(self, call: int, stream: int, phase: Phase, module: int, exchange: int = -1) -> int:
        number = self.record.moment
        self.record.operations.append(Operation(call, stream, phase, module, exchange))
        self.record.waits += [(number, before) for before in self.streams.waiting.pop(stream, ())]
        self.streams.last[stream] = number
        return number

    def _begin_kernel(self, stream: int, phase: Phase, module: int) -> int:
        """Record an operation whose bytes are not known yet."""
        call = Call("", (), (), (), 0, 0, 0)
        return self._add_at(self.record.number_of_call(call), stream, phase, module)

    def launch(self, name: str, arguments: Any) -> None:
        """Record a kernel that is no operator of torch: it reads and writes all it is given."""
        tensors = [t for t in map(local_part, _leaves(arguments)) if _on_device(t)]
        if self.paused or not tensors:
            return
        self.fused.end()
        num_bytes, sharded = (
            sum(map(_touched, each))
            for each in (tensors, [t for t in tensors if self._shards(t) > 1])
        )
        shapes = tuple(map(_described, tensors))
        call = Call(name, shapes, (), (), num_bytes, num_bytes, 2 * sharded)
        self._add(self.record.number_of_call(call), self.streams.current)

    def add_exchange(self, name: str, number: int, stream: int) -> int:
        """Record an exchange on a stream; returns the number of its operation."""
        self.fused.end()
        call = Call(name, (), (), (), 0, 0, 0)
        return self._add(self.record.number_of_call(call), stream, number)

    # Memory

    def _notice(self, tensors: Sequence[Tensor], shards: int = 1) -> None:
        """Take note of storages that are new."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._blocks:
                self._take(storage, key, shards)

    def _take(self, storage: torch.UntypedStorage, key: int, shards: int) -> None:
        num_bytes = storage_bytes(storage)
        modules, record = self.modules, self.record
        phase = modules.phase()
        owner = BlockOwner.TEMPORARY if self.owner is None else self.owner
        sure = Kept.GUESSED if self.owner is None else Kept.SEEN
        path = record.number_of(modules.path())
        number = len(record.blocks)
        record.blocks.append(
            Block(num_bytes, owner, path, phase, record.moment, shards=shards, sure=sure)
        )
        self._blocks[key] = number
        self._alive[key] = weakref.ref(storage, partial(self._forget, key))
        self._change(number, num_bytes)

    def _forget(self, key: int, _: object) -> None:
        number = self._blocks.pop(key)
        self._alive.pop(key, None)
        self._change(number, -self.record.blocks[number].num_bytes)
        block = self.record.blocks[number]
        block.given, block.given_phase = self.record.moment, self.modules.phase()

    def _change(self, number: int, num_bytes: int) -> None:
        if num_bytes:
            self.record.sizes.append((self.record.moment, number, num_bytes))
            self.now_bytes += num_bytes
            self.most_bytes = max(self.most_bytes, self.now_bytes)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage was given another size in place."""
        number = self._blocks.get(storage._cdata)
        if number is not None:
            block = self.record.blocks[number]
            num_bytes = storage_bytes(storage)
            self._change(number, num_bytes - block.num_bytes)
            block.num_bytes = num_bytes
            if self.owner is not None:
                block.owner, block.sure = self.owner, Kept.SEEN

    def block_of(self, tensor: Tensor) -> Block | None:
        """The block that a tensor lies in; None where it is not on the device."""
        local = local_part(tensor)
        if not _on_device(local):
            return None
        self._notice([local])
        number = self._blocks.get(local.untyped_storage()._cdata)
        return None if number is None else self.record.blocks[number]

    def say_owner(self, tensor: Tensor, owner: BlockOwner, shards: int = 1) -> None:
        """Say who holds a tensor's storage."""
        block = self.block_of(tensor)
        if block is not None:
            block.owner, block.sure = owner, Kept.SAID
            block.shards = max(block.shards, shards)

    def _shards(self, tensor: Tensor) -> int:
        number = self._blocks.get(tensor.untyped_storage()._cdata)
        return 1 if number is None else self.record.blocks[number].shards


def local_part(tensor: Any) -> Tensor:
    """This rank's part of a distributed tensor."""
    inner = getattr(tensor, "_local_tensor", None)
    local: Tensor = tensor if inner is None else inner
    held: Tensor | None = getattr(local, "elem", None)
    return local if held is None else held


def _leaves(tree: Any) -> Iterator[Tensor]:
    seen: set[int] = set()
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield leaf


def _on_device(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


def _described(tensor: Tensor) -> table.Tensor:
    return table.Tensor(str(tensor.dtype)[6:], tuple(tensor.shape))


def _touched(tensor: Tensor) -> int:
    """Bytes of the elements that differ: along an expanded axis there is one [B]."""
    counts = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, step in counts if step or not size) * tensor.element_size()


@cache
def _name(func: Any) -> str:
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


def _nothing(*_: Any, **__: Any) -> None:
    """What an operator without a result does to tensors without contents."""


@cache
def _has_no_meta(func: Any) -> bool:
    """Whether an operator only writes its arguments, of which fake tensors know nothing.

    Such are fused optimizers of which torch has no ``Meta`` kernel.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    is_plain = func.namespace == "aten" and not func._schema.returns
    return is_plain and not any(has_kernel(func.name(), key) for key in _META_KERNELS)


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
