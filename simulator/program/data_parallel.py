"""What does data parallelism add to a pipeline: gradient reduction, sharding, gathers?

- ZeRO 0 all-reduces gradients. ZeRO 1 reduce-scatters them and gathers the updated
  weights. ZeRO 2 reduce-scatters after every microbatch, because nobody keeps whole
  gradients. ZeRO 3 gathers each run of weights before every use, too.
- Where states are sharded over part of the data-parallel ranks, the shards are
  all-reduced over the others in addition.
- With overlap the work runs on its own stream, unit by unit
  (:mod:`simulator.program.units`): reduction follows the last backward, gathers precede the
  first forward. Without, it blocks the compute stream.

Source: ZeRO (arXiv 1910.02054, sections 5 and 7); Megatron-LM's distributed optimizer;
PyTorch FSDP (arXiv 2304.11277, section 3.3) for prefetch and its limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simulator.cost.collectives import CollectiveKind, Group
from simulator.program.attachments import Gather
from simulator.program.communication import Call, collectives_work
from simulator.program.gradient_buckets import BucketCopies
from simulator.program.ir import (
    Category,
    Kind,
    Memory,
    Operation,
    Owner,
    Program,
    Scope,
    Stream,
    Work,
)
from simulator.program.layout import Slice, cut, ends_apart
from simulator.program.lone_parameters import gathered, gathered_twice, stays_whole
from simulator.program.offload import Shard, StateOffload
from simulator.program.ranks import (
    data_group,
    expert_data_group,
    expert_replica_group,
    expert_shard_group,
    replica_group,
    shard_group,
    tensor_group,
)
from simulator.program.shard_lists import with_list_copies, with_unpacking
from simulator.program.states import (
    ParameterCount,
    added_up,
    new_gradient_bytes,
    shard_numel,
    state_bytes,
)
from simulator.program.unit_memory import UnitMemory
from simulator.program.units import Piece, Unit, Units, whole_parameter_shares
from simulator.spec.job import Job
from simulator.spec.network import Network

_EMBEDDING, _HEAD = -1, -2
"""Stand for embedding and head among the indices of layers."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Who holds copies of parameters.

    Attributes:
        name: Degree that they belong to.
        all: Everybody.
        shards: Those that shard them.
        replicas: Those with equal shards.
    """

    name: str
    all: Group
    shards: Group
    replicas: Group

    @property
    def shard_axis(self) -> str:
        """Name of the group that shards; its own where it is not everybody."""
        return self.name if self.replicas.ranks == 1 else f"{self.name}_shard"


@dataclass
class DataParallel:
    """Emits the data-parallel operations of one job.

    Attributes:
        job: The job.
        network: Its links.
        copies_embedding: Whether the stage with the head holds a copy of the embedding.
    """

    job: Job
    network: Network
    copies_embedding: bool = False
    _work: dict[object, Work] = field(default_factory=dict)
    _pieces: dict[Slice, Piece] = field(default_factory=dict)
    """Every piece that is run as one operation, by its layers."""
    _cuts: dict[Slice, tuple[Piece, ...]] = field(default_factory=dict)
    _held: set[tuple[int, Unit]] = field(default_factory=set)
    """Ranks and the units they have gathered."""
    _computed: dict[int, int] = field(default_factory=dict)
    """Last computed run of each rank."""
    _reductions: dict[int, list[int]] = field(default_factory=dict)
    _updates: dict[int, int] = field(default_factory=dict)
    """Last update of each rank's weights."""
    _with_gradients: dict[int, set[int]] = field(default_factory=dict)
    """Layers, embedding and head of each rank whose gradients exist."""
    _gradients: dict[int, Memory] = field(default_factory=dict)
    _awaited: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Reductions that the next pass of each rank waits for, where every backward reduces."""
    _ends_backward: Slice | None = None
    """Last piece of the backward at hand."""

    def __post_init__(self) -> None:
        plan, stack = self.job.plan, self.job.plan.stack
        self._zero = plan.zero
        self._state = state_bytes(self.job)
        self._offload = StateOffload(self.job)
        self._units = Units(self.job, self.copies_embedding)
        self._memory = UnitMemory(self.job)
        self._bucket_copies = BucketCopies(self.job)
        self._dense = _Groups(
            "dp", data_group(self.job), shard_group(self.job), replica_group(self.job)
        )
        self._expert = _Groups(
            "edp",
            expert_data_group(self.job),
            expert_shard_group(self.job),
            expert_replica_group(self.job),
        )
        self._has_copies = max(self._dense.all.ranks, self._expert.all.ranks) > 1
        streams = self._offload.streams_gradients or self._offload.fetches_parameters
        self.is_active = self._has_copies or streams
        self._broadcasts = plan.zero == 1 and stack.shards_whole_parameters
        self._shards_gradients = plan.zero > 0 and not self._broadcasts
        self._reduction_kind = Kind.REDUCE_SCATTER if self._shards_gradients else Kind.ALL_REDUCE
        self._gather_kind = Kind.ALL_GATHER
        self._coalesces = stack.coalesced_norm_gradients
        reduce, gather = plan.overlap_grad_reduce, plan.overlap_param_gather
        self._overlaps_reduce = stack.overlap_grad_reduce if reduce is None else reduce
        self._overlaps_gather = stack.overlap_param_gather if gather is None else gather

    def forward_runs(self, run: Slice, *, is_first: bool) -> list[Slice]:
        """The pieces in which a forward is run, so that gathers can precede them."""
        gathers = self._zero == 3 or (self._gathers_once and is_first)
        return [piece.run for piece in self._cut(run)] if self.is_active and gathers else [run]

    def backward_runs(self, run: Slice, *, is_first: bool, is_last: bool) -> list[Slice]:
        """The pieces in which a backward is run, in order of execution (last layer first)."""
        if self.reduces_after(is_last=is_last):
            runs = [piece.run for piece in reversed(self._cut(run))]
            self._ends_backward = runs[-1]
            return runs
        # Gradients that are made here come layer by layer, as activations go.
        makes = is_first and self.job.plan.stack.frees_gradients
        return ends_apart(cut(run, 1))[::-1] if makes else [run]

    def before(
        self, program: Program, rank: int, run: Slice, *, is_first: bool, is_forward: bool
    ) -> Gather:
        """Gathers the weights that a run needs."""
        per_use = self._zero == 3
        if rank in self._awaited:
            return Gather(self._awaited.pop(rank))
        if not self.is_active or not (per_use or (self._gathers_once and is_first)):
            return Gather()
        needed = [unit for unit in self._piece(run).needs if (rank, unit) not in self._held]
        if not needed:
            return Gather()
        if per_use:
            self._held.update((rank, unit) for unit in needed)
        stream = Stream.DATA_PARALLEL if self._overlaps_gather else Stream.COMPUTE
        after = self._prefetch_limit(rank) if per_use else self._last_update(rank)
        after = (*after, *self._offload.launched_after(rank))
        shard: Memory = ()
        if self._offload.fetches_parameters:
            shard = self._memory.shard(needed) if self._has_copies else ()
            fetched = Shard(rank, run, _parameters(needed))
            after = (self._offload.fetch(program, fetched, after, shard),)
            if not self._has_copies:
                return Gather(after, self._memory.weights(needed))
        gather = Operation(
            self._gather_kind, ((rank, stream),),
            self._gather_work(needed, is_forward=is_forward),
            Category.DATA_PARALLEL, after=after, layers=(run.first, run.end),
            scope=Scope.SHARDS, gives=shard,
        )  # fmt: skip
        return Gather((program.add(gather),), self._memory.weights(needed) if per_use else ())

    def weights_in_turn(self, run: Slice, *, is_forward: bool) -> Memory:
        """What is gathered at once while a piece runs whose parameters come one by one."""
        is_gathered = self.is_active and self._zero == 3
        if not is_gathered:
            return ()
        return self._memory.weights_in_turn(self._piece(run).needs, is_forward=is_forward)

    def launched_after(self, rank: int) -> tuple[int, ...]:
        """What the host waits for before it launches a rank's next piece."""
        return self._offload.launched_after(rank)

    def reads_weights(self, run: Slice) -> bool:
        """Whether a piece has weights of its own, so that the next gather is issued with it."""
        return bool(self._piece(run).needs)

    def after_use(self, rank: int, operation: int, run: Slice, *, is_forward: bool) -> Memory:
        """Books a run that used its weights; returns the gathered ones to give back."""
        self._computed[rank] = operation
        if not self.is_active or self._zero < 3:
            return ()
        piece = self._piece(run)
        done = [u for u in piece.needs if not u.stays] if is_forward else piece.closes
        given = [unit for unit in done if (rank, unit) in self._held]
        self._held.difference_update((rank, unit) for unit in given)
        return self._memory.weights(given)

    def after_backward(
        self, program: Program, rank: int, operation: int, run: Slice, *, is_last: bool
    ) -> Memory:
        """Reduces gradients that a run completes, where due; returns the memory they take."""
        taken = self._reduce_after(program, rank, operation, run, is_last=is_last)
        if run == self._ends_backward:
            self._offload.end_backward(rank)
        return taken

    def _reduce_after(
        self, program: Program, rank: int, operation: int, run: Slice, *, is_last: bool
    ) -> Memory:
        made = self._made_gradients(rank, run)
        if not self.reduces_after(is_last=is_last):
            return made
        units = self._piece(run).closes
        if not units:
            return made
        if self._zero >= 2:
            self._limit_reductions(program, rank, operation)
        self._bucket_copies.add(program, operation, sum(u.parameters.total for u in units))
        if self._offload.streams_gradients:
            self._send_gradients(program, rank, run, units, operation, is_last=is_last)
        else:
            self._emit_reduction(program, rank, run, units, (operation,), self._overlaps_reduce)
        if self._zero < 2 and not is_last and run == self._ends_backward:
            self._awaited[rank] = tuple(self._reductions.pop(rank))
        return made + self._memory.gradients(units)

    def reduces_after(self, *, is_last: bool) -> bool:
        """Whether a backward's gradients are reduced while it runs."""
        every = self._zero >= 2 or not self.job.plan.no_sync
        return self.is_active and (every or (is_last and self._overlaps_reduce))

    def _send_gradients(
        self,
        program: Program,
        rank: int,
        run: Slice,
        units: Sequence[Unit],
        operation: int,
        *,
        is_last: bool,
    ) -> None:
        """Reduces gradients and copies them to the host; backward waits for both."""
        shard, after = Shard(rank, run, _parameters(units)), (operation,)
        gives = self._memory.gradients(units)
        if self._has_copies:
            numel = shard_numel(self.job, shard.parameters)
            gives = ((Owner.GRADIENTS, numel * self._state.gradients),)
            self._emit_reduction(program, rank, run, units, after, self._overlaps_reduce)
            after = (self._reductions[rank].pop(),)
            program.operations[after[0]].takes = gives
        copy = self._offload.send_gradients(program, shard, after, gives, is_last=is_last)
        self._reductions.setdefault(rank, []).append(copy)

    def update_on_host(
        self, program: Program, rank: int, parameters: ParameterCount, after: Sequence[int]
    ) -> tuple[int, ...]:
        """What CPUs update of a rank's states; what the end of the step waits for."""
        return self._offload.update(program, rank, parameters, after)

    def _made_gradients(self, rank: int, run: Slice) -> Memory:
        """Gradients that a run's first backward makes and that stay until the step.

        Those of ZeRO 2 and 3 are shards, made by the reduction that follows.
        """
        if not self.job.plan.stack.frees_gradients:
            return ()
        owned = set(range(run.first, run.end))
        owned |= {_EMBEDDING} if run.has_embedding else set()
        owned |= {_HEAD} if run.has_head else set()
        known = self._with_gradients.setdefault(rank, set())
        if owned <= known:
            return ()
        known |= owned
        num_bytes = new_gradient_bytes(self.job, self._units.whole(run).parameters)
        made = ((Owner.GRADIENTS, num_bytes),)
        self._gradients[rank] = self._gradients.get(rank, ()) + made
        return made

    def freed_gradients(self, rank: int) -> Memory:
        """Gradients that backward made since the last update, and that are freed after this one."""
        self._with_gradients.pop(rank, None)
        return self._gradients.pop(rank, ())

    def finish_gradients(
        self, program: Program, rank: int, runs: Sequence[Slice]
    ) -> tuple[int, ...]:
        """Whatever reduction is left once backward is done; returns what to wait for."""
        units = [self._units.whole(run) for run in runs]
        if self.is_active and not self.reduces_after(is_last=True):
            for unit in units:
                self._bucket_copies.add(program, self._computed[rank], unit.parameters.total)
                self._emit_reduction(program, rank, unit.run, (unit,), (), overlapped=False)
        self._add_partial_gradients(program, rank, units)
        return tuple(self._reductions.pop(rank, ()))

    def updated(self, rank: int, operation: int) -> None:
        """Books an update; weights that are gathered after it wait for it."""
        self._updates[rank] = self._computed[rank] = operation

    def _add_partial_gradients(self, program: Program, rank: int, units: Sequence[Unit]) -> None:
        """Adds up gradients of norms over the ranks that cut the sequence, where still due."""
        sizes = [numel * self._state.reduced for unit in units for numel in unit.partial]
        if not sizes or (self.is_active and not self._coalesces):
            return
        calls = self._partial_calls([sum(sizes)] if self._coalesces else sizes)
        work = collectives_work(calls, self.network, Category.TENSOR_PARALLEL)
        after = tuple(self._reductions.get(rank, ()))
        operation = Operation(
            Kind.ALL_REDUCE, ((rank, Stream.COMPUTE),), work, Category.TENSOR_PARALLEL, after,
            scope=Scope.PASS,
        )  # fmt: skip
        self._reductions.setdefault(rank, []).append(program.add(operation))

    def _partial_calls(self, sizes: Iterable[float]) -> list[Call]:
        kind, group = CollectiveKind.ALL_REDUCE, tensor_group(self.job)
        return [Call("partial_gradient", kind, "tp", group, num_bytes) for num_bytes in sizes]

    def finish_weights(self, program: Program, rank: int, runs: Sequence[Slice]) -> None:
        """Gathers updated weights after the optimizer, where nothing hides that."""
        lanes = ((rank, Stream.COMPUTE),)
        if self.is_active and (work := self._small_parameters_work(runs)):
            kind, scope = self._gather_kind, Scope.SHARDS
            program.add(Operation(kind, lanes, work, Category.DATA_PARALLEL, scope=scope))
        if not self.is_active or not self._hands_out or self._gathers_once:
            return
        for run in runs:
            if self._broadcasts:
                work, kind, scope = self._broadcast_work(run), Kind.BROADCAST, Scope.SHARDS
            else:
                work = self._gather_work([self._units.whole(run)])
                kind, scope = self._gather_kind, Scope.SHARDS
            program.add(Operation(kind, lanes, work, Category.DATA_PARALLEL, scope=scope))

    def _small_parameters_work(self, runs: Sequence[Slice]) -> Work | None:
        """One gather of what ZeRO 3 keeps whole; every rank's part is cut into parameters."""
        if self._zero < 3 or not self.job.plan.stack.whole_below_numel:
            return None
        held = (count for run in runs for count in self._units.stored_counts(run))
        if not (small := [count for count in held if stays_whole(count, self.job)]):
            return None
        work = self._collectives(self._gathers([added_up(small)]))
        return with_unpacking(work, len(small), self._dense.shards.ranks, self.job)

    @cached_property
    def _gathers_once(self) -> bool:
        """Whether updated weights are gathered while the next step's first forward runs."""
        return self._hands_out and self._overlaps_gather and not self._broadcasts

    @property
    def _hands_out(self) -> bool:
        """Whether ranks keep whole weights, of which others update a part."""
        return 0 < self._zero < 3

    def _cut(self, run: Slice) -> tuple[Piece, ...]:
        if run not in self._cuts:
            cuts = self._cuts[run] = self._units.pieces(run)
            needs = dict.fromkeys(unit for piece in cuts for unit in piece.needs)
            closes = tuple(unit for piece in reversed(cuts) for unit in piece.closes)
            self._pieces[run] = Piece(run, tuple(needs), closes)
            self._pieces.update((piece.run, piece) for piece in cuts)
        return self._cuts[run]

    def _piece(self, run: Slice) -> Piece:
        """A piece, or a whole run that is not cut."""
        if run not in self._pieces:
            self._cut(run)
        return self._pieces[run]

    def _emit_reduction(
        self,
        program: Program,
        rank: int,
        run: Slice,
        units: Sequence[Unit],
        after: tuple[int, ...],
        overlapped: bool,
    ) -> None:
        stream = Stream.DATA_PARALLEL if overlapped else Stream.COMPUTE
        operation = Operation(
            self._reduction_kind, ((rank, stream),), self._reduction_work(units),
            Category.DATA_PARALLEL, after=after, layers=(run.first, run.end),
            gives=self._memory.gradients(units),
            holds=self._memory.reduced(units), scope=Scope.COPIES,
        )  # fmt: skip
        self._reductions.setdefault(rank, []).append(program.add(operation))

    def _limit_reductions(self, program: Program, rank: int, operation: int) -> None:
        """One reduction may be under way while a run computes; it waits for the one before.

        Otherwise unsharded gradients would pile up behind a slow network (FSDP2 keeps one
        input buffer of a reduce_scatter in flight).
        """
        under_way = self._reductions.get(rank, [])
        if len(under_way) > 1:
            computed = program.operations[operation]
            computed.after = (*computed.after, under_way[-2])

    def _prefetch_limit(self, rank: int) -> tuple[int, ...]:
        """What a gather waits for, so that two gathered runs exist at a time.

        Gathers are issued one run ahead; each waits for the run before the next one.
        """
        computed = self._computed.get(rank)
        return (computed,) if computed is not None else ()

    def _last_update(self, rank: int) -> tuple[int, ...]:
        """What gathered weights must have seen, where a step follows another."""
        return (self._updates[rank],) if rank in self._updates else ()

    def _gather_work(self, units: Sequence[Unit], *, is_forward: bool = True) -> Work:
        counts = [count for unit in units for count in gathered(unit, self.job)]
        if not is_forward:
            counts += [count for unit in units for count in gathered_twice(unit, self.job)]
        return self._collectives(self._gathers(counts))

    def _gathers(self, counts: Iterable[ParameterCount]) -> list[Call]:
        gather, per = CollectiveKind.ALL_GATHER, self._state.gathered
        return [
            Call("weights", gather, groups.shard_axis, groups.shards, numel * per)
            for count in counts
            for numel, groups in self._groups_of(count)
        ]

    def _reduction_work(self, units: Sequence[Unit]) -> Work:
        calls: list[Call] = []
        if not self._coalesces:
            per = self._state.gathered
            calls += self._partial_calls(n * per for unit in units for n in unit.partial)
        counts = (count for unit in units for count in unit.apart or (unit.parameters,))
        for numel, groups in (pair for count in counts for pair in self._groups_of(count)):
            num_bytes, name = numel * self._state.reduced, "gradients"
            all_reduce, scatter = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
            if not self._shards_gradients:
                calls.append(Call(name, all_reduce, groups.name, groups.all, num_bytes))
                continue
            calls.append(Call(name, scatter, groups.shard_axis, groups.shards, num_bytes))
            share, axis = num_bytes / groups.shards.ranks, f"{groups.name}_replicate"
            calls.append(Call(name, all_reduce, axis, groups.replicas, share))
        return self._collectives(calls)

    def _broadcast_work(self, run: Slice) -> Work:
        """Updated parameters go from the rank that holds their states to all others."""
        kind, per = CollectiveKind.BROADCAST, self._state.gathered
        shares = whole_parameter_shares(self._units.counts(run), self._dense.shards.ranks)
        if self.job.plan.stack.flat_broadcasts:
            shares = [[added_up(share)] for share in shares]
        pairs = [pair for share in shares for count in share for pair in self._groups_of(count)]
        return self._collectives(
            Call("weights", kind, groups.shard_axis, groups.shards, numel * per)
            for numel, groups in pairs
        )

    def _groups_of(self, parameters: ParameterCount) -> Iterator[tuple[float, _Groups]]:
        """Dense parameters and routed experts, each with the ranks that hold copies."""
        if parameters.dense:
            yield parameters.dense, self._dense
        if parameters.expert:
            yield parameters.expert, self._expert

    def _collectives(self, calls: Iterable[Call]) -> Work:
        key = tuple(calls)
        if key not in self._work:
            work = collectives_work(key, self.network, Category.DATA_PARALLEL)
            self._work[key] = with_list_copies(work, key, self.job)
        return self._work[key]


def _parameters(units: Sequence[Unit]) -> ParameterCount:
    return added_up(unit.parameters for unit in units)
