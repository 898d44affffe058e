"""How do measured kernels get onto the disk, one by one, so that nothing is lost?

A table in the columns that ``validate kernels`` reads, one line per case, appended as soon
as it is measured. Cases that could not be measured stand in it with their reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from simulator.calibrate.gpu.kernel_cases import KernelCase
from simulator.errors import InputError
from simulator.tables.collective_table import (
    append_line,
    cut_half_line,
    whole_lines,
    write_head,
)
from simulator.tables.kernel_rows import KernelRow

COLUMNS = (
    "id", "source", "op", "gpu", "dtype", "m", "n", "k", "batch", "seq", "head_dim", "causal",
    "direction", "tflops", "gbps", "time_us", "notes", "split", "spread_pct", "repetitions",
    "skipped",
)  # fmt: skip
"""Those of published kernel tables, then how well the time is known, or why there is none."""


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
            hint = "go on with --resume, or choose another --out"
            raise InputError.single("--out", "holds measurements already", str(path), hint)
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
        rule = "is no journal of a calibration: its columns are others"
        raise InputError.single("--resume", rule, hint="choose another --out", file=str(path))
    cut_half_line(path)
    return [KernelRow(cells) for cells in reader]
