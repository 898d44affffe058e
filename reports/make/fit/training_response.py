"""How does the predicted time of a published run follow the clock that its device sustains?

Simulating is slow and the step time follows a clock smoothly, so every run is simulated at a few
clocks, once; all fits, and all cross-validations, are then interpolations.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.cells import Row
from simulator.described.documents import merged
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.results.simulation import run_step
from simulator.validate.published.published_rows import job_document

CLOCKS = (0.55, 0.75, 1.0)
"""Values of ``sustained_clock`` at which runs are simulated."""

_LAUNCH_BOUND_ELEMENTS = 4e6
"""Activations (tokens x hidden / tp) per microbatch below which kernels are so short that
launching them decides; such runs tell nothing of a clock."""


@dataclass(frozen=True)
class Response:
    """Step time of one run over the clock of its device.

    Attributes:
        row: The run.
        simulated_s: Step time at each of :data:`CLOCKS` [s].
    """

    row: Row
    simulated_s: tuple[float, ...]

    @property
    def profile(self) -> str:
        """Profile whose clock it is."""
        return self.row["profile"]

    def step_s(self, clock: float) -> float:
        """Step time at a clock [s].

        Computing takes time in proportion to 1 / clock; what the clock does not touch is constant.
        """
        periods = [1 / each for each in reversed(CLOCKS)]
        return float(np.interp(1 / clock, periods, self.simulated_s[::-1]))

    def error(self, clock: float) -> float:
        """Logarithm of predicted over measured step time."""
        return float(np.log(self.step_s(clock) / float(self.row["measured_step_s"])))


def responses(rows: Sequence[Row], executor: Executor) -> list[Response]:
    """The response of every run that can be simulated, in order."""
    tasks = [_document_at(row, clock) for row in rows for clock in CLOCKS]
    times = iter(executor.map(_step_s, tasks, chunksize=8))
    found = []
    for row in rows:
        simulated = [next(times) for _ in CLOCKS]
        known = tuple(seconds for seconds in simulated if seconds is not None)
        if len(known) == len(simulated):
            found.append(Response(row, known))
    return found


def is_launch_bound(row: Row) -> bool:
    """Whether a run's kernels are so short that launching them decides."""
    tokens = float(row["micro_batch"]) * float(row["seq_len"])
    return tokens * float(row["hidden"]) / float(row["tp"]) < _LAUNCH_BOUND_ELEMENTS


def _document_at(row: Row, clock: float) -> dict[str, Any]:
    """The run's job at a clock, unless the source itself tells one."""
    return merged({"cluster": {"kernels": {"sustained_clock": clock}}}, job_document(row))


def _step_s(document: dict[str, Any]) -> float | None:
    try:
        return run_step(job_from_document(document)).step_time_s
    except InputError:
        return None
