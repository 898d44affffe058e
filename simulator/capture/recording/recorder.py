"""What does one rank of the user's code launch, send, take and give back?

A dispatch mode below autograd sees every operator as the device would run it. Operators that
only look at a tensor in another way launch nothing; factories take memory and launch nothing.

Ignores: memory that a kernel takes for itself while it runs, and workspaces of libraries.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves

from simulator.capture.merged_operations import layer_of, unit_of
from simulator.capture.recording.absent_streams import Streams
from simulator.capture.recording.fused import FusedKernels, Work, is_fusible
from simulator.capture.recording.modules import Modules, in_backward
from simulator.capture.recording.operators import (
    Operator,
    described,
    on_device,
    takes_the_first,
    tensors_in,
    touched_bytes,
)
from simulator.capture.recording.record import Block, Kept, Operation, Record
from simulator.capture.recording.refusals import refuse_sparse_gradients
from simulator.capture.recording.unknown.selections import selected
from simulator.capture.recording.unknown.values import with_its_numbers
from simulator.capture.table import BlockOwner, Call, Phase

_NAMESPACES_OF_EXCHANGES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
_META_KERNELS = ("Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
_ALLOCATION_BYTES = 512
"""Device memory is handed out in multiples of this. Source: ``kMinBlockSize`` of torch's
``CUDACachingAllocator``."""


def storage_bytes(storage: torch.UntypedStorage) -> int:
    """What a storage takes of the device [B]."""
    return -(-storage.nbytes() // _ALLOCATION_BYTES) * _ALLOCATION_BYTES


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
        self.fused = FusedKernels(record, self._begin_kernel, self._resize)
        self.now_bytes = self.most_bytes = 0
        self._blocks: dict[int, int] = {}
        self._copies: Counter[int] = Counter()
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
        # Memory of the host is none of the device's, pinned or not.
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        device = kwargs.get("device")
        if device is not None and device.type == "cuda" and device.index:
            # A rank has one device; code may number it by its place in the node.
            kwargs = {**kwargs, "device": torch.device("cuda", 0)}
        run: Callable[..., Any] = _nothing if _has_no_meta(func) else func
        if self.paused:
            return run(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._number(func, args)
        is_in_place = takes_the_first(func, args)
        try:
            result = with_its_numbers(func, args, kwargs, _made(run, args, kwargs))
        except Exception as error:
            if in_backward():
                self.on_error(error)
            raise
        if func.namespace in _NAMESPACES_OF_EXCHANGES:
            self.exchange(func, args, kwargs, result)
        else:
            one = Operator(func, args, kwargs, result)
            refuse_sparse_gradients(one.name, args)
            if is_in_place and on_device(args[0]):
                self._lie_in(one.outputs, self._numbers(one.inputs[:1]))
            self._operator(one)
        return result

    def _number(self, func: Any, args: Any) -> Any:
        """A value that only a run knows; where it decides something, :mod:`.values` refuses."""
        is_fake = isinstance(args[0], FakeTensor)
        if not is_fake or args[0].constant is not None:
            return func(*args)
        kind = args[0].dtype
        return math.nan if kind.is_floating_point else False if kind is torch.bool else 0

    def _operator(self, one: Operator) -> None:
        inputs, outputs = one.inputs, one.outputs
        if one.is_silent:
            self.notice(outputs)
            return
        if not inputs and not outputs:
            return
        copies = one.host_copies(self._shards)
        if copies:
            self.fused.end()
            for copy in copies:
                self._add(self.record.number_of_call(copy), self.streams.current)
            self.notice(outputs)
            return
        if is_fusible(one.func) and self.modules.is_compiled:
            self._fuse(one)
            return
        if self.fused.is_open or self.fused.made_again:
            self.fused.give(self._numbers(inputs))
        call = self._call(one)
        if one.name == "aten.embedding" and self.modules.phase() is Phase.FORWARD:
            self.lookups.append((self.record.moment, inputs[-1].numel()))
        self._add(call, self.streams.current)
        self.notice(outputs)
        if self.fused.is_open:
            self.fused.pass_by(self._numbers(inputs), self._numbers(outputs))

    def _call(self, one: Operator) -> int:
        call = one.call(self._shards)
        if call.sharded_bytes and self.modules.phase() is Phase.OPTIMIZER:
            sharded = (self._shards(t) for t in (*one.sources(), *one.fresh()))
            self.notice(one.fresh(), shards=next((n for n in sharded if n > 1), 1))
        return self.record.number_of_call(call)

    def _fuse(self, one: Operator) -> None:
        """Record an operator of compiled code, as part of the kernel before it or as a new one."""
        modules, stream = self.modules, self.streams.current
        if stream in self.streams.waiting:
            self.fused.end()
        phase, path = modules.phase(), modules.path()
        side = Phase.BACKWARD if phase is Phase.RECOMPUTE and not modules.is_again else phase
        self.fused.enter(stream, side, unit_of(path) if layer_of(path) >= 0 else "")
        fresh, written = one.fresh(), one.written()
        leaves = tree_leaves((one.args, one.kwargs))
        what = () if written else (one.func, *map(self._given, leaves))
        before = self.fused.done_before(what) if what else ()
        if before and len(before) == len(one.outputs) == len(fresh):
            self._lie_in(fresh, before)
            return
        self.notice(one.outputs)
        if what:
            self.fused.note_done(what, self._numbers(one.outputs))
        most = max((t.numel() for t in one.inputs), default=0)
        self.fused.add(
            Work(
                (stream, phase, self.record.number_of(path)),
                self._touched_blocks(one.read()),
                self._touched_blocks(fresh),
                self._touched_blocks(written),
                self._numbers([t for t in fresh if t.numel() == most or not most]),
                self._numbers([t for t in fresh if t.numel() == 1 < most]),
                any(1 < t.numel() < most for t in fresh),
            )
        )

    def _given(self, leaf: Any) -> tuple[Hashable, ...]:
        """What an operator is given, to see whether another one is given the same."""
        if not isinstance(leaf, Tensor):
            return (leaf,)
        if not on_device(leaf) or leaf.is_inference():
            return id(leaf), object()
        block = self._numbers([leaf])[0]
        shape = leaf.shape, leaf.stride(), leaf.storage_offset()
        return block, leaf.dtype, leaf._version, *shape

    def _touched_blocks(self, tensors: Iterable[Tensor]) -> dict[int, int]:
        """Blocks that tensors lie in, and bytes of these [B]."""
        return {self._numbers([t])[0]: touched_bytes(t) for t in tensors}

    def returned(self, result: object) -> None:
        """Compiled code returns something, which it has to write."""
        if self.fused.is_open:
            tensors = map(local_part, tensors_in(result))
            self.fused.give(self._numbers([t for t in tensors if on_device(t)]))
            self.fused.leave()

    def _numbers(self, tensors: Sequence[Tensor]) -> list[int]:
        """Numbers of the blocks that tensors lie in."""
        self.notice(tensors)
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
        tensors = [t for t in map(local_part, tensors_in(arguments)) if on_device(t)]
        if self.paused or not tensors:
            return
        self.fused.end()
        num_bytes, sharded = (
            sum(map(touched_bytes, each))
            for each in (tensors, [t for t in tensors if self._shards(t) > 1])
        )
        shapes = tuple(map(described, tensors))
        call = Call(name, shapes, (), (), num_bytes, num_bytes, 2 * sharded)
        self._add(self.record.number_of_call(call), self.streams.current)

    def add_exchange(self, name: str, number: int, stream: int) -> int:
        """Record an exchange on a stream; returns the number of its operation."""
        self.fused.end()
        call = Call(name, (), (), (), 0, 0, 0)
        return self._add(self.record.number_of_call(call), stream, number)

    # Memory

    def notice(self, tensors: Sequence[Tensor], shards: int = 1) -> None:
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
        self._follow(storage, number)
        self._change(number, num_bytes)

    def _lie_in(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Storages of compiled code that are no others than those of earlier results."""
        for tensor, number in zip(tensors, numbers, strict=True):
            block = self.record.blocks[number]
            if block.given < 0:
                self._copies[number] += 1
            else:
                block.given = -1
                self._change(number, block.num_bytes)
            self._follow(tensor.untyped_storage(), number)

    def _follow(self, storage: torch.UntypedStorage, number: int) -> None:
        key = storage._cdata
        self._blocks[key] = number
        self._alive[key] = weakref.ref(storage, partial(self._forget, key))

    def _forget(self, key: int, _: object) -> None:
        number = self._blocks.pop(key)
        self._alive.pop(key, None)
        if self._copies[number]:
            self._copies[number] -= 1
            return
        block = self.record.blocks[number]
        self._change(number, -block.num_bytes)
        block.given, block.given_phase = self.record.moment, self.modules.phase()
        self.fused.made_again.gone(number)

    def _resize(self, number: int, num_bytes: int) -> None:
        block = self.record.blocks[number]
        self._change(number, num_bytes - block.num_bytes)
        block.num_bytes = num_bytes

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
            self._resize(number, storage_bytes(storage))
            if self.owner is not None:
                block.owner, block.sure = self.owner, Kept.SEEN

    def block_of(self, tensor: Tensor) -> Block | None:
        """The block that a tensor lies in; None where it is not on the device."""
        local = local_part(tensor)
        if not on_device(local):
            return None
        self.notice([local])
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


def _nothing(*_: Any, **__: Any) -> None:
    """What an operator without a result does to tensors without contents."""


def _made(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What an operator makes; where contents decide its shape, of the one that is stated."""
    try:
        return run(*args, **kwargs)
    except DynamicOutputShapeException:
        found = selected(run, args, kwargs)
        if found is None:
            raise
        return found


@cache
def _has_no_meta(func: Any) -> bool:
    """Whether an operator only writes its arguments, of which fake tensors know nothing.

    Such are fused optimizers of which torch has no ``Meta`` kernel.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    is_plain = func.namespace == "aten" and not func._schema.returns
    return is_plain and not any(has_kernel(func.name(), key) for key in _META_KERNELS)
