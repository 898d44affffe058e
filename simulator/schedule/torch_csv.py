"""How are pipeline orders exchanged with torch and torchtitan?

A row per rank, a cell per slot: ``2F0`` is the forward of microbatch 0 on stage 2, ``B`` a
whole backward, ``I`` an input gradient, ``W`` a weight gradient, and an empty cell an idle
slot. A joint forward and backward is ``(0F3;7B1)OVERLAP_F_B``. The format is that of
torch's ``_PipelineScheduleRuntime._load_csv`` with ``format="compute_only"``.
"""

from __future__ import annotations

import csv
import io
import re
from typing import NamedTuple

from simulator.errors import Fault, InputError
from simulator.schedule.slots import Order, Phase, Slot, joint_groups

_SLOT = re.compile(r"([0-9]+)([FBIW])([0-9]+)")
_COMMUNICATION = re.compile("SEND|RECV|UNSHARD|RESHARD|REDUCE_GRAD")
_SLOT_HINT = "write stage, one of F B I W, and microbatch, as in 2F0"
_SENDS_HINT = "give the file that holds computation alone (torch: format='compute_only')"
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

    For arguments and errors see :func:`read_cells`.
    """
    return [[cell.slot for cell in row] for row in read_cells(text, file)]


def read_cells(text: str, file: str = "") -> list[list[Cell]]:
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
    for row, entries in enumerate(csv.reader(io.StringIO(text)), start=1):
        rows.append([])
        for column, entry in enumerate(entries, start=1):
            slots = _parse(entry.strip())
            rows[-1] += [Cell(slot, row, column, file) for slot in slots or ()]
            if slots is None:
                faults.append(_fault(row, column, entry, file))
    if faults:
        raise InputError(faults)
    if not any(rows):
        raise InputError.single("", "holds no slots", file=file)
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
        rule="is no slot",
        value=cell,
        hint=_SENDS_HINT if _COMMUNICATION.search(cell) else _SLOT_HINT,
        file=file,
    )


def _place(row: int, column: int) -> str:
    return f"row {row}, column {column}"
