"""What does a plan carry of a pipeline order that stands in a file?

The lines themselves, so that a job holds all it needs wherever it is simulated. What they
mean, and whether they can run, is for :mod:`simulator.schedule.written` to say.
"""

from __future__ import annotations

from simulator.described.base import Spec


class WrittenSchedule(Spec):
    """A pipeline order as torch and torchtitan write it, one line per rank."""

    file: str
    """Where it was read, for messages."""
    rows: tuple[str, ...]
    """Its lines."""

    def __str__(self) -> str:
        return self.file
