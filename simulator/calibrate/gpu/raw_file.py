"""What did a machine without this package measure of its GPU?

JSON lines, as the one-file runner of ``reports/make/gpu_bundle`` writes them: one of the device,
one of each kernel with all its repetitions or the reason why there are none. Lines of other kinds
(training runs, memory) are for others to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field

from simulator.calibrate.gpu.device_facts import DeviceFacts
from simulator.calibrate.gpu.kernel_calls import Timing
from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.calibrate.gpu.measure_kernels import KernelJournal
from simulator.described.base import CountOrZero, Ratio
from simulator.described.documents import validated
from simulator.errors import InputError
from simulator.files import read_unpacked_text, strict_json

_MOST_BYTES = 128 * 2**20
"""Of such a file, unpacked: thirty training runs with every kernel of a step have five million."""


class _Device(BaseModel):
    """The line of the device; what else it says is left out."""

    name: str
    type: Literal["cpu", "cuda"]
    torch: str
    date: str
    cuda: str | None = None
    cudnn: str | int | None = None
    memory_bytes: CountOrZero = 0
    foreign_bytes: CountOrZero = 0


class _Context(BaseModel):
    """The line of what a process holds once libraries are loaded, by what was loaded last [B]."""

    device_bytes: dict[str, CountOrZero]
    reserved_bytes: CountOrZero

    @property
    def outside_bytes(self) -> int:
        """At the end, beside what torch's allocator has reserved [B]."""
        return max(0, max(self.device_bytes.values(), default=0) - self.reserved_bytes)


class _Kernel(BaseModel):
    """The line of a kernel with a time."""

    case: KernelCase
    samples_s: Annotated[tuple[Ratio, ...], Field(min_length=1)]
    flop: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    num_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    notes: str


@dataclass(frozen=True)
class RawFile:
    """One file of measurements.

    Attributes:
        facts: The device that they are of.
        kernels: Lines of kernels with a time.
    """

    facts: DeviceFacts
    kernels: Sequence[_Kernel]

    def add_to(self, journal: KernelJournal) -> None:
        """Rows of all kernels that the journal does not hold yet."""
        for record in self.kernels:
            if record.case.id in journal.done:
                continue
            timing = Timing(record.samples_s)
            journal.add(
                record.case,
                seconds=timing.median_s,
                spread=timing.spread,
                repetitions=len(timing.samples_s),
                flop=record.flop,
                num_bytes=record.num_bytes,
                notes=record.notes,
            )


def read_raw_lines(path: Path) -> list[dict[str, Any]]:
    """All lines of a file of measurements, plain or gzipped; half a line at the end is left out.

    Raises:
        InputError: There is no such file, it is too large, or a line is no JSON object with a kind.
    """
    text = read_unpacked_text(path, max_bytes=_MOST_BYTES)
    found = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        try:
            record = strict_json(line)
        except (ValueError, RecursionError) as error:
            raise InputError.single(f"line {number}", "is not JSON", file=str(path)) from error
        if not isinstance(record, dict) or "kind" not in record:
            raise InputError.single(f"line {number}", "is not a measurement", file=str(path))
        found.append(record)
    return found


def read_raw_file(path: Path) -> RawFile:
    """Device and kernels of a file of measurements.

    Raises:
        InputError: It cannot be read, or does not state its device.
    """
    lines = read_raw_lines(path)
    device = next((line for line in lines if line["kind"] == "device"), None)
    if device is None:
        hint = "check that gpu_bundle.pyz wrote the file"
        raise InputError.single("--from", "does not state its device", str(path), hint)
    said = validated(_Device, device, "device", file=str(path))
    loaded = next((line for line in lines if line.get("id") == "memory: context"), None)
    held = validated(_Context, loaded, "context", file=str(path)) if loaded else None
    software = f"torch {said.torch}"
    software += f", CUDA {said.cuda}, cuDNN {said.cudnn}" if said.cuda else ""
    facts = DeviceFacts(
        said.name,
        torch.device(said.type),
        (),
        (),
        said.memory_bytes,
        held.outside_bytes if held else said.foreign_bytes,
        software,
        said.date,
    )
    timed = [line for line in lines if line["kind"] == "kernel" and "samples_s" in line]
    return RawFile(facts, [validated(_Kernel, line, "kernel", file=str(path)) for line in timed])
