"""Which collectives reduce gradients and bring weights together, and what do they cost?

- ZeRO 0 all-reduces gradients. ZeRO 1 to 3 reduce-scatter them and all-gather weights. DeepSpeed's
  ZeRO 1 and 2 all-reduce them, too, and each rank keeps its part.
- Where states are sharded over part of the data-parallel ranks, the shards are
  all-reduced over the others in addition.
- Where each rank updates whole parameters, gradients are all-reduced, and updated parameters
  broadcast.
- Routed experts are reduced and gathered among the ranks that hold the same ones.

Copies come on top. A collective that takes a list of tensors, one per rank, moves one buffer and
copies each rank's part between it and the list with a kernel of its own, on all ranks: on a
thousand of them the copies take as long as the transfer. DeepSpeed zeroes what it gathers into,
and divides what it reduces by the number of ranks first; parameters that it gathers together it
unpacks part by part. PyTorch's DDP copies each gradient into its bucket, scaled by the number of
ranks, and copies the sum back, unless gradients are views of their buckets; both copies are booked
with the backward that fills the bucket, or with the last one where nothing is reduced before.
DeepSpeed's ZeRO 1 and 2 copy gradients into a bucket, divide them there, and copy it once more to
reduce it.

Ignores: the Python code that makes lists, and scaling in place, where gradients are views.
Source: ZeRO (arXiv 1910.02054, sections 5 and 7); Megatron-LM's distributed optimizer; PyTorch's
ZeroRedundancyOptimizer for whole parameters; PyTorch 1.8, torch/lib/c10d/ProcessGroupNCCL.cpp,
allgather and reduce_scatter, and DeepSpeed 0.3.13, deepspeed/runtime/zero/partition_parameters.py,
_allgather_param, _allgather_params and _reduce_scatter_gradient for lists; PyTorch,
torch/csrc/distributed/c10d/reducer.cpp, mark_variable_ready_dense and finalize_bucket_dense for
buckets; DeepSpeed 0.14, stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads,
average_tensor and allreduce_bucket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from simulator.cost.collectives import CollectiveKind, Group
from simulator.cost.kernel_time import ELEMENT_BYTES, memory_bound_s
from simulator.described.job import Job
from simulator.program.communication import Call, collectives_work
from simulator.program.grid.rank_groups import (
    data_group,
    expert_data_group,
    expert_replica_group,
    expert_shard_group,
    replica_group,
    shard_group,
    tensor_group,
)
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Kind, Part, Program, Work
from simulator.program.states.gather_units import Unit, Units, whole_parameter_shares
from simulator.program.states.resident import (
    ParameterCount,
    added_up,
    bucket_traffic_bytes,
    reduces_whole_gradients,
    state_bytes,
)
from simulator.program.states.separate_parameters import is_small

_PASSES = {CollectiveKind.ALL_GATHER: 3, CollectiveKind.REDUCE_SCATTER: 4}
"""Passes over the message: zero it, read it and write it; or divide it in place, read and write."""


def with_list_copies(work: Work, calls: Sequence[Call], job: Job) -> Work:
    """Collectives of ZeRO 3, and the copies of their lists where the stack hands them any."""
    if not (job.choices.shards_weights and job.choices.lists_shards):
        return work
    return _with_copies(work, math.fsum(_copies_s(call, job) for call in calls))


def with_unpacking(work: Work, parameters: int, ranks: int, job: Job) -> Work:
    """A gather of several small parameters, and one copy of each rank's part of each."""
    if not job.choices.lists_shards or ranks == 1:
        return work
    return _with_copies(work, ranks * parameters * memory_bound_s(job.cluster.profile, 0.0))


def _copies_s(call: Call, job: Job) -> float:
    ranks, passes = call.group.ranks, _PASSES.get(call.kind, 0)
    if ranks == 1 or not passes:
        return 0.0
    return ranks * memory_bound_s(job.cluster.profile, passes * call.num_bytes / ranks)


def _with_copies(work: Work, seconds: float) -> Work:
    copies = Part("list_copies", Category.DATA_PARALLEL, seconds)
    return replace(work, seconds=work.seconds + seconds, parts=(*work.parts, copies))


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


class Collectives:
    """What the collectives between one job's copies of parameters cost; equal ones share it.

    Attributes:
        gather_kind, reduction_kind: What most of them are, for the operations that run them.
        gathers_ahead: Whether updated weights may come together while the next forward runs.
    """

    def __init__(self, job: Job, units: Units) -> None:
        self._job, self._units = job, units
        self._choices = job.choices
        self._state = state_bytes(job)
        self._dense = _Groups("dp", data_group(job), shard_group(job), replica_group(job))
        self._expert = _Groups(
            "edp", expert_data_group(job), expert_shard_group(job), expert_replica_group(job)
        )
        is_cast, precision = job.plan.gathers_cast_experts, job.plan.precision
        self._expert_bytes = ELEMENT_BYTES[precision] if is_cast else self._state.gathered
        self._broadcasts = job.choices.updates_whole_parameters
        self._reduces_whole = reduces_whole_gradients(job)
        self._works: dict[tuple[Call, ...], Work] = {}
        self.gather_kind = Kind.ALL_GATHER
        self.reduction_kind = Kind.ALL_REDUCE if self._reduces_whole else Kind.REDUCE_SCATTER
        self.gathers_ahead = self.hands_out and not self._broadcasts

    @property
    def is_needed(self) -> bool:
        """Whether there are copies of any parameter."""
        return max(self._dense.all.ranks, self._expert.all.ranks) > 1

    @property
    def hands_out(self) -> bool:
        """Whether ranks keep whole weights, of which others update a part."""
        return self._choices.hands_out_weights

    def reduction(self, units: Sequence[Unit]) -> Work:
        """Adds up the gradients of units over all ranks that hold copies of them."""
        calls: list[Call] = []
        if not self._choices.sums_partial_gradients_once:
            per = self._state.gathered
            sizes = (numel * per for unit in units for numel in unit.partial)
            calls += _partial_gradient_calls(self._job, sizes)
        counts = (count for unit in units for count in _reduced(unit))
        for numel, groups in self._split_by_groups(counts):
            calls += self._reduction_calls(numel * self._state.reduced, groups)
        return self._work(calls)

    def _reduction_calls(self, num_bytes: float, groups: _Groups) -> Iterator[Call]:
        name, all_reduce = "gradients", CollectiveKind.ALL_REDUCE
        if self._reduces_whole:
            yield Call(name, all_reduce, groups.name, groups.all, num_bytes)
            return
        scatter = CollectiveKind.REDUCE_SCATTER
        yield Call(name, scatter, groups.shard_axis, groups.shards, num_bytes)
        share, axis = num_bytes / groups.shards.ranks, f"{groups.name}_replicate"
        yield Call(name, all_reduce, axis, groups.replicas, share)

    def gather(self, units: Sequence[Unit], *, is_forward: bool = True) -> Work:
        """Brings the weights of units together for a pass."""
        counts = [count for unit in units for count in _gathered(unit, is_forward=is_forward)]
        if not is_forward:
            reuse_numel = self._choices.reuse_numel
            all_separate = (unit.separate for unit in units if unit.separate)
            counts += [
                count for separate in all_separate for count in separate.gathered_twice(reuse_numel)
            ]
        return self._work(self._weight_calls(CollectiveKind.ALL_GATHER, counts))

    def hand_out(self, run: Slice) -> tuple[Kind, Work]:
        """Updated weights of a run on their way to all ranks that keep them whole."""
        if not self._broadcasts:
            return self.gather_kind, self.gather([self._units.whole(run)])
        shares = whole_parameter_shares(self._units.counts(run), self._dense.shards.ranks)
        if self._choices.broadcasts_flat:
            shares = [[added_up(share)] for share in shares]
        counts = (count for share in shares for count in share)
        return Kind.BROADCAST, self._work(self._weight_calls(CollectiveKind.BROADCAST, counts))

    def gather_small(self, runs: Sequence[Slice]) -> Work | None:
        """One gather of what ZeRO 3 keeps whole; every rank's part is cut into parameters."""
        if not (self._choices.shards_weights and self._choices.small_numel):
            return None
        held = (count for run in runs for count in self._units.stored_counts(run))
        if not (small := [count for count in held if is_small(count, self._job)]):
            return None
        work = self._work(self._weight_calls(CollectiveKind.ALL_GATHER, [added_up(small)]))
        return with_unpacking(work, len(small), self._dense.shards.ranks, self._job)

    def _weight_calls(
        self, kind: CollectiveKind, counts: Iterable[ParameterCount]
    ) -> Iterator[Call]:
        # Where weights are whole on every rank, none bring frozen ones together.
        with_frozen = self._choices.shards_weights
        for numel, groups in self._split_by_groups(counts, with_frozen=with_frozen):
            is_expert = groups is self._expert
            num_bytes = numel * (self._expert_bytes if is_expert else self._state.gathered)
            yield Call("weights", kind, groups.shard_axis, groups.shards, num_bytes)

    def _split_by_groups(
        self, counts: Iterable[ParameterCount], *, with_frozen: bool = False
    ) -> Iterator[tuple[float, _Groups]]:
        """Dense parameters and routed experts, each with the ranks that hold copies."""
        for count in counts:
            if dense := count.dense + with_frozen * count.frozen_dense:
                yield dense, self._dense
            if expert := count.expert + with_frozen * count.frozen_expert:
                yield expert, self._expert

    def _work(self, calls: Iterable[Call]) -> Work:
        key = tuple(calls)
        if key not in self._works:
            network = self._job.cluster.profile.network
            work = collectives_work(key, network, Category.DATA_PARALLEL)
            self._works[key] = with_list_copies(work, key, self._job)
        return self._works[key]


def _reduced(unit: Unit) -> Sequence[ParameterCount]:
    return unit.separate.counts if unit.separate else (unit.parameters,)


def _gathered(unit: Unit, *, is_forward: bool) -> Sequence[ParameterCount]:
    return unit.separate.gathered(is_forward=is_forward) if unit.separate else (unit.parameters,)


def partial_gradients_work(job: Job, units: Sequence[Unit]) -> Work | None:
    """Adds up gradients of norms over the ranks that cut the sequence; None if none does."""
    reduced = state_bytes(job).reduced
    sizes = [numel * reduced for unit in units for numel in unit.partial]
    if not sizes:
        return None
    messages = [math.fsum(sizes)] if job.choices.sums_partial_gradients_once else sizes
    calls = _partial_gradient_calls(job, messages)
    return collectives_work(calls, job.cluster.profile.network, Category.TENSOR_PARALLEL)


def _partial_gradient_calls(job: Job, sizes: Iterable[float]) -> list[Call]:
    kind, group = CollectiveKind.ALL_REDUCE, tensor_group(job)
    return [Call("partial_gradient", kind, "tp", group, num_bytes) for num_bytes in sizes]


BUCKET_COPY = "bucket_copy"
"""Name of the part that copies gradients into buckets and back, on the device."""

_BUCKET_PASSES = 4
"""Read and write on the way in, and again on the way back."""


@dataclass
class BucketCopies:
    """Lengthens the backward passes that fill buckets; equal ones share their work."""

    job: Job
    _works: dict[tuple[int, float], tuple[Work, Work]] = field(default_factory=dict)
    """Without and with the copies, by the identity of the first, which is thereby kept."""

    def add(self, program: Program, operation: int, numel: float) -> None:
        """Book the copies of ``numel`` gradients with a backward, where there are any."""
        if not self._bytes_per_gradient:
            return
        backward = program.operations[operation]
        key = id(backward.work), numel
        if key not in self._works:
            self._works[key] = backward.work, self._with_copies(backward.work, numel)
        backward.work = self._works[key][1]

    @property
    def _bytes_per_gradient(self) -> float:
        if self.job.choices.copies_buckets:
            return _BUCKET_PASSES * state_bytes(self.job).reduced
        return bucket_traffic_bytes(self.job)

    def _with_copies(self, work: Work, numel: float) -> Work:
        seconds = memory_bound_s(self.job.cluster.profile, self._bytes_per_gradient * numel)
        copies = Part(BUCKET_COPY, Category.DATA_PARALLEL, seconds)
        return replace(work, seconds=work.seconds + seconds, parts=(*work.parts, copies))
