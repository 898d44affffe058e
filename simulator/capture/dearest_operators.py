"""Which operators of a captured step take most of the GPU's time, and in which modules?

Layers that differ by number alone count together. Times are those of the kernels, whatever runs
beside them; what the host takes to launch them is not in them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.capture.captured_program import RankCosts
from simulator.capture.table import Capture, Phase


@dataclass(frozen=True)
class DearOperator:
    """An operator in the modules of one place of the network.

    Attributes:
        name: As torch names it, or the kernel.
        module: Path of the modules, ``*`` for their numbers; empty outside of all.
        phase: Part of the step.
        calls: How often a mean rank's step has it.
        seconds: What its kernels take in all of them [s].
        share: That over the step time.
    """

    name: str
    module: str
    phase: str
    calls: float
    seconds: float
    share: float


def dearest_operators(
    capture: Capture, ranks: Sequence[RankCosts], step_s: float
) -> tuple[DearOperator, ...]:
    """All operators but exchanges, those that take longest first.

    Args:
        capture: The step.
        ranks: What the operators of each captured rank cost.
        step_s: Time of the step [s].
    """
    totals: dict[tuple[str, str, Phase], tuple[int, float]] = {}
    for table, rank in zip(capture.tables, ranks, strict=True):
        places = [re.sub(r"\b\d+\b", "*", path) for path in table.paths]
        is_kernel = table.exchange < 0
        columns = (table.call, table.module, table.phase)
        rows = Counter(zip(*(column[is_kernel].tolist() for column in columns), strict=True))
        for (number, module, phase), times in rows.items():
            key = table.calls[number].name, places[module], Phase(phase)
            calls, seconds = totals.get(key, (0, 0.0))
            totals[key] = calls + times, seconds + times * rank.costs[number].seconds
    count = len(ranks)
    found = [
        DearOperator(
            name, module, phase.name.lower(), calls / count, seconds / count,
            seconds / count / step_s,
        )
        for (name, module, phase), (calls, seconds) in totals.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda each: -each.seconds))
