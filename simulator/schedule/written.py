"""Which order does a file hold, and can it run?

A row per rank, a cell per slot: ``2F0`` is the forward of microbatch 0 on stage 2, ``B`` a
whole backward, ``I`` an input gradient, ``W`` a weight gradient, and an empty cell an idle
slot. A joint forward and backward is ``(0F3;7B1)OVERLAP_F_B``. The format is that of
torch's ``_PipelineScheduleRuntime._load_csv`` with ``format="compute_only"``.

Which rank holds which stage, and so how many chunks a rank has, is read off the rows. Everything
that a pipeline needs is checked: stages lie as some placement puts them, every microbatch runs
once through every stage, and the ranks never wait for each other for ever.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import NamedTuple

from simulator.errors import Fault, InputError
from simulator.schedule.info import ScheduleInfo
from simulator.schedule.rendezvous import buffers_needed
from simulator.schedule.slots import Order, Phase, Placement, Slot, joint_groups
from simulator.schedule.unit_time import BlockedError, peak_in_flight, product_of, slot_times

_MOST_FAULTS = 12
"""A file with more mistakes than this has one that repeats."""

_SLOT = re.compile(r"([0-9]+)([FBIW])([0-9]+)")
_COMMUNICATION = re.compile("SEND|RECV|UNSHARD|RESHARD|REDUCE_GRAD")
_SLOT_HINT = "write stage, one of F B I W, and microbatch, as in 2F0"
_SENDS_HINT = "give the file with computation only (torch: format='compute_only')"
_JOINT = re.compile(r"\(([0-9]+F[0-9]+);([0-9]+B[0-9]+)\)OVERLAP_F_B")


def write_order(order: Order) -> str:
    """The order as CSV text, without idle cells."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cells, order))
    return text.getvalue()


class Cell(NamedTuple):
    """A slot and where it stands in a file.

    Attributes:
        slot: What it is.
        row, column: From 1; both halves of a joint slot have the same.
        file: Name of the file.
    """

    slot: Slot
    row: int
    column: int
    file: str = ""

    def fault(self, rule: str, hint: str = "") -> Fault:
        """What is wrong with it."""
        return Fault(_place(self.row, self.column), rule, str(self.slot), hint, self.file)


def read_order(text: str, file: str = "") -> Order:
    """The order that a CSV text holds; idle cells are dropped.

    For arguments and errors see :func:`_read_cells`.
    """
    return [[cell.slot for cell in row] for row in _read_cells(text, file)]


def _read_cells(text: str, file: str) -> list[list[Cell]]:
    """The slots of every rank, each with its place; idle cells are dropped.

    Args:
        text: Content of the file.
        file: Its name, for messages.

    Raises:
        InputError: Lists every cell that is no slot, with row and column (from 1); or there
            is no slot at all.
    """
    rows: list[list[Cell]] = []
    faults: list[Fault] = []
    try:
        table = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise InputError.single("", f"is not CSV: {error}", file=file) from error
    for row, entries in enumerate(table, start=1):
        rows.append([])
        for column, entry in enumerate(entries, start=1):
            slots = _parse(entry.strip())
            rows[-1] += [Cell(slot, row, column, file) for slot in slots or ()]
            if slots is None:
                faults.append(_fault(row, column, entry, file))
    if faults:
        raise InputError(faults)
    if not any(rows):
        raise InputError.single("", "has no slots", file=file)
    return rows


def _cells(slots: list[Slot]) -> list[str]:
    joined = (";".join(map(str, group)) for group in joint_groups(slots))
    return [f"({cell})OVERLAP_F_B" if ";" in cell else cell for cell in joined]


def _parse(cell: str) -> list[Slot] | None:
    if not cell:
        return []
    if joint := _JOINT.fullmatch(cell):
        first, second = (_slot(half) for half in joint.groups())
        return [first._replace(overlaps_next=True), second]
    return [_slot(cell)] if _SLOT.fullmatch(cell) else None


def _slot(cell: str) -> Slot:
    stage, phase, microbatch = _SLOT.fullmatch(cell).groups()  # type: ignore[union-attr]
    return Slot(Phase(phase), int(stage), int(microbatch))


def _fault(row: int, column: int, cell: str, file: str) -> Fault:
    return Fault(
        path=_place(row, column),
        rule="is not a slot",
        value=cell,
        hint=_SENDS_HINT if _COMMUNICATION.search(cell) else _SLOT_HINT,
        file=file,
    )


def _place(row: int, column: int) -> str:
    return f"row {row}, column {column}"


_Rows = Sequence[Sequence[Cell]]


def written_schedule(text: str, file: str) -> ScheduleInfo:
    r"""The schedule that a CSV text holds, which runs with its own sizes only.

    Args:
        text: A row per rank, as torch writes it; see :func:`_read_cells`.
        file: Its name: the schedule's, and where faults are.

    Raises:
        InputError: The text is no order that can run; faults name row and column.

    Example:
        >>> written_schedule("0F0,0B0\n1F0,1B0\n", "mine.csv").sizes
        (2, 1, 1)
    """
    rows = _read_cells(text, file)
    placement, chunks = _placed(rows, file)
    _refuse(_miscounted(rows, placement, chunks, file))
    order = [[cell.slot for cell in row] for row in rows]
    _refuse(_blocked(rows, order, placement, chunks))
    microbatches = 1 + max(slot.microbatch for slots in order for slot in slots)
    peaks = [peak_in_flight(slots) for slots in order]
    return ScheduleInfo(
        name=file,
        order=lambda *_: [list(slots) for slots in order],
        summary="read from a file",
        source="a file",
        in_flight=lambda rank, *_: peaks[rank],
        placement=placement,
        chunks=(chunks, chunks),
        sizes=(len(order), chunks, microbatches),
        splits_backward=any(slot.phase is Phase.BACKWARD_INPUT for row in order for slot in row),
        buffers=lambda *_: buffers_needed(order, chunks, placement),
        joins_passes=any(slot.overlaps_next for row in order for slot in row),
    )


def _refuse(faults: Iterator[Fault]) -> None:
    shown = list(islice(faults, _MOST_FAULTS))
    if shown:
        raise InputError(shown)


def _placed(rows: _Rows, file: str) -> tuple[Placement, int]:
    """Where the stages lie, and chunks per rank."""
    ranks = len(rows)
    stages = 1 + max(cell.slot.stage for row in rows for cell in row)
    if stages % ranks:
        rule = f"has {stages} stages for {ranks} ranks (rows); every rank must hold as many"
        raise InputError.single("", rule, hint="add or remove rows", file=file)
    chunks = stages // ranks
    if chunks == 2 and _runs_both_ways(rows):  # two copies, one stage of each
        candidates = [(Placement.BIDIRECTIONAL, 1)]
    else:
        candidates = [(Placement.LOOP, chunks), (Placement.V, chunks)]
    found = {each: list(_misplaced(rows, each[0])) for each in candidates}
    best = min(candidates, key=lambda each: len(found[each]))
    _refuse(iter(found[best]))
    return best


def _runs_both_ways(rows: _Rows) -> bool:
    """Whether no microbatch runs through both halves of the stages: two copies of the model."""
    down: set[int] = set()
    up: set[int] = set()
    for row in rows:
        for cell in row:
            (down if cell.slot.stage < len(rows) else up).add(cell.slot.microbatch)
    return not down & up


def _misplaced(rows: _Rows, placement: Placement) -> Iterator[Fault]:
    for rank, row in enumerate(rows):
        for cell in row:
            right = placement.rank(cell.slot.stage, len(rows))
            if right != rank:
                rule = f"stage {cell.slot.stage} belongs in row {right + 1}"
                yield cell.fault(rule, f"stages of this file are placed as a {_SHAPES[placement]}")


_SHAPES = {
    Placement.LOOP: "loop: stage s on row 1 + s mod rows",
    Placement.V: "V: down the rows and up again",
    Placement.BIDIRECTIONAL: "pair of models: one down the rows, one up",
}


def _miscounted(rows: _Rows, placement: Placement, chunks: int, file: str) -> Iterator[Fault]:
    """Slots that come twice, halves of a backward beside a whole one, and slots that lack."""
    seen: defaultdict[tuple[int, int], Counter[Phase]] = defaultdict(Counter)
    for row in rows:
        for cell in row:
            phase, stage, microbatch, _ = cell.slot
            phases = seen[stage, microbatch]
            phases[phase] += 1
            if phases[phase] > 1:
                yield cell.fault("appears twice", "remove it")
            elif phases[Phase.BACKWARD] and (phases.keys() & _HALVES):
                yield cell.fault(
                    "is part of a backward that also runs as a whole", "write B, or I and W"
                )
    yield from _lacking(seen, len(rows), placement, chunks, file)


_HALVES = {Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT}


def _lacking(
    seen: Mapping[tuple[int, int], Counter[Phase]],
    ranks: int,
    placement: Placement,
    chunks: int,
    file: str,
) -> Iterator[Fault]:
    copies: defaultdict[int, set[int]] = defaultdict(set)
    for stage, microbatch in seen:
        copies[stage // (ranks * chunks)].add(microbatch)
    numbers = set().union(*copies.values())
    gap = next(number for number in count() if number not in numbers)
    if gap < max(numbers):
        yield Fault("", f"lacks microbatch {gap}", hint="number them from 0", file=file)
    for stage in range(placement.num_virtual_stages(ranks, chunks)):
        row = placement.rank(stage, ranks) + 1
        for microbatch in sorted(copies[stage // (ranks * chunks)]):
            phases = seen.get((stage, microbatch), Counter())
            wanted = _HALVES if phases.keys() & _HALVES else {Phase.BACKWARD}
            for phase in sorted({Phase.FORWARD, *wanted} - phases.keys()):
                yield Fault(f"row {row}", f"lacks {stage}{phase}{microbatch}", file=file)


def _blocked(rows: _Rows, order: Order, placement: Placement, chunks: int) -> Iterator[Fault]:
    try:
        slot_times(order, chunks, placement)
    except BlockedError as error:
        makers = {product_of(cell.slot): cell for row in rows for cell in row}
        cells = {cell.slot: cell for row in rows for cell in row}
        for _, slot, missing in error.blocked:
            maker = makers[missing]
            rule = f"waits forever for {maker.slot} (row {maker.row}, column {maker.column})"
            yield cells[slot].fault(rule, "the rows wait for each other; change their order")
