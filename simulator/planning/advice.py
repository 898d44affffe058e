"""What would an engineer say about this step, having tried a few changes?"""

from __future__ import annotations

from collections.abc import Callable

from simulator.planning.influences import influences
from simulator.planning.misfit import explain_misfit
from simulator.planning.what_if import what_ifs
from simulator.results.advice import Advice
from simulator.results.step import StepResult
from simulator.results.verdict import verdict
from simulator.spec.job import Job


def advice(
    job: Job,
    result: StepResult,
    *,
    misfit: str = "",
    on_trial: Callable[[], None] | None = None,
) -> Advice:
    """The verdict, the changes and the numbers that it rests on.

    Some twenty changed jobs are replayed. What a number of a profile decides is worked out for
    clusters of one kind of GPU.

    Args:
        job: What was simulated.
        result: Its step.
        misfit: Why the job does not fit, if that is known already; see
            :func:`simulator.planning.misfit.explain_misfit`.
        on_trial: Called after each simulated candidate, for progress.
    """
    tried = what_ifs(job, on_trial=on_trial)
    return Advice(
        verdict=verdict(result, tried),
        misfit=misfit or explain_misfit(job, result),
        what_ifs=tried,
        influences=() if job.cluster.pools else influences(job, on_trial=on_trial),
    )
