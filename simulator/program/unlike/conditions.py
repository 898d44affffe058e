"""In which condition is each rank, and what does its work cost then?

A slow GPU computes longer; what waits for the host or for a link does not change. A slow
link is priced as if every link of the group were so slow, because a ring or tree is
as fast as its slowest link. Several ranks in one group: the slowest of each counts.

In a mixed cluster a rank has the device, links and host of its pool. What ranks of several
pools do together takes as long as it would if all were of the pool that takes longest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import LINK_PORT
from simulator.described.job import Job, Pool
from simulator.described.variation import Perturbation
from simulator.program.grid.rank_groups import rank_grid
from simulator.program.ir import COMMUNICATION, Category, Part, Work


@dataclass(frozen=True, slots=True)
class Condition:
    """How far a rank is behind the profile.

    Attributes:
        slowdown: By what share its computing takes longer.
        nic_share, scale_up_share: Share of its links' rates that is left.
        pool: Which pool of a mixed cluster it is in.
    """

    slowdown: float = 0.0
    nic_share: float = 1.0
    scale_up_share: float = 1.0
    pool: int = 0

    @property
    def port_shares(self) -> Mapping[str, float]:
        """Share left of each port that has not all of its capacity."""
        shares = {
            "fabric": self.nic_share,
            "scale_up": self.scale_up_share,
            LINK_PORT: self.scale_up_share,
        }
        return {port: share for port, share in shares.items() if share < 1.0}

    def __str__(self) -> str:
        """What is wrong, for people; empty where nothing is."""
        said = []
        if self.slowdown >= 1:
            said.append(f"takes {1 + self.slowdown:.4g} times as long")
        elif self.slowdown:
            said.append(f"{100 * self.slowdown:.4g} % slower")
        if self.nic_share < 1:
            said.append(f"network card at {100 * self.nic_share:.4g} % of its rate")
        if self.scale_up_share < 1:
            said.append(f"scale-up links at {100 * self.scale_up_share:.4g} % of their rate")
        return ", ".join(said)


SOUND = Condition()
"""A rank that is as the profile, or that of the first pool, says."""


def worst(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """What ranks in these conditions are held to when they work as one, pool by pool."""
    listed = list(conditions)
    pools = sorted({each.pool for each in listed})
    return tuple(_worst([each for each in listed if each.pool == pool]) for pool in pools)


def _worst(conditions: Sequence[Condition]) -> Condition:
    return Condition(
        max(each.slowdown for each in conditions),
        min(each.nic_share for each in conditions),
        min(each.scale_up_share for each in conditions),
        conditions[0].pool,
    )


@dataclass(frozen=True)
class RankConditions:
    """The condition of every rank.

    Attributes:
        ranks: The rank at each place of each stage, shape (stages, places).
        number: Index into ``distinct`` of each, shape (stages, places).
        distinct: Every condition that occurs.
        pools: The pools of a mixed cluster.
    """

    ranks: NDArray[np.int64]
    number: NDArray[np.int64]
    distinct: tuple[Condition, ...]
    pools: tuple[Pool, ...] = ()

    def of(self, stage: int, place: int) -> Condition:
        """The condition of one rank."""
        return self.distinct[int(self.number[stage, place])]

    def profile(self, stage: int, place: int) -> HardwareProfile | None:
        """The profile of one rank's pool; None where all ranks have the same."""
        return self.pools[self.of(stage, place).pool].profile if self.pools else None

    def port_shares(self, stage: int, place: int) -> Mapping[str, float]:
        """What each port of one rank carries, of what ``ports_bytes_per_s`` says, if not all."""
        shares, profile = self.of(stage, place).port_shares, self.profile(stage, place)
        if profile is None:
            return shares
        whole = self.ports_bytes_per_s
        rates = {
            port: shares.get(port, 1.0) * rate / whole[port]
            for port, rate in profile.network.ports_bytes_per_s.items()
        }
        return {port: share for port, share in rates.items() if share != 1.0}

    @property
    def ports_bytes_per_s(self) -> Mapping[str, float]:
        """Rate of every port that a pool describes, that of the first pool which does [B/s]."""
        ports: dict[str, float] = {}
        for pool in reversed(self.pools):
            ports |= pool.profile.network.ports_bytes_per_s
        return ports

    def text(self, stage: int, place: int) -> str:
        """What one rank is and what is wrong with it; empty where nothing is to be said."""
        profile, wrong = self.profile(stage, place), str(self.of(stage, place))
        return ", ".join(said for said in (profile and f"on {profile.name}", wrong) if said)

    @property
    def perturbed(self) -> NDArray[np.bool_]:
        """Which ranks are not as the (first pool's) profile says, shape (stages, places)."""
        return np.asarray([each != SOUND for each in self.distinct])[self.number]


def rank_conditions(job: Job) -> RankConditions:
    """The condition of every rank of a job; perturbations of one rank multiply."""
    gpus = job.cluster.gpus
    slower, nic, scale_up = np.ones(gpus), np.ones(gpus), np.ones(gpus)
    for perturbation in job.perturbations:
        ranks = _ranks(job, perturbation)
        slower[ranks] *= 1 + perturbation.slowdown
        if perturbation.jitter:
            drawn = np.random.default_rng(perturbation.seed).random(gpus)
            slower[ranks] *= 1 + perturbation.jitter * drawn[ranks]
        nic[ranks] *= perturbation.nic_share
        scale_up[ranks] *= perturbation.scale_up_share
    pool = _pool_of_ranks(job)
    rows = np.stack([slower - 1, nic, scale_up, pool], axis=1)
    distinct, number = np.unique(rows, axis=0, return_inverse=True)
    grid = rank_grid(job)
    number = number.reshape(-1)[grid]
    found = tuple(
        Condition(slow, cards, links, int(number))
        for slow, cards, links, number in distinct.tolist()
    )
    return RankConditions(grid, number, found, job.cluster.pools if pool.any() else ())


def _pool_of_ranks(job: Job) -> NDArray[np.int64]:
    """The pool of each rank, shape (gpus,); equal pools count as the first of them."""
    pools = job.cluster.pools
    if not pools:
        return np.zeros(job.cluster.gpus, dtype=np.int64)
    profiles = [pool.profile for pool in pools]
    first = [profiles.index(profile) for profile in profiles]
    return np.repeat(first, [pool.gpus for pool in pools])


def _ranks(job: Job, perturbation: Perturbation) -> slice:
    if perturbation.gpu is not None:
        first, last = perturbation.gpu
        return slice(first, last + 1)
    if perturbation.node is not None:
        first, last = perturbation.node
        per_node = job.cluster.profile.network.gpus_per_node
        return slice(first * per_node, (last + 1) * per_node)
    return slice(None)


def with_slow_links(job: Job, condition: Condition) -> Job:
    """The job on a cluster whose every GPU and link are as the condition's.

    The links above the leaf switches keep their rate.
    """
    cluster = job.cluster.of_pool(condition.pool)
    profile = cluster.profile
    network = profile.network
    fabric, scale_up = network.fabric, network.scale_up
    oversubscription = fabric.leaf.oversubscription * condition.nic_share
    leaf = fabric.leaf.model_copy(update={"oversubscription": oversubscription})
    network = network.model_copy(
        update={
            "fabric": fabric.model_copy(
                update={
                    "nic_bytes_per_s": fabric.nic_bytes_per_s * condition.nic_share,
                    "leaf": leaf,
                }
            ),
            "scale_up": scale_up.model_copy(
                update={
                    "bandwidth_bytes_per_s": scale_up.bandwidth_bytes_per_s
                    * condition.scale_up_share
                }
            ),
        }
    )
    profile = profile.model_copy(update={"network": network})
    return job.model_copy(update={"cluster": cluster.model_copy(update={"profile": profile})})


def slowed(work: Work, slowdown: float) -> Work:
    """The work on a GPU that computes so much longer.

    Communication keeps its time. Waiting for the host shrinks by what the device takes
    longer, because the host launches no later than before. What computes behind the wait is
    not distinguished, and counts as if it stood in front: the least that may be left.
    """
    if not slowdown or work.traffic is not None:
        return work
    if not work.parts:
        return replace(work, seconds=work.seconds * (1 + slowdown))
    kept = COMMUNICATION | {Category.HOST}
    computing_s = math.fsum(part.seconds for part in work.parts if part.category not in kept)
    parts = tuple(_slowed_part(part, slowdown, slowdown * computing_s) for part in work.parts)
    return replace(work, seconds=math.fsum(part.seconds for part in parts), parts=parts)


def _slowed_part(part: Part, slowdown: float, longer_s: float) -> Part:
    if part.category is Category.HOST:
        return replace(part, seconds=max(0.0, part.seconds - longer_s))
    if part.category in COMMUNICATION:
        return part
    return replace(part, seconds=part.seconds * (1 + slowdown))
