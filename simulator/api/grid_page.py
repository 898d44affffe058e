"""What does the page of a sweep say?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.described.job import Job, job_yaml
from simulator.exporters.html.answer_tables import (
    AnswerPage,
    Bar,
    Cell,
    Column,
    Meaning,
    Table,
    columns,
)
from simulator.units import chance, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import pandas as pd


_MOST_ROWS = 500
"""More make a page that nobody reads; all are in the table of --out."""

Row = dict["Hashable", Any]


def write_sweep_page(table: pd.DataFrame, job: Job, path: str | Path) -> Path:
    """Write the page of a sweep's table; returns its path.

    Args:
        table: What :func:`simulator.sweep` returned.
        job: What was varied.
        path: The file.
    """
    from simulator.exporters.html.answer_page import write_answer_page

    write_answer_page(sweep_page(table, job), path)
    return Path(path)


def sweep_page(table: pd.DataFrame, job: Job) -> AnswerPage:
    """The fastest combination, a heat map where two fields vary, and every row."""
    from simulator.planning.sweep import varied_fields

    fields = varied_fields(table)
    rows = table.to_dict("records")
    grid = " ".join(f"--grid {name}={_values_text(rows, name)}" for name in fields)
    return AnswerPage(
        title=f"{job.title}, but for {', '.join(fields)}",
        sentences=_sentences(rows, fields),
        tables=[*_heat_map(rows, fields), _rows_table(rows, fields)],
        job_yaml=job_yaml(job),
        command=f"clustersim sweep job.yaml {grid} --html sweep.html",
    )


def _values_text(rows: Sequence[Row], field: str) -> str:
    return ",".join(dict.fromkeys(str(row[field]) for row in rows))


def _sentences(rows: Sequence[Row], fields: Sequence[str]) -> list[str]:
    failed = sum(bool(row["error"]) for row in rows)
    fitting = [row for row in rows if row["fits"] is True]
    counts = (
        f"{len(rows)} combinations: {len(fitting)} fit, "
        f"{len(rows) - len(fitting) - failed} do not fit, {failed} cannot run."
    )
    if not fitting:
        return ["No combination fits into memory.", counts]
    best = max(fitting, key=lambda row: row["tokens_per_s_per_gpu"])
    where = ", ".join(f"{name} = {best[name]}" for name in fields)
    rate = f"{best['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU"
    step, fits = format_seconds(best["step_time_s"]), chance(best["fits_probability"])
    words = f"Of those that fit, {where} is fastest: {rate}, {step} a step, {fits} likely to fit."
    return [words, counts]


def _heat_map(rows: Sequence[Row], fields: Sequence[str]) -> list[Table]:
    """Rate by two fields; nothing where more or fewer vary."""
    if len(fields) != 2:
        return []
    down, across = fields
    found = {(str(row[down]), str(row[across])): row for row in rows}
    names = list(dict.fromkeys(str(row[across]) for row in rows))
    best = max((row["tokens_per_s_per_gpu"] for row in rows if row["fits"] is True), default=0.0)
    heads = [Column(f"{down} \\ {across}"), *(Column(name, "number") for name in names)]
    body = [
        [Cell(value), *(_heat(found.get((value, name)), best) for name in names)]
        for value in dict.fromkeys(str(row[down]) for row in rows)
    ]
    caption = "tokens/s per GPU; darker is faster"
    return [Table(f"{down} against {across}", caption, heads, body)]


def _heat(row: Row | None, best: float) -> Cell:
    if row is None or row["error"]:
        return Cell("cannot run", "pale")
    if row["fits"] is not True:
        return Cell("does not fit", "loss")
    rate = row["tokens_per_s_per_gpu"]
    return Cell(f"{rate:,.0f}", heat=0.75 * rate / best)


def _rows_table(rows: Sequence[Row], fields: Sequence[str]) -> Table:
    best = max((row["tokens_per_s_per_gpu"] for row in rows if not row["error"]), default=1.0)
    body = []
    for row in rows[:_MOST_ROWS]:
        given = [Cell(str(row[name])) for name in fields]
        if row["error"]:
            body.append([*given, Cell(f"cannot run: {row['error']}", "pale", span=6)])
            continue
        share = row["tokens_per_s_per_gpu"] / best
        tone = "" if row["fits"] is True else "loss"
        body.append(
            [
                *given,
                Cell(format_seconds(row["step_time_s"])),
                Cell(f"{row['tokens_per_s_per_gpu']:,.0f}"),
                Cell(bars=(Bar("of the fastest", Meaning.NUMBER, share),)),
                Cell(format_bytes(row["peak_device_bytes"])),
                Cell(chance(row["fits_probability"]), tone),  # type: ignore[arg-type]
                Cell("" if row["fits"] is True else "does not fit", tone),  # type: ignore[arg-type]
            ]
        )
    heads = [
        *columns(fields, ("step time", "tokens/s per GPU")),
        Column("", "bars"),
        *columns((), ("fullest GPU", "likely to fit")),
        Column(""),
    ]
    left = len(rows) - _MOST_ROWS
    notes = (f"{left} more rows are in the table that --out writes.",) if left > 0 else ()
    return Table("All combinations", "Bars start at zero", heads, body, notes=notes)
