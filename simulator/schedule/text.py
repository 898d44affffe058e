"""How does a schedule look on a terminal?

A row per rank, a cell per unit of time. ``F3`` is the forward of microbatch 3, ``B`` a
backward, ``I`` an input gradient, ``W`` a weight gradient, ``--`` goes on with the slot
before, ``.`` is idle. A plus joins slots that run together. Two parts of the model on one
rank (chunks or directions) are told apart by capital and small letters, more of them by
their number, as in ``F3.2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from math import ceil, gcd
from types import MappingProxyType
from typing import NamedTuple

from simulator.schedule.slots import Phase, Slot
from simulator.schedule.unit_run import UnitRun

PHASE_NAMES: Mapping[Phase, str] = MappingProxyType(
    {
        Phase.FORWARD: "forward",
        Phase.BACKWARD: "backward",
        Phase.BACKWARD_INPUT: "input gradient",
        Phase.BACKWARD_WEIGHT: "weight gradient",
    }
)
"""What the letters stand for."""

_IDLE, _GOES_ON = ".", "--"
_RULER_CELLS = 4
_FINEST = 4
"""The shortest phase is drawn at most so many cells wide."""


class Cell(NamedTuple):
    """A piece of a line; ``phase`` is what it shows, None is no work."""

    text: str
    phase: Phase | None = None


def picture_lines(run: UnitRun, width: int | None = None) -> list[list[Cell]]:
    """The picture as lines of cells: a ruler, then a line per rank.

    Args:
        run: The schedule to draw.
        width: Characters per line; a longer picture is folded into blocks with an empty line
            between them. None never folds.
    """
    ranks = range(run.stages)
    cell = cell_time(run)
    columns = ceil(run.span / cell - 1e-9)
    rows = [_cells(run, rank, columns, cell) for rank in ranks]
    size = 1 + max(len(c.text) for row in rows for c in row)
    names = _padded(["time", *(f"rank {rank}" for rank in ranks)])
    room = columns if width is None else _whole_marks((width - len(names[0])) // size)
    lines: list[list[Cell]] = []
    for start in range(0, columns, room):
        shown = range(start, min(start + room, columns))
        lines += [[]] if start else []
        lines.append([Cell((names[0] + _ruler(shown, cell, size)).rstrip())])
        for name, row in zip(names[1:], rows, strict=True):
            cells = [_spaced(row[column], size) for column in shown]
            lines.append([Cell(name), *cells[:-1], Cell(cells[-1].text.rstrip(), cells[-1].phase)])
    return lines


def picture_text(run: UnitRun, width: int | None = None) -> str:
    """The picture as plain text. For the arguments see :func:`picture_lines`."""
    lines = ("".join(cell.text for cell in line) for line in picture_lines(run, width))
    return "\n".join(line.rstrip() for line in lines)


def legend(run: UnitRun) -> str:
    """One line that says what the letters of the picture stand for."""
    used = {slot.phase for slots in run.order for slot in slots}
    words = [f"{phase} {name}" for phase, name in PHASE_NAMES.items() if phase in used]
    if any(run.costs[phase] / run.chunks > cell_time(run) for phase in used):
        words.append(f"{_GOES_ON} goes on")
    words.append(f"{_IDLE} idle")
    if any(slot.overlaps_next for slots in run.order for slot in slots):
        words.append("+ run together")
    if run.info.placement.copies == 2:
        words.append("small letters: the copy that goes up")
    elif run.num_parts == 2:
        words.append("small letters: second chunk")
    elif run.num_parts > 2:
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
    used = {slot.phase for slots in run.order for slot in slots}
    exact = [Fraction(run.costs[phase]).limit_denominator(1000) / run.chunks for phase in used]
    common = reduce(_common_divisor, exact)
    shortest = min(run.costs[phase] for phase in used) / run.chunks
    return float(common) if common * _FINEST >= shortest else shortest


def _common_divisor(a: Fraction, b: Fraction) -> Fraction:
    """The largest fraction of which both are multiples."""
    shared = a.denominator * b.denominator
    return Fraction(gcd(a.numerator * b.denominator, b.numerator * a.denominator), shared)


def _cells(run: UnitRun, rank: int, columns: int, cell: float) -> list[Cell]:
    """What a rank runs at the middle of every cell."""
    cells = [Cell(_IDLE)] * columns
    for slot, start, end in run.boxes(rank):
        first, past = (ceil(moment / cell - 0.5 - 1e-9) for moment in (start, end))
        texts = [_label(slot, run)] + [_GOES_ON] * (past - first - 1)
        if slot.overlaps_next:
            texts[-1] += "+"
        cells[first:past] = [Cell(text, slot.phase) for text in texts[: past - first]]
    return cells


def _label(slot: Slot, run: UnitRun) -> str:
    part = run.info.placement.chunk(slot.stage, run.stages)
    if run.num_parts > 2:
        return f"{slot.phase}{slot.microbatch}.{part}"
    return f"{slot.phase.lower() if part else slot.phase}{slot.microbatch}"


def _spaced(cell: Cell, size: int) -> Cell:
    """The cell at its full width; a plus comes last."""
    if cell.text.endswith("+"):
        return Cell(cell.text[:-1].ljust(size - 1) + "+", cell.phase)
    return Cell(cell.text.ljust(size), cell.phase)


def _ruler(columns: range, cell: float, size: int) -> str:
    """The time at every few cells."""
    marks = columns[::_RULER_CELLS]
    return "".join(f"{round(mark * cell, 2):g}".ljust(size * _RULER_CELLS) for mark in marks)


def _whole_marks(columns: int) -> int:
    """So many columns or fewer that every block starts at a mark of the ruler; at least 1."""
    return max(1, columns - columns % _RULER_CELLS if columns > _RULER_CELLS else columns)


def _padded(names: list[str]) -> list[str]:
    width = 2 + max(map(len, names))
    return [name.ljust(width) for name in names]
