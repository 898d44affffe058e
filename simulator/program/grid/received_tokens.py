"""How many copies of tokens do the experts of one rank receive, over the mean?

Experts lie over the ranks of an expert-parallel group in order. The ranks of a group
exchange tokens in every expert layer, so the busiest one sets the pace of all.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.described.job import Job


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """What a rank's experts receive.

    Attributes:
        loads: Copies of each of its experts over the mean of all.
        busiest: Copies of the busiest rank of its group over the mean of all ranks.
    """

    loads: tuple[float, ...]
    busiest: float

    @property
    def mean(self) -> float:
        """Copies of this rank over the mean of all ranks."""
        return sum(self.loads) / len(self.loads)


def busiest_rank(job: Job) -> int:
    """Place of the busiest rank in its expert-parallel group."""
    means = [sum(loads) for loads in rank_loads(job)]
    return means.index(max(means))


def busiest_share(job: Job) -> ExpertShare | None:
    """What the busiest rank receives; None where all experts receive the same."""
    if job.plan.expert_load is None or job.model.experts is None:
        return None
    loads = rank_loads(job)[busiest_rank(job)]
    return ExpertShare(loads, sum(loads) / len(loads))


def other_share(job: Job) -> ExpertShare | None:
    """What the other ranks receive on average; None where there are none, or all are alike."""
    busiest = busiest_share(job)
    if busiest is None or job.plan.ep == 1:
        return None
    place = busiest_rank(job)
    others = [loads for rank, loads in enumerate(rank_loads(job)) if rank != place]
    means = tuple(sum(column) / len(others) for column in zip(*others, strict=True))
    return ExpertShare(means, busiest.busiest)


def rank_loads(job: Job) -> list[tuple[float, ...]]:
    """Loads of the experts of each rank of an expert-parallel group."""
    experts, load, ep = job.model.experts, job.plan.expert_load, job.plan.ep
    assert experts is not None
    assert load is not None
    over_mean, local = load.over_mean(experts.count), experts.count // ep
    if load.zipf is not None:
        return [over_mean[rank::ep] for rank in range(ep)]
    return [over_mean[rank * local : (rank + 1) * local] for rank in range(ep)]
