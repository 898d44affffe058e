"""What does data parallelism add to a pipeline: gradient reduction, sharding, gathers?

- ZeRO 0 all-reduces gradients. ZeRO 1 reduce-scatters them and gathers the updated
  weights. ZeRO 2 reduce-scatters after every microbatch, because nobody keeps whole
  gradients. ZeRO 3 gathers each run of weights before every use, too.
- Where states are sharded over part of the data-parallel ranks, the shards are
  all-reduced over the others in addition.
- With overlap the work runs on its own stream, cut into buckets: reduction follows the
  last backward bucket by bucket, gathers precede the first forward. Without, it blocks
  the compute stream.

Source: ZeRO (arXiv 1910.02054, sections 5 and 7); Megatron-LM's distributed optimizer;
PyTorch FSDP (arXiv 2304.11277, section 3.3) for prefetch and its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.cost.collectives import CollectiveCost, CollectiveKind, Group, collective_cost
from simulator.program.ir import (
    Category,
    Kind,
    Memory,
    Operation,
    Owner,
    Part,
    Program,
    Scope,
    Stream,
    Traffic,
    Work,
)
from simulator.program.layout import Slice, cut
from simulator.program.ranks import (
    data_group,
    expert_data_group,
    expert_replica_group,
    expert_shard_group,
    replica_group,
    shard_group,
)
from simulator.program.states import ParameterCount, slice_parameters, state_bytes
from simulator.spec.job import Job
from simulator.spec.network import Network

_Call = tuple[CollectiveKind, float, Group]
"""A collective, its message size [B], and who takes part."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Who holds copies of parameters: all, those that shard them, those with equal shards."""

    all: Group
    shards: Group
    replicas: Group


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
    _parameters: dict[Slice, ParameterCount] = field(default_factory=dict)
    _cut: dict[Slice, list[Slice]] = field(default_factory=dict)
    _reduced: dict[Slice, Work] = field(default_factory=dict)
    _fetched: dict[Slice, Work] = field(default_factory=dict)
    _computed: dict[int, int] = field(default_factory=dict)
    """Last computed run of each rank."""
    _reductions: dict[int, list[int]] = field(default_factory=dict)
    _updates: dict[int, int] = field(default_factory=dict)
    """Last update of each rank's weights."""

    def __post_init__(self) -> None:
        plan, stack = self.job.plan, self.job.plan.stack
        self._zero = plan.zero
        self._state = state_bytes(self.job)
        self._dense = _Groups(data_group(self.job), shard_group(self.job), replica_group(self.job))
        self._expert = _Groups(
            expert_data_group(self.job),
            expert_shard_group(self.job),
            expert_replica_group(self.job),
        )
        self.is_active = max(self._dense.all.ranks, self._expert.all.ranks) > 1
        reduce, gather = plan.overlap_grad_reduce, plan.overlap_param_gather
        self._overlaps_reduce = stack.overlap_grad_reduce if reduce is None else reduce
        self._overlaps_gather = stack.overlap_param_gather if gather is None else gather

    def forward_runs(self, run: Slice, *, is_first: bool) -> list[Slice]:
        """The pieces in which a forward is run, so that gathers can precede them."""
        gathers = self._zero == 3 or (self._zero > 0 and is_first and self._overlaps_gather)
        return self._buckets(run) if self.is_active and gathers else [run]

    def backward_runs(self, run: Slice, *, is_last: bool) -> list[Slice]:
        """The pieces in which a backward is run, in order of execution (last layer first)."""
        reduces = self._zero >= 2 or (is_last and self._overlaps_reduce)
        return self._buckets(run)[::-1] if self.is_active and reduces else [run]

    def before(self, program: Program, rank: int, run: Slice, *, is_first: bool) -> tuple[int, ...]:
        """Gathers of the weights that a run needs; the run must wait for these operations."""
        per_use = self._zero == 3
        once = 0 < self._zero < 3 and is_first and self._overlaps_gather
        if not self.is_active or not (per_use or once):
            return ()
        work = self._gather_work(run)
        takes = self._gathered(run) if per_use else ()
        stream = Stream.DATA_PARALLEL if self._overlaps_gather else Stream.COMPUTE
        gather = Operation(
            Kind.ALL_GATHER, ((rank, stream),), work, Category.DATA_PARALLEL,
            after=self._prefetch_limit(rank) if per_use else self._last_update(rank),
            layers=(run.first, run.end), takes=takes, scope=Scope.SHARDS,
        )  # fmt: skip
        return (program.add(gather),)

    def after_use(self, rank: int, operation: int, run: Slice) -> Memory:
        """Books a run that used its weights; returns the gathered ones to give back."""
        self._computed[rank] = operation
        return self._gathered(run) if self.is_active and self._zero == 3 else ()

    def after_backward(
        self, program: Program, rank: int, operation: int, run: Slice, *, is_last: bool
    ) -> Memory:
        """Reduces a run's gradients where that is due; returns the memory that they take."""
        if not self.is_active or not (self._zero >= 2 or (is_last and self._overlaps_reduce)):
            return ()
        if self._zero >= 2:
            self._limit_reductions(program, rank, operation)
        self._emit_reduction(program, rank, run, (operation,), overlapped=self._overlaps_reduce)
        return self._whole_gradients(run)

    def finish_gradients(
        self, program: Program, rank: int, runs: Sequence[Slice]
    ) -> tuple[int, ...]:
        """Whatever reduction is left once backward is done; returns what to wait for."""
        if self.is_active and self._zero < 2 and not self._overlaps_reduce:
            for run in runs:
                self._emit_reduction(program, rank, run, (), overlapped=False)
        return tuple(self._reductions.pop(rank, ()))

    def updated(self, rank: int, operation: int) -> None:
        """Books an update; weights that are gathered after it wait for it."""
        self._updates[rank] = self._computed[rank] = operation

    def finish_weights(self, program: Program, rank: int, runs: Sequence[Slice]) -> None:
        """Gathers updated weights after the optimizer, where nothing hides that."""
        if not self.is_active or self._zero not in (1, 2) or self._overlaps_gather:
            return
        for run in runs:
            work = self._gather_work(run)
            lanes = ((rank, Stream.COMPUTE),)
            program.add(
                Operation(Kind.ALL_GATHER, lanes, work, Category.DATA_PARALLEL, scope=Scope.SHARDS)
            )

    def _emit_reduction(
        self, program: Program, rank: int, run: Slice, after: tuple[int, ...], *, overlapped: bool
    ) -> None:
        stream = Stream.DATA_PARALLEL if overlapped else Stream.COMPUTE
        kind = Kind.REDUCE_SCATTER if self._zero else Kind.ALL_REDUCE
        operation = Operation(
            kind, ((rank, stream),), self._reduction_work(run), Category.DATA_PARALLEL,
            after=after, layers=(run.first, run.end), gives=self._whole_gradients(run),
            scope=Scope.COPIES,
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

    def _gathered(self, run: Slice) -> Memory:
        return ((Owner.GATHERED_WEIGHTS, self._count(run).total * self._state.gathered),)

    def _whole_gradients(self, run: Slice) -> Memory:
        """Gradients before they are sharded, and the buffer they are reduced in.

        Only ZeRO 2 and 3 make them anew; otherwise they live in resident buffers.
        """
        if self._zero < 2:
            return ()
        numel, state = self._count(run).total, self._state
        cast = numel * state.reduced if state.reduced != state.gathered else 0.0
        return ((Owner.GRADIENTS, numel * state.gathered), (Owner.COMMUNICATION, cast))

    def _count(self, run: Slice) -> ParameterCount:
        """Parameters of a run on one rank."""
        if run not in self._parameters:
            tied_copy = self.copies_embedding
            self._parameters[run] = slice_parameters(self.job, run, tied_copy=tied_copy)
        return self._parameters[run]

    def _buckets(self, run: Slice) -> list[Slice]:
        """Runs of whole layers, each at least one bucket large (one layer for ZeRO 3)."""
        if run not in self._cut:
            self._cut[run] = self._cut_to_buckets(run)
        return self._cut[run]

    def _cut_to_buckets(self, run: Slice) -> list[Slice]:
        if self._zero == 3:
            return cut(run, 1)
        layers = max(1, run.end - run.first)
        layer_bytes = self._count(run).total / layers * self._state.reduced
        if not layer_bytes:
            return [run]
        bucket_bytes = self.job.plan.stack.bucket_bytes
        return cut(run, max(1, round(bucket_bytes / layer_bytes)))

    def _gather_work(self, run: Slice) -> Work:
        if run not in self._fetched:
            per = self._state.gathered
            calls = [
                (CollectiveKind.ALL_GATHER, count * per, groups.shards)
                for count, groups in self._counts_and_groups(run)
            ]
            self._fetched[run] = self._collectives(tuple(calls))
        return self._fetched[run]

    def _reduction_work(self, run: Slice) -> Work:
        if run not in self._reduced:
            self._reduced[run] = self._collectives(self._reduction_calls(run))
        return self._reduced[run]

    def _reduction_calls(self, run: Slice) -> tuple[_Call, ...]:
        calls: list[_Call] = []
        for count, groups in self._counts_and_groups(run):
            num_bytes = count * self._state.reduced
            if self._zero == 0:
                calls.append((CollectiveKind.ALL_REDUCE, num_bytes, groups.all))
                continue
            shard_bytes = num_bytes / groups.shards.ranks
            calls.append((CollectiveKind.REDUCE_SCATTER, num_bytes, groups.shards))
            calls.append((CollectiveKind.ALL_REDUCE, shard_bytes, groups.replicas))
        return tuple(calls)

    def _counts_and_groups(self, run: Slice) -> list[tuple[float, _Groups]]:
        """Dense parameters and routed experts, each with the ranks that hold copies."""
        count = self._count(run)
        pairs = [(count.dense, self._dense)]
        return [*pairs, (count.expert, self._expert)] if count.expert else pairs

    def _collectives(self, calls: tuple[_Call, ...]) -> Work:
        if calls not in self._work:
            costs = [
                (kind, collective_cost(kind, size, group, self.network))
                for kind, size, group in calls
            ]
            self._work[calls] = communication_work(costs, calls[0][1], Category.DATA_PARALLEL)
        return self._work[calls]


def communication_work(
    costs: Sequence[tuple[str, CollectiveCost]], num_bytes: float, category: Category
) -> Work:
    """One operation that runs named transfers or collectives one after another."""
    ports: dict[str, float] = {}
    for _, cost in costs:
        for port, size in cost.port_bytes.items():
            ports[port] = ports.get(port, 0.0) + size
    parts = tuple(Part(str(name), category, cost.seconds) for name, cost in costs if cost.seconds)
    traffic = Traffic(
        ports, sum(cost.latency_s for _, cost in costs), max(cost.sm_count for _, cost in costs)
    )
    return Work(sum(cost.seconds for _, cost in costs), parts, num_bytes=num_bytes, traffic=traffic)
