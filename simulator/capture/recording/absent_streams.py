"""What does ``torch.cuda`` answer where there is no GPU?

Streams and events keep the order that the code asks for; memory statistics are those of the
recorded tensors; properties are the profile's. Everything else that would touch a device does
nothing. FSDP2, DDP and the user's code see one module, ``torch.cuda``, so what is replaced there
is replaced for all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch


@dataclass
class DeviceAnswers:
    """What the code may learn of its device.

    Attributes:
        name: As the driver would say it.
        memory_bytes: Total memory [B].
        sm_count: Multiprocessors.
        capability: Major and minor of the compute capability.
        local_ranks: Devices of a node; this rank's is number 0.
    """

    name: str
    memory_bytes: int
    sm_count: int
    capability: tuple[int, int]
    local_ranks: int

    def properties(self, *_: object, **__: object) -> SimpleNamespace:
        """As ``torch.cuda.get_device_properties`` returns them."""
        major, minor = self.capability
        return SimpleNamespace(
            name=self.name,
            total_memory=self.memory_bytes,
            multi_processor_count=self.sm_count,
            major=major,
            minor=minor,
            warp_size=32,
            is_integrated=0,
            gcnArchName="",
            L2_cache_size=0,
        )


@dataclass
class Streams:
    """The streams of one rank and which of them is current.

    Attributes:
        last: The last operation of each stream.
        waiting: Operations that the next one of each stream waits for.
        current: The stream that operations are issued on; 0 is the default one.
    """

    last: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, set[int]] = field(default_factory=dict)
    current: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def reached(self, stream: int) -> tuple[int, ...]:
        """Operations that have ended when a stream has come to where it is now."""
        last = self.last.get(stream, -1)
        return (*self.waiting.get(stream, ()), *((last,) if last >= 0 else ()))

    def wait(self, stream: int, operations: Iterable[int]) -> None:
        """What the stream runs next waits for operations."""
        own = self.last.get(stream)
        self.waiting.setdefault(stream, set()).update(o for o in operations if o != own)

    def stream_class(streams) -> type:  # noqa: N805 - the class inside has the other self
        """A ``torch.cuda.Stream`` of this rank."""

        class Stream:
            def __init__(self, device: Any = None, priority: int = 0, **known: Any) -> None:
                del device, priority
                self.stream_id = known.get("stream_id") or next(streams._numbers)
                self.cuda_stream = self.stream_id
                self.device = torch.device("cuda", torch.cuda.current_device())
                self.device_index = self.device.index

            def wait_event(self, event: Any) -> None:
                event.wait(self)

            def wait_stream(self, other: Any) -> None:
                streams.wait(self.stream_id, streams.reached(other.stream_id))

            def record_event(self, event: Any = None) -> Any:
                make: Any = torch.cuda.Event
                event = event or make()
                event.record(self)
                return event

            def synchronize(self) -> None:
                """The host waits; the recorded order stays."""

            def query(self) -> bool:
                return True

            def is_capturing(self) -> bool:
                return False

            def __enter__(self) -> Any:
                self._before = streams.current
                streams.current = self.stream_id
                return self

            def __exit__(self, *_: object) -> None:
                streams.current = self._before

            def __eq__(self, other: object) -> bool:
                return getattr(other, "stream_id", None) == self.stream_id

            def __hash__(self) -> int:
                return hash(self.stream_id)

        Stream.__name__ = Stream.__qualname__ = "Stream"
        return Stream

    def event_class(streams) -> type:  # noqa: N805
        """A ``torch.cuda.Event`` of this rank."""

        class Event:
            def __init__(self, *_: Any, **__: Any) -> None:
                self.reached: tuple[int, ...] = ()

            def record(self, stream: Any = None) -> Any:
                number = streams.current if stream is None else stream.stream_id
                self.reached = streams.reached(number)
                return self

            def wait(self, stream: Any = None) -> None:
                number = streams.current if stream is None else stream.stream_id
                streams.wait(number, self.reached)

            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                """The host waits; the recorded order stays."""

            def elapsed_time(self, _: Any) -> float:
                return float("nan")

        return Event


def cuda_answers(
    streams: Streams, device: DeviceAnswers, allocated: Callable[[], tuple[int, int]]
) -> Mapping[str, Any]:
    """Everything that is replaced in ``torch.cuda``, by name.

    Args:
        streams: The rank's.
        device: What the code may learn of it.
        allocated: Bytes held now, and at most so far [B].
    """
    stream, event = streams.stream_class(), streams.event_class()

    def current_stream(_: Any = None) -> Any:
        return stream(stream_id=streams.current) if streams.current else default_stream()

    def default_stream(_: Any = None) -> Any:
        zero = stream(stream_id=1 << 40)
        zero.stream_id = zero.cuda_stream = 0
        return zero

    @contextlib.contextmanager
    def on_stream(which: Any) -> Iterator[None]:
        if which is None:
            yield
            return
        with which:
            yield

    def set_stream(which: Any) -> None:
        streams.current = which.stream_id

    def nothing(*_: Any, **__: Any) -> None:
        """What would touch a device."""

    def statistics(*_: Any) -> dict[str, int]:
        now, most = allocated()
        names = ("allocated_bytes.all", "reserved_bytes.all", "active_bytes.all")
        found = {f"{n}.{when}": v for n in names for when, v in (("current", now), ("peak", most))}
        return {**found, "num_alloc_retries": 0, "num_ooms": 0}

    def free_and_total(*_: Any) -> tuple[int, int]:
        return device.memory_bytes - allocated()[0], device.memory_bytes

    answers: dict[str, Any] = {
        "Stream": stream,
        "Event": event,
        "ExternalStream": stream,
        "stream": on_stream,
        "StreamContext": on_stream,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: device.capability >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: device.local_ranks,
        "current_device": lambda: 0,
        "get_device_properties": device.properties,
        "get_device_name": lambda *_: device.name,
        "get_device_capability": lambda *_: device.capability,
        "get_arch_list": lambda: ["sm_{}{}".format(*device.capability)],
        "can_device_access_peer": lambda *_: True,
        "memory_allocated": lambda *_: allocated()[0],
        "memory_reserved": lambda *_: allocated()[0],
        "max_memory_allocated": lambda *_: allocated()[1],
        "max_memory_reserved": lambda *_: allocated()[1],
        "memory_stats": statistics,
        "memory_stats_as_nested_dict": lambda *_: {},
        "mem_get_info": free_and_total,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": list,
        "initial_seed": lambda: 0,
    }
    silent = (
        "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated",
        "reset_accumulated_memory_stats", "manual_seed", "manual_seed_all", "seed", "seed_all",
        "set_rng_state", "set_rng_state_all", "init", "_lazy_init", "ipc_collect",
        "set_per_process_memory_fraction", "_sleep", "set_device",
    )  # fmt: skip
    return answers | dict.fromkeys(silent, nothing)


class HostGenerator(torch.Generator):
    """A ``torch.Generator`` that names the device it is asked for, with its state on the host."""

    def __new__(cls, device: Any = None) -> HostGenerator:
        """Without the device, for which a build without CUDA has no generator."""
        del device
        return super().__new__(cls)

    def __init__(self, device: Any = "cpu") -> None:
        self._named = torch.device(device)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """What the code asked for."""
        return self._named


_SAME_NAME = (
    "current_stream", "set_stream", "synchronize", "is_available", "device_count", "empty_cache",
    "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved",
    "memory_stats", "reset_peak_memory_stats", "reset_accumulated_memory_stats",
)  # fmt: skip
_OF_ACCELERATOR: Mapping[str, str] = {
    **{name: name for name in _SAME_NAME},
    **dict.fromkeys(("current_device_index", "current_device_idx"), "current_device"),
    **dict.fromkeys(("set_device_index", "set_device_idx"), "set_device"),
    "get_memory_info": "mem_get_info",
}
"""What ``torch.accelerator`` asks of ``torch.cuda``, by its names."""


@contextlib.contextmanager
def answered(answers: Mapping[str, Any]) -> Iterator[None]:
    """Inside, ``torch.cuda`` gives these answers, wherever code has it from.

    So does ``torch.accelerator``, whose own streams would take an event of ``torch.cuda`` for one
    of theirs: FSDP2 asks it where a parameter gets no gradient.
    """
    places = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams)
    known = {
        (place, name): answers[name] for place in places for name in answers if hasattr(place, name)
    }
    ranges = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA")
    unnamed = SimpleNamespace(**dict.fromkeys(ranges, lambda *_: 0))  # of a profiler
    other = {(torch, "Generator"): HostGenerator, (torch.cuda.nvtx, "_nvtx"): unnamed}
    other |= {
        (torch.accelerator, name): answers[asked]
        for name, asked in _OF_ACCELERATOR.items()
        if hasattr(torch.accelerator, name)
    }
    with replaced({**known, **other}):
        yield


_INHERITED = object()
"""In place of an attribute that an owner has from its class."""


@contextlib.contextmanager
def replaced(values: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Inside, attributes have other values; afterwards their own again.

    What a class holds is put back as it lay there: asked for by name, a method of C++ is a function
    that no longer knows its object.
    """
    before = {(owner, name): vars(owner).get(name, _INHERITED) for owner, name in values}
    try:
        for (owner, name), value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def everywhere(function: Any, other: Any) -> dict[tuple[Any, str], Any]:
    """The other function in its place, in every module that has it by name.

    Modules of the user count: a notebook has imported it before its step is captured.
    """
    name = function.__name__
    modules = [module for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    return {(m, name): other for m in modules if vars(m).get(name) is function}
