"""Which parallel strategy suits this model on this cluster?

A strategy is a family of plans: which degrees may be more than 1, and which ZeRO stage. The
best plan of each family is found by the exact search, so that families are compared at their
best: with their own microbatch, recomputation and degrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from types import MappingProxyType

from simulator.errors import InputError
from simulator.planning.search import PlanChoice, search_plans
from simulator.planning.space import Axes, powers_of_two
from simulator.spec.job import Job
from simulator.spec.plan_text import degrees_text
from simulator.spec.pool_checks import refuse_pools


@dataclass(frozen=True)
class Family:
    """Plans that people call by one name.

    Attributes:
        name: For example ``TP + DP``.
        idea: What it does, in one line.
        has_tp, has_pp: Whether tensor or pipeline parallelism is part of it.
        zero: ZeRO stages of its data parallelism.
    """

    name: str
    idea: str
    has_tp: bool = False
    has_pp: bool = False
    zero: tuple[int, ...] = (0, 1)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("DDP", "every GPU holds the whole model; gradients are added up", zero=(0,)),
            Family("ZeRO-1", "DDP with divided optimizer states", zero=(1,)),
            Family("ZeRO-2", "and divided gradients", zero=(2,)),
            Family("ZeRO-3", "and divided weights, gathered layer by layer (FSDP)", zero=(3,)),
            Family("TP + DP", "matrix products are divided inside a node", has_tp=True),
            Family("PP + DP", "each GPU holds some layers", has_pp=True),
            Family("TP + PP + DP", "both, with ZeRO-1 or without", has_tp=True, has_pp=True),
        )
    }
)
"""Families by name, the simplest first."""

AXES: Axes = {
    "plan.vpp": (1,),
    "plan.cp": (1,),
    "plan.recompute": ("none", "full"),
    "batch.micro": (1, 2, 4),
}
"""What every family may choose besides its degrees. Interleaving, context parallelism and
selective recomputation are left to ``clustersim plan``: they refine a strategy."""


@dataclass(frozen=True)
class FamilyResult:
    """The best plan of a family.

    Attributes:
        family: Which one.
        choice: Its fastest plan that fits; None where there is none.
        obstacle: Why there is none; empty otherwise.
    """

    family: Family
    choice: PlanChoice | None
    obstacle: str = ""

    @property
    def plan_text(self) -> str:
        """Its degrees and options in short; empty where there is no plan."""
        if self.choice is None:
            return ""
        given, dp = self.choice.changes, self.choice.dp
        degrees = {name: given.get(f"plan.{name}", 1) for name in ("tp", "pp", "ep")}
        words = [degrees_text(degrees, dp)]
        words += [f"ZeRO {given['plan.zero']}"] if dp > 1 else []
        words += [f"micro {given['batch.micro']}"]
        recompute = given["plan.recompute"]
        return " ".join([*words, *([f"{recompute} recompute"] if recompute != "none" else [])])


def compare_families(
    job: Job,
    *,
    executor: Executor | None = None,
    at_a_time: int = 1,
    on_family: Callable[[str], None] | None = None,
) -> list[FamilyResult]:
    """The best plan of every family, the fastest family first, those that do not fit last.

    Args:
        job: Model, cluster, batch; its degrees do not matter.
        executor: Where plans are simulated; in this process if None.
        at_a_time: Plans that are handed to the executor together.
        on_family: Called with the name of each family when it is done.
    """
    refuse_pools(job, "the best family of plans")
    results = []
    for family in FAMILIES.values():
        results.append(_best(job, family, executor, at_a_time))
        if on_family:
            on_family(family.name)
    # Ties go to the simpler one, which comes first.
    return sorted(
        results, key=lambda each: each.choice.step_time_s if each.choice else float("inf")
    )


def _best(job: Job, family: Family, executor: Executor | None, at_a_time: int) -> FamilyResult:
    degrees = dict(_degree_axes(job, family))
    if not all(degrees.values()):
        return FamilyResult(family, None, "needs more GPUs")
    axes = {**AXES, **degrees}
    if job.model.experts:
        axes["plan.ep"] = [1, *powers_of_two(min(job.cluster.gpus, job.model.experts.count))[1:]]
    try:
        found = search_plans(job, axes, executor=executor, at_a_time=at_a_time)
    except InputError as error:
        return FamilyResult(family, None, error.faults[0].rule)
    if found.choices:
        return FamilyResult(family, found.choices[0])
    if found.plans == 0:
        return FamilyResult(family, None, "cannot be built from this model and batch")
    return FamilyResult(family, None, "does not fit into memory")


def _degree_axes(job: Job, family: Family) -> Iterator[tuple[str, list[int]]]:
    tp = [degree for degree in _degrees(job) if degree > 1] if family.has_tp else [1]
    pp = (
        [degree for degree in powers_of_two(job.cluster.gpus) if degree > 1]
        if family.has_pp
        else [1]
    )
    alone = job.cluster.gpus == 1
    yield "plan.tp", tp
    yield "plan.pp", pp
    yield "plan.zero", [stage for stage in family.zero if stage == 0 or not alone]


def _degrees(job: Job) -> list[int]:
    """Tensor-parallel degrees inside a node."""
    return powers_of_two(min(job.cluster.gpus, job.cluster.profile.network.scale_up.gpus))
