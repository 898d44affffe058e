"""What did a machine without this package measure of its GPU?

JSON lines, as the one-file runner of ``reports/make/gpu_bundle`` writes them: one of the device,
one of each kernel with all its repetitions or the reason why there are none. Lines of other kinds
(training runs, memory) are for others to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simulator.calibrate.gpu.device_facts import DeviceFacts
from simulator.calibrate.gpu.kernel_calls import Timing
from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.calibrate.gpu.measure_kernels import KernelJournal
from simulator.errors import InputError
from simulator.files import read_text


@dataclass(frozen=True)
class RawFile:
    """One file of measurements.

    Attributes:
        facts: The device that they are of.
        kernels: Lines of kernels with a time.
    """

    facts: DeviceFacts
    kernels: Sequence[Mapping[str, Any]]

    def add_to(self, journal: KernelJournal) -> None:
        """Rows of all kernels that the journal does not hold yet."""
        for record in self.kernels:
            case = KernelCase(**record["case"])
            if case.id in journal.done:
                continue
            timing = Timing(record["samples_s"])
            journal.add(
                case,
                seconds=timing.median_s,
                spread=timing.spread,
                repetitions=len(timing.samples_s),
                flop=record["flop"],
                num_bytes=record["num_bytes"],
                notes=record["notes"],
            )


def read_raw_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file of measurements; half a line at the end is left out.

    Raises:
        InputError: There is no such file, or a line is no JSON object with a kind.
    """
    text = read_text(path)
    found = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError.single(f"line {number}", "is no JSON", file=str(path)) from error
        if not isinstance(record, dict) or "kind" not in record:
            raise InputError.single(f"line {number}", "is no measurement", file=str(path))
        found.append(record)
    return found


def read_raw_file(path: Path) -> RawFile:
    """Device and kernels of a file of measurements.

    Raises:
        InputError: It cannot be read, or does not say which device it is of.
    """
    lines = read_raw_lines(path)
    device = next((line for line in lines if line["kind"] == "device"), None)
    if device is None:
        hint = "is it a file that gpu_bundle.pyz wrote?"
        raise InputError.single("--from", "does not say which device it is of", str(path), hint)
    software = f"torch {device['torch']}"
    software += f", CUDA {device['cuda']}, cuDNN {device['cudnn']}" if device.get("cuda") else ""
    facts = DeviceFacts(
        device["name"],
        torch.device(device["type"]),
        (),
        (),
        device.get("memory_bytes", 0),
        device.get("foreign_bytes", 0),
        software,
        device["date"],
    )
    return RawFile(facts, [x for x in lines if x["kind"] == "kernel" and "samples_s" in x])
