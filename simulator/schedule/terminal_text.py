"""How does a schedule look on a terminal?

A row per rank, a cell per unit of time. ``F3`` is the forward of microbatch 3, ``B`` a
backward, ``I`` an input gradient, ``W`` a weight gradient, ``--`` goes on with the slot
before, ``.`` is idle. A plus joins slots that run together. Two parts of the model on one
rank (chunks or directions) differ by capital and small letters, more of them by
their number, as in ``F3.2``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import ceil, gcd
from typing import NamedTuple

from simulator.schedule.info import ScheduleInfo
from simulator.schedule.slots import Phase
from simulator.schedule.unit_run import UnitRun

PHASE_NAMES: Mapping[Phase, str] = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.BACKWARD_INPUT: "input gradient",
    Phase.BACKWARD_WEIGHT: "weight gradient",
}
"""What the letters stand for."""

_IDLE, _GOES_ON = ".", "--"
_LETTERED_PARTS = 2
"""Parts of the model on a rank that capital and small letters distinguish; more have numbers."""
_RULER_CELLS = 4
_FINEST = 4
"""The shortest phase is drawn at most so many cells wide."""


class Cell(NamedTuple):
    """A piece of a line; ``phase`` is what it shows, None is no work."""

    text: str
    phase: Phase | None = None


class Mark(NamedTuple):
    """Something that a rank does, and when."""

    cell: Cell
    start: float
    end: float
    joins_next: bool = False


class Row(NamedTuple):
    """What one rank does."""

    name: str
    marks: Sequence[Mark]


def picture_lines(run: UnitRun, width: int | None = None) -> list[list[Cell]]:
    """The picture of a schedule as lines of cells.

    Args:
        run: The schedule to draw.
        width: As of :func:`row_lines`.
    """
    rows = [Row(f"rank {rank}", _marks(run, rank)) for rank in range(run.stages)]
    return row_lines(rows, run.span, cell_time(run), width)


def row_lines(
    rows: Sequence[Row], span: float, cell: float, width: int | None = None, unit: str = ""
) -> list[list[Cell]]:
    """A picture as lines of cells: a ruler, then a line per rank.

    Args:
        rows: What every rank does.
        span: Time to show.
        cell: Time per cell; one shows what runs at its middle, the last at the middle of what is
            left of ``span``.
        width: Characters per line; a longer picture is folded into blocks with an empty line
            between them. None never folds.
        unit: Of the time, for the ruler.
    """
    columns = ceil(span / cell - 1e-9)
    ends = [cell * column for column in range(1, columns)] + [span]
    middles = [(cell * column + end) / 2 for column, end in enumerate(ends)]
    cells_of = [_cells(row.marks, middles) for row in rows]
    size = 1 + max(len(c.text) for cells in cells_of for c in cells)
    names = _padded([f"time {unit}".rstrip(), *(row.name for row in rows)])
    room = columns if width is None else _whole_marks((width - len(names[0])) // size)
    lines: list[list[Cell]] = []
    for start in range(0, columns, room):
        shown = range(start, min(start + room, columns))
        lines += [[]] if start else []
        lines.append([Cell((names[0] + _ruler(shown, cell, size)).rstrip())])
        for name, whole in zip(names[1:], cells_of, strict=True):
            cells = [_spaced(whole[column], size) for column in shown]
            lines.append([Cell(name), *cells[:-1], Cell(cells[-1].text.rstrip(), cells[-1].phase)])
    return lines


def lines_text(lines: Sequence[Sequence[Cell]]) -> str:
    """Lines of cells as plain text."""
    return "\n".join("".join(cell.text for cell in line).rstrip() for line in lines)


def legend(run: UnitRun) -> str:
    """One line that says what the letters of the picture stand for."""
    used = _used_phases(run)
    goes_on = any(run.costs[phase] / run.chunks > cell_time(run) for phase in used)
    joint = any(slot.overlaps_next for slots in run.order for slot in slots)
    return legend_text(run.info, run.num_parts, used, goes_on=goes_on, joint=joint)


def legend_text(
    info: ScheduleInfo, parts: int, used: Collection[Phase], *, goes_on: bool, joint: bool = False
) -> str:
    """The same for any picture of a schedule.

    Args:
        info: The schedule.
        parts: Parts of the model that a rank holds.
        used: Phases in the picture.
        goes_on: Whether something is longer than a cell.
        joint: Whether slots run together.
    """
    words = [f"{phase} {name}" for phase, name in PHASE_NAMES.items() if phase in used]
    if goes_on:
        words.append(f"{_GOES_ON} continues")
    words.append(f"{_IDLE} idle")
    if joint:
        words.append("+ run together")
    if info.placement.copies > 1:
        words.append("lower case: the copy that goes up")
    elif parts == _LETTERED_PARTS:
        words.append("lower case: second chunk")
    elif parts > _LETTERED_PARTS:
        words.append("F0.1: chunk 1")
    return ", ".join(words)


def sizes_text(stages: int, microbatches: int, chunks: int = 1) -> str:
    """The sizes of a run in words ("4 stages of 2 chunks, 8 microbatches")."""
    of = f" of {chunks} chunks" if chunks > 1 else ""
    return f"{_count(stages, 'stage', 's')}{of}, {microbatches_text(microbatches)}"


def microbatches_text(number: float) -> str:
    """A number of microbatches in words, for example of those that are held."""
    return _count(number, "microbatch", "es")


def costs_text(costs: Mapping[Phase, float]) -> str:
    """The costs in words."""
    forward, backward, *halves = (f"{name} {costs[phase]:g}" for phase, name in PHASE_NAMES.items())
    return f"{forward}, {backward} = {' + '.join(halves)}"


def _count(number: float, thing: str, ending: str) -> str:
    return f"{number:g} {thing}{'' if number == 1 else ending}"


def cell_time(run: UnitRun) -> float:
    """Time per cell: the longest that divides all slots, or the shortest slot's if that is fine.

    Where nothing divides all, a cell shows what runs at its middle. No slot is lost, since
    none is shorter than a cell, unless the end of the picture cuts it.
    """
    used = _used_phases(run)
    exact = [Fraction(run.costs[phase]).limit_denominator(1000) / run.chunks for phase in used]
    common = reduce(_common_divisor, exact)
    shortest = min(run.costs[phase] for phase in used) / run.chunks
    return float(common) if common * _FINEST >= shortest else shortest


def _used_phases(run: UnitRun) -> set[Phase]:
    return {slot.phase for slots in run.order for slot in slots}


def _common_divisor(a: Fraction, b: Fraction) -> Fraction:
    shared = a.denominator * b.denominator
    return Fraction(gcd(a.numerator * b.denominator, b.numerator * a.denominator), shared)


def _marks(run: UnitRun, rank: int) -> list[Mark]:
    return [
        Mark(
            slot_cell(
                slot.phase,
                slot.microbatch,
                run.info.placement.chunk(slot.stage, run.stages),
                run.num_parts,
            ),
            start,
            end,
            slot.overlaps_next,
        )
        for slot, start, end in run.boxes(rank)
    ]


def slot_cell(phase: Phase, microbatch: int, part: int, parts: int) -> Cell:
    """The cell of a slot on one of the parts of the model that its rank holds."""
    if parts > _LETTERED_PARTS:
        return Cell(f"{phase}{microbatch}.{part}", phase)
    return Cell(f"{phase.lower() if part else phase}{microbatch}", phase)


def _cells(marks: Sequence[Mark], middles: Sequence[float]) -> list[Cell]:
    cells = [Cell(_IDLE)] * len(middles)
    rounding = 1e-9 * middles[0]
    for (text, phase), start, end, joins_next in marks:
        first, past = (bisect_left(middles, moment - rounding) for moment in (start, end))
        texts = [text] + [_GOES_ON] * (past - first - 1)
        if joins_next:
            texts[-1] += "+"
        cells[first:past] = [Cell(each, phase) for each in texts[: past - first]]
    return cells


def _spaced(cell: Cell, size: int) -> Cell:
    """The cell at its full width; a plus comes last."""
    if cell.text.endswith("+"):
        return Cell(cell.text[:-1].ljust(size - 1) + "+", cell.phase)
    return Cell(cell.text.ljust(size), cell.phase)


def _ruler(columns: range, cell: float, size: int) -> str:
    marks = columns[::_RULER_CELLS]
    return "".join(f"{round(mark * cell, 2):g}".ljust(size * _RULER_CELLS) for mark in marks)


def _whole_marks(columns: int) -> int:
    """So many columns or fewer that every block starts at a mark of the ruler; at least 1."""
    return max(1, columns - columns % _RULER_CELLS if columns > _RULER_CELLS else columns)


def _padded(names: list[str]) -> list[str]:
    width = 2 + max(map(len, names))
    return [name.ljust(width) for name in names]
