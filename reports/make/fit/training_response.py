"""How does the predicted time of a published run follow the clock that its device sustains?

Simulating is slow and the step time follows a clock smoothly, so every run is simulated at a few
clocks, once; all fits, and all cross-validations, are then interpolations.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np

from simulator.cells import Row, word
from simulator.cost.rates import ELEMENT_BYTES
from simulator.described.cluster.kernel_parameters import Precision
from simulator.described.documents import merged
from simulator.described.load import job_from_document, load_profile, profile_names
from simulator.errors import InputError
from simulator.results.simulation import run_step
from simulator.tables.spellings import precision_name, profile_name_of
from simulator.validate.published.published_rows import job_document

CLOCK, NARROW_CLOCK = "sustained_clock", "sustained_clock_8_bit"
"""Fields of ``kernels`` that runs tell: of all formats, or of 16 bits; of 8 bits and fewer."""

CLOCKS = (0.55, 0.75, 1.0)
"""Values of a clock at which runs are simulated."""

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
        """Profile whose clock it is, whatever the source calls its device."""
        return shipped_profile(self.row) or self.row["profile"]

    @property
    def field(self) -> str:
        """The clock that the run tells: that of its format where its profile has one."""
        return _told_clock(self.row)

    @property
    def relatives_field(self) -> str:
        """The clock that it would tell if its profile had one for every format."""
        return NARROW_CLOCK if _is_narrow(self.row) else CLOCK

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
    """The response of every timed run of a known device that can be simulated, in order."""
    rows = [row for row in rows if row["measured_step_s"] and shipped_profile(row)]
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
    """Whether a run's kernels are so short that launching them decides.

    A microbatch of which nothing is said has one sequence at least.
    """
    tokens = float(row["micro_batch"] or 1) * float(row["seq_len"])
    return tokens * float(row["hidden"]) / float(row["tp"] or 1) < _LAUNCH_BOUND_ELEMENTS


def _is_narrow(row: Row) -> bool:
    said = word(row, "precision")
    if not said:
        return False
    return ELEMENT_BYTES[cast("Precision", precision_name(said))] < ELEMENT_BYTES["bf16"]


def _told_clock(row: Row) -> str:
    has_own = _is_narrow(row) and has_narrow_clock(shipped_profile(row) or "")
    return NARROW_CLOCK if has_own else CLOCK


def shipped_profile(row: Row) -> str | None:
    """The shipped profile that a run's device has, as its prediction takes it; None without one."""
    return profile_name_of(row["profile"], profile_names())


@cache
def has_narrow_clock(profile: str) -> bool:
    """Whether a shipped profile has a clock of its own for 8 bits and fewer."""
    known = profile in profile_names()
    return known and load_profile(profile).kernels.sustained_clock_8_bit is not None


def _document_at(row: Row, clock: float) -> dict[str, Any]:
    """The run's job at a clock, unless the source itself tells one."""
    return merged({"cluster": {"kernels": {_told_clock(row): clock}}}, job_document(row))


def _step_s(document: dict[str, Any]) -> float | None:
    try:
        return run_step(job_from_document(document)).step_time_s
    except InputError:
        return None
