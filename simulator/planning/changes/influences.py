"""Which numbers of the hardware profile does a step rest on?

The few that most steps feel are made worse, one after the other, and the step is replayed without
contention. A number that moves the step is one that must be right; one that is assumed and
moves it should be measured first. ``clustersim sensitivity`` moves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.described.job import Job
from simulator.planning.changes.sensitivity import sensitivities
from simulator.results.verdict import Influence


def influences(job: Job, *, on_trial: Callable[[], None] | None = None) -> tuple[Influence, ...]:
    """Numbers by how much the step grows where they are a tenth worse, the largest first.

    Args:
        job: What is simulated.
        on_trial: Called after each number, for progress.

    Raises:
        InputError: The job itself cannot run.
    """

    def count(_done: int, _all: int) -> None:
        if on_trial:
            on_trial()

    fields = frozenset(_felt_fields(job))
    provenance = job.cluster.profile.provenance
    found = [
        Influence(
            each.field,
            max(each.lower or 0.0, each.higher or 0.0),
            each.source,
            provenance[each.field].reference if each.field in provenance else "",
        )
        for each in sensitivities(job, engine="replay", fields=fields, on_trial=count)
    ]
    return tuple(sorted(found, key=lambda influence: -influence.slower_share))


def _felt_fields(job: Job) -> Iterator[str]:
    """Rates, efficiencies and times that the job can feel, as files write them."""
    profile, plan = job.cluster.profile, job.plan
    flash = "flash_attention"
    if plan.stack.flash_kernel != "best" and profile.kernels.flash_attention_2 is not None:
        flash = "flash_attention_2"
    yield f"kernels.gemm.{plan.precision}.efficiency"
    if plan.attention_kernel == "flash":
        yield f"kernels.{flash}.forward_efficiency"
        yield f"kernels.{flash}.backward_efficiency"
    yield "kernels.memory_efficiency"
    yield "kernels.sustained_clock"
    yield "kernels.launch"
    if job.cluster.gpus > 1:
        yield "network.scale_up.efficiency"
    if job.cluster.gpus > profile.network.scale_up.gpus:
        yield "network.fabric.efficiency"
