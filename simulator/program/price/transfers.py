"""What does it cost to hand a microbatch from one pipeline stage to another?"""

from __future__ import annotations

from simulator.cost.collectives import CollectiveKind, collective_cost, send_recv_cost
from simulator.described.job import Job
from simulator.program.communication import communication_work
from simulator.program.grid.rank_groups import pipeline_pair, tensor_group
from simulator.program.ir import Category, Collective, Kind, Work


def transfer_work(job: Job, boundary_bytes: float, source: int, target: int) -> Work:
    """One boundary activation, or its gradient, from one stage to another.

    Args:
        job: Its links, and whether tensor-parallel ranks send a part each and gather it.
        boundary_bytes: What one rank holds of it [B].
        source: Pipeline rank that sends.
        target: Pipeline rank that receives.
    """
    pair, network = pipeline_pair(job, source, target), job.cluster.profile.network
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
