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

from simulator.errors import Fault, InputError
from simulator.schedule.slots import Order, Phase, Slot, joint_groups

_SLOT = re.compile(r"([0-9]+)([FBIW])([0-9]+)")
_JOINT = re.compile(r"\(([0-9]+F[0-9]+);([0-9]+B[0-9]+)\)OVERLAP_F_B")


def write_order(order: Order) -> str:
    """The order as CSV text, without idle cells."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cells, order))
    return text.getvalue()


def read_order(text: str, file: str = "") -> Order:
    """The order that a CSV text holds; idle cells are dropped.

    Args:
        text: Content of the file.
        file: Its name, for messages.

    Raises:
        InputError: Lists every cell that is no slot, with row and column (from 1); or there
            is no slot at all.
    """
    order: Order = []
    faults: list[Fault] = []
    for row, cells in enumerate(csv.reader(io.StringIO(text)), start=1):
        order.append([])
        for column, cell in enumerate(cells, start=1):
            slots = _parse(cell.strip())
            order[-1] += slots or []
            if slots is None:
                faults.append(_fault(row, column, cell, file))
    if faults:
        raise InputError(faults)
    if not any(order):
        raise InputError.single("", "holds no slots", file=file)
    return order


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
        path=f"row {row}, column {column}",
        rule="is no slot",
        value=cell,
        hint="write stage, one of F B I W, and microbatch, as in 2F0",
        file=file,
    )
