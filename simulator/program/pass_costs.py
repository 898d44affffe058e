"""What does a schedule know of a job whose order is decided from it?

Times and memory of its passes and transfers, with the slow ranks and links of the job. All
replicas of a stage follow one order, so it is decided for the slowest of each: an
assumption, because where ranks decide at run time each replica decides for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from simulator.program.conditions import (
    SOUND,
    Condition,
    rank_conditions,
    slowed,
    with_slow_links,
    worst,
)
from simulator.program.expert_load import busiest_share
from simulator.program.ir import total_bytes
from simulator.program.layout import stage_slices
from simulator.program.stage import StageCosts
from simulator.program.transfers import transfer_work
from simulator.schedule import Phase, ScheduleInfo
from simulator.schedule.pass_costs import PassCosts
from simulator.spec.job import Job


def pass_costs(job: Job, schedule: ScheduleInfo) -> PassCosts:
    """Costs of one microbatch on every virtual stage, in seconds and bytes."""
    plan, placement = job.plan, schedule.placement
    runs = stage_slices(job, plan.pp * plan.vpp)
    conditions = _stage_conditions(job)
    costs = StageCosts(with_slow_links(job, _links(conditions)), busiest_share(job))

    @cache
    def transfer_s(sender: int, receiver: int) -> float:
        links = _links((conditions[sender], conditions[receiver]))
        slow = with_slow_links(job, links)
        return transfer_work(slow, costs.boundary_bytes, sender, receiver).seconds

    virtual = range(placement.num_virtual_stages(plan.pp, plan.vpp))
    run_of = [runs[placement.model_stage(stage, plan.pp, plan.vpp)] for stage in virtual]
    slowdown_of = [conditions[placement.rank(stage, plan.pp)].slowdown for stage in virtual]
    return PassCosts(
        seconds={
            (phase, stage): slowed(costs.work(run, phase), slowdown_of[stage]).seconds
            + (plan.stack.forward_host_s if phase is Phase.FORWARD else 0.0)
            for stage, run in enumerate(run_of)
            for phase in Phase
        },
        transfer_s=transfer_s,
        saved_bytes=[total_bytes(costs.saved(run)) for run in run_of],
        pending_bytes=[total_bytes(costs.halves(run).pending) for run in run_of],
    )


def _stage_conditions(job: Job) -> Sequence[Condition]:
    """The worst condition of the ranks of every stage."""
    if not job.perturbations:
        return (SOUND,) * job.plan.pp
    conditions = rank_conditions(job)
    return [worst(conditions.distinct[number] for number in set(row)) for row in
            conditions.number.tolist()]  # fmt: skip


def _links(conditions: Sequence[Condition]) -> Condition:
    return replace(worst(conditions), slowdown=0.0)
