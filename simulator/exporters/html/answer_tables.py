"""What stands on the page of an answer: sentences, and tables whose cells may hold bars?

Plain data; ``answer_page`` draws it, and knows the colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeVar

from simulator.program.ir import Category, Owner


class Meaning(StrEnum):
    """What a bar is that stands for no category and no owner."""

    NUMBER = "number"
    GAIN = "gain"
    LOSS = "loss"


Paint = Category | Owner | Meaning
"""What a colour stands for."""

Tone = Literal["", "gain", "loss", "pale"]
"""How a cell is meant, beside what it says."""

_FEW = 2
"""Columns beside bars that only name them: a row's name and its sum."""

_Part = TypeVar("_Part", Category, Owner)


@dataclass(frozen=True)
class Bar:
    """A part of a cell's width.

    Attributes:
        paint: What its colour stands for.
        share: Its width, 0 to 1.
        start: Where it starts, 0 to 1; stacked bars follow each other, from 0.
    """

    name: str
    paint: Paint
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
    legend: tuple[tuple[str, Paint], ...] = ()
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


def page_text(page: AnswerPage) -> str:
    """What a page says, as a terminal shows it: its sentences and tables, without bars."""
    parts = ["\n".join((page.title, *page.sentences))]
    parts += [text for table in page.tables if (text := _table_text(table))]
    return "\n\n".join(parts)


def _table_text(table: Table) -> str:
    """Columns of words and numbers; empty where bars are all that a table has to say."""
    shown = [index for index, column in enumerate(table.columns) if column.kind != "bars"]
    if not table.rows or (len(shown) <= _FEW and len(shown) < len(table.columns)):
        return ""
    rows = [[cell.text for cell in row] + [""] * len(table.columns) for row in table.rows]
    heads = [column.name for column in table.columns]
    lines = [heads, *rows] if any(heads) else rows
    widths = [max(len(line[index]) for line in lines) for index in shown]
    is_number = [table.columns[index].kind == "number" for index in shown]
    texts = [
        "  ".join(
            line[index].rjust(width) if right else line[index].ljust(width)
            for index, width, right in zip(shown, widths, is_number, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join((table.heading, *texts, *table.notes))


def columns(words: Iterable[str] = (), numbers: Iterable[str] = ()) -> list[Column]:
    """Columns of words, then columns of numbers."""
    return [Column(name) for name in words] + [Column(name, "number") for name in numbers]


def cells(texts: Iterable[object]) -> list[Cell]:
    """Cells that hold texts only."""
    return [Cell(str(text)) for text in texts]


def stacked_seconds(seconds: Mapping[Category, float], longest_s: float) -> Cell:
    """Where a step's time goes, as bars; ``longest_s`` is as long as the cell is wide."""
    return Cell(bars=_stack(seconds, Category, longest_s))


def stacked_bytes(held: Mapping[Owner, float], longest: float, capacity: float) -> Cell:
    """Who holds memory, as bars, with a mark at the capacity; all in bytes."""
    return Cell(bars=_stack(held, Owner, longest), mark=capacity / longest)


def _stack(amounts: Mapping[_Part, float], order: Iterable[_Part], whole: float) -> tuple[Bar, ...]:
    return tuple(
        Bar(each.replace("_", " "), each, amounts[each] / whole)
        for each in order
        if amounts.get(each, 0.0) > 0
    )


def legend_of(rows: Iterable[Sequence[Cell]]) -> tuple[tuple[str, Paint], ...]:
    """Names and meanings of all bars of a table, in the order in which they are stacked."""
    found = {bar.name: bar.paint for row in rows for cell in row for bar in cell.bars}
    names = [each.replace("_", " ") for each in (*Category, *Owner)]
    known = {name: found[name] for name in names if name in found}
    return tuple({**known, **found}.items())


def around_zero(change: float | None, largest: float, name: str) -> Cell:
    """A bar to the left or right of the middle, for a change of at most ``largest``."""
    if change is None or largest <= 0:
        return Cell()
    share = abs(change) / largest / 2
    start = 0.5 if change > 0 else 0.5 - share
    return Cell(
        bars=(Bar(name, Meaning.LOSS if change > 0 else Meaning.GAIN, share, start),), mark=0.5
    )
