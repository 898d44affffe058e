"""What does saving a training run take: bytes, standstill, seconds until it is safe?

- **synchronous**: training stands until storage has everything.
- **asynchronous**: training stands while each GPU copies its share to its host; the host
  writes it while training goes on.
- **in-memory**: each GPU copies its share to its host, which sends it to another node over the
  node's network cards; a restart reads it back from there. Ignored is that both nodes may
  fail together. Source: Gemini, SOSP 2023, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.described.campaign import Checkpoint
from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.layer.model_totals import parameter_count
from simulator.program.states.resident import state_bytes


@dataclass(frozen=True)
class CheckpointCost:
    """What one checkpoint takes.

    Attributes:
        size_bytes: All of it, each state once [B].
        stall_s: Training stands [s].
        write_s: From then until a failure cannot take it any more [s].
        load_s: Reading it after a restart [s].
        interference: Share by which training slows during ``write_s``.
    """

    size_bytes: float
    stall_s: float
    write_s: float
    load_s: float
    interference: float


def checkpoint_bytes(job: Job) -> float:
    """Weights as they are read, fp32 master weights and optimizer states, each once [B].

    With bf16 weights and Adam 14 bytes per parameter.
    """
    per = state_bytes(job)
    count = parameter_count(job.model, with_multi_token=True)
    return count * ((per.weights or per.gathered) + per.master + per.moments)


def checkpoint_cost(job: Job, checkpoint: Checkpoint) -> CheckpointCost:
    """What one checkpoint of a job takes.

    The GPUs share the bytes evenly.

    Raises:
        InputError: Two copies of a node's share are more than its memory.
    """
    cluster, profile = job.cluster, job.cluster.profile
    size = checkpoint_bytes(job) if checkpoint.size_bytes is None else checkpoint.size_bytes
    to_host_s = size / cluster.gpus / profile.host.pcie_bytes_per_s
    if checkpoint.storage_bytes_per_s is None:
        gpus = min(cluster.gpus, profile.network.gpus_per_node)
        _check_host_memory(2 * size / cluster.gpus * gpus, profile.host.memory_bytes)
        fabric = profile.network.fabric
        node_bytes_per_s = fabric.nics_per_node * fabric.nic_bytes_per_s * fabric.efficiency
        if cluster.gpus <= gpus or not node_bytes_per_s:
            rule = "in-memory needs a second node to copy to"
            raise InputError.single("campaign.checkpoint.mode", rule, hint="take asynchronous")
        send_s = size / cluster.gpus * gpus / node_bytes_per_s
        return CheckpointCost(size, to_host_s, send_s, send_s, checkpoint.interference)
    write_s = size / checkpoint.storage_bytes_per_s
    load_s = size / (checkpoint.read_bytes_per_s or checkpoint.storage_bytes_per_s)
    if checkpoint.mode == "synchronous":
        return CheckpointCost(size, write_s, 0.0, load_s, 0.0)
    return CheckpointCost(size, to_host_s, write_s, load_s, checkpoint.interference)


def _check_host_memory(needed_bytes: float, memory_bytes: float) -> None:
    if needed_bytes > memory_bytes:
        raise InputError.single(
            "campaign.checkpoint.mode",
            f"in-memory keeps {needed_bytes / 1e9:.0f} GB on each node, its own share and "
            f"another's, of {memory_bytes / 1e9:.0f} GB",
            "in-memory",
            "take asynchronous, or more nodes",
        )
