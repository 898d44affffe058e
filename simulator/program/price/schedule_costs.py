"""What does a schedule know of a job whose order is decided from it?

Times and memory of its passes, and of handing a microbatch from one stage to another, with the
slow ranks and links of the job. All replicas of a stage follow one order, so it is decided for
the slowest of each: an assumption, because where ranks decide at run time each replica decides
for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

from simulator.cost.collectives import CollectiveKind, Group, collective_cost, send_recv_cost
from simulator.described.job import Job
from simulator.program.communication import communication_work
from simulator.program.grid.expert_tokens import busiest_share
from simulator.program.grid.rank_groups import pipeline_pair, tensor_group
from simulator.program.grid.stage_layers import Slice, stage_slices
from simulator.program.ir import Category, Collective, Kind, Work, total_bytes
from simulator.program.price.stage_cost import StageCosts
from simulator.program.unlike.conditions import (
    SOUND,
    Condition,
    rank_conditions,
    slowed,
    with_slow_links,
    worst,
)
from simulator.schedule import Phase, ScheduleInfo
from simulator.schedule.info import PassCosts


def pass_costs(job: Job, schedule: ScheduleInfo) -> PassCosts:
    """Costs of one microbatch on every virtual stage, in seconds and bytes."""
    plan, placement = job.plan, schedule.placement
    runs = stage_slices(job, plan.pp * plan.vpp)
    conditions = _stage_conditions(job)
    links = _links(chain.from_iterable(conditions))
    costs_of = {
        each.pool: StageCosts(with_slow_links(job, each), busiest_share(job)) for each in links
    }
    costs = costs_of[links[0].pool]

    @cache
    def transfer_s(sender: int, receiver: int) -> float:
        def at_s(links: Condition) -> float:
            slow = with_slow_links(job, links)
            pair = pipeline_pair(slow, sender, receiver)
            return transfer_work(slow, costs.boundary_bytes, pair).seconds

        return max(map(at_s, _links((*conditions[sender], *conditions[receiver]))))

    def pass_s(run: Slice, phase: Phase, rank: int) -> float:
        return max(
            slowed(costs_of[each.pool].work(run, phase), each.slowdown).seconds
            for each in conditions[rank]
        )

    virtual = range(placement.num_virtual_stages(plan.pp, plan.vpp))
    run_of = [runs[placement.model_stage(stage, plan.pp, plan.vpp)] for stage in virtual]
    return PassCosts(
        seconds={
            (phase, stage): pass_s(run, phase, placement.rank(stage, plan.pp))
            + (job.choices.forward_host_s if phase is Phase.FORWARD else 0.0)
            for stage, run in enumerate(run_of)
            for phase in Phase
        },
        transfer_s=transfer_s,
        saved_bytes=[total_bytes(costs.saved(run)) for run in run_of],
        pending_bytes=[total_bytes(costs.halves(run).pending) for run in run_of],
    )


def _stage_conditions(job: Job) -> Sequence[tuple[Condition, ...]]:
    """The worst condition of the ranks of every stage, pool by pool."""
    if not job.perturbations and not job.cluster.pools:
        return ((SOUND,),) * job.plan.pp
    conditions = rank_conditions(job)
    return [worst(conditions.distinct[number] for number in set(row)) for row in
            conditions.number.tolist()]  # fmt: skip


def _links(conditions: Iterable[Condition]) -> list[Condition]:
    return [replace(each, slowdown=0.0) for each in worst(conditions)]


def transfer_work(job: Job, boundary_bytes: float, pair: Group) -> Work:
    """One boundary activation, or its gradient, from one stage to another.

    Args:
        job: Its links, and whether tensor-parallel ranks send a part each and gather it.
        boundary_bytes: What one rank holds of it [B].
        pair: Pipeline ranks that send and receive.
    """
    network = job.cluster.profile.network
    tp, scattered = job.choices.tensor_ranks, job.choices.sends_parts
    sent = boundary_bytes / tp if scattered else boundary_bytes
    hop = send_recv_cost(sent, pair, network)
    calls = [(str(Kind.SEND_RECV), hop)]
    issued = [Collective("boundary", Kind.SEND_RECV, "pp", 2, sent, hop.port_bytes)]
    if scattered and tp > 1:
        group, kind = tensor_group(job), CollectiveKind.ALL_GATHER
        gather = collective_cost(kind, boundary_bytes, group, network)
        calls.append((str(kind), gather))
        issued.append(
            Collective("boundary", Kind(kind), "tp", tp, boundary_bytes, gather.port_bytes)
        )
    return communication_work(calls, sent, Category.PIPELINE, tuple(issued))
