"""Why does a job not fit, and what would help, in words?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.planning.nearest_fit import FitSearch, nearest_fit
from simulator.results.step import ClassMemory, StepResult
from simulator.spec.job import Job
from simulator.units import format_bytes, format_seconds

_TOP_OWNERS = 3


def explain_misfit(job: Job, result: StepResult) -> str:
    """Some lines on who takes the memory and what would fit; empty where the job fits.

    The way out is the one that :func:`nearest_fit` found by simulation.

    Args:
        job: What was simulated.
        result: Its step.
    """
    fullest = max(result.memory, key=lambda memory: memory.peak_device_bytes)
    if fullest.peak_device_bytes <= result.capacity_bytes:
        return ""
    lines = [
        _need(fullest, result, job.cluster.profile.name),
        _owners(fullest),
        *_way_out(nearest_fit(job)),
    ]
    return "\n".join(lines)


def _need(fullest: ClassMemory, result: StepResult, device: str) -> str:
    need, capacity = fullest.peak_device_bytes, result.capacity_bytes
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
        yield f"No change that was tried makes it fit ({tried} simulated)."
        return
    options = " ".join(f"--set {path}={value}" for path, value in nearest.changes.items())
    yield f"Nearest change that fits ({tried} simulated): {options}"
    yield (
        f"With it a step takes about {format_seconds(nearest.step_time_s)} "
        f"and the fullest GPU holds {format_bytes(nearest.peak_device_bytes)}."
    )
