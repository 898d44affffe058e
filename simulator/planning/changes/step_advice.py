"""What would an engineer say about this step, having tried a few changes?"""

from __future__ import annotations

from collections.abc import Callable

from simulator.described.job import Job
from simulator.planning.changes.influences import influences
from simulator.planning.changes.misfit import explain_misfit
from simulator.planning.changes.what_if import what_ifs
from simulator.results.step import StepResult
from simulator.results.verdict import LEAST_SHARE, Advice, WhatIf, verdict


def advice(
    job: Job,
    result: StepResult,
    *,
    misfit: str = "",
    on_trial: Callable[[], None] | None = None,
) -> Advice:
    """The verdict, the changes and the numbers that it rests on.

    Some twenty changed jobs are replayed; those whose step is as long are not told of, unless they
    save memory of a job that does not fit. What a number of a profile decides is worked out for
    clusters of one kind of GPU.

    Args:
        job: What was simulated.
        result: Its step.
        misfit: Why the job does not fit, if that is known already; see
            :func:`simulator.planning.changes.misfit.explain_misfit`.
        on_trial: Called after each simulated candidate, for progress.
    """
    tried = what_ifs(job, on_trial=on_trial)
    return Advice(
        verdict=verdict(result, tried),
        misfit=misfit or explain_misfit(job, result),
        what_ifs=tuple(each for each in tried if _says_something(each, result)),
        influences=() if job.cluster.pools else influences(job, on_trial=on_trial),
    )


def _says_something(what_if: WhatIf, result: StepResult) -> bool:
    """Whether it changes the step, or saves memory of a job that lacks it."""
    saves_memory = what_if.peak_device_bytes < result.peak_device_bytes
    return abs(what_if.gain) >= LEAST_SHARE or (not result.fits and saves_memory)
