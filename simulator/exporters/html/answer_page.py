"""How does the answer to a question become a page?

Sentences that answer it, headline numbers, and tables whose cells may hold bars. Whoever asks the
question says what the cells are; this module knows only how they look. Names may come from files:
the template escapes all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simulator.exporters.html.page import render, write_page
from simulator.exporters.html.timeline_data import both
from simulator.plots import style
from simulator.program.ir import Category, Owner

Color = tuple[str, str]
"""On a bright page, and on a dark one."""

Tone = Literal["", "gain", "loss", "pale"]
"""How a cell is meant, beside what it says."""

PLAIN: Color = both(style.BLUE)
"""Of bars that stand for one number each."""
GAIN: Color = both(style.GREEN)
LOSS: Color = both(style.VERMILLION)


@dataclass(frozen=True)
class Bar:
    """A part of a cell's width.

    Attributes:
        share: Its width, 0 to 1.
        start: Where it starts, 0 to 1; stacked bars follow each other, from 0.
    """

    name: str
    color: Color
    share: float
    start: float = 0.0


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table.

    Attributes:
        bars: Bars in place of the text, one after the other.
        mark: A dashed line over the bars, 0 to 1, such as a capacity.
        heat: How strong the background is, 0 to 1.
        span: Columns that it takes; one that takes several is the last of its row.
    """

    text: str = ""
    tone: Tone = ""
    bars: tuple[Bar, ...] = ()
    mark: float | None = None
    heat: float | None = None
    span: int = 1


@dataclass(frozen=True)
class Column:
    """A column of a table: words, numbers (aligned to the right) or bars."""

    name: str
    kind: Literal["words", "number", "bars"] = "words"


@dataclass(frozen=True)
class Table:
    """One table of a page.

    Attributes:
        heading: Of its section.
        caption: What its numbers are.
        legend: What the colours of its bars mean.
        notes: Said below it.
    """

    heading: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    legend: tuple[tuple[str, Color], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerPage:
    """One page.

    Attributes:
        sentences: The answer, the most important one first.
        headline: Names and values of the numbers that come first.
        job_yaml: The job that was asked about, to ask again; empty where there is none.
        command: What was asked.
        is_whole_command: Whether it has every option that was given.
    """

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table]
    headline: Sequence[tuple[str, str]] = ()
    job_yaml: str = ""
    command: str = ""
    is_whole_command: bool = False


def write_answer_page(page: AnswerPage, path: str | Path) -> None:
    """Write a page, whole or not at all."""
    write_page(path, "answer.html", {"title": page.title, "page": page})


def answer_view(page: AnswerPage) -> str:
    """The sentences and the tables of a page, as a notebook shows them."""
    return render("answer_view.html", {"page": page})


def columns(words: Iterable[str] = (), numbers: Iterable[str] = ()) -> list[Column]:
    """Columns of words, then columns of numbers."""
    return [Column(name) for name in words] + [Column(name, "number") for name in numbers]


def cells(texts: Iterable[object]) -> list[Cell]:
    """Cells that hold texts only."""
    return [Cell(str(text)) for text in texts]


def stacked_seconds(seconds: Mapping[Category, float], longest_s: float) -> Cell:
    """Where a step's time goes, as bars; ``longest_s`` is as long as the cell is wide."""
    found = _stack(seconds, style.CATEGORY_COLOR, longest_s)
    return Cell(bars=found)


def stacked_bytes(held: Mapping[Owner, float], longest: float, capacity: float) -> Cell:
    """Who holds memory, as bars, with a mark at the capacity; all in bytes."""
    return Cell(bars=_stack(held, style.OWNER_COLOR, longest), mark=capacity / longest)


def _stack(amounts: Mapping[Any, float], known: Mapping[Any, str], whole: float) -> tuple[Bar, ...]:
    return tuple(
        Bar(style.words(name), _color(name, color), amounts[name] / whole)
        for name, color in known.items()
        if amounts.get(name, 0.0) > 0
    )


def _color(name: object, color: str) -> Color:
    """The colour of a category or an owner; waiting is a grey that a white page shows."""
    if name is Category.BUBBLE:
        grey = style.wait_hatch_color(Category.BUBBLE)
        return grey, style.mix(grey, "#16181C", 0.3)
    return both(color)


def legend_of(rows: Iterable[Sequence[Cell]]) -> tuple[tuple[str, Color], ...]:
    """Names and colours of all bars of a table, in the order in which they are stacked."""
    order = [*style.CATEGORY_COLOR, *style.OWNER_COLOR]
    found = {bar.name: bar.color for row in rows for cell in row for bar in cell.bars}
    names = [style.words(each) for each in order]
    known = {name: found[name] for name in names if name in found}
    return tuple({**known, **found}.items())


def around_zero(change: float | None, largest: float, name: str) -> Cell:
    """A bar to the left or right of the middle, for a change of at most ``largest``."""
    if change is None or largest <= 0:
        return Cell()
    share = abs(change) / largest / 2
    start = 0.5 if change > 0 else 0.5 - share
    return Cell(bars=(Bar(name, LOSS if change > 0 else GAIN, share, start),), mark=0.5)
