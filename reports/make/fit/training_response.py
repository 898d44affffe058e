"""How does the predicted time of a published run follow the two fitted numbers?

Simulating is slow and the step time follows a clock or a host cost smoothly, so every run
is simulated at a few values of the number that can decide it, once; all fits, and all
cross-validations, are then interpolations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

import numpy as np

from simulator.described.documents import merged
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.results.simulation import run_step
from simulator.tables.cells import Row
from simulator.validate.published.framework_stacks import stack_of
from simulator.validate.published.published_rows import job_document

Knob = Literal["clock", "host_work"]
"""``sustained_clock`` of a profile, or ``host_work_per_launch`` of a stack."""

KNOB_VALUES: Mapping[Knob, tuple[float, ...]] = {
    "clock": (0.55, 0.75, 1.0),
    "host_work": (2.5, 8.0, 14.0, 20.0),
}

_LAUNCH_BOUND_ELEMENTS = 4e6
"""Activations (tokens x hidden / tp) per microbatch below which kernels are so short that
launching them decides; only such runs can tell a framework's host work."""


@dataclass(frozen=True)
class Response:
    """Step time of one run over the values of its knob.

    Attributes:
        row: The run.
        knob: Which number can decide it.
        simulated_s: Step time at each of :data:`KNOB_VALUES` [s].
    """

    row: Row
    knob: Knob
    simulated_s: tuple[float, ...]

    @property
    def key(self) -> str:
        """Profile or stack whose number it is."""
        if self.knob == "clock":
            return self.row["profile"]
        return stack_of(self.row["framework"], self.row.get("framework_version", ""))

    def step_s(self, value: float) -> float:
        """Step time where the number is ``value`` [s].

        Computing takes time in proportion to 1 / clock, launching in proportion to host work;
        what neither touches is constant.
        """
        if self.knob == "host_work":
            return float(np.interp(value, KNOB_VALUES["host_work"], self.simulated_s))
        periods = [1 / clock for clock in reversed(KNOB_VALUES["clock"])]
        return float(np.interp(1 / value, periods, self.simulated_s[::-1]))

    def error(self, value: float) -> float:
        """Logarithm of predicted over measured step time."""
        return float(np.log(self.step_s(value) / float(self.row["measured_step_s"])))


def responses(rows: Sequence[Row], executor: Executor) -> list[Response]:
    """The response of every run that can be simulated, in order."""
    knobs: list[Knob] = ["host_work" if is_launch_bound(row) else "clock" for row in rows]
    tasks = [
        _document_at(row, knob, value)
        for row, knob in zip(rows, knobs, strict=True)
        for value in KNOB_VALUES[knob]
    ]
    times = iter(executor.map(_step_s, tasks, chunksize=8))
    found = []
    for row, knob in zip(rows, knobs, strict=True):
        simulated = [next(times) for _ in repeat(None, len(KNOB_VALUES[knob]))]
        known = tuple(seconds for seconds in simulated if seconds is not None)
        if len(known) == len(simulated):
            found.append(Response(row, knob, known))
    return found


def is_launch_bound(row: Row) -> bool:
    """Whether a run's kernels are so short that launching them decides."""
    tokens = float(row["micro_batch"]) * float(row["seq_len"])
    return tokens * float(row["hidden"]) / float(row["tp"]) < _LAUNCH_BOUND_ELEMENTS


def _document_at(row: Row, knob: Knob, value: float) -> dict[str, Any]:
    """The run's job with a value of the knob, but for a clock that the source itself tells."""
    document = job_document(row)
    if knob == "host_work":
        return merged(document, {"plan": {"stack": {"host_work_per_launch": value}}})
    return merged({"cluster": {"kernels": {"sustained_clock": value}}}, document)


def _step_s(document: dict[str, Any]) -> float | None:
    try:
        return run_step(job_from_document(document)).step_time_s
    except InputError:
        return None
