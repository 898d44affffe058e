"""Why is the best plan the best, what limits it, and which knob would come next?

All of it is simulated: where its step goes, the difference to another plan by cause, and every
knob that the search leaves alone, turned alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.planning.changes.balance import better_layout
from simulator.program.ir import Category
from simulator.results.simulation import run_step
from simulator.units import format_quantity

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
        "plan.reshard_after_forward": (False,),
        "plan.schedule": ("interleaved-1f1b", "zb-h1", "zb-v"),
        "plan.rank_order": ("tp-cp-ep-pp-dp",),
        "plan.precision": ("fp8",),
    }
)
"""Fields that a search leaves as they are, with the values that may be faster. The last one
changes what is learned."""

_USEFUL = (Category.FORWARD, Category.BACKWARD, Category.OPTIMIZER)
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
    """What limits a plan, and what would help.

    Attributes:
        knobs: Changes of the plan that save time, the largest gain first.
        links: The same for links of twice the rate, which money buys.
    """

    knobs: tuple[Knob, ...]
    links: tuple[Knob, ...]


def reasons(job: Job, *, on_trial: Callable[[], None] | None = None) -> Reasons:
    """What would make a job's plan faster.

    Args:
        job: With the best plan.
        on_trial: Called after each simulated change, for progress.

    Raises:
        InputError: The job cannot run.
    """
    step_s = run_step(job).step_time_s
    return Reasons(
        knobs=_gains(job, step_s, _plan_changes(job), on_trial),
        links=_gains(job, step_s, _link_changes(job), on_trial),
    )


def difference_s(
    slow: Mapping[Category, float], fast: Mapping[Category, float]
) -> dict[Category, float]:
    """What one breakdown spends more than another, by cause; adds up to the difference [s]."""
    return {
        category: slow.get(category, 0.0) - fast.get(category, 0.0)
        for category in Category
        if category in slow or category in fast
    }


def losses(breakdown_s: Mapping[Category, float]) -> list[tuple[Category, float]]:
    """Shares of a step that compute nothing new, the largest first."""
    step_s = sum(breakdown_s.values())
    lost = [(each, s / step_s) for each, s in breakdown_s.items() if each not in _USEFUL]
    return sorted(lost, key=lambda item: -item[1])


def _plan_changes(job: Job) -> list[Mapping[str, Any]]:
    knobs = [{path: value} for path, values in _PLAN_KNOBS.items() for value in values]
    knobs.append({"plan.grad_reduce_precision": _half_format(job)})
    layout = better_layout(job)
    return [*knobs, *([] if layout is None else [layout[1]])]


def _half_format(job: Job) -> str:
    """The 16-bit format that the job's GPUs train in."""
    return "fp16" if job.plan.precision == "fp16" else "bf16"


def _link_changes(job: Job) -> list[dict[str, Any]]:
    network = job.cluster.profile.network
    nic, scale_up = network.fabric.nic_bytes_per_s, network.scale_up.bandwidth_bytes_per_s
    return [
        {"cluster.network.fabric.nic": format_quantity(_WHAT_IF * nic, "bytes_per_s")},
        {"cluster.network.scale_up.bandwidth": format_quantity(_WHAT_IF * scale_up, "bytes_per_s")},
    ]


def _gains(
    job: Job,
    step_s: float,
    trials: Sequence[Mapping[str, Any]],
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
        gain = 1 - changed.step_time_s / step_s
        if gain > 0:
            found.append(Knob(changes, gain, changed.fits))
    return tuple(sorted(found, key=lambda knob: -knob.gain))
