"""clustersim balance: which layers should each pipeline stage hold?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from simulator.cli.console import note, number_column, percent, print_json, print_table, text_column
from simulator.cli.options import AsJson, Changes, JobFile, read_job
from simulator.results.verdict import LEAST_SHARE
from simulator.units import format_seconds

if TYPE_CHECKING:
    from simulator.planning.changes.balance import Balance


def balance(job_file: JobFile, changes: Changes = None, as_json: AsJson = False) -> None:
    """Deal layers to pipeline stages such that the step is short.

    Says what the best layout gains over an even one, and how to take it.

    Example:  clustersim balance job.yaml --set plan.pp=8
    """
    from simulator.planning.changes.balance import balance

    job = read_job(job_file, changes)
    found = balance(job)
    if as_json:
        print_json({**asdict(found), "saved_share": found.saved_share, "is_even": found.is_even})
    else:
        _print_layouts(found, job.title)
    if not found.fits:
        note("No layout that was tried fits into memory.")
        raise typer.Exit(1)


def _print_layouts(found: Balance, title: str) -> None:
    from simulator.planning.changes.balance import layout_text

    layouts = [("even", found.even_layout, found.even_step_time_s, found.even_fits)]
    if not found.is_even:
        layouts.append(("balanced", found.layout, found.step_time_s, found.fits))
    rows = [
        (name, layout_text(layout), format_seconds(step_time_s), "yes" if fits else "no")
        for name, layout, step_time_s, fits in layouts
    ]
    columns = [
        text_column("layout"),
        text_column("layers per virtual stage"),
        number_column("step time"),
        text_column("fits"),
    ]
    print_table(title, columns, rows)
    typer.echo(_verdict(found))


def _verdict(found: Balance) -> str:
    if found.is_even:
        return f"Even is best of the {found.tried} layouts that were simulated."
    if 0 <= found.saved_share < LEAST_SHARE:
        return f"None of the {found.tried} layouts that were simulated is worth the change."
    options = " ".join(f"--set '{path}={_as_yaml(new)}'" for path, new in found.changes.items())
    kind = "shorter" if found.saved_share >= 0 else "longer, but it fits"
    gain = f"The balanced step is {percent(abs(found.saved_share), digits=2)} {kind}"
    return f"{gain} ({found.tried} layouts simulated). To take it:\n{options}"


def _as_yaml(value: object) -> str:
    return str(value).replace(" ", "").lower()
