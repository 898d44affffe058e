"""When does each part of an operation run?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.program.ir import Part, Work


def part_spans(work: Work, start: float, end: float) -> Iterator[tuple[Part, float, float]]:
    """Each part with its start and end, scaled to fill an interval without gaps.

    The parts keep their order and their shares. Ignores that repeats of different kernels
    alternate in reality.

    Args:
        work: What the operation does.
        start: When it begins, in any unit.
        end: When it ends; it may have been slowed down.
    """
    total_s = sum(part.seconds for part in work.parts)
    done_s, left = 0.0, start
    for part in work.parts:
        done_s += part.seconds
        right = start + (end - start) * done_s / total_s if total_s else left
        yield part, left, right
        left = right
