"""Why is the best plan the best, what limits it, and which knob would come next?

All of it is simulated: the categories of its step, the difference to the plan behind it by
cause, and every knob that the search leaves alone, turned alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from simulator.errors import InputError
from simulator.program.ir import Category
from simulator.results.run import run_step
from simulator.results.step import StepResult
from simulator.spec.job import Job

_PLAN_KNOBS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "plan.overlap_tp": (True,),
        "plan.overlap_p2p": (True,),
        "plan.overlap_grad_reduce": (True,),
        "plan.overlap_param_gather": (True,),
        "plan.overlap_ep": (True,),
        "plan.sequence_parallel": (True,),
        "plan.attention": ("flash",),
        "plan.cp_method": ("all_to_all",),
        "plan.grad_reduce_precision": ("bf16",),
        "plan.reshard_after_forward": (False,),
        "plan.schedule": ("interleaved-1f1b", "zb-h1", "zb-v"),
        "plan.rank_order": ("tp-cp-ep-pp-dp",),
        "plan.precision": ("fp8",),
    }
)
"""Fields that a search leaves as they are, with the values that may be faster. The last one
changes what is learned."""

_WHAT_IF = 2.0
"""By what a link is made faster to see whether it limits."""


@dataclass(frozen=True)
class Knob:
    """One change of the best plan, alone.

    Attributes:
        changes: Ready for :meth:`Job.replace`.
        gain: Share of the step that it saves; negative where it costs.
        fits: Whether the changed job fits.
    """

    changes: Mapping[str, Any]
    gain: float
    fits: bool


@dataclass(frozen=True)
class Reasons:
    """Why a plan is as fast as it is.

    Attributes:
        shares: Share of the step by category, the largest first.
        knobs: Changes of the plan that save time and fit, the largest gain first.
        links: The same for faster links, which money buys.
        behind: Category by category, what the plan behind it spends more [s]; sums to the
            difference. Empty where there is none.
    """

    shares: Mapping[Category, float]
    knobs: tuple[Knob, ...]
    links: tuple[Knob, ...]
    behind: Mapping[Category, float]


def reasons(
    job: Job, runner_up: Job | None = None, *, on_trial: Callable[[], None] | None = None
) -> Reasons:
    """Why a job's plan is as fast as it is.

    Args:
        job: With the best plan.
        runner_up: With the plan behind it.
        on_trial: Called after each simulated change, for progress.

    Raises:
        InputError: A job cannot run.
    """
    step = run_step(job)
    ranked = sorted(step.breakdown_s.items(), key=lambda item: -item[1])
    return Reasons(
        shares={category: seconds / step.step_time_s for category, seconds in ranked},
        knobs=_gains(job, step, _plan_changes(), on_trial),
        links=_gains(job, step, _link_changes(job), on_trial),
        behind={} if runner_up is None else difference_s(run_step(runner_up), step),
    )


def difference_s(slow: StepResult, fast: StepResult) -> dict[Category, float]:
    """What one step spends more than another, by cause; adds up to the difference [s]."""
    return {
        category: slow.breakdown_s.get(category, 0.0) - fast.breakdown_s.get(category, 0.0)
        for category in Category
        if category in slow.breakdown_s or category in fast.breakdown_s
    }


def _plan_changes() -> list[dict[str, Any]]:
    return [{path: value} for path, values in _PLAN_KNOBS.items() for value in values]


def _link_changes(job: Job) -> list[dict[str, Any]]:
    network = job.cluster.profile.network
    nic, scale_up = network.fabric.nic_bytes_per_s, network.scale_up.bandwidth_bytes_per_s
    return [
        {"cluster.network.fabric.nic": f"{_WHAT_IF * nic!r} B/s"},
        {"cluster.network.scale_up.bandwidth": f"{_WHAT_IF * scale_up!r} B/s"},
    ]


def _gains(
    job: Job,
    step: StepResult,
    trials: list[dict[str, Any]],
    on_trial: Callable[[], None] | None,
) -> tuple[Knob, ...]:
    found = []
    for changes in trials:
        try:
            changed = run_step(job.replace(changes))
        except InputError:
            continue  # not a choice that this plan has
        if on_trial:
            on_trial()
        gain = 1 - changed.step_time_s / step.step_time_s
        peak = max(memory.peak_device_bytes for memory in changed.memory)
        if gain > 0:
            found.append(Knob(changes, gain, peak <= changed.capacity_bytes))
    return tuple(sorted(found, key=lambda knob: -knob.gain))
