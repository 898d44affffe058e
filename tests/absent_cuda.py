"""A device that is not there: code for CUDA runs on the processor, line for line.

Tensors asked for on ``cuda`` lie in host memory; ``torch.cuda`` answers from a small model of a
device whose memory is what the test says, and whose events are marks of the host's clock. What a
real device does (kernels, concurrency, refusals of shapes) is not shown by it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

TOTAL_BYTES = 140 * 2**30
FREE_BYTES = 139 * 2**30
RESERVED_BYTES = 2**21


class OnProcessor(TorchFunctionMode):
    """Takes CUDA out of the arguments of every function of torch."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        kwargs = {name: _moved(value) for name, value in (kwargs or {}).items()}
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*[_moved(value) for value in args], **kwargs)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class Event:
    """A mark of the host's clock. Torch refuses times of events that do not time."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at_s, self._times = None, enable_timing

    def record(self, stream: object = None) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        self._is_reached = True

    def elapsed_time(self, end: Event) -> float:
        assert self._times
        assert end._times
        # Torch raises where the end was not waited for.
        assert getattr(end, "_is_reached", False) or STATE.synchronised_at >= end.at_s
        return max(1e-6, (end.at_s - self.at_s) * 1e3)


class Stream:
    """A queue that holds nothing."""

    def wait_stream(self, other: object) -> None:
        assert isinstance(other, Stream)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Generator(torch.Generator):
    """One of the processor, whatever device is named."""

    def __new__(cls, device: object = None) -> Generator:
        return super().__new__(cls)


STATE = SimpleNamespace(synchronised_at=0.0)


def _synchronize(device: object = None) -> None:
    STATE.synchronised_at = time.perf_counter()


def _profile(activities: list[Any], **options: Any) -> Any:
    """Torch's profiler refuses an activity that is named twice."""
    return torch.profiler.profile(activities=list(dict.fromkeys(activities)), **options)


@contextlib.contextmanager
def absent_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``torch.cuda`` is available inside."""
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda *_: True,
        "get_device_name": lambda *_: "NVIDIA H200",
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (FREE_BYTES, TOTAL_BYTES),
        "memory_reserved": lambda *_: RESERVED_BYTES,
        "memory_allocated": lambda *_: 512,
        "max_memory_allocated": lambda *_: 2**30,
        "max_memory_reserved": lambda *_: 2**30 + RESERVED_BYTES,
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
        "synchronize": _synchronize,
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda *_: Stream(),
        "stream": lambda stream: stream,
        "clock_rate": lambda *_: 1980,
        "power_draw": lambda *_: 650_000,
        "temperature": lambda *_: 55,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch, "Generator", Generator)
    save = torch.autograd.graph.save_on_cpu
    monkeypatch.setattr(
        torch.autograd.graph, "save_on_cpu", lambda pin_memory=False: save(pin_memory=False)
    )
    # A profiler of CUDA on a build without it may wait for ever.
    cpu = torch.profiler.ProfilerActivity.CPU
    activities = SimpleNamespace(CPU=cpu, CUDA=cpu)
    for module in (
        "simulator.validate.torch_run.recorded_trace",
        "reports.make.gpu_bundle.device.training",
    ):
        monkeypatch.setattr(f"{module}.ProfilerActivity", activities)
        monkeypatch.setattr(f"{module}.profile", _profile)
    with OnProcessor():
        yield
