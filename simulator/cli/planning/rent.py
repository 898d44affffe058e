"""clustersim rent: which of these offers do I rent?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.completion import complete_offers
from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    status_line,
    text_columns,
)
from simulator.cli.options import PAGES, AsJson, Picture, Risk, file_to_write, option
from simulator.cli.planning.capacity import Members, Seed
from simulator.cli.planning.sweep import Workers
from simulator.files import whole_file
from simulator.results.fit_probability import DEFAULT_RISK

if TYPE_CHECKING:
    from simulator.planning.offers.rental import Rental


def rent(
    offers_file: Annotated[
        Path,
        typer.Argument(
            metavar="OFFERS.yaml",
            help="Offers and the workloads to run on them: a YAML file, or a shipped name.",
            autocompletion=complete_offers,
        ),
    ],
    *,
    risk: Risk = DEFAULT_RISK,
    late_risk: Annotated[
        float, option("Accepted probability of missing a deadline.", "SHARE", min=0.001, max=0.5)
    ] = 0.1,
    members: Members = 200,
    seed: Seed = 0,
    workers: Workers = None,
    out: Annotated[
        Path | None,
        file_to_write(
            "Write the table to this file. If interrupted, the same command continues from the "
            "finished rows.",
            ".csv",
            metavar="FILE.csv",
        ),
    ] = None,
    plot: Picture = None,
    html: Annotated[
        Path | None,
        file_to_write(
            "Write a self-contained HTML page to forward or print.", *PAGES, metavar="FILE.html"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare offers of GPUs to rent.

    Each offer runs each workload with its fastest plan that fits. "80 % interval" covers the
    prediction error and failures; "late" is the probability of missing the deadline.

    Exits with 1 if no offer meets the conditions of a workload.

    Example:  clustersim rent three-clouds --html offers.html
    """
    from simulator.planning.offers.rental import rent
    from simulator.processor import core_count

    done = 0
    with status_line() as show:
        show("searching for the fastest plan of each offer")

        def count(row: object, total: int) -> None:
            nonlocal done
            done += 1
            show(f"{done} of {total} rows done")

        found = rent(
            offers_file,
            risk=risk,
            late_risk=late_risk,
            members=members,
            seed=seed,
            workers=workers or core_count(),
            table=out,
            on_row=count,
        )
    if out is not None:
        with whole_file(out) as draft:
            found.to_frame().to_csv(draft, index=False)
        note(f"wrote {out}")
    if plot is not None:
        note(f"wrote {found.plot(plot)}")
    if html is not None:
        note(f"wrote {found.write_html(html)}")
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if any(choice.best is None for choice in found.choices):
        raise typer.Exit(1)


def _print(found: Rental) -> None:
    from simulator.planning.offers.rental import (
        LAST_ROW_TEXTS,
        ROW_TEXTS,
        answer_lines,
        numbers_of,
        row_cells,
    )

    numbers = numbers_of(list(found.rows))
    columns = text_columns(*ROW_TEXTS) + number_columns(*numbers) + text_columns(*LAST_ROW_TEXTS)
    for choice in found.choices:
        rows = [row for row in found.rows if row.workload == choice.workload]
        print_table(choice.workload, columns, [row_cells(row, numbers) for row in rows])
        for line in (*answer_lines(choice), "", *choice.sentences, ""):
            typer.echo(line)
    if found.for_all_text:
        typer.echo(found.for_all_text)
