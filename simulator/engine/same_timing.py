"""Do two programs take the same time, whatever that is?

They do if they have the same operations in the same order, of the same durations, on the same
ports. Then there is no need to simulate the second one. What they hold in memory may differ.
"""

from __future__ import annotations

from simulator.program.ir import Program


def is_timed_alike(one: Program, other: Program) -> bool:
    """Whether engines give both programs the same times to the last bit."""
    if (
        len(one.operations) != len(other.operations)
        or one.lanes != other.lanes
        or one.ports != other.ports
        or len(one.classes) != len(other.classes)
        or one.device != other.device
        or one.common != other.common
        or any(
            (mine.port_shares, mine.device) != (theirs.port_shares, theirs.device)
            for mine, theirs in zip(one.classes, other.classes, strict=True)
        )
    ):
        return False
    # Operations that do the same share their work, so few pairs of works are different ones.
    known: dict[tuple[int, int], bool] = {}
    for mine, theirs in zip(one.operations, other.operations, strict=True):
        if (mine.kind, mine.lanes, mine.after) != (theirs.kind, theirs.lanes, theirs.after):
            return False
        pair = (id(mine.work), id(theirs.work))
        if pair not in known:
            known[pair] = (
                mine.work.seconds == theirs.work.seconds
                and mine.work.traffic == theirs.work.traffic
            )
        if not known[pair]:
            return False
    return True
