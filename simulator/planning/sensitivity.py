"""Which numbers of the hardware profile does a step rest on?

One number after the other is made ten per cent worse and the step is replayed without
contention. A number that moves the step is one that must be right; one that is assumed and
moves it should be measured first.

Ignores: numbers that no step of the job can feel, and what two wrong numbers do together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.results.advice import Influence
from simulator.results.run import run_step
from simulator.spec.base import file_name_of_field
from simulator.spec.job import Job

_WORSE = 0.9


def influences(job: Job, *, on_trial: Callable[[], None] | None = None) -> tuple[Influence, ...]:
    """Numbers by how much the step grows where they are a tenth worse, the largest first.

    Args:
        job: What is simulated.
        on_trial: Called after each simulated step, for progress.

    Raises:
        InputError: The job itself cannot run.
    """
    base_s = run_step(job, "replay").step_time_s
    found = []
    for path in _paths(job):
        step_s = run_step(_with_worse(job, path), "replay").step_time_s
        if on_trial:
            on_trial()
        name = ".".join(map(file_name_of_field, path))
        source = job.cluster.profile.provenance.get(name)
        kind = source.kind if source else "assumed"
        reference = source.reference if source else "default of the field"
        found.append(Influence(name, step_s / base_s - 1, kind, reference))
    return tuple(sorted(found, key=lambda influence: -influence.slower_share))


def _paths(job: Job) -> Iterator[tuple[str, ...]]:
    """Rates, efficiencies and times that the job can feel, as attributes of the profile."""
    profile, plan = job.cluster.profile, job.plan
    kernels = profile.kernels
    flash = "flash_attention"
    if plan.stack.flash_kernel != "best" and kernels.flash_attention_2 is not None:
        flash = "flash_attention_2"
    if plan.precision in kernels.gemm:
        yield "kernels", "gemm", plan.precision, "efficiency"
    if plan.attention_kernel == "flash":
        yield "kernels", flash, "forward_efficiency"
        yield "kernels", flash, "backward_efficiency"
    yield "kernels", "memory_efficiency"
    yield "kernels", "sustained_clock"
    yield "kernels", "launch_s"
    if job.cluster.gpus > 1:
        yield "network", "scale_up", "efficiency"
    if job.cluster.gpus > profile.network.scale_up.gpus:
        yield "network", "fabric", "efficiency"


def _with_worse(job: Job, path: tuple[str, ...]) -> Job:
    """The job on a cluster where one number is a tenth worse."""
    profile = _changed(job.cluster.profile, path)
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"profile": profile})})


def _changed(node: Any, path: tuple[str, ...]) -> Any:
    key, *rest = path
    if isinstance(node, Mapping):
        return {**node, key: _changed(node[key], tuple(rest))}
    value = getattr(node, key)
    if rest:
        worse = _changed(value, tuple(rest))
    else:
        worse = value / _WORSE if key.endswith("_s") else value * _WORSE
    return node.model_copy(update={key: worse})
