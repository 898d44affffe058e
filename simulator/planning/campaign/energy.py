"""How much electricity does a campaign draw, and how much CO2 is that?

Each GPU draws one power while it computes and another while it waits; nodes draw theirs all
the time; the building multiplies all of it. A GPU is taken to wait while communication that
nothing hides, a bubble, a checkpoint or a restart keeps it from computing. A power that
nobody gave leaves the sum open.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.described.campaign import System
from simulator.described.job import Job
from simulator.planning.campaign.training_run import CampaignTime


@dataclass(frozen=True)
class Energy:
    """Electricity of a campaign; None stands for what a missing factor leaves open.

    Attributes:
        gpu_busy_j: GPUs that compute [J].
        gpu_waiting_j: GPUs that wait [J].
        host_j: Nodes without GPUs [J].
        network_j: Switches and storage [J].
        building_j: What the building takes beside them [J].
        total_j: All of it [J].
        co2_kg: CO2 equivalent [kg].
    """

    gpu_busy_j: float
    gpu_waiting_j: float | None
    host_j: float | None
    network_j: float | None
    building_j: float | None
    total_j: float | None
    co2_kg: float | None


def energy(job: Job, time: CampaignTime) -> Energy:
    """The electricity of a job's campaign."""
    profile, site = job.cluster.profile, job.campaign.site
    power = system_of(job).power
    busy_s = time.training_s * time.busy_share
    busy_w = profile.device.power_w if power.gpu_busy_w is None else power.gpu_busy_w
    gpu_busy_j = busy_w * busy_s * time.gpus
    gpu_waiting_j = _times(power.gpu_waiting_w, (time.wall_s - busy_s) * time.gpus)
    node_s = time.wall_s * job.cluster.nodes
    host_j, network_j = _times(power.host_w, node_s), _times(power.network_w, node_s)
    computers_j = _sum(gpu_busy_j, gpu_waiting_j, host_j, network_j)
    building_j = None
    if computers_j is not None and site.pue is not None:
        building_j = computers_j * (site.pue - 1)
    total_j = _sum(computers_j, building_j)
    return Energy(
        gpu_busy_j=gpu_busy_j,
        gpu_waiting_j=gpu_waiting_j,
        host_j=host_j,
        network_j=network_j,
        building_j=building_j,
        total_j=total_j,
        co2_kg=None if total_j is None else _times(site.grid_kg_per_j, total_j),
    )


def system_of(job: Job) -> System:
    """What the campaign says about the job's hardware profile; empty if nothing."""
    return job.campaign.systems.get(job.cluster.profile.name, System())


def _times(factor: float | None, amount: float) -> float | None:
    return None if factor is None else factor * amount


def _sum(*terms: float | None) -> float | None:
    known = [term for term in terms if term is not None]
    return sum(known) if len(known) == len(terms) else None
