"""Which copies does keeping weights, gradients and optimizer states off the GPU add?

- **Parameters** on the host: every piece's shard is copied in (from NVMe: read first, a few
  pieces ahead) before it is gathered, as long ahead as gathers are.
- **Gradients**: with ZeRO 2 and 3, every reduced shard leaves while backward goes on. Later
  microbatches are added to what is there: DeepSpeed copies it back and adds on the GPU, FSDP
  adds on the CPU. There the thread that launches kernels waits for the copy and adds before it
  launches the next piece, and it waits for all copies before the next microbatch. With ZeRO 1
  the shard leaves before the update.
- **Update**: the CPUs go through tiles. What a tile needs is read from NVMe before it and
  written after it; updated 16-bit weights are copied to the GPU, unless that fetches them
  anyway. A share that stayed is updated on the GPU meanwhile. A delayed update runs beside the
  next step; its weights are copied in at the end of that step's backward.

Source: ZeRO-Offload (arXiv 2101.06840, sections 4 and 5); ZeRO-Infinity (arXiv 2104.07857,
sections 5.1 and 6); DeepSpeed's ``stage_1_and_2.py`` and ``stage3.py`` and PyTorch's
``fully_shard`` for accumulation (``foreach_reduce`` of ``_fsdp_collectives.py``, and
``finalize_backward`` of ``_fsdp_param_group.py``).

Ignores: that copies which the launching thread waits for go to memory that is not pinned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from simulator.cost.host import NVME_READ, NVME_WRITE, TO_DEVICE, TO_HOST
from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner, Program
from simulator.program.run.host_links import HostLinks
from simulator.program.states.offloaded_states import PARAMETER_BUFFERS, TILE_NUMEL
from simulator.program.states.resident import (
    ParameterCount,
    device_shares,
    optimizer_traffic_bytes,
    shard_numel,
    state_bytes,
)

HOST_UPDATE = "host_update"
"""Name of the optimizer's work on the CPUs."""
_ADDING_PASSES = 3
"""Adding on the CPU reads two gradients and writes one."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Parameters that one rank keeps on the host and that travel together.

    Attributes:
        rank: Whose.
        run: Layers that need them.
        parameters: Elements before sharding.
    """

    rank: int
    run: Slice
    parameters: ParameterCount

    @property
    def layers(self) -> tuple[int, int]:
        """First layer and one past the last."""
        return self.run.first, self.run.end


class StateOffload:
    """Emits the copies of parameters and gradients, and the update on the CPUs, of one job."""

    def __init__(self, job: Job, program: Program) -> None:
        self.job = job
        self.links = HostLinks(job, program)
        self._per = state_bytes(job)
        self._plan = job.plan.offload
        self._away = 1.0 - device_shares(job)[Owner.OPTIMIZER_STATES]
        self._on_host: dict[tuple[int, Slice], int] = {}
        """What last touched the gradients of each rank's pieces that are on the host."""
        self._sent: dict[int, int] = {}
        """What last touched any gradients of each rank that are on the host."""
        self._launched_after: dict[int, int] = {}
        """What the thread that launches the kernels of each rank last waited for."""
        self._fetched: dict[int, list[int]] = {}
        """Copies of weights to the GPU by rank; each frees a buffer of what was read."""
        self._delayed: dict[int, list[tuple[int, float]]] = {}
        """Tiles that the CPUs update beside the next step, with bytes of their weights."""

    @property
    def fetches_parameters(self) -> bool:
        """Whether weights come from the host before every use."""
        return self._plan.parameters is not None

    @property
    def streams_gradients(self) -> bool:
        """Whether gradients leave as soon as they are reduced."""
        return self._plan.optimizer is not None and self.job.choices.shards_gradients

    def fetch(self, shard: Shard, after: Sequence[int], takes: Memory = ()) -> int:
        """Copies a piece's shard of the weights to the GPU; the id of the copy."""
        num_bytes = self._numel(shard) * (self._per.weights or self._per.master)
        copies = self._fetched.setdefault(shard.rank, [])
        if self._plan.parameters == "nvme":
            free = copies[-PARAMETER_BUFFERS:][:1] if len(copies) >= PARAMETER_BUFFERS else ()
            read = self.links.copy(shard.rank, NVME_READ, num_bytes, free, layers=shard.layers)
            after = (*after, read)
        copy = self.links.copy(
            shard.rank, TO_DEVICE, num_bytes, after, layers=shard.layers, takes=takes
        )
        copies.append(copy)
        return copy

    def send_gradients(
        self, shard: Shard, after: Sequence[int], gives: Memory, *, is_last: bool
    ) -> int:
        """Copies reduced gradients of a piece to the host, and adds them up there.

        Args:
            shard: Whose.
            after: What reduced them.
            gives: Memory that they leave.
            is_last: Whether no more is added to them before the update.

        Returns:
            The copy after which the memory is free.
        """
        num_bytes = self._numel(shard) * self._per.gradients * self._away
        rank, layers, links = shard.rank, shard.layers, self.links
        earlier = self._on_host.get((rank, shard.run))
        adds_on_gpu = self.job.choices.offloads == "infinity"
        if earlier is not None and adds_on_gpu:
            sums = ((Owner.COMMUNICATION, num_bytes),)
            back = links.copy(
                rank, TO_DEVICE, num_bytes, (*after, earlier), layers=layers, takes=sums
            )
            after, gives = (*after, back), gives + sums
        copy = links.copy(rank, TO_HOST, num_bytes, after, layers=layers, gives=gives)
        last = copy
        if earlier is not None and not adds_on_gpu:
            traffic_bytes, waits = _ADDING_PASSES * num_bytes, (copy, earlier)
            last = links.compute(rank, "add_gradients", traffic_bytes, waits)
        if is_last and self._plan.optimizer == "nvme":
            last = links.copy(rank, NVME_WRITE, num_bytes, (last,), layers=layers)
        self._on_host[rank, shard.run] = self._sent[rank] = last
        if earlier is not None and not adds_on_gpu:
            self._launched_after[rank] = last
        return copy

    def end_backward(self, rank: int) -> None:
        """Books that all of a rank's backward is launched; FSDP then waits for its copies."""
        if self.job.choices.offloads == "shards" and rank in self._sent:
            self._launched_after[rank] = self._sent[rank]

    def launched_after(self, rank: int) -> tuple[int, ...]:
        """What must have ended before a rank's next kernels are launched."""
        return (self._launched_after[rank],) if rank in self._launched_after else ()

    def _numel(self, shard: Shard) -> float:
        return shard_numel(self.job, shard.parameters)

    def update(
        self, rank: int, parameters: ParameterCount, after: Sequence[int]
    ) -> tuple[int, ...]:
        """The update of what is on the host; what the end of the step waits for."""
        gradients = [last for (owner, _), last in self._on_host.items() if owner == rank]
        self._on_host = {key: last for key, last in self._on_host.items() if key[0] != rank}
        waits = (*after, *gradients)
        if not self._plan.delayed_update:
            tiles = list(self._update_tiles(rank, parameters, waits))
            return tuple(self._copied_in(rank, tiles, ()))
        done = tuple(self._copied_in(rank, self._delayed.get(rank, []), waits))
        self._delayed[rank] = list(self._update_tiles(rank, parameters, waits))
        return (*waits, *done)

    def _copied_in(
        self, rank: int, tiles: Sequence[tuple[int, float]], after: Sequence[int]
    ) -> Iterator[int]:
        """Updated weights on their way to where the next forward finds them."""
        for tile, numel in tiles:
            num_bytes = numel * self._per.weights
            if self._plan.parameters == "nvme" and num_bytes:
                yield self.links.copy(rank, NVME_WRITE, num_bytes, (tile,))
            elif self._plan.parameters or not num_bytes:
                yield tile
            else:
                yield self.links.copy(rank, TO_DEVICE, num_bytes, (*after, tile))

    def _update_tiles(
        self, rank: int, parameters: ParameterCount, after: Sequence[int]
    ) -> Iterator[tuple[int, float]]:
        """CPU updates of all tiles: the last operation of each, and its parameters."""
        numel = shard_numel(self.job, parameters) * self._away
        tiles = max(1, ceil(numel / TILE_NUMEL)) if self._plan.overlap else 1
        traffic_bytes = optimizer_traffic_bytes(self.job, parameters) * self._away / tiles
        stored_bytes = (self._per.master + self._per.moments) * numel / tiles
        for _ in range(tiles):
            ready = tuple(after)
            if not self.streams_gradients:
                sent_bytes = numel / tiles * self._per.gradients
                ready = (self.links.copy(rank, TO_HOST, sent_bytes, after),)
            if self._plan.optimizer == "nvme":
                read_bytes = stored_bytes + numel / tiles * self._per.gradients
                ready = (self.links.copy(rank, NVME_READ, read_bytes, ready),)
            done = self.links.compute(rank, HOST_UPDATE, traffic_bytes, ready)
            if self._plan.optimizer == "nvme":
                self.links.copy(rank, NVME_WRITE, stored_bytes, (done,))
            yield done, numel / tiles
