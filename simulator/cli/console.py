"""How do tables and notes reach a person, on a terminal and off it?

A terminal gets colours and its own width. A file or pipe gets plain text as wide as the
content needs, so that no column is ever cut off.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from simulator.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from simulator.exporters.html.answer_tables import Table as AnswerTable
    from simulator.planning.drawn_lengths import Spread

_PLAIN_WIDTH = 1000
"""Wider than any table; lines are no longer than their content."""
_BETWEEN_LINES_S = 20.0
"""Between two lines about work that goes on, where they do not replace each other."""
_GAP = 2
"""Blanks between columns."""
_BLANK = "\ue000"
"""Stands for a blank in a figure while rich folds lines, so that figures stay whole."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its heading.
        is_number: Whether it is aligned to the right.
    """

    name: str
    is_number: bool = False


def text_columns(*names: str) -> list[Column]:
    """Columns of words, aligned to the left."""
    return [Column(name) for name in names]


def number_columns(*names: str) -> list[Column]:
    """Columns of numbers, aligned to the right."""
    return [Column(name, is_number=True) for name in names]


def note(text: str) -> None:
    """Say something to a person; it never mixes with the data on stdout."""
    typer.echo(text, err=True)


def write_picture(figure: Figure, path: Path) -> None:
    """Write a picture in the format of the path's suffix, and say so."""
    from simulator.plots.style import save

    save(figure, path)
    note(f"wrote {path}")


def need_one_that_fits(fit: Iterable[bool], what: str) -> None:
    """End with exit code 1 where nothing of what was compared fits into memory."""
    if not any(fit):
        note(f"No {what} fits; clustersim plan shows what would.")
        raise typer.Exit(1)


@contextlib.contextmanager
def counting(things: str) -> Iterator[Callable[[], None]]:
    """Show how many things are done; yields what counts one more."""
    numbers = itertools.count(1)
    with status_line() as show:
        yield lambda: show(f"{things}: {next(numbers)} done")


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is being done, on a terminal only."""
    from rich.console import Console

    with Console(stderr=True).status(what) if sys.stderr.isatty() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def progress(things: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar with the remaining time; yields what counts one more.

    Off a terminal there is no bar, but a line from time to time.
    """
    if not sys.stderr.isatty():
        with steps(things) as counted:
            yield lambda: counted(total)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        # A thread of its own would be copied, half-way through, into forked workers.
        auto_refresh=False,
    )
    with bar:
        task = bar.add_task(things, total=total)

        def count() -> None:
            bar.update(task, advance=1, refresh=True)

        yield count


@contextlib.contextmanager
def steps(things: str) -> Iterator[Callable[[int], None]]:
    """Show how many of all things are done; yields what counts one more.

    It is called with how many there are, once that is known.
    """
    numbers = itertools.count(1)
    with status_line() as show:
        show(f"{things}: working on the first one")
        yield lambda total: show(f"{next(numbers)} of {total} {things} done")


@contextlib.contextmanager
def amounts(things: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many of all things are done, percent by percent; yields what counts some more.

    It is called with how many more are done, and how many there are.
    """
    done, shown = 0, 0
    with status_line() as show:

        def add(more: int, total: int) -> None:
            nonlocal done, shown
            done += more
            if 100 * (done - shown) >= total:
                shown = done
                show(f"{done:,} of {total:,} {things} done")

        yield add


@contextlib.contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Show one line that changes; yields what sets its text.

    Off a terminal nothing changes that was written, so the text of the moment is a line of its own
    every twenty seconds.
    """
    if not sys.stderr.isatty():
        yield _now_and_then()
        return
    yield lambda text: typer.echo(f"\r\x1b[2K{text}", err=True, nl=False)
    typer.echo("\r\x1b[2K", err=True, nl=False)


def _now_and_then() -> Callable[[str], None]:
    """What notes a text unless the last one was a short while ago."""
    next_s = time.monotonic() + _BETWEEN_LINES_S

    def show(text: str) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _BETWEEN_LINES_S
            note(text)

    return show


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout; infinite and undefined numbers become null."""
    from simulator.results.views.plain_data import json_text

    _write(json_text(document))


def print_table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Write a table with a heading to stdout.

    On a terminal words are folded to its width, at blanks. Where that is not enough, the columns
    that are left over follow in further tables, each behind the first column. Where two
    do not go beside each other, lines are longer than the terminal is wide: no column is left out,
    and no figure or word is broken.
    """
    from rich.console import Console
    from rich.markup import escape

    cells = list(rows)
    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else _PLAIN_WIDTH, highlight=False)
    extents = [_extent(column, [row[n] for row in cells]) for n, column in enumerate(columns)]
    room = console.width if on_terminal else max(_PLAIN_WIDTH, sum(e.most for e in extents))
    blocks = _blocks(extents, room)
    console.width = max([room, *(_least_width(extents, block) for block in blocks)])
    with console.capture() as captured:
        console.print(f"[bold]{escape(title)}[/bold]")
        for number, block in enumerate(blocks):
            if number:
                console.print()
            console.print(_rich_table(columns, cells, block, _widths(extents, block, room)))
    lines = (line.rstrip() for line in captured.get().replace(_BLANK, " ").splitlines())
    _write("\n".join(lines) + "\n")


def print_answer_table(title: str, table: AnswerTable) -> None:
    """Write a table of an answer's page to stdout, without its bars."""
    shown = [index for index, column in enumerate(table.columns) if column.kind != "bars"]
    columns = [
        Column(table.columns[index].name, table.columns[index].kind == "number") for index in shown
    ]
    print_table(title, columns, ([row[index].text for index in shown] for row in table.rows))


def print_spreads(title: str, step: Spread, peak: Spread) -> None:
    """Print means and percentiles of steps [s] and of the fullest GPU [B]."""
    rows = [
        ("step time", *(format_seconds(s) for s in (step.mean, step.p5, step.p50, step.p95))),
        ("fullest GPU", *(format_bytes(b) for b in (peak.mean, peak.p5, peak.p50, peak.p95))),
    ]
    columns = text_columns("") + number_columns("mean", "P5", "P50", "P95")
    print_table(title, columns, rows)


class _Extent(NamedTuple):
    """How wide a column is without its gap: with its words folded, and with every line whole."""

    least: int
    most: int


def _extent(column: Column, cells: Sequence[str]) -> _Extent:
    """Figures stay whole; words, and every heading, fold at blanks."""
    words = [*column.name.split(), *([] if column.is_number else " ".join(cells).split())]
    least = max(map(len, words), default=0)
    most = max(map(len, (column.name, *cells)))
    if column.is_number:
        least = max([least, *map(len, cells)])
    return _Extent(least, most)


def _blocks(extents: Sequence[_Extent], room: int) -> list[list[int]]:
    """Numbers of the columns that go into a table beside each other; all begin with the first."""
    blocks = [[0]] if extents else []
    for number, extent in enumerate(extents[1:], start=1):
        if _least_width(extents, blocks[-1]) + extent.least > room and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(number)
    return blocks


def _least_width(extents: Sequence[_Extent], block: Sequence[int]) -> int:
    return sum(extents[number].least + _GAP for number in block)


def _widths(extents: Sequence[_Extent], block: Sequence[int], room: int) -> dict[int, int]:
    """Width of each column: what it takes at least, and an equal share of what is left."""
    widths = {number: extents[number].least for number in block}
    left = room - sum(widths.values()) - _GAP * (len(block) - 1)
    by_need = sorted(block, key=lambda number: extents[number].most - extents[number].least)
    for position, number in enumerate(by_need):
        share = max(0, left) // (len(block) - position)
        added = min(extents[number].most - widths[number], share)
        widths[number] += added
        left -= added
    return widths


def _rich_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    block: Sequence[int],
    widths: Mapping[int, int],
) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.show_header = any(columns[number].name for number in block)
    for number in block:
        column = columns[number]
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(
            escape(column.name), justify=justify, width=widths[number], overflow="fold"
        )
    for row in rows:
        table.add_row(
            *(
                escape(
                    row[number].replace(" ", _BLANK) if columns[number].is_number else row[number]
                )
                for number in block
            )
        )
    return table


def _write(text: str) -> None:
    """Write to stdout; where its reader has seen enough, the command continues with its files."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        close_stdout()


def close_stdout() -> None:
    """Let nothing more be written to a pipe that nobody reads, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
