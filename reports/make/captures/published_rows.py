"""How far are captured steps and the simulator's own programs from published runs?

The captures are kept (``reports/captures``): the code that they were made of is torchtitan's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reports.make.captures.cases import CASES_FILE
from simulator.capture.file import read_capture
from simulator.capture.result import simulate_capture
from simulator.described.documents import read_yaml
from simulator.errors import InputError
from simulator.validate.published.published_runs import predicted, read_rows

_REPORTS = Path(__file__).parents[2]
_TABLES = ("runs_open.csv", "runs_opened.csv")


def published_table() -> Iterator[str]:
    """Lines of a table, in Markdown."""
    yield "| run | GPUs | measured | captured | own program | memory measured, captured, own |"
    yield "|---|---|---:|---:|---:|---|"
    files = read_yaml(CASES_FILE)["published"]
    rows = {row["id"]: row for name in _TABLES for row in read_rows(_REPORTS / "data" / name)}
    for run, name in files.items():
        row, capture = rows[run], read_capture(_REPORTS / "captures" / f"{name}.capture")
        found, own = simulate_capture(capture, row["profile"], int(row["gpus"])), predicted(row)
        measured_s = float(row["measured_step_s"])
        if own.predicted_step_s is None or own.predicted_mem_gib is None:
            raise InputError.single("published", f"is not predicted: {own.skipped}", run)
        errors = (
            100 * (each / measured_s - 1) for each in (found.step_time_s, own.predicted_step_s)
        )
        captured_error, own_error = (f"{each:+.1f} %" for each in errors)
        held_gib = found.memory[0].peak_reserved_bytes / 2**30
        memory = (row["measured_mem_gib"] or "-", f"{held_gib:.1f}", f"{own.predicted_mem_gib:.1f}")
        cells = (
            f"{run}: {row['model']}, {row['seq_len']} tokens, recompute {row['recompute']}",
            f"{row['gpus']} x {row['profile']}",
            f"{measured_s:.3f} s",
            f"{found.step_time_s:.3f} s, {captured_error}",
            f"{own.predicted_step_s:.3f} s, {own_error}",
            ", ".join(memory),
        )
        yield f"| {' | '.join(cells)} |"
