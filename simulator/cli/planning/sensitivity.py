"""clustersim sensitivity: which number of the profile matters most?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    note,
    number_column,
    print_json,
    print_table,
    status_line,
    text_column,
)
from simulator.cli.options import AsJson, Changes, JobFile, Picture, read_job

if TYPE_CHECKING:
    from simulator.planning.changes.profile_numbers import Sensitivity

_SMALLEST = 1e-6
"""Effects below this are none."""
_ROUGH = ("assumed", "default")


def sensitivity(
    job_file: JobFile,
    *,
    changes: Changes = None,
    share: Annotated[
        float,
        typer.Option(min=0.001, max=0.9, metavar="SHARE", help="By how much numbers are moved."),
    ] = 0.1,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Numbers to show, the largest effect first.")
    ] = 15,
    replay: Annotated[bool, typer.Option("--replay", help="Without contention; faster.")] = False,
    plot: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Find the numbers of the hardware profile that matter most.

    Each is moved by 10 % both ways, and the step is simulated again.
    Says what to calibrate first: the number that matters most and was never measured.

    Example:  clustersim sensitivity job.yaml --plot tornado.png
    """
    from simulator.planning.changes.profile_numbers import sensitivities

    job = read_job(job_file, changes)
    with status_line() as show:
        found = sensitivities(
            job,
            share=share,
            engine="replay" if replay else "des",
            on_trial=lambda done, count: show(f"{done} of {count} numbers moved"),
        )
    shown = [each for each in found[:top] if each.effect > _SMALLEST]
    if plot is not None:
        from simulator.plots.tornado import draw_tornado

        rows = [(each.field, each.lower or 0.0, each.higher or 0.0) for each in shown]
        draw_tornado(job.title, rows, share, plot)
        note(f"wrote {plot}")
    if as_json:
        print_json({"job": job.title, "share": share, "numbers": [asdict(each) for each in found]})
        return
    columns = [
        text_column("number"),
        text_column("value"),
        text_column("source"),
        number_column(f"{share:.0%} less"),
        number_column(f"{share:.0%} more"),
    ]
    print_table(f"step time of {job.title}", columns, map(_row, shown))
    without = sum(each.effect <= _SMALLEST for each in found)
    note(f"{len(found)} numbers moved, {without} of them without any effect on this job.")
    rough = next((each for each in shown if each.source in _ROUGH), None)
    if rough is not None:
        note(f"Calibrate first: {rough.field} ({rough.source}).")


def _row(found: Sensitivity) -> tuple[str, ...]:
    value = found.value if isinstance(found.value, str) else f"{found.value:.4g}"
    return found.field, value, found.source, _change(found.lower), _change(found.higher)


def _change(change: float | None) -> str:
    return "not valid" if change is None else f"{100 * change:+.2f} %"
