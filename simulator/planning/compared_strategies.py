"""Which parallel strategy suits this model on this cluster, and what does each cost?

A kind of parallelism is a family of plans: which of tp and pp are more than 1, and which ZeRO
stage. The families divide the plans that :func:`~simulator.planning.search.search.search_plans`
looks at, and the best plan of each is found by the same exact search. So families are compared at
their best, with their own degrees, virtual stages, recomputation and microbatch, and the best plan
of the best family is the best plan of all.

Ways of data parallelism are compared as they are. They are data
(``simulator/facts/data_parallel_strategies.yaml``): what each changes in a plan, what it does and
when to take it. Everything else of the job stays, number formats and
kernels too, so that strategies are compared and not the frameworks that they come from. Whether a
collective hides is part of a strategy, because their implementations differ in it.

On more nodes every GPU keeps its share of the batch (weak scaling).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job, plan_text
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import Fault, InputError
from simulator.facts import shipped_facts
from simulator.planning.search.search import PlanChoice, PlanSearch, Progress, search_parts
from simulator.planning.search.space import (
    Axes,
    PlanSpace,
    has_pipeline,
    is_data_parallel_only,
)
from simulator.results.fit_probability import DEFAULT_RISK, Fit, fit_of
from simulator.results.simulation import run_step
from simulator.results.step import ClassMemory, StepResult
from simulator.results.traffic import class_traffic
from simulator.units import counted, percent

_LINKS = ("scale_up", "fabric")
"""Ports of a GPU; what climbs above them is counted at the fabric."""

_NODE = "node"
"""Stands for the ranks that share a node, in ``plan.zero_group``."""

_FARTHEST = "farthest"
"""Stands for the drives of a node, or its memory where it has none, in ``plan.offload``."""

_NEUTRAL: Mapping[str, Any] = {
    "plan.data_parallel": "ddp",
    "plan.parameter_servers": 0,
    "plan.zero_group": 0,
    "plan.reshard_after_forward": None,
    "plan.offload": {},
}
"""What a job may say for its own strategy and has no meaning with others."""


@dataclass(frozen=True)
class Strategy:
    """One way of data parallelism.

    Attributes:
        shards: What its ranks divide among them, in some words.
        advice: One plain sentence: what it does and when to take it.
        changes: New values by dotted path, see :meth:`Job.replace`.
    """

    name: str
    shards: str
    advice: str
    changes: Mapping[str, Any]

    def applied(self, job: Job) -> Job:
        """The job under this strategy.

        Raises:
            InputError: Nothing runs it so; the error says why.
        """
        return job.replace(self.changes_of(job))

    def changes_of(self, job: Job) -> dict[str, Any]:
        """What it changes of a job, with what is left aside for it, ready for ``replace``."""
        changes = {**_NEUTRAL, **self.changes}
        if changes["plan.zero_group"] == _NODE:
            changes["plan.zero_group"] = _ranks_of_a_node(job)
        changes["plan.offload"] = {
            what: _farthest(job) if where == _FARTHEST else where
            for what, where in changes["plan.offload"].items()
        }
        if changes["plan.data_parallel"] == "parameter-server":
            changes["plan.parameter_servers"] = job.plan.parameter_servers
        if changes["plan.zero"] == 3:
            changes["plan.reshard_after_forward"] = job.plan.reshard_after_forward
        return changes


@cache
def known_strategies() -> Sequence[Strategy]:
    """All of them, in the order in which people meet them: the simplest first."""
    entries = shipped_facts("data_parallel_strategies")["strategies"]
    return tuple(Strategy(**entry) for entry in entries)


@dataclass(frozen=True)
class Outcome:
    """One strategy on some nodes.

    Attributes:
        step: Its simulated step; None where it was refused.
        moved_bytes: Through the links of the busiest GPU, one direction [B].
        refusal: Why nothing runs it so; empty where something does.
    """

    strategy: Strategy
    step: StepResult | None
    moved_bytes: float = 0.0
    refusal: str = ""

    @property
    def fullest(self) -> ClassMemory:
        """Memory of the fullest GPU of a strategy that was not refused."""
        assert self.step is not None
        return self.step.fullest

    @property
    def fits(self) -> bool:
        """Whether it runs and every memory that it uses has room."""
        return self.step is not None and self.step.fits

    @property
    def exposed_s(self) -> float:
        """Communication that delays the mean GPU [s]."""
        return math.fsum(self.step.exposed_comm_s.values()) if self.step else 0.0


@dataclass(frozen=True)
class Comparison:
    """All strategies on as many nodes.

    Attributes:
        job: The job on so many, under its own plan.
    """

    nodes: int
    job: Job
    outcomes: tuple[Outcome, ...]


def compare_strategies(
    job: Job, node_counts: Sequence[int], *, on_trial: Callable[[], None] | None = None
) -> tuple[Comparison, ...]:
    """Every strategy on every number of nodes, simulated.

    The batch per GPU, and all that the plan says of other parallelism, stay.

    Raises:
        InputError: No strategy can run the job on that many nodes.
    """
    refuse_pools(job, "a comparison of strategies")
    jobs = [on_nodes(job, nodes) for nodes in node_counts]
    found = []
    for nodes, scaled in zip(node_counts, jobs, strict=True):
        outcomes = []
        for strategy in known_strategies():
            outcomes.append(_outcome(scaled, strategy))
            if on_trial:
                on_trial()
        found.append(Comparison(nodes, scaled, tuple(outcomes)))
    return tuple(found)


def on_nodes(job: Job, nodes: int) -> Job:
    """The job on so many whole nodes; every rank keeps its microbatches.

    A job on fewer GPUs than a node has keeps them on its one node.

    Raises:
        InputError: The job does not run on so many nodes.
    """
    gpus = nodes * job.cluster.profile.network.gpus_per_node
    if nodes == 1:
        gpus = min(gpus, job.cluster.gpus)
    width = job.choices.ranks_of_a_copy
    sequences = job.microbatches * job.batch.micro_batch * max(1, gpus // width)
    # The plan as it stands may be one that runs on one node only.
    alone = job.choices.data_parallelism.is_one_process and nodes > 1
    changes = {"plan.data_parallel": "ddp"} if alone else {}
    try:
        return job.replace({**changes, "cluster.gpus": gpus, "batch.global": sequences})
    except InputError as error:
        where = f"on {counted(nodes, 'node')} ({gpus} GPUs)"
        raise InputError([_elsewhere(fault, where) for fault in error.faults]) from error


def _elsewhere(fault: Fault, where: str) -> Fault:
    hints = (fault.hint, "or compare other numbers of nodes")
    return replace(fault, rule=f"{where} {fault.rule}", hint=", ".join(filter(None, hints)))


def _outcome(job: Job, strategy: Strategy) -> Outcome:
    try:
        step = run_step(strategy.applied(job))
    except InputError as error:
        return Outcome(strategy, None, refusal=f"{error.faults[0].path} {error.faults[0].rule}")
    moved = (
        math.fsum(traffic.port_bytes.get(port, 0.0) for port in _LINKS)
        for traffic in class_traffic(step.timeline.program)
    )
    return Outcome(strategy, step, max(moved))


def _farthest(job: Job) -> str:
    return "cpu" if job.cluster.profile.host.nvme is None else "nvme"


def _ranks_of_a_node(job: Job) -> int:
    """Data-parallel ranks that share a node, or all of them where they are fewer."""
    inside = job.choices.tensor_ranks * (job.plan.pp if _pipeline_is_inside(job) else 1)
    per_node = max(1, job.cluster.profile.network.gpus_per_node // inside)
    return min(per_node, job.dp * job.plan.cp)


def _pipeline_is_inside(job: Job) -> bool:
    """Whether the ranks of a pipeline are nearer to each other than data-parallel ones."""
    words = job.plan.rank_order.split("-")
    return words.index("pp") < words.index("dp")


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
        Family(
            "DDP",
            "every GPU holds the model, of experts its share of ep; gradients are all-reduced",
            zero=(0,),
        ),
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
    if found.smallest is not None:
        smallest = job.replace(found.smallest)
        fits = run_step(smallest, "replay").fits_probability
        if fit_of(fits) is Fit.DOES_NOT_FIT:
            return "does not fit into memory"
        return f"{plan_text(smallest)} is {percent(fits, 0)} likely to fit"
    if job.cluster.gpus == 1:
        return "needs more GPUs"
    if (family.has_tp or family.has_pp) and is_data_parallel_only(job):
        return "the job's stack has no model parallelism"
    if family.has_pp and not has_pipeline(job):
        return "the job's stack has no pipeline"
    return _broken_rule(job, family) or "no valid plan for this job"


def _broken_rule(job: Job, family: Family) -> str:
    """What keeps the job from data parallelism alone of this kind; empty for other families."""
    if family.has_tp or family.has_pp:
        return ""
    alone = {f"plan.{degree}": 1 for degree in ("tp", "pp", "vpp", "cp")}
    try:
        job.replace({**alone, "plan.zero": family.zero[0]})
    except InputError as error:
        return f"{error.faults[0].path} {error.faults[0].rule}"
    return ""
