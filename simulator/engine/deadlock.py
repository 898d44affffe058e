"""What is said when a program can never finish?"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.program.ir import Program


class DeadlockError(RuntimeError):
    """Operations wait for each other in a circle: the program is wrong, not the user."""


def deadlock_error(program: Program, blocked: Sequence[int], shown: int = 6) -> DeadlockError:
    """The error that names the first operations that can never start."""
    names = []
    for index in blocked[:shown]:
        op = program.operations[index]
        lanes = ", ".join(f"{program.classes[c].name}/{s.value}" for c, s in op.lanes)
        names.append(f"{op.kind.value} of microbatch {op.microbatch}, chunk {op.chunk} on {lanes}")
    return DeadlockError(
        f"{len(blocked)} of {len(program.operations)} operations can never start, first: "
        + "; ".join(names)
    )
