"""How do tables and notes reach a person, on a terminal and off it?

A terminal gets colours and its own width. A file or pipe gets plain text as wide as the
content needs, so that no column is ever cut off.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLAIN_WIDTH = 1000
"""Wider than any table; lines are no longer than their content."""
_GAP = 2
"""Blanks between columns."""
_NARROWEST_WORDS = 20
"""Columns of words are folded down to this width, on a terminal that is too narrow."""


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
        note(f"No {what} fits; clustersim plan says what would.")
        raise typer.Exit(1)


@contextlib.contextmanager
def counting(things: str) -> Iterator[Callable[[], None]]:
    """Show how many things are done, on a terminal only; yields what counts one more."""
    numbers = itertools.count(1)
    on_terminal = sys.stderr.isatty()

    def count() -> None:
        if on_terminal:
            typer.echo(f"\r{next(numbers)} {things} done", err=True, nl=False)

    yield count
    if on_terminal:
        note("")


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something is being done, on a terminal only."""
    from rich.console import Console

    with Console(stderr=True).status(what) if sys.stderr.isatty() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def progress(things: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar with the remaining time, on a terminal only; yields what counts one more."""
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
        disable=not sys.stderr.isatty(),
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
    """Show how many of all things are done, on a terminal only; yields what counts one more.

    It is called with how many there are, once that is known.
    """
    numbers = itertools.count(1)
    with status_line() as show:
        show(f"{things}: working on the first")
        yield lambda total: show(f"{next(numbers)} of {total} {things} done")


@contextlib.contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Show one line that changes, on a terminal only; yields what sets its text."""
    on_terminal = sys.stderr.isatty()

    def show(text: str) -> None:
        if on_terminal:
            typer.echo(f"\r\x1b[2K{text}", err=True, nl=False)

    yield show
    if on_terminal:
        typer.echo("\r\x1b[2K", err=True, nl=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout; infinite and undefined numbers become null."""
    from simulator.results.plain_data import json_text

    _write(json_text(document))


def print_table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Write a table with a heading to stdout.

    On a terminal words are folded to its width. Where that is not enough, lines are longer than
    the terminal is wide: no column and no figure is ever left out.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    on_terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.show_header = any(column.name for column in columns)
    for column in columns:
        table.add_column(
            escape(column.name),
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number or not on_terminal,
            overflow="fold",
        )
    cells = list(rows)
    for row in cells:
        table.add_row(*(escape(cell) for cell in row))
    console = Console(width=None if on_terminal else _PLAIN_WIDTH, highlight=False)
    console.width = max(console.width, _least_width(columns, cells))
    with console.capture() as captured:
        console.print(f"[bold]{escape(title)}[/bold]")
        console.print(table)
    lines = (line.rstrip() for line in captured.get().splitlines())
    _write("\n".join(lines) + "\n")


def _write(text: str) -> None:
    """Write to stdout; where its reader has seen enough, the command goes on with its files."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        close_stdout()


def close_stdout() -> None:
    """Let nothing more be written to a pipe that nobody reads, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Characters that a table takes at least: figures in full, words folded."""
    longest = [max(map(len, cells)) for cells in zip([c.name for c in columns], *rows, strict=True)]
    return sum(
        (width if column.is_number else min(width, _NARROWEST_WORDS)) + _GAP
        for column, width in zip(columns, longest, strict=True)
    )


def percent(share: float, digits: int = 1) -> str:
    """A share as people read it ("42.3 %")."""
    return f"{100 * share:.{digits}f} %"
