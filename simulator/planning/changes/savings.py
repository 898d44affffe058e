"""Which single change of a job saves most memory, and what does it cost?

The changes are those that :mod:`simulator.planning.changes.nearest_fit` tries alone on the GPUs
there
are: recomputation, a smaller microbatch, sharding, model-parallel degrees. Each is simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.described.job import Job
from simulator.planning.changes.nearest_fit import Changes, single_trials


@dataclass(frozen=True)
class Saving:
    """A change that lowers the peak of the fullest GPU.

    Attributes:
        changes: New values by dotted path, ready for :meth:`Job.replace`.
        saved_bytes: Device memory that the fullest GPU no longer needs [B].
        step_time_s: Step of the changed job, without contention [s].
        slower_share: How much longer that is than before; negative where it is shorter.
    """

    changes: Changes
    saved_bytes: float
    step_time_s: float
    slower_share: float


def savings(job: Job, *, on_trial: Callable[[], None] | None = None) -> tuple[Saving, ...]:
    """Every single change that saves memory, the largest saving first.

    Args:
        job: Where to start from.
        on_trial: Called after each simulated candidate, for progress.

    Raises:
        InputError: The job itself cannot run.
    """
    base, trials = single_trials(job)
    found = []
    for trial in trials:
        if on_trial:
            on_trial()
        saved = base.peak_device_bytes - trial.peak_device_bytes
        if saved > 0:
            slower = trial.step_time_s / base.step_time_s - 1
            found.append(Saving(trial.changes, saved, trial.step_time_s, slower))
    return tuple(sorted(found, key=lambda saving: -saving.saved_bytes))
