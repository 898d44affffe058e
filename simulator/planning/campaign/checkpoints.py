"""What does saving a training run take, and what is safe when a failure strikes?

- **synchronous**: training stands until storage has everything.
- **asynchronous**: training stands while each GPU copies its share to its host; the host
  writes it while training continues.
- **in-memory**: each GPU copies its share to its host, which sends it to another node over the
  node's network cards; a restart reads it back from there. Ignored is that both nodes may
  fail together. Source: Gemini, SOSP 2023, section 4.

A segment of training between two restarts is a chain of cycles: train for an interval, stand still
while the snapshot is taken, train on while it is written. All its times are whole nanoseconds, so
that the categories add up to the time exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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

    The GPUs share the bytes evenly, and where they are of several kinds the slowest is waited for.

    Raises:
        InputError: Two copies of a node's share are more than its memory.
    """
    cluster, profiles = job.cluster, [kind.profile for kind in job.cluster.kinds]
    size = checkpoint_bytes(job) if checkpoint.size_bytes is None else checkpoint.size_bytes
    to_host_s = size / cluster.gpus / min(each.host.pcie_bytes_per_s for each in profiles)
    if checkpoint.storage_bytes_per_s is None:
        gpus = min(cluster.gpus, cluster.profile.network.gpus_per_node)
        memory_bytes = min(each.host.memory_bytes for each in profiles)
        _check_host_memory(2 * size / cluster.gpus * gpus, memory_bytes)
        fabrics = [each.network.fabric for each in profiles]
        node_bytes_per_s = min(f.nics_per_node * f.nic_bytes_per_s * f.efficiency for f in fabrics)
        if cluster.gpus <= gpus or not node_bytes_per_s:
            rule = "an in-memory checkpoint needs a second node to copy to"
            raise InputError.single("campaign.checkpoint.mode", rule, hint="use asynchronous")
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
            f"an in-memory checkpoint keeps {needed_bytes / 1e9:.0f} GB on each node, its own "
            "share and "
            f"another's, of {memory_bytes / 1e9:.0f} GB",
            "in-memory",
            "use asynchronous, or more nodes",
        )


NS = 1_000_000_000
"""Nanoseconds of a second."""


class Spent(StrEnum):
    """What the time of a campaign goes into."""

    PRODUCTIVE = "productive"
    """Steps that count, at the speed of the whole cluster."""
    MISSING_RANKS = "missing ranks"
    """What steps that count take longer with fewer data-parallel ranks."""
    PAUSES = "pauses"
    """Standing still at regular steps, such as for an evaluation."""
    CHECKPOINT = "checkpoint"
    """Standing still for a snapshot."""
    INTERFERENCE = "interference"
    """What steps take longer while a checkpoint is written."""
    LOST_WORK = "lost work"
    """Steps that a failure undid; they are done again."""
    DETECTION = "detection"
    WAITING = "waiting for a node"
    RESTART = "restart"
    LOADING = "loading"
    """Reading the checkpoint after a restart."""
    WARM_UP = "warm-up"


@dataclass(frozen=True)
class CheckpointCycle:
    """When training is interrupted by checkpoints.

    Attributes:
        interval_ns: Training between two snapshots, at full speed; never shorter than
            writing one takes.
        stall_ns: Standstill per snapshot.
        write_ns: From the end of the standstill until it is safe.
        slowed_ns: What training loses during one write.
    """

    interval_ns: int
    stall_ns: int
    write_ns: int
    slowed_ns: int


def checkpoint_cycle(
    interval_s: float, stall_s: float, write_s: float, interference: float
) -> CheckpointCycle:
    """The cycle in whole nanoseconds.

    Args:
        interval_s: Wanted training between two snapshots; raised to what a write needs.
        stall_s: Standstill per snapshot.
        write_s: From the end of the standstill until it is safe.
        interference: Share by which training slows during a write.
    """
    write_ns = round(write_s * NS)
    slowed_ns = round(write_ns * interference / (1 + interference))
    least_ns = max(1, write_ns - slowed_ns)
    return CheckpointCycle(
        max(round(interval_s * NS), least_ns), round(stall_s * NS), write_ns, slowed_ns
    )


class Segment:
    """Training that would finish what is left, if nothing failed.

    The first cycle takes what whole intervals leave over, so every snapshot that becomes
    safe ends a whole number of intervals before the end.

    Args:
        cycle: Its checkpoints.
        left_ns: Work to do, at full speed; at least 1.
        ranks: Data-parallel ranks that work.
        all_ranks: Data-parallel ranks of the whole cluster; speed is their ratio.
    """

    def __init__(
        self, cycle: CheckpointCycle, left_ns: int, ranks: int = 1, all_ranks: int = 1
    ) -> None:
        self._cycle, self._left_ns = cycle, left_ns
        self._ranks, self._all_ranks = ranks, all_ranks
        self._cycles = -(-left_ns // cycle.interval_ns)
        self._first_ns = left_ns - (self._cycles - 1) * cycle.interval_ns
        self._first_wall_ns = self._wall_ns(self._first_ns)
        self._interval_wall_ns = self._wall_ns(cycle.interval_ns)
        self._cycle_ns = self._interval_wall_ns + cycle.slowed_ns + cycle.stall_ns
        self._first_cycle_ns = self._first_wall_ns + cycle.stall_ns

    @property
    def end_ns(self) -> int:
        """When all work is done and safe."""
        cycles_ns = self._first_cycle_ns + (self._cycles - 1) * self._cycle_ns
        return cycles_ns + self._cycle.write_ns

    def saved_ns(self, time_ns: int) -> int:
        """Work that nothing can undo any more at that time."""
        count = self._safe(time_ns)
        return self._first_ns + (count - 1) * self._cycle.interval_ns if count else 0

    def spent_ns(self, time_ns: int) -> dict[Spent, int]:
        """What the time up to a failure went into; adds up to it."""
        standing_ns, slowed_ns = self._overhead_ns(time_ns)
        worked_ns = time_ns - standing_ns - slowed_ns
        count = self._safe(time_ns)
        kept_ns = self._first_wall_ns + (count - 1) * self._interval_wall_ns if count else 0
        saved_ns = self.saved_ns(time_ns)
        return {
            Spent.PRODUCTIVE: saved_ns,
            Spent.MISSING_RANKS: kept_ns - saved_ns,
            Spent.CHECKPOINT: standing_ns,
            Spent.INTERFERENCE: slowed_ns,
            Spent.LOST_WORK: worked_ns - kept_ns,
        }

    def spent_if_saved_ns(self, time_ns: int) -> dict[Spent, int]:
        """The same where what is done is saved in time, before nodes leave or join."""
        standing_ns, slowed_ns = self._overhead_ns(time_ns)
        worked_ns = time_ns - standing_ns - slowed_ns
        done_ns = min(self._left_ns, worked_ns * self._ranks // self._all_ranks)
        return {
            Spent.PRODUCTIVE: done_ns,
            Spent.MISSING_RANKS: worked_ns - done_ns,
            Spent.CHECKPOINT: standing_ns,
            Spent.INTERFERENCE: slowed_ns,
        }

    def _wall_ns(self, work_ns: int) -> int:
        return -(-work_ns * self._all_ranks // self._ranks)

    def _safe(self, time_ns: int) -> int:
        since_first_ns = time_ns - self._first_cycle_ns - self._cycle.write_ns
        if since_first_ns < 0:
            return 0
        return min(self._cycles, 1 + since_first_ns // self._cycle_ns)

    def _overhead_ns(self, time_ns: int) -> tuple[int, int]:
        """Standstill, and what writes slowed, up to a time."""
        cycle = self._cycle
        if time_ns <= self._first_cycle_ns:
            return max(0, time_ns - self._first_wall_ns), 0
        done, within_ns = divmod(time_ns - self._first_cycle_ns, self._cycle_ns)
        if done >= self._cycles - 1:
            # All work is done; only the last write is awaited.
            awaited_ns = time_ns - self._first_cycle_ns - (self._cycles - 1) * self._cycle_ns
            standing_ns = self._cycles * cycle.stall_ns + awaited_ns
            return standing_ns, (self._cycles - 1) * cycle.slowed_ns
        standing_ns = max(0, within_ns - self._interval_wall_ns - cycle.slowed_ns)
        beside_ns = min(within_ns, cycle.write_ns)
        slowed_ns = cycle.slowed_ns * beside_ns // cycle.write_ns if cycle.write_ns else 0
        return (done + 1) * cycle.stall_ns + standing_ns, done * cycle.slowed_ns + slowed_ns
