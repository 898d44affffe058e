"""What do campaigns take by the book?"""

from __future__ import annotations

from math import exp, expm1


def expected_wall_s(
    work_s: float, interval_s: float, checkpoint_s: float, recovery_s: float, mtbf_s: float
) -> float:
    """Mean wall time with synchronous checkpoints and exponential failures [s].

    Exact where the work is a whole number of intervals and a failure during recovery starts
    it anew.

    Source: Daly 2006, equation 20.
    """
    segment = expm1((interval_s + checkpoint_s) / mtbf_s)
    return mtbf_s * exp(recovery_s / mtbf_s) * segment * work_s / interval_s
