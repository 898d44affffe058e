"""How does a device get through a list of cases, and was it undisturbed meanwhile?

A short run is better than none: time is bounded, every case is on the disk as soon as it is
measured, in the columns that ``validate kernels`` reads, and the next run goes on where this one
stopped. Cases that could not be measured stand there with their reason. One product is measured
again and again: if it becomes slower, the device is throttled or shared.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from simulator.calibrate.gpu.device_facts import DeviceFacts
from simulator.calibrate.gpu.kernel_calls import Stopwatch, UnsupportedCaseError, reason_of
from simulator.calibrate.gpu.kernel_case import KernelCase
from simulator.calibrate.gpu.system_calls import measured
from simulator.errors import ClustersimError, InputError
from simulator.tables.collective_table import append_line, cut_half_line, whole_lines, write_head
from simulator.tables.kernel_rows import KernelRow

COLUMNS = (
    "id", "source", "op", "gpu", "dtype", "m", "n", "k", "batch", "seq", "head_dim", "causal",
    "direction", "tflops", "gbps", "time_us", "notes", "split", "spread_pct", "repetitions",
    "skipped",
)  # fmt: skip
"""Those of published kernel tables, then how well the time is known, or why there is none."""

_WITNESS_EVERY_S = 10.0
"""Time between two looks at the witness, the product that shows disturbances."""

_WITNESS_WIDTH = {"cuda": 4096, "cpu": 256}

_WIDE_SPREAD = 0.1
"""Quartiles of an undisturbed kernel are within a few per cent (published repeats: 0.05 to
2 %); beyond this a row counts as disturbed."""

_MANY_WIDE = 0.1
"""Share of disturbed rows from which on the device counts as shared or throttled."""

_DRIFT = 0.05
"""Change of the witness from which on it counts as drift."""

_FAILED_DEVICE = ("CUDA error", "device-side assert", "HIP error")


@dataclass
class KernelJournal:
    """The table of one calibration.

    Attributes:
        path: The file.
        gpu: Device, as the table spells it.
        source: Software and date of the rows that are added.
        rows: What it holds, in order.
    """

    path: Path
    gpu: str
    source: str
    rows: list[KernelRow] = field(default_factory=list)

    @classmethod
    def opened(cls, path: Path, gpu: str, source: str, *, resume: bool) -> KernelJournal:
        """A new journal, or the one that an interrupted run left.

        Raises:
            InputError: It exists and is not to be resumed, or is of another device.
        """
        if not path.exists():
            write_head(path, COLUMNS)
            return cls(path, gpu, source)
        if not resume:
            hint = "continue with --resume, or choose another --out"
            raise InputError.single("--out", "already holds measurements", str(path), hint)
        journal = cls(path, gpu, source, _rows_of(path))
        others = {row.text("gpu") for row in journal.rows} - {gpu}
        if others:
            rule = f"was measured on {', '.join(sorted(others))}, and this is {gpu}"
            raise InputError.single("--resume", rule, hint="choose another --out", file=str(path))
        return journal

    @property
    def done(self) -> set[str]:
        """Cases that need not be measured again."""
        return {row.text("id") for row in self.rows}

    @property
    def measured(self) -> list[KernelRow]:
        """Rows with a time."""
        return [row for row in self.rows if not row.text("skipped")]

    @property
    def skipped(self) -> list[KernelRow]:
        """Rows with a reason instead."""
        return [row for row in self.rows if row.text("skipped")]

    def add(
        self,
        case: KernelCase,
        *,
        seconds: float,
        spread: float,
        repetitions: int,
        flop: float = 0.0,
        num_bytes: float = 0.0,
        notes: str = "",
    ) -> None:
        """Write down what a case took."""
        self._append(
            case,
            {
                "time_us": f"{seconds * 1e6:.6g}",
                "tflops": f"{flop / seconds * 1e-12:.6g}" if flop else "",
                "gbps": f"{num_bytes / seconds * 1e-9:.6g}" if num_bytes else "",
                "spread_pct": f"{100 * spread:.3g}",
                "repetitions": str(repetitions),
                "notes": notes,
            },
        )

    def skip(self, case: KernelCase, reason: str) -> None:
        """Write down why a case was not measured."""
        self._append(case, {"skipped": reason})

    def _append(self, case: KernelCase, found: dict[str, str]) -> None:
        numbers = {name: getattr(case, name) for name in ("m", "n", "k", "seq", "head_dim")}
        cells = {
            "id": case.id,
            "source": self.source,
            "op": case.op,
            "gpu": self.gpu,
            "dtype": case.dtype,
            **{name: str(value) if value else "" for name, value in numbers.items()},
            "batch": str(case.batch),
            "causal": "" if case.causal is None else str(case.causal),
            "direction": case.direction,
            "split": "own",
            **found,
        }
        append_line(self.path, [cells.get(name, "") for name in COLUMNS])
        self.rows.append(KernelRow(cells))


def _rows_of(path: Path) -> list[KernelRow]:
    """The rows of a journal; half a line, of a run that was killed, is cut off the file."""
    reader = whole_lines(path)
    if tuple(reader.fieldnames or ()) != COLUMNS:
        rule = "is not a journal of a calibration: its columns differ"
        raise InputError.single("--resume", rule, hint="choose another --out", file=str(path))
    cut_half_line(path)
    return [KernelRow(cells) for cells in reader]


class DeviceFailedError(ClustersimError):
    """The device does not answer any more in this process."""


@dataclass
class Witness:
    """One product, measured over and over.

    Attributes:
        seconds: Its times, in order.
    """

    stopwatch: Stopwatch
    dtype: str
    seconds: list[float] = field(default_factory=list)
    _due: float = 0.0

    def look(self) -> None:
        """Measure it again if it is time to."""
        if time.monotonic() < self._due:
            return
        width = _WITNESS_WIDTH[self.stopwatch.device.type]
        case = KernelCase("gemm", self.dtype, width, width, width)
        self.seconds.append(measured(case, self.stopwatch).timing.median_s)
        self._due = time.monotonic() + _WITNESS_EVERY_S

    @property
    def drift(self) -> float:
        """How much slower it is at its slowest than at its fastest, relative."""
        if len(self.seconds) < 2:
            return 0.0
        return max(self.seconds) / min(self.seconds) - 1.0


def measure_kernels(
    cases: Sequence[KernelCase],
    facts: DeviceFacts,
    journal: KernelJournal,
    *,
    seconds: float,
    on_case: Callable[[], None] = lambda: None,
) -> list[str]:
    """Measures what the journal does not hold yet, until the time is up.

    Args:
        cases: What to measure, the most important first.
        facts: The device.
        journal: Where it is written.
        seconds: Time that may pass.
        on_case: Called after every case.

    Returns:
        Sentences on what a person should know of the run.

    Raises:
        DeviceFailedError: The device stopped answering; the case is marked, the rest kept.
    """
    ends = time.monotonic() + seconds
    stopwatch = Stopwatch(facts.device)
    witness = Witness(stopwatch, facts.formats[0])
    done = journal.done
    left = [case for case in cases if case.id not in done]
    for _ in range(len(cases) - len(left)):
        on_case()
    witness.look()
    measured_now = 0
    for case in left:
        if time.monotonic() > ends:
            break
        _measure(case, stopwatch, journal)
        witness.look()
        measured_now += 1
        on_case()
    notes = list(facts.notes)
    if measured_now < len(left):
        notes.append(
            f"{len(left) - measured_now} of {len(cases)} cases were not reached: continue with "
            "--resume, or give more --minutes"
        )
    return [*notes, *_disturbances(witness, journal.measured)]


def _measure(case: KernelCase, stopwatch: Stopwatch, journal: KernelJournal) -> None:
    try:
        with warnings.catch_warnings():
            # torch warns of every kernel that it does not choose; the refusal says it, too.
            warnings.simplefilter("ignore")
            found = measured(case, stopwatch)
    except UnsupportedCaseError as reason:
        journal.skip(case, str(reason))
        return
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        # torch refuses shapes, formats and sizes with any of these; older ones lack functions.
        text = str(error)
        journal.skip(case, reason_of(error))
        if not isinstance(error, torch.OutOfMemoryError) and any(
            sign in text for sign in _FAILED_DEVICE
        ):
            rule = f"the device failed at {case.id}: {reason_of(error)}"
            raise DeviceFailedError(f"{rule}; run again with --resume, which skips it") from error
        error.__traceback__ = None  # it holds the operands
        _empty(stopwatch.device)
        return
    journal.add(
        case,
        seconds=found.timing.median_s,
        spread=found.timing.spread,
        repetitions=len(found.timing.samples_s),
        flop=found.call.flop,
        num_bytes=found.call.num_bytes,
        notes=found.call.notes,
    )


def _empty(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _disturbances(witness: Witness, rows: Sequence[KernelRow]) -> list[str]:
    notes = []
    spreads = [(row.number("spread_pct") or 0.0) / 100 for row in rows]
    wide = sum(spread > _WIDE_SPREAD for spread in spreads)
    if spreads and wide > _MANY_WIDE * len(spreads):
        notes.append(
            f"the device was shared or throttled: {wide} of {len(spreads)} rows spread by more "
            f"than {_WIDE_SPREAD:.0%} (median spread {statistics.median(spreads):.1%})"
        )
    if witness.drift > _DRIFT:
        notes.append(
            f"the device did not keep its clock: one matrix product took {witness.drift:.0%} "
            "longer at "
            f"its slowest than at its fastest, measured {len(witness.seconds)} times over the run"
        )
    return notes
