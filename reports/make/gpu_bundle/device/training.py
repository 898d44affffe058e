"""How long does one training run's step take, in which kernels, and what does it hold?

Warm-up steps fill caches and allocator, then every step stands between two events of the stream.
Two more, whose time is not counted, tell what each phase holds and, under torch's profiler, when
every kernel ran.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from reports.make.gpu_bundle.device.memory_items import device_bytes
from reports.make.gpu_bundle.device.network import build_network
from reports.make.gpu_bundle.device.training_runs import TrainingRun

WARM_UP_STEPS = 3
LEAST_STEPS = 3
_TIMED_S = 3.0
"""Time after which no further step is begun: seconds under load show the sustained clock."""
_MOST_STEPS = 20
_MOST_EVENTS = 40_000
_MAX_NORM = 1.0
_LEARNING_RATE = 1e-4
_SEED = 1


class Clock:
    """Marks of one step: events in the stream of a GPU, the time of day on a processor."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def mark(self, phase: str) -> None:
        """The named phase ends here; the first mark begins the step."""
        if self._is_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append((phase, event))
        else:
            self._marks.append((phase, time.perf_counter()))

    def phases_s(self) -> dict[str, float]:
        """Seconds of each phase, once all work is done; the marks are forgotten."""
        if self._is_gpu:
            torch.cuda.synchronize()
        sums: dict[str, float] = defaultdict(float)
        for (_, begin), (phase, end) in zip(self._marks, self._marks[1:]):  # noqa: B905
            sums[phase] += begin.elapsed_time(end) / 1e3 if self._is_gpu else end - begin
        self._marks.clear()
        return dict(sums)


class Trainer:
    """Model, optimizer and random tokens of one run."""

    def __init__(self, run: TrainingRun, device: torch.device) -> None:
        torch.manual_seed(_SEED)
        torch.set_float32_matmul_precision("high" if run.precision == "tf32" else "highest")
        self.run, self.device, self.clock = run, device, Clock(device)
        self.model = build_network(run, device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        kernels: Any = {run.optimizer: True}
        self.optimizer = torch.optim.AdamW(self.trained, lr=_LEARNING_RATE, **kernels)
        shape = (run.microbatches, run.micro, run.seq_len + 1)
        self.tokens = torch.randint(0, run.network.vocab, shape, device=device)

    def step(self, on_phase: Callable[[str], None] = lambda _: None) -> dict[str, float]:
        """One step; seconds by phase. ``on_phase`` is told the end of each."""

        def ends(phase: str) -> None:
            self.clock.mark(phase)
            on_phase(phase)

        self.clock.mark("begin")
        for tokens in self.tokens:
            with self._mixed():
                loss = self.model.loss(tokens) / self.run.microbatches
            ends("forward")
            loss.backward()  # type: ignore[no-untyped-call]
            ends("backward")
        torch.nn.utils.clip_grad_norm_(self.trained, _MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        ends("optimizer")
        return self.clock.phases_s()

    def _mixed(self) -> contextlib.AbstractContextManager[object]:
        narrow = self.run.precision not in ("fp32", "tf32")
        if narrow and self.run.has_master_weights and not self.run.lora_rank:
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()


def measured_run(run: TrainingRun, device: torch.device) -> dict[str, Any]:
    """A record of the run; running out of memory is one, too.

    Raises:
        RuntimeError: torch cannot run it here for another reason.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        return _measured(run, device)
    except torch.OutOfMemoryError as error:
        return {"out_of_memory": True, "said": str(error)[:300], **_memory(device)}


def _measured(run: TrainingRun, device: torch.device) -> dict[str, Any]:
    trainer = Trainer(run, device)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    started = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        trainer.step()
    warm_s = time.perf_counter() - started
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    phases: list[dict[str, float]] = []
    host_s: list[float] = []
    started = time.perf_counter()
    while len(phases) < _MOST_STEPS:
        if len(phases) >= LEAST_STEPS and time.perf_counter() - started > _TIMED_S:
            break
        begun = time.perf_counter()
        phases.append(trainer.step())
        host_s.append(time.perf_counter() - begun)
    memory = _memory(device)
    return {
        "out_of_memory": False,
        "parameters": parameters,
        "warm_up_s": warm_s,
        "step_s": [sum(each.values()) for each in phases],
        "host_s": host_s,
        "phases_s": phases,
        **memory,
        "phase_memory": _phase_memory(trainer),
        **_profiled(trainer),
    }


def _memory(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {"allocated_bytes": 0, "reserved_bytes": 0, "device_bytes": 0}
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
        "device_bytes": device_bytes(device),
    }


def _phase_memory(trainer: Trainer) -> list[dict[str, Any]]:
    """What each phase of one step allocates at most, and what it leaves [B]."""
    found: list[dict[str, Any]] = []
    if trainer.device.type != "cuda":
        return found

    def ends(phase: str) -> None:
        torch.cuda.synchronize()
        statistics = torch.cuda.memory_stats()
        found.append(
            {
                "phase": phase,
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "requested_peak_bytes": statistics.get("requested_bytes.all.peak", 0),
                "left_bytes": torch.cuda.memory_allocated(),
                "reserved_bytes": torch.cuda.memory_reserved(),
                "split_bytes": statistics.get("inactive_split_bytes.all.current", 0),
                "segments": statistics.get("segment.all.current", 0),
                "retries": statistics.get("num_alloc_retries", 0),
            }
        )
        torch.cuda.reset_peak_memory_stats()

    torch.cuda.reset_peak_memory_stats()
    trainer.step(ends)
    return found


def _profiled(trainer: Trainer) -> dict[str, Any]:
    """The kernels of one step: their names, and per call name, stream, begin and duration [us]."""
    is_gpu = trainer.device.type == "cuda"
    activities = [ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        trainer.step()
    kinds = torch._C._autograd.DeviceType
    wanted = kinds.CUDA if is_gpu else kinds.CPU
    events = [event for event in profiler.events() or () if event.device_type == wanted]
    names: dict[str, int] = {}
    calls = [
        [
            names.setdefault(event.name[:160], len(names)),
            event.device_resource_id,
            round(event.time_range.start, 1),
            round(event.time_range.end - event.time_range.start, 1),
        ]
        for event in sorted(events, key=lambda event: event.time_range.start)[:_MOST_EVENTS]
    ]
    return {"kernel_names": list(names), "kernels": calls, "kernels_in_all": len(events)}
