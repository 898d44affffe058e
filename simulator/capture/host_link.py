"""What does a captured copy between the device and its host cost, and who waits for it?

A copy runs on the stream that it is issued on. Where the code did not ask for ``non_blocking``, the
host launches nothing until it has ended.

Ignores: that memory which is not pinned is slower to reach, and that a copy from or to it makes the
host wait whatever the code asks for; the time in which the host casts what it has copied.

Source: torch's ``aten/src/ATen/native/cuda/Copy.cu`` (``copy_kernel_cuda`` on the current stream,
``memcpy_and_sync`` where it blocks).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.capture.table import Call
from simulator.cost.host import TO_DEVICE, TO_HOST
from simulator.described.job import Cluster
from simulator.program.ir import Kind, Stream, Work
from simulator.program.run.host_copies import COPIES, copy_work

_LINKS: Mapping[str, str] = MappingProxyType(
    {"host.copy_to_host": TO_HOST, "host.copy_to_device": TO_DEVICE}
)
"""The link of each copy, by its name in a captured step."""


def host_copy_call(num_bytes: int, *, to_host: bool, waits: bool, sharded_bytes: int = 0) -> Call:
    """A copy as a captured step names it.

    Args:
        num_bytes: What passes the link [B].
        to_host: Which way.
        waits: Whether the host waits for its end.
        sharded_bytes: The part in shards that get smaller with more data ranks [B].
    """
    read_bytes, written_bytes = (num_bytes, 0) if to_host else (0, num_bytes)
    name = "host.copy_to_host" if to_host else "host.copy_to_device"
    return Call(name, (), (), (float(waits),), read_bytes, written_bytes, sharded_bytes)


def is_host_copy(call: Call) -> bool:
    """Whether a call copies between the device and its host."""
    return call.name in _LINKS


def is_waited_for(call: Call) -> bool:
    """Whether the host waits for the end of a call."""
    return is_host_copy(call) and any(call.settings)


def kind_of_copy(call: Call) -> Kind:
    """What a copy is in a program."""
    return COPIES[_LINKS[call.name]][0]


def stream_beside(call: Call) -> Stream:
    """Where a copy runs that was not issued on the compute stream: each direction by itself."""
    return COPIES[_LINKS[call.name]][1]


def host_copy_work(call: Call, cluster: Cluster, shrink: float) -> Work:
    """Cost of a copy.

    Args:
        call: The copy.
        cluster: The system, and how many GPUs share a host.
        shrink: Factor on bytes in shards of data ranks, where there are more ranks than captured.
    """
    num_bytes = call.read_bytes + call.written_bytes - (1 - shrink) * call.sharded_bytes
    return copy_work(cluster, _LINKS[call.name], num_bytes)
