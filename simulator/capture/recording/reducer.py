"""How does DistributedDataParallel reduce gradients?

Torch's own reducer is C++ and needs gradients with contents. This one does the same to gradients
without: each is divided and copied into its bucket when it is ready; a bucket is reduced when it
is full, in the order of the buckets, beside backward; at the end each gradient is copied back, or
stays a view of its bucket. After the first step buckets follow the order in which gradients came.

Source: ``torch/csrc/distributed/c10d/reducer.cpp`` and the notes of the class
``DistributedDataParallel``; checked against the buckets that torch reports to a hook.

Ignores: sparse gradients and mixed precision of DistributedDataParallel's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import distributed

from simulator.capture.recording.absent_streams import replaced
from simulator.capture.recording.groups import Groups
from simulator.capture.recording.recorder import Recorder
from simulator.capture.table import BlockOwner

_STEP_AFTER_NEW_BUCKETS = 2
"""The first step, from 0, whose buckets are those of all later ones."""


class _Bucket:
    """Gradients that are reduced together."""

    def __init__(self, members: Sequence[int], parameters: Sequence[Tensor], index: int) -> None:
        self.members, self.index = tuple(members), index
        self.parameters = [parameters[i] for i in members]
        first = self.parameters[0]
        numel = sum(p.numel() for p in self.parameters)
        self.flat = torch.empty(numel, dtype=first.dtype, device=first.device)
        pieces = torch.split(self.flat, [p.numel() for p in self.parameters])
        views = (v.view(p.shape) for v, p in zip(pieces, self.parameters, strict=True))
        self.views = dict(zip(members, views, strict=True))
        self.missing = set(members)
        self.work: Any = None


class _HookBucket:
    """What a communication hook is given, as ``torch.distributed.GradBucket``."""

    def __init__(self, bucket: _Bucket, is_last: bool) -> None:
        self._bucket, self._is_last = bucket, is_last

    def buffer(self) -> Tensor:
        return self._bucket.flat

    def index(self) -> int:
        return self._bucket.index

    def is_last(self) -> bool:
        return self._is_last

    def parameters(self) -> list[Tensor]:
        return self._bucket.parameters

    def gradients(self) -> list[Tensor]:
        return list(self._bucket.views.values())

    def set_buffer(self, flat: Tensor) -> None:
        self._bucket.flat = flat


def reducer_class(recorder: Recorder, groups: Groups) -> type:
    """A class that stands in for ``torch.distributed.Reducer``."""

    class Reducer:
        def __init__(  # noqa: PLR0917 - the signature is torch's
            self,
            parameters: Sequence[Tensor],
            buckets: Sequence[Sequence[int]],
            limits: Sequence[int],
            group: Any,
            expect_sparse: Sequence[bool],
            cap_bytes: int,
            find_unused: bool,
            as_views: bool,
            names: Any,
            first_cap_bytes: int,
            *_: Any,
        ) -> None:
            del limits, names
            recorder.record.kept_step = _STEP_AFTER_NEW_BUCKETS
            self.parameters, self.group, self.as_views = list(parameters), group, as_views
            self.caps = [first_cap_bytes, cap_bytes]
            self.expect_sparse, self.find_unused = expect_sparse, find_unused
            self.hook: Callable[..., Any] | None = None
            self.ready: list[int] = []
            self.rebuilt = find_unused
            self.is_expected = False
            self.buckets: list[_Bucket] = []
            self._build(buckets)
            for number, parameter in enumerate(self.parameters):
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    self._on_gradient(number)
                )

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _nothing

        def _build(self, buckets: Sequence[Sequence[int]]) -> None:
            owner = BlockOwner.GRADIENT if self.as_views else BlockOwner.COMMUNICATION
            self.buckets = [_Bucket(each, self.parameters, i) for i, each in enumerate(buckets)]
            for bucket in self.buckets:
                recorder.say_owner(bucket.flat, owner)

        def _rebuild_buckets(self) -> bool:
            if self.rebuilt or not self.ready:
                return False
            tensors = [self.parameters[i] for i in self.ready]
            order, _ = dist._compute_bucket_assignment_by_size(  # type: ignore[attr-defined]
                tensors, self.caps, [False] * len(tensors), self.ready
            )
            self.buckets = []
            self._build(order)
            self.rebuilt = True
            return True

        def prepare_for_backward(self, _: Any) -> None:
            self.is_expected, self.next, self.ready = True, 0, []
            self.is_queued = False
            for bucket in self.buckets:
                bucket.missing, bucket.work = set(bucket.members), None

        def _on_gradient(self, number: int) -> Callable[[Tensor], None]:
            def on_gradient(parameter: Tensor) -> None:
                if self.is_expected:
                    self._take(number, parameter)

            return on_gradient

        @torch.no_grad()
        def _take(self, number: int, parameter: Tensor) -> None:
            if not self.is_queued:
                self.is_queued = True
                Variable._execution_engine.queue_callback(self._finish)
            self.ready.append(number)
            bucket = next(b for b in self.buckets if number in b.views)
            view, gradient = bucket.views[number], parameter.grad
            assert gradient is not None
            if self.as_views and gradient.untyped_storage()._cdata == view.untyped_storage()._cdata:
                if self.hook is None:
                    view.div_(self.group.size())
            elif self.hook is None:
                torch.mul(gradient, 1.0 / self.group.size(), out=view)
            else:
                view.copy_(gradient)
            if self.as_views:
                parameter.grad = view
            bucket.missing.discard(number)
            while self.next < len(self.buckets) and not self.buckets[self.next].missing:
                self._reduce(self.buckets[self.next])
                self.next += 1

        def _reduce(self, bucket: _Bucket) -> None:
            before, groups.axes = groups.axes, {"all_reduce": "dp"}
            if self.hook is None:
                bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
            else:
                is_last = bucket is self.buckets[-1]
                bucket.work = self.hook(self.state, _HookBucket(bucket, is_last))
            groups.axes = before

        @torch.no_grad()
        def _finish(self) -> None:
            for bucket in self.buckets[self.next :]:
                self._reduce(bucket)
            self.is_expected = False
            for bucket in self.buckets:
                bucket.work.wait()
                if self.as_views:
                    continue
                for number, view in bucket.views.items():
                    gradient = self.parameters[number].grad
                    if gradient is not None:
                        gradient.copy_(view)

    return Reducer


def _nothing(*_: Any, **__: Any) -> None:
    """What only a real run needs."""


class _Logger:
    """Stands in for ``torch.distributed.Logger``, which reads real times."""

    def __init__(self, *_: Any) -> None: ...

    def _get_ddp_logging_data(self) -> SimpleNamespace:
        return SimpleNamespace(strs_map={}, ints_map={})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


@contextlib.contextmanager
def reduced(recorder: Recorder, groups: Groups) -> Iterator[None]:
    """Inside, DistributedDataParallel works on gradients without contents."""

    def register_hook(reducer: Any, state: Any, hook: Any) -> None:
        reducer.state, reducer.hook = state, hook

    def register_builtin(reducer: Any, kind: Any) -> None:
        built_in = SimpleNamespace(
            ALLREDUCE=default_hooks.allreduce_hook,
            FP16_COMPRESS=default_hooks.fp16_compress_hook,
        )
        register_hook(reducer, None, getattr(built_in, str(kind).rsplit(".", 1)[-1]))

    with replaced(
        {
            (dist, "Reducer"): reducer_class(recorder, groups),
            (dist, "Logger"): _Logger,
            (dist, "_register_comm_hook"): register_hook,
            (dist, "_register_builtin_comm_hook"): register_builtin,
            (distributed, "_verify_param_shape_across_processes"): lambda *_: True,
            (distributed, "_sync_module_states"): _nothing,
            (dist, "_broadcast_coalesced"): _nothing,
        }
    ):
        yield
