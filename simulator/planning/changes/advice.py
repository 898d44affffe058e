"""What would an engineer say about this step, having tried a few changes?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from simulator.described.job import Job, options_text
from simulator.planning.changes.helpful_changes import FitSearch, nearest_fit, what_ifs
from simulator.planning.changes.profile_numbers import influences
from simulator.planning.changes.small_machine import ADAPTER_RUNGS, Ladder
from simulator.planning.changes.trials import OnTrial, Trial
from simulator.results.fit_probability import Fit, fit_of, fit_text, misfit_text
from simulator.results.step import ClassMemory, HostMemory, StepResult
from simulator.results.views.verdict import LEAST_SHARE, Advice, WhatIf, verdict
from simulator.units import format_bytes, format_seconds, percent

_TOP_OWNERS = 3


def advice(
    job: Job,
    result: StepResult,
    *,
    misfit: str = "",
    on_trial: OnTrial | None = None,
) -> Advice:
    """The verdict, the changes and the numbers that it rests on.

    Some twenty changed jobs are replayed; those whose step is as long are left out, unless they
    save memory of a job that does not fit. What a number of a profile decides is worked out for
    clusters of one kind of GPU.

    ``misfit`` is why the job does not fit, if that is known already; see :func:`explain_misfit`.
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


def explain_misfit(job: Job, result: StepResult, *, search: bool = True) -> str:
    """Some lines on who takes the memory and what would fit; empty where the job fits.

    The way out is the one that :func:`nearest_fit` found by simulation; none without ``search``.
    """
    if result.fits:
        return ""
    fullest = result.fullest
    lines = []
    lacks_host = result.host is not None and not result.host.fits
    if fullest.peak_device_bytes > fullest.capacity_bytes or not lacks_host:
        name = fullest.role if job.cluster.pools else job.cluster.profile.name
        lines = [_need(fullest, result, name or job.cluster.profile.name), _owners(fullest)]
    if result.host is not None:
        lines += _host_needs(result.host)
    if job.cluster.pools or not search:  # what would fit is searched for on one kind of GPU
        return "\n".join(lines)
    return "\n".join([*lines, *way_out(nearest_fit(job))])


def _host_needs(host: HostMemory) -> Iterator[str]:
    """What a node lacks in memory or on its drives."""
    for held, capacity, place in (
        (host.held_bytes, host.capacity_bytes, "in memory"),
        (host.nvme_held_bytes, host.nvme_capacity_bytes, "on NVMe"),
    ):
        need = math.fsum(held.values())
        if need > capacity:
            owners = sorted(held.items(), key=lambda item: (-item[1], item[0]))[:_TOP_OWNERS]
            named = (f"{o.value.replace('_', ' ')} {format_bytes(size)}" for o, size in owners)
            yield (
                f"Does not fit: a node needs {format_bytes(need)} {place} for offloading, "
                f"{format_bytes(need - capacity)} more than its {format_bytes(capacity)}: "
                f"{', '.join(named)}."
            )


def _need(fullest: ClassMemory, result: StepResult, device: str) -> str:
    need, capacity = fullest.peak_device_bytes, fullest.capacity_bytes
    room = f"the {format_bytes(capacity)} of {device}"
    where = f" of stage {fullest.stage}" if len(result.memory) > 1 else ""
    begin = f"{misfit_text(result.fits_probability)}: a GPU{where} needs {format_bytes(need)}"
    if need <= capacity:
        return f"{begin} of {room}, and most runs hold more than is predicted."
    return f"{begin}, {format_bytes(need - capacity)} more than {room}."


def _owners(fullest: ClassMemory) -> str:
    need = fullest.peak_device_bytes
    owners = sorted(fullest.by_owner.items(), key=lambda item: (-item[1], item[0]))
    held = {owner.value.replace("_", " "): num_bytes for owner, num_bytes in owners[:_TOP_OWNERS]}
    rest = math.fsum(num_bytes for _, num_bytes in owners[_TOP_OWNERS:])
    if rest:
        held["other tensors"] = rest
    held["allocator and context"] = need - fullest.peak_allocated_bytes
    shares = (
        f"{name} {format_bytes(size)} ({percent(size / need, 0)})" for name, size in held.items()
    )
    return f"It holds {', '.join(shares)}."


def way_out(search: FitSearch) -> Iterator[str]:
    """What makes a job fit, and what that costs."""
    nearest, tried = search.nearest, search.tried
    if nearest is None:
        yield (
            f"None of the simulated changes makes it fit ({tried} simulated); clustersim plan "
            "searches all plans and shows what would fit on more GPUs."
        )
        return
    if search.ladder is not None:
        yield from _ladder_lines(search.ladder)
    yield f"Nearest change that fits ({tried} simulated): {options_text(nearest.changes)}"
    yield f"With it, {_outcome(nearest)}."
    if search.faster is not None:
        which = "two" if search.ladder is None else "other"
        yield f"Faster, with {which} changes: {options_text(search.faster.changes)}"
        yield f"With them, {_outcome(search.faster)}."


def _ladder_lines(found: Ladder) -> Iterator[str]:
    """What each rung of a small machine's ladder costs and holds, with those above it."""
    yield "Each remedy includes those above it; speed is relative to the job with unlimited memory:"
    for name, trial in zip(found.rungs, found.trials, strict=True):
        held = format_bytes(trial.peak_device_bytes)
        yield f"  {name}: {percent(1 + trial.gain, 0)}, {held} on the fullest GPU, {_room(trial)}"
    adapters = [name for name in found.rungs if name in ADAPTER_RUNGS]
    if adapters:
        verbs = ("trains", "leaves") if len(adapters) == 1 else ("train", "leave")
        names, weights = " and ".join(adapters), "the model's weights alone"
        yield f"{names} {verbs[0]} adapters only and {verbs[1]} {weights}."
    if found.answer and all(found.answer.changes != each.changes for each in found.trials):
        yield "The change below leaves out the remedies that it does not need."


def _room(trial: Trial) -> str:
    """The verdict at the risk that was asked for, and how likely a tight one is to fit."""
    if trial.fits:
        return Fit.FITS
    if fit_of(trial.fits_probability) is Fit.DOES_NOT_FIT:
        return Fit.DOES_NOT_FIT
    return fit_text(trial.fits_probability)


def _outcome(change: Trial) -> str:
    step, held = format_seconds(change.step_time_s), format_bytes(change.peak_device_bytes)
    return f"a step takes {step} and the fullest GPU holds {held}"
