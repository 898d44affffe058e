"""Which copies between GPU, host and NVMe does offloading add, and what do CPUs update?

Copies in the two directions, reads, writes and the CPUs are streams of their own; what they
share of a node is in :mod:`simulator.cost.host`.

- **Activations** of a layer leave after its forward and come back one layer ahead of its backward.
  Those of the last layer stay, because its backward is next. Two layers' copies may be under way;
  then computing waits for them, so that memory stays bounded on a slow link. Where fewer layers
  are copied, each copy has more layers' computing to itself (:func:`offload_windows`).
- **Parameters** on the host: every piece's shard is copied in (from NVMe: read first, a few
  pieces ahead) before it is gathered, as long ahead as gathers are.
- **Gradients**: with ZeRO 2 and 3, every reduced shard leaves while backward goes on. Later
  microbatches are added to what is there: DeepSpeed copies it back and adds on the GPU, on one
  stream for all of that, which is that of backward itself where reductions do not overlap; FSDP
  adds on the CPU. There the thread that launches kernels waits for the copy and adds before it
  launches the next piece, and it waits for all copies before the next microbatch. With ZeRO 1
  the shard leaves before the update.
- **Update**: the CPUs go through tiles. What a tile needs is read from NVMe before it and
  written after it; updated 16-bit weights are copied to the GPU, unless that fetches them
  anyway. A share that stayed is updated on the GPU meanwhile. A delayed update runs beside the
  next step; its weights are copied in at the end of that step's backward.

Source: ZeRO-Offload (arXiv 2101.06840, sections 4 and 5); ZeRO-Infinity (arXiv 2104.07857,
sections 5.1 and 6); DeepSpeed's ``stage_1_and_2.py``
(``async_accumulate_grad_in_cpu_via_gpu``, whose copies are issued on the current stream or on
``reduction_stream``) and ``stage3.py`` (``partition_grads``, on ``reduce_and_partition_stream``),
and PyTorch's ``fully_shard`` for accumulation (``foreach_reduce`` of ``_fsdp_collectives.py``, and
``finalize_backward`` of ``_fsdp_param_group.py``).

Ignores: that copies which the launching thread waits for go to memory that is not pinned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from simulator.cost.host import (
    HOST_MEMORY,
    NVME_READ,
    NVME_WRITE,
    TO_DEVICE,
    TO_HOST,
    copy_s,
    host_update_s,
)
from simulator.described.job import Cluster, Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import (
    Category,
    Kind,
    Memory,
    Operation,
    Owner,
    Part,
    Program,
    Stream,
    Traffic,
    Work,
    total_bytes,
)
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.gradient_buckets import adds_by_parameter
from simulator.program.states.outside_memory import PARAMETER_BUFFERS, TILE_NUMEL
from simulator.program.states.resident import (
    ParameterCount,
    device_shares,
    frozen_bytes,
    optimizer_traffic_bytes,
    shard_numel,
    state_bytes,
)

COPIES: Mapping[str, tuple[Kind, Stream]] = {
    TO_HOST: (Kind.COPY_TO_HOST, Stream.TO_HOST),
    TO_DEVICE: (Kind.COPY_TO_DEVICE, Stream.TO_DEVICE),
    NVME_READ: (Kind.NVME_READ, Stream.NVME_READ),
    NVME_WRITE: (Kind.NVME_WRITE, Stream.NVME_WRITE),
}
"""What a copy over each link is, and the stream that it runs on."""


def copy_work(cluster: Cluster, link: str, num_bytes: float) -> Work:
    """Cost of a copy over one of the links of :mod:`simulator.cost.host`."""
    seconds = copy_s(cluster, link, num_bytes)
    latency_s = cluster.profile.kernels.launch_s
    traffic = Traffic(dict.fromkeys((link, HOST_MEMORY), num_bytes), latency_s)
    part = Part(link, Category.OFFLOAD, seconds)
    return Work(seconds, (part,), num_bytes=num_bytes, traffic=traffic)


class HostLinks:
    """Appends copies and the work of CPUs to a program; equal ones share their cost."""

    def __init__(self, job: Job, program: Program) -> None:
        self._cluster = job.cluster
        self._update_share = job.choices.host_update_share
        self._program = program
        self._works: dict[tuple[str, float], Work] = {}

    def copy(
        self,
        rank: int,
        link: str,
        num_bytes: float,
        after: Sequence[int] = (),
        *,
        layers: tuple[int, int] = (-1, -1),
        takes: Memory = (),
        gives: Memory = (),
    ) -> int:
        """A copy over one of the links of :mod:`simulator.cost.host`; its id."""
        kind, stream = COPIES[link]
        if (link, num_bytes) not in self._works:
            self._works[link, num_bytes] = copy_work(self._cluster, link, num_bytes)
        operation = Operation(
            kind, ((rank, stream),), self._works[link, num_bytes], Category.OFFLOAD, tuple(after),
            layers=layers, takes=takes, gives=gives,
        )  # fmt: skip
        return self._program.add(operation)

    def compute(self, rank: int, name: str, num_bytes: float, after: Sequence[int]) -> int:
        """Work of a rank's CPU cores that passes over so much memory; its id."""
        if (name, num_bytes) not in self._works:
            seconds = host_update_s(self._cluster, num_bytes, self._update_share)
            part = Part(name, Category.OPTIMIZER, seconds)
            traffic = Traffic({HOST_MEMORY: num_bytes})
            work = Work(seconds, (part,), num_bytes=num_bytes, traffic=traffic)
            self._works[name, num_bytes] = work
        lanes, work = ((rank, Stream.HOST),), self._works[name, num_bytes]
        operation = Operation(Kind.OPTIMIZER, lanes, work, Category.OPTIMIZER, tuple(after))
        return self._program.add(operation)


class ActivationOffload:
    """Emits the copies of what layers keep from forward to backward."""

    def __init__(self, job: Job, costs: StageCosts, program: Program) -> None:
        self._costs, self._program = costs, program
        self._links = HostLinks(job, program)
        self._count = offloaded_layers(job)
        self._windows = offload_windows(job.model.layers, self._count)
        self._turns = {end: number for number, end in enumerate(self._windows)}
        """Whose window a layer ends."""
        self._away: dict[tuple[int, int], list[int]] = {}
        """Layers of each rank whose activations are on the host, with a copy per microbatch."""
        self._ran: dict[int, int] = {}
        """Last backward pass of each rank."""
        self._before: dict[tuple[int, int], tuple[int, ...]] = {}
        """What ran before the backward of a layer of each rank."""

    def send(self, rank: int, operation: int, run: Slice) -> None:
        """Copies out what layers keep whose turn it is after a forward pass."""
        for layer in range(run.first, run.end):
            if ended := self._away.get((rank, self._turns.get(layer - 1, -1))):
                computed = self._program.operations[operation]
                computed.after = (*computed.after, ended[-1])
            number = self._opened_by(layer)
            if number is not None:
                kept = kept_activations(self._costs, number)
                copy = self._links.copy(
                    rank, TO_HOST, total_bytes(kept), (operation,),
                    layers=(number, number + 1), gives=kept,
                )  # fmt: skip
                self._away.setdefault((rank, number), []).append(copy)

    def fetch(self, rank: int, run: Slice) -> tuple[int, ...]:
        """Copies back what has to be there when a backward pass begins; what it waits for."""
        copies = []
        for layer in reversed(range(run.first, run.end)):
            self._before[rank, layer] = (self._ran[rank],) if rank in self._ran else ()
            number = self._opened_by(layer)
            if number is None or not (away := self._away.get((rank, number))):
                continue
            window = self._before.get((rank, self._windows[number]), ())
            kept, waits = kept_activations(self._costs, number), away.pop(0)
            copy = self._links.copy(
                rank, TO_DEVICE, total_bytes(kept), (*window, waits),
                layers=(number, number + 1), takes=kept,
            )  # fmt: skip
            copies.append(copy)
        return tuple(copies)

    def ran_backward(self, rank: int, operation: int) -> None:
        """Books a backward pass, so that copies come no earlier than there is room for them."""
        self._ran[rank] = operation

    def _opened_by(self, layer: int) -> int | None:
        """Which layer's copy begins after the forward of a layer, and ends before its backward."""
        number = self._turns.get(layer, -1) + 1 if layer else 0
        return number if number < self._count and (layer == 0 or layer in self._turns) else None


def offloaded_layers(job: Job) -> int:
    """Layers, from the first on, whose activations leave the GPU: all but the last by default."""
    return job.plan.offload.activation_layers or job.model.layers - 1


def kept_activations(costs: StageCosts, layer: int) -> Memory:
    """What one layer keeps from forward to backward, counted from 0."""
    saved = costs.saved(Slice(layer, layer + 1))
    return tuple(block for block in saved if block[0] is Owner.ACTIVATIONS)


def offload_windows(layers: int, count: int) -> list[int]:
    """The layer during whose forward each copy to the host ends, of the first ``count`` layers.

    All layers of the model are shared out among the copies, which run one after another, so
    that each has about ``layers / count`` layers' computing to hide behind.

    Source: Transformer Engine, ``cpu_offload.py``, ``layer_window_map``.
    """
    each, more = divmod(layers, max(1, count))
    return [each * (n + 1) - 1 + min(n + 1, more) for n in range(count)]


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
        self._away = 1.0 - device_shares(job)[Owner.MASTER_WEIGHTS]
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
        num_bytes += frozen_bytes(self.job, shard.parameters)
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
        if adds_on_gpu and rank in self._sent:
            after = (*after, self._sent[rank])
        if earlier is not None and adds_on_gpu:
            sums: Memory = ((Owner.COMMUNICATION, num_bytes),)
            if adds_by_parameter(self.job):
                sums = ()
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
        overlaps = adds_on_gpu and self.job.choices.overlaps_reduction
        if not overlaps and (adds_on_gpu or earlier is not None):
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
