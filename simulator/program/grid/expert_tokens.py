"""How many tokens do the experts of a rank receive, and over how many ranks does one token spread?

Experts lie over the ranks of an expert-parallel group in order, and ranks over nodes. The ranks of
a group exchange tokens in every expert layer, so the busiest one sets the pace of all.

A router that is limited to some groups of experts (DeepSeek's node-limited routing) picks
``top_groups`` of ``groups`` first and then its ``top_k`` experts in those. A node holds an equal
part of the experts: part of a group, a group, or several. A dispatcher that sends a token once to a
node, however many of its experts are there, sends it as often as this expectation says.

Assumes that all groups are as likely, and all choices of experts in those that are picked.
Source: DeepSeek-V3 (arXiv 2412.19437, sections 2.1.2 and 3.2.2); the expectation is that of
drawing without replacement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import comb

from simulator.described.job import Job
from simulator.described.model import Experts


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
        return math.fsum(self.loads) / len(self.loads)


def busiest_rank(job: Job) -> int:
    """Place of the busiest rank in its expert-parallel group."""
    means = [math.fsum(loads) for loads in rank_loads(job)]
    return means.index(max(means))


def busiest_share(job: Job) -> ExpertShare | None:
    """What the busiest rank receives; None where all experts receive the same."""
    if job.plan.expert_load is None or job.model.experts is None:
        return None
    loads = rank_loads(job)[busiest_rank(job)]
    return ExpertShare(loads, math.fsum(loads) / len(loads))


def other_share(job: Job) -> ExpertShare | None:
    """What the other ranks receive on average; None where all receive the same."""
    busiest = busiest_share(job)
    if busiest is None or job.plan.ep == 1:
        return None
    place = busiest_rank(job)
    others = [loads for rank, loads in enumerate(rank_loads(job)) if rank != place]
    means = tuple(math.fsum(column) / len(others) for column in zip(*others, strict=True))
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


def parts_reached(experts: Experts, parts: int) -> float:
    """Expected number of equal parts of the experts in which a token picks at least one.

    Args:
        experts: How many there are, and how a token picks among them.
        parts: How many equal parts they are cut into, a divisor of their number. Where parts
            and groups cut each other, the limit to some groups is not felt (assumption).
    """
    groups, picked = experts.groups, experts.picked_groups
    if groups % parts and parts % groups:
        groups = picked = 1
    of_part = groups // parts
    if parts % groups == 0:
        # A part lies inside one group.
        missed = _missed(experts, experts.count // parts, picked / groups)
        return parts * picked / groups * (1 - missed)
    of_one = experts.count // groups
    return parts * math.fsum(
        _chance(held, of_part, groups, picked)
        * (1 - _missed(experts, held * of_one, picked / groups))
        for held in range(min(of_part, picked) + 1)
    )


def _chance(held: int, of_part: int, groups: int, picked: int) -> float:
    """Chance that so many of the picked groups are among those of a part."""
    return comb(of_part, held) * comb(groups - of_part, picked - held) / comb(groups, picked)


def _missed(experts: Experts, held: int, picked_share: float) -> float:
    """Chance that none of a token's choices is among so many experts of its groups."""
    choices = round(experts.count * picked_share)
    return comb(choices - held, experts.top_k) / comb(choices, experts.top_k)
