"""Traces as torch's profiler writes them, made by hand."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 1, 2
"""Threads of the host."""

Event = dict[str, Any]


def span(name: str, category: str, start_us: float, length_us: float, **args: Any) -> Event:
    """A complete event of the main thread."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 7, "tid": MAIN,
        "ts": start_us, "dur": length_us, "args": args,
    }  # fmt: skip


def operator(name: str, start_us: float, length_us: float, thread: int = MAIN) -> Event:
    """An operator that ran on the CPU."""
    return span(name, "cpu_op", start_us, length_us) | {"tid": thread}


def annotation(name: str, start_us: float, length_us: float) -> Event:
    """A range that somebody named."""
    return span(name, "user_annotation", start_us, length_us)


class Gpu:
    """Kernels and their launches."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._numbers = count(1)

    def run(
        self,
        name: str,
        launched_us: float,
        start_us: float,
        length_us: float,
        *,
        thread: int = MAIN,
        category: str = "kernel",
        **args: Any,
    ) -> None:
        """Launch a kernel from a thread of the host."""
        number = next(self._numbers)
        launch = span("cudaLaunchKernel", "cuda_runtime", launched_us, 1.0, correlation=number)
        kernel = span(name, category, start_us, length_us, correlation=number, device=0, **args)
        self.events += [launch | {"tid": thread}, kernel | {"pid": 0, "tid": 7}]


def write_trace(path: Path, events: Sequence[Event], **header: Any) -> Path:
    """Write a trace, compressed if the suffix says so."""
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": list(events)}, indent=1)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def world(rank: int, ranks: int) -> dict[str, Any]:
    """What a trace says of its rank."""
    return {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks}}
