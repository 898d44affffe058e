"""Which parallel strategy suits this model on this cluster?

A strategy is a family of plans: which of tp and pp are more than 1, and which ZeRO stage. The
families divide the plans that :func:`~simulator.planning.search.search.search_plans` looks at, and
the best plan of each is found by the same exact search. So families are compared at their best,
with their own degrees, virtual stages, recomputation and microbatch, and the best plan of the best
family is the best plan of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job, plan_text
from simulator.planning.search.search import PlanChoice, PlanSearch, Progress, search_parts
from simulator.planning.search.space import Axes, PlanSpace, is_data_parallel_only
from simulator.results.fit_probability import DEFAULT_RISK


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
    zero: tuple[int, ...] = (0, 1, 2, 3)

    def plans(self, space: PlanSpace) -> NDArray[np.bool_]:
        """Which plans of a space belong to it, shape (plans,)."""
        has_tp, has_pp = space.column("plan.tp") > 1, space.column("plan.pp") > 1
        has_stage = np.isin(space.column("plan.zero"), self.zero)
        home: NDArray[np.bool_] = (has_tp == self.has_tp) & (has_pp == self.has_pp) & has_stage
        return home


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("DDP", "every GPU holds the whole model; gradients are all-reduced", zero=(0,)),
        Family("ZeRO-1", "DDP with sharded optimizer states", zero=(1,)),
        Family("ZeRO-2", "DDP with sharded optimizer states and gradients", zero=(2,)),
        Family(
            "ZeRO-3",
            "weights are sharded as well, and gathered layer by layer",
            zero=(3,),
        ),
        Family("TP + DP", "layers are split inside a node", has_tp=True),
        Family("PP + DP", "each GPU holds some layers", has_pp=True),
        Family(
            "TP + PP + DP",
            "stages of layers, each split inside a node",
            has_tp=True,
            has_pp=True,
        ),
    )
}
"""Families by name, the simplest first."""


@dataclass(frozen=True)
class FamilyResult:
    """The best plan of a family.

    Attributes:
        choice: Its fastest plan that fits; None where there is none.
        plan_text: Its degrees and options in short; empty where there is no plan.
        obstacle: Why there is none; empty otherwise.
    """

    family: Family
    choice: PlanChoice | None
    plan_text: str = ""
    obstacle: str = ""


def compare_families(
    job: Job,
    vary: Axes | None = None,
    *,
    risk: float = DEFAULT_RISK,
    executor: Executor | None = None,
    at_a_time: int = 1,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> list[FamilyResult]:
    """The best plan of every family, the fastest family first, those that do not fit last.

    Arguments are those of :func:`search_plans`; ``on_progress`` is handed the family's name first.

    Raises:
        InputError: A field cannot be varied, or a value of it is wrong.
    """
    found = search_parts(
        job,
        {family.name: family.plans for family in FAMILIES.values()},
        vary,
        risk=risk,
        executor=executor,
        at_a_time=at_a_time,
        on_progress=on_progress,
    )
    results = [_result(job, family, found[family.name]) for family in FAMILIES.values()]
    # Ties go to the simpler one, which comes first.
    return sorted(
        results, key=lambda each: each.choice.step_time_s if each.choice else float("inf")
    )


def _result(job: Job, family: Family, found: PlanSearch) -> FamilyResult:
    if found.choices:
        choice = found.choices[0]
        return FamilyResult(family, choice, plan_text=plan_text(job.replace(choice.changes)))
    return FamilyResult(family, None, obstacle=_obstacle(job, family, found))


def _obstacle(job: Job, family: Family, found: PlanSearch) -> str:
    if found.plans:
        return "does not fit into memory"
    if job.cluster.gpus == 1:
        return "needs more GPUs"
    if (family.has_tp or family.has_pp) and is_data_parallel_only(job):
        return "the job's stack has no model parallelism"
    return "no valid plan for this job"
