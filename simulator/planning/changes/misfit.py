"""Why does a job not fit, and what would help, in words?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.described.job_text import options_text
from simulator.planning.changes.nearest_fit import FitSearch, NearestFit, nearest_fit
from simulator.results.host_memory import HostMemory
from simulator.results.step import ClassMemory, StepResult
from simulator.units import format_bytes, format_seconds

_TOP_OWNERS = 3


def explain_misfit(job: Job, result: StepResult) -> str:
    """Some lines on who takes the memory and what would fit; empty where the job fits.

    The way out is the one that :func:`nearest_fit` found by simulation.

    Args:
        job: What was simulated.
        result: Its step.
    """
    if result.fits:
        return ""
    fullest = result.fullest
    lines = []
    if fullest.peak_device_bytes > fullest.capacity_bytes:
        name = fullest.role if job.cluster.pools else job.cluster.profile.name
        lines = [_need(fullest, result, name or job.cluster.profile.name), _owners(fullest)]
    if result.host is not None:
        lines += _host_needs(result.host)
    if job.cluster.pools:  # what would fit is searched for on one kind of GPU
        return "\n".join(lines)
    return "\n".join([*lines, *_way_out(nearest_fit(job))])


def _host_needs(host: HostMemory) -> Iterator[str]:
    """What a node lacks in memory or on its drives."""
    for held, capacity, place in (
        (host.held_bytes, host.capacity_bytes, "in memory"),
        (host.nvme_held_bytes, host.nvme_capacity_bytes, "on NVMe"),
    ):
        need = sum(held.values())
        if need > capacity:
            owners = sorted(held.items(), key=lambda item: (-item[1], item[0]))[:_TOP_OWNERS]
            named = (f"{o.value.replace('_', ' ')} {format_bytes(size)}" for o, size in owners)
            yield (
                f"Does not fit: a node holds {format_bytes(need)} {place} that left its GPUs, "
                f"{format_bytes(need - capacity)} more than its {format_bytes(capacity)}: "
                f"{', '.join(named)}."
            )


def _need(fullest: ClassMemory, result: StepResult, device: str) -> str:
    need, capacity = fullest.peak_device_bytes, fullest.capacity_bytes
    where = f" of stage {fullest.stage}" if len(result.memory) > 1 else ""
    return (
        f"Does not fit: a GPU{where} needs {format_bytes(need)}, "
        f"{format_bytes(need - capacity)} more than the {format_bytes(capacity)} of {device}."
    )


def _owners(fullest: ClassMemory) -> str:
    need = fullest.peak_device_bytes
    owners = sorted(fullest.by_owner.items(), key=lambda item: (-item[1], item[0]))
    held = {owner.value.replace("_", " "): num_bytes for owner, num_bytes in owners[:_TOP_OWNERS]}
    rest = sum(num_bytes for _, num_bytes in owners[_TOP_OWNERS:])
    if rest:
        held["other tensors"] = rest
    held["allocator and context"] = need - fullest.peak_allocated_bytes
    shares = (f"{name} {format_bytes(size)} ({size / need:.0%})" for name, size in held.items())
    return f"It holds {', '.join(shares)}."


def _way_out(search: FitSearch) -> Iterator[str]:
    nearest, tried = search.nearest, search.tried
    if nearest is None:
        yield (
            f"No change that was tried makes it fit ({tried} simulated); clustersim plan searches "
            "all plans and says what would fit on more GPUs."
        )
        return
    yield f"Nearest change that fits ({tried} simulated): {options_text(nearest.changes)}"
    yield f"With it {_outcome(nearest)}."
    if search.faster is not None:
        yield f"Faster, with two changes: {options_text(search.faster.changes)}"
        yield f"With them {_outcome(search.faster)}."


def _outcome(change: NearestFit) -> str:
    step, held = format_seconds(change.step_time_s), format_bytes(change.peak_device_bytes)
    return f"a step takes {step} and the fullest GPU holds {held}"
