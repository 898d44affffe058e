"""Which collectives does a rank issue, in which groups, and what waits for them?

A collective that the code waits for at once runs on the stream that it is issued on, as NCCL's
do; one issued with ``async_op`` runs beside it, and its ``wait`` holds up the stream that is
current then. Transfers between two ranks run beside everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from simulator.capture.recording.absent_streams import replaced
from simulator.capture.recording.recorder import Recorder
from simulator.capture.table import FIRST_BESIDE, BlockOwner, Exchange, Phase

_KINDS = {
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "send": "send_recv",
    "recv_": "send_recv",
}
_AXES = ("dp_replicate", "dp_shard", "dp", "fsdp", "ddp", "tp", "pp", "ep", "cp", "etp", "edp")


class Groups:
    """Writes down exchanges.

    Attributes:
        axes: Degree that exchanges of a kind belong to now, where the code around says it.
        last: Number of the operation that was the last exchange; -1 before any.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.axes: Mapping[str, str] = {}
        self.last = -1
        self._results: dict[int, int] = {}
        self._streams: dict[object, int] = {}
        recorder.exchange = self.exchange

    def exchange(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record one operator of a process group."""
        recorder = self._recorder
        name = func._schema.name.split("::")[1]
        if name == "wait_tensor":
            self._wait_tensor(args[0])
            return
        outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        if name not in _KINDS:
            recorder.notice([t for t in outputs if t.device.type == "cuda"])
            return
        group = _group_of(args)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if group is None or not any(t.device.type == "cuda" for t in tensors):
            return  # of the host, such as an agreement on sizes
        named = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
        transfer, beside = _KINDS[name] == "send_recv", named.get("async_op", True)
        peer = -1
        if transfer:
            for tensor in tensors:
                block = recorder.block_of(tensor)
                if name == "recv_" or (block is not None and block.phase is Phase.FORWARD):
                    recorder.say_owner(tensor, BlockOwner.COMMUNICATION)
            peer = dist.get_global_rank(group, named["dst" if name == "send" else "src"])
        ranks = tuple(dist.get_process_group_ranks(group))
        exchange = Exchange(
            _KINDS[name],
            recorder.record.groups.setdefault(ranks, len(recorder.record.groups)),
            _message_bytes(args, result),
            "pp" if transfer else self._axis(group, ranks, _KINDS[name]),
            peer,
            name == "send",
        )
        stream = (
            self._beside((group.group_name, name, peer)) if beside else recorder.streams.current
        )
        if beside:
            recorder.streams.wait(stream, recorder.streams.reached(recorder.streams.current))
        recorder.record.exchanges.append(exchange)
        number = len(recorder.record.exchanges) - 1
        self.last = recorder.add_exchange(f"{func.namespace}.{name}", number, stream)
        recorder.notice([t for t in outputs if t.device.type == "cuda"])
        if func.namespace != "c10d":
            self._results |= {t.untyped_storage()._cdata: self.last for t in outputs}

    def wait(self, operation: int) -> None:
        """The current stream waits for an exchange."""
        if operation >= 0:
            self._recorder.streams.wait(self._recorder.streams.current, [operation])

    def _wait_tensor(self, tensor: Tensor) -> None:
        self.wait(self._results.pop(tensor.untyped_storage()._cdata, -1))

    def _beside(self, key: object) -> int:
        return self._streams.setdefault(key, FIRST_BESIDE + len(self._streams))

    def _axis(self, group: Any, ranks: Sequence[int], kind: str) -> str:
        if kind in self.axes:
            return self.axes[kind]
        said = (getattr(group, "group_desc", "") or "").removeprefix("mesh_")
        if said in _AXES:
            return {"fsdp": "dp_shard", "ddp": "dp"}.get(said, said)
        if kind == "all_to_all":
            return "ep"
        return "world" if len(ranks) == dist.get_world_size() else said or "group"


class PendingWork:
    """What an exchange with ``async_op`` returns to the code."""

    def __init__(self, groups: Groups, operation: int, result: Any) -> None:
        self._groups, self._operation, self._result = groups, operation, result

    def wait(self, *_: Any) -> bool:
        """The stream that is current waits."""
        self._groups.wait(self._operation)
        return True

    def block_current_stream(self) -> None:
        """The same."""
        self.wait()

    def is_completed(self) -> bool:
        """True: nothing is under way where nothing runs."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def get_future(self) -> Any:
        """A future that is done; whoever waits for it waits for the exchange."""
        future: Any = torch.futures.Future()
        future.set_result(self._result)
        before = future.wait

        def wait() -> Any:
            self.wait()
            return before()

        future.wait = wait
        return future


@contextlib.contextmanager
def followed(groups: Groups) -> Iterator[None]:
    """Inside, what process groups hand out remembers its exchange."""
    names = (
        "allreduce", "allgather", "_allgather_base", "_reduce_scatter_base", "reduce_scatter",
        "broadcast", "reduce", "alltoall", "alltoall_base", "send", "recv",
    )  # fmt: skip
    process_group = dist.ProcessGroup
    wrapped = {
        (process_group, name): _remembering(groups, getattr(process_group, name))
        for name in names
        if hasattr(process_group, name)
    }

    def batch(operations: Sequence[Any]) -> list[Any]:
        return [
            each.op(each.tensor, group=each.group, tag=each.tag, group_dst=each.group_peer)
            if each.op is dist.isend
            else each.op(each.tensor, group=each.group, tag=each.tag, group_src=each.group_peer)
            for each in operations
        ]

    places = (dist, dist.distributed_c10d)
    batches: dict[tuple[Any, str], Any] = {(place, "batch_isend_irecv"): batch for place in places}
    with replaced(wrapped | batches):
        yield


def _remembering(groups: Groups, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        groups.last = -1
        result = method(self, *args, **kwargs)
        return PendingWork(groups, groups.last, result)

    return call


def _group_of(args: Any) -> Any:
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            return dist.ProcessGroup.unbox(arg)
    for arg in reversed(args):
        if isinstance(arg, str):
            name: Any = arg
            return torch._C._distributed_c10d._resolve_process_group(name)
    return None


def _message_bytes(args: Any, result: Any) -> int:
    """The whole buffer: output of a gather, input of a scatter."""

    def total(tree: Any) -> int:
        seen = {id(t): t for t in tree_leaves(tree) if isinstance(t, Tensor)}
        return sum(t.numel() * t.element_size() for t in seen.values())

    return max((total(each) for each in (*args, result)), default=0)
