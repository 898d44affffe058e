"""What is measured, in which order, and what is left when the time is up?

    python gpu_bundle.pyz --out raw.jsonl [--minutes 9] [--tiny] [--device cuda]

Another call with the same file goes on with what is missing. Nothing of the device is set. An item
that two calls began and did not end is marked and left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch

from reports.make.gpu_bundle.device.host_items import HOST_ITEMS
from reports.make.gpu_bundle.device.journal import Journal
from reports.make.gpu_bundle.device.memory_items import MEMORY_ITEMS, device_bytes
from reports.make.gpu_bundle.device.processes import OwnProcesses, asked_for
from reports.make.gpu_bundle.device.sensors import Sensors
from reports.make.gpu_bundle.device.stream_items import STREAM_ITEMS
from reports.make.gpu_bundle.device.training import measured_run
from reports.make.gpu_bundle.device.training_runs import (
    ALL_RUNS,
    LATER_RUNS,
    TRAINING_RUNS,
    TrainingRun,
)
from simulator.calibrate.gpu.kernel_calls import Stopwatch, UnsupportedCaseError, reason_of
from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.calibrate.gpu.system_calls import measured

MINUTES = 9.0
KERNEL_S, SUSTAINED_S, MEMORY_S = 0.25, 17.0, 6.0
"""Expected time of one kernel, of a product under load, of a process of its own (assumed)."""
FIRST_KERNELS = 240
"""Kernels that are measured before the first training run: each family is spread over its range."""
FIRST_RUNS = 8
_KERNELS_PER_RUN = 25
_WIDTH = {"cuda": 4096, "cpu": 64}
LOOP_ITEMS = {**HOST_ITEMS, **STREAM_ITEMS}
LOOP_S = {"operators": 8.0, "wrappers": 40.0, "kernels of a step": 15.0}
_SHORT_LOOP_S = 4.0


class Item(NamedTuple):
    """One thing to measure.

    Attributes:
        id: Its name in the file.
        kind: ``memory``, ``kernel``, ``loop`` or ``run``.
        seconds: What it is expected to take.
        what: A key of the memory or loop items, the fields of a kernel, or the name of a run.
    """

    id: str
    kind: str
    seconds: float
    what: Any


def items(
    cases: Sequence[dict[str, Any]], in_order: Sequence[TrainingRun] = ALL_RUNS
) -> list[Item]:
    """Everything, by worth: memory, a profile's kernels, eight runs, then the rest in turn."""
    memory = [Item(f"memory: {name}", "memory", MEMORY_S, name) for name in MEMORY_ITEMS]
    kernels = [_kernel_item(case) for case in cases]
    loops = [
        Item(f"loop: {name}", "loop", LOOP_S.get(name, _SHORT_LOOP_S), name) for name in LOOP_ITEMS
    ]
    late_loops = [item for item in loops if item.what == "wrappers"]
    loops = [item for item in loops if item not in late_loops]
    runs = [Item(f"run: {run.name}", "run", run.seconds, run.name) for run in in_order]
    late = [item for item in kernels if item.seconds > 1][:1]
    quick = [item for item in kernels if item not in late]
    first = [*memory, *loops, *quick[:FIRST_KERNELS], *late, *runs[:FIRST_RUNS], *late_loops]
    rest = quick[FIRST_KERNELS:]
    parts = [rest[i : i + _KERNELS_PER_RUN] for i in range(0, len(rest), _KERNELS_PER_RUN)]
    for run, part in zip_longest(runs[FIRST_RUNS:], parts):
        first += [run] if run else []
        first += part or []
    return first


def _kernel_item(case: dict[str, Any]) -> Item:
    seconds = SUSTAINED_S if case["op"].startswith("sustained") else KERNEL_S
    return Item(f"kernel: {KernelCase(**case).id}", "kernel", seconds, case)


def device_record(device: torch.device) -> dict[str, Any]:
    """What the file says of the machine; ``id`` is fixed, so that it is written once."""
    record: dict[str, Any] = {
        "id": "device", "kind": "device", "name": platform.processor() or "a processor",
        "type": device.type, "torch": torch.__version__, "python": platform.python_version(),
        "host_cores": os.cpu_count(), "host": _host_name(),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
        torch.empty(1, device=device)
        free, total = torch.cuda.mem_get_info(device)
        record |= {
            "name": torch.cuda.get_device_name(device),
            "capability": list(torch.cuda.get_device_capability(device)),
            "memory_bytes": total,
            "foreign_bytes": total - free - torch.cuda.memory_reserved(device),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return record


def _host_name() -> str:
    """What the kernel calls the processor; empty where it says nothing."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")


def measure(item: Item, device: torch.device, *, tiny: bool) -> dict[str, Any]:
    """What one item gives, without its name; a refusal is given in words."""
    try:
        with warnings.catch_warnings():
            # torch warns of every kernel that it does not choose; the refusal says it, too.
            warnings.simplefilter("ignore")
            if item.kind == "kernel":
                return _kernel(KernelCase(**item.what), device, tiny=tiny)
            if item.kind == "loop":
                return LOOP_ITEMS[item.what](device, _WIDTH["cpu" if tiny else device.type])
            if item.kind == "memory":
                return MEMORY_ITEMS[item.what](device, _WIDTH["cpu" if tiny else device.type])
            run = next(run for run in ALL_RUNS if run.name == item.what)
            run = run.tiny() if tiny else run
            return {"run": dataclasses.asdict(run), **measured_run(run, device)}
    except UnsupportedCaseError as reason:
        return {"skipped": str(reason)}
    except Exception as error:  # the next item must be measured whatever this one met
        return {"skipped": reason_of(error), "error": type(error).__name__}


def _kernel(case: KernelCase, device: torch.device, *, tiny: bool) -> dict[str, Any]:
    found = measured(case, Stopwatch(device, budget_s=0.0 if tiny else 0.1))
    return {
        "case": dataclasses.asdict(case),
        "samples_s": list(found.timing.samples_s),
        "flop": found.call.flop,
        "num_bytes": found.call.num_bytes,
        "notes": found.call.notes,
    }


def run_all(
    journal: Journal,
    todo: Sequence[Item],
    device: torch.device,
    seconds: float,
    alone: Callable[[Item, float], dict[str, Any]] | None,
    *,
    tiny: bool = False,
) -> int:
    """Measures until the time is up; the number of items that are left.

    Args:
        journal: Where records go.
        todo: Items by worth.
        device: What is measured.
        seconds: Time that may pass; an item that is expected to take longer than what is left
            is put off, and shorter ones after it are measured.
        alone: Measures an item in a process of its own within some seconds; None is this one.
        tiny: Whether sizes are reduced to what a processor does in no time.
    """
    ends = time.monotonic() + seconds
    for name in journal.lost:
        journal.add({"id": name, "kind": "lost", "skipped": "took its process down twice"})
    with Sensors(device.index or 0) as sensors:
        for item in todo:
            left_s = ends - time.monotonic()
            if left_s <= 0:
                break
            if item.id in journal.done or item.seconds > max(left_s, 0.0):
                continue
            journal.add({"id": f"begin {item.id}", "kind": "begin", "of": item.id})
            began = time.monotonic()
            if alone is not None and item.kind in ("memory", "run"):
                _free(device)
                # This process has a context, too, which is not the run's.
                taken = (
                    {} if item.kind == "memory" else {"taken_before_bytes": device_bytes(device)}
                )
                found = {**taken, **alone(item, left_s)}
            else:
                found = measure(item, device, tiny=tiny)
                if item.kind in ("run", "loop") or "skipped" in found:
                    _free(device)
            wall_s = time.monotonic() - began
            record = {"id": item.id, "kind": item.kind, **found, "wall_s": round(wall_s, 3),
                      "sensors": sensors.since_last()}  # fmt: skip
            journal.add(record)
    return sum(item.id not in journal.done for item in todo)


def _free(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _own_command() -> list[str]:
    program = sys.argv[0]
    if program.endswith(".pyz"):
        return [sys.executable, program]
    return [sys.executable, "-m", "reports.make.gpu_bundle.device.main"]


def plan_lines(todo: Sequence[Item], seconds: float) -> Iterator[str]:
    """Every item with its expected seconds and the time at which it begins."""
    at, begun = 0.0, [0, 0]
    for item in todo:
        yield f"{at:7.1f} s  {item.seconds:6.2f} s  {item.id}"
        at += item.seconds
        if at <= seconds:
            begun = [begun[0] + (item.kind == "kernel"), begun[1] + (item.kind == "run")]
    kinds = {kind: sum(item.kind == kind for item in todo) for kind in ("memory", "kernel", "run")}
    yield (
        f"{kinds['kernel']} kernels, {kinds['memory']} looks at memory and {kinds['run']} training "
        f"runs: {at / 60:.0f} minutes expected; the first {seconds / 60:g} hold {begun[0]} kernels "
        f"and {begun[1]} training runs"
    )


def main(arguments: Sequence[str] | None, cases: Sequence[dict[str, Any]]) -> int:
    """Measure, or be the process of one item."""
    parser = argparse.ArgumentParser(description="Raw measurements of one GPU; needs torch.")
    parser.add_argument("--out", type=Path, help="the file, gone on with if it is there")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a processor; a test")
    parser.add_argument("--later", action="store_true", help="the later runs before the first ones")
    parser.add_argument("--plan", action="store_true", help="print what would be measured")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    todo = items(cases, (*LATER_RUNS, *TRAINING_RUNS) if given.later else ALL_RUNS)
    if given.plan:
        print("\n".join(plan_lines(todo, 600.0)))
        return 0
    device = torch.device(given.device)
    if given.one:
        print("loaded", flush=True)
        name, out = asked_for(sys.stdin.readline())
        item = next(item for item in todo if item.id == name)
        out.write_text(json.dumps(measure(item, device, tiny=given.tiny)), encoding="utf-8")
        return 0
    if given.out is None:
        parser.error("--out is needed")
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} finds no GPU that it can use")
    words = [*_own_command(), "--one", "--device", str(device)]
    with OwnProcesses([*words, "--tiny"] if given.tiny else words) as processes:
        return _measure_all(given, todo, device, processes)


def _measure_all(
    given: argparse.Namespace, todo: Sequence[Item], device: torch.device, processes: OwnProcesses
) -> int:
    def alone(item: Item, left_s: float) -> dict[str, Any]:
        return processes.answer(item.id, left_s)

    journal = Journal(given.out)
    # Before this process has a context of its own.
    memory = [item for item in todo if item.kind == "memory"]
    seconds, began = 60 * given.minutes, time.monotonic()
    run_all(journal, memory, device, seconds, alone, tiny=given.tiny)
    if "device" not in journal.done:
        journal.add({**device_record(device), "taken_bytes": device_bytes(device)})
    # Host times come first, and another process that loads torch makes them half as long again.
    processes.wait_until_loaded()
    spent_s = time.monotonic() - began
    left = run_all(journal, todo, device, seconds - spent_s, alone, tiny=given.tiny)
    print(f"{left} of {len(todo)} items are left; another call goes on with them")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(None, []))
