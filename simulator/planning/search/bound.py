"""How long must a step of each plan take at least, and how much memory must it need?

Closed forms for all plans of a space at once, so that few of them have to be simulated.
What passes and states cost is for :mod:`simulator.planning.search.plan_costs` to say.

**Time.** No rank can be done before it has run all of its microbatches forward and backward.
The first of them reaches it through the stages before it and the transfers between them, and
(where backward is in one piece) the gradient of the last one has to travel back. In interleaved
1F1B both of these go through all chunks, and so many times between ranks. A rank that sends
without overlap computes nothing meanwhile. Its gradients are reduced with the last backward at the
earliest, or after it where nothing overlaps. Where all wait for the gradient norm no rank updates
its weights before the last rank is through; updated weights may be gathered after that, or hold up
the first forward of the next step. What a rank exchanges beside its passes slows them. Nor is a
rank done before all that it exchanges on one stream has run, or all that it computes, with what it
exchanges between computations. What else hides each other only in part, gaps inside the pipeline
and shared links are left out, so a simulated step is never shorter; a replay, which nothing slows,
may be. Nothing is claimed where steps overlap each other, or where a forward and a backward run as
one: the bound is 0 then.

**Memory.** What a rank keeps from step to step, with placeholders of gradients, narrow copies of
weights and workspaces of libraries, and the most of what its update holds and of the activations
that its schedule holds when the first backward runs, or in interleaved 1F1B any.
Where passes run one by one and as a whole (1F1B, interleaved or not, and all forwards first, with
ZeRO 0 and 1, gradients in buffers that stay and transfers that block) that is what tensors take at
the simulated peak. Otherwise what the
data-parallel stream, transfers and pieces of passes hold is left out, so a simulated peak is
never smaller. Beside tensors a device holds what the allocator leaves unused at least, the driver's
context and communicators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulator.planning.search.plan_costs import (
    CostTables,
    Exposure,
    Floats,
    Ints,
    Pipeline,
    PlanActivations,
    PlanTimes,
)
from simulator.planning.search.space import PlanSpace
from simulator.schedule.orders.one_f_one_b import round_length

ROUNDING = 1 - 1e-9
"""Sums in another order may differ in their last digits; a bound must not."""

_ONE_BY_ONE = frozenset({"1f1b", "dapple"})
_ALL_FORWARD_FIRST = frozenset({"gpipe"})
_INTERLEAVED = frozenset({"interleaved-1f1b"})
"""Schedules of which the activations at the first backward are known in closed form."""


@dataclass(frozen=True)
class PlanBounds:
    """Lower bounds of every plan of a space; shape (plans,) each.

    Attributes:
        step_time_s: Of those whose memory is small enough; 0 of the others [s].
        peak_allocated_bytes: In tensors of the fullest rank [B].
        peak_device_bytes: All that it holds [B].
    """

    step_time_s: Floats
    peak_allocated_bytes: Floats
    peak_device_bytes: Floats


def plan_bounds(
    space: PlanSpace, tables: CostTables | None = None, *, most_bytes: float = math.inf
) -> PlanBounds:
    """Lower bounds of the step time and of the memory of every plan.

    Costs that are missing in ``tables`` are added. Of plans that hold more than ``most_bytes`` the
    step is left out, and what updates and passes hold of those whose states alone do.
    """
    tables = tables or CostTables(space)
    step_s, allocated_bytes, device_bytes = np.zeros((3, len(space)))
    for group in tables.groups:
        pipeline = tables.pipeline(int(group[0]))
        memory = _group_memory(space, tables, group, most_bytes)
        allocated_bytes[group], device_bytes[group] = memory
        plans = group[device_bytes[group] <= most_bytes]
        if len(plans) and pipeline.adds_up:
            times, exposure = tables.times(plans, pipeline), tables.exposure(plans, pipeline)
            step_s[plans] = _step_s(pipeline, times, exposure, space.microbatches[plans])
    return PlanBounds(step_s * ROUNDING, allocated_bytes * ROUNDING, device_bytes)


def _group_memory(
    space: PlanSpace, tables: CostTables, group: Ints, most_bytes: float
) -> tuple[Floats, Floats]:
    """What plans with one pipeline hold in tensors, and in all; shape (plans,) each [B]."""
    pipeline = tables.pipeline(int(group[0]))
    resident_bytes = _per_rank(pipeline, tables.resident(group, pipeline))
    resident_bytes += tables.beside(group, pipeline)
    more_bytes = np.zeros_like(resident_bytes)
    unused_share, outside_bytes = tables.outside(group, pipeline)
    context_bytes = space.job.cluster.profile.device.context_bytes

    def held_bytes() -> tuple[Floats, Floats]:
        allocated_bytes: Floats = (resident_bytes + more_bytes).max(axis=1)
        device_bytes = allocated_bytes * (1 + unused_share) + outside_bytes + context_bytes
        return allocated_bytes, device_bytes * ROUNDING

    def update_bytes(plans: Ints) -> Floats:
        return _per_rank(pipeline, tables.updates(plans, pipeline))

    def active_bytes(plans: Ints) -> Floats:
        # Plans whose passes hold the same differ in times, or in what they keep beside.
        first, which = tables.hold_alike(plans)
        some = plans[first]
        activations = tables.activations(some, pipeline)
        return _active_bytes(pipeline, activations, space.microbatches[some])[which]

    for further_bytes in (update_bytes, active_bytes):
        small = np.flatnonzero(held_bytes()[1] <= most_bytes)
        if len(small):
            more_bytes[small] = np.maximum(more_bytes[small], further_bytes(group[small]))
    return held_bytes()


def _step_s(pipeline: Pipeline, costs: PlanTimes, exposure: Exposure, microbatches: Ints) -> Floats:
    passes = microbatches[:, None] / pipeline.copies
    nearest = pipeline.parts[:, 0]
    hops_s = exposure.transfer_s * np.where(pipeline.sends > 0, nearest, 0)
    computed_s = _per_rank(pipeline, costs.forward_s + costs.backward_s) * passes
    held_up_s = _held_up_s(costs, exposure)
    first_s = _before(costs.forward_s)[:, nearest] + hops_s
    first_s += held_up_s[:, np.maximum(nearest - 1, 0)]
    # The last gradient that a rank sends is on its way back.
    sent = pipeline.sends * passes - np.sign(nearest)
    own_s = first_s + computed_s
    own_s += exposure.blocks * exposure.transfer_s * np.maximum(sent, 0)
    after_s, way_s = _after_s(pipeline, costs, exposure), np.zeros_like(own_s)
    if not pipeline.splits_backward:
        way_s = _before(costs.backward_s)[:, nearest] + hops_s
    behind_s, ranks = np.zeros_like(own_s), np.arange(len(nearest))
    for rank, first in enumerate(nearest.tolist()):
        # The last gradient of a rank passes those before it, which are not done before that.
        passes_it = (nearest >= first) if not pipeline.splits_backward else ranks == rank
        on_its_way_s = way_s - way_s[:, [rank]] + after_s[:, [rank]]
        np.maximum(behind_s, on_its_way_s, out=behind_s, where=passes_it)
    step_s = own_s + behind_s
    if pipeline.copies == 1 and not pipeline.splits_backward:
        ends_s = first_s + costs.forward_s[:, nearest] + costs.backward_s[:, nearest] + behind_s
        step_s += _slowed_s(pipeline, costs, exposure, passes, ends_s)
    if pipeline.schedule in _INTERLEAVED:
        rounds_s = _rounds_s(pipeline, costs, exposure.transfer_s, microbatches)
        step_s = np.maximum(step_s, (rounds_s + held_up_s[:, -1])[:, None] - way_s + after_s)
    busy_s = _busiest_stream_s(pipeline, costs, exposure, passes)
    longest_s: Floats = np.maximum(step_s, busy_s).max(axis=1)
    return longest_s


def _after_s(pipeline: Pipeline, costs: PlanTimes, exposure: Exposure) -> Floats:
    """What comes after the last backward of each rank; shape (plans, ranks) [s]."""
    nearest = pipeline.parts[:, 0]
    alone_s = exposure.reduces_alone * _per_rank(pipeline, costs.step_reduced_s)
    last_s = exposure.reduces_last * costs.step_reduced_s - costs.backward_s
    reducing_s = np.maximum(np.maximum(alone_s, last_s[:, nearest]), 0)
    updated_s = _per_rank(pipeline, costs.optimizer_s)
    updated_s += exposure.gathers_alone * _per_rank(pipeline, costs.step_gathered_s)
    after_s: Floats = reducing_s + np.where(
        exposure.agrees, updated_s.max(axis=1, keepdims=True), updated_s
    )
    return after_s


def _slowed_s(
    pipeline: Pipeline, costs: PlanTimes, exposure: Exposure, passes: Floats, ends_s: Floats
) -> Floats:
    """How much longer each rank computes beside its exchanges; shape (plans, ranks) [s].

    What it exchanges until its first forward is done and from its last backward on (``ends_s``
    together) may slow nothing. The rest takes its share of full speed from what it computes between
    them. Both ends may be longer than known, by more than what is exchanged meanwhile slows.
    """
    lost_s, most_share = np.zeros_like(ends_s), np.zeros_like(ends_s)
    for share, step_s, pass_s, is_between in (
        (costs.reduction_share, costs.step_reduced_s, costs.pass_reduced_s,
         exposure.reduces_between),
        (costs.gather_share, costs.step_gathered_s, costs.pass_gathered_s,
         exposure.gathers_between),
    ):  # fmt: skip
        beside = share * (1 - is_between)
        lost_s += _per_rank(pipeline, beside * step_s)
        lost_s += _per_rank(pipeline, beside * pass_s) * passes
        most_share = np.maximum(most_share, beside[:, pipeline.parts].max(axis=2))
    slowed_s: Floats = np.maximum(lost_s - most_share * ends_s, 0)
    return slowed_s


def _held_up_s(costs: PlanTimes, exposure: Exposure) -> Floats:
    """How long weights that are gathered ahead hold up the first forward on its way to each run.

    It does not end on a run before the weights of that are there. Shape (plans, runs) [s].
    """
    hops_s = exposure.transfer_s * np.arange(costs.forward_s.shape[1])
    arrives_s = np.cumsum(costs.forward_s, axis=1) + hops_s
    held_up_s: Floats = np.maximum.accumulate(
        np.maximum(exposure.gathers_ahead * costs.step_gathered_s - arrives_s, 0), axis=1
    )
    return held_up_s


def _rounds_s(
    pipeline: Pipeline, costs: PlanTimes, transfer_s: Floats, microbatches: Ints
) -> Floats:
    """The longest way there through all chunks, work of a rank, and way back; shape (plans,) [s].

    A rank's first backward follows forwards of all virtual stages, and backwards of those that are
    behind its last chunk. After its last forward, which is of that chunk, come forwards of those
    behind it and backwards of all. In between it runs what its order has there: all but the
    forwards that run before the first backward, and as many backwards at the end.
    """
    both_s = costs.forward_s + costs.backward_s
    of_rank_s, all_s = both_s[:, pipeline.parts], both_s.sum(axis=1, keepdims=True)
    behind = pipeline.stages - 1 - np.arange(pipeline.stages)
    behind_s = (all_s - np.cumsum(both_s, axis=1))[:, pipeline.parts[:, -1]]
    counts, which = np.unique(microbatches, return_inverse=True)
    lengths = [round_length(pipeline.stages, count) for count in counts.tolist()]
    length = np.asarray(lengths)[which][:, None]
    first = (pipeline.chunks - 1) * length + 2 * behind + 1
    outside = _of_chunks(first, length, pipeline.chunks)
    between_s = ((microbatches[:, None, None] - outside) * of_rank_s).sum(axis=2)
    hops = 2 * (both_s.shape[1] - 1 + behind)
    rounds_s = all_s + behind_s + between_s + hops * transfer_s
    # Of a rank that has no forward left after its first backward nothing is known.
    goes_on = first < microbatches[:, None] * pipeline.chunks
    longest_s: Floats = np.where(goes_on, rounds_s, 0.0).max(axis=1)
    return longest_s


def _of_chunks(passes: Ints, length: int | Ints, chunks: int) -> Ints:
    """How many of the first passes in rounds of some length are of each chunk: (…, chunks)."""
    rounds, rest = np.divmod(passes, chunks * length)
    turns = rest[..., None] - np.arange(chunks) * np.asarray(length)[..., None]
    each = np.asarray(length)[..., None]
    found: Ints = rounds[..., None] * each + np.clip(turns, 0, each)
    return found


def _busiest_stream_s(
    pipeline: Pipeline, costs: PlanTimes, exposure: Exposure, passes: Floats
) -> Floats:
    """All that each rank computes, or exchanges beside that, in turn; shape (plans, ranks) [s].

    What is exchanged between computations counts as one of them.
    """
    computed_s = _per_rank(pipeline, costs.forward_s + costs.backward_s) * passes
    computed_s += _per_rank(pipeline, costs.optimizer_s)
    reduced_s = _per_rank(pipeline, costs.pass_reduced_s) * passes
    reduced_s += _per_rank(pipeline, costs.step_reduced_s)
    gathered_s = _per_rank(pipeline, costs.pass_gathered_s) * passes
    gathered_s += _per_rank(pipeline, costs.step_gathered_s)
    exchanged_s = np.zeros_like(computed_s)
    for each_s, is_between in (
        (reduced_s, exposure.reduces_between),
        (gathered_s, exposure.gathers_between),
    ):
        computed_s += is_between * each_s
        exchanged_s += (1 - is_between) * each_s
    return np.maximum(computed_s, exchanged_s)


def _before(stage_s: Floats) -> Floats:
    """Time that one microbatch spends in the stages before each, shape (plans, runs)."""
    return np.cumsum(stage_s, axis=1) - stage_s


def _per_rank(pipeline: Pipeline, per_run: Floats) -> Floats:
    """Sum over the virtual stages of each rank, shape (plans, ranks)."""
    per_rank: Floats = per_run[:, pipeline.parts].sum(axis=2)
    return per_rank


def _active_bytes(pipeline: Pipeline, costs: PlanActivations, microbatches: Ints) -> Floats:
    """What passes hold and work with at the fullest backward, shape (plans, ranks) [B].

    Where nothing is known of later ones it is the first backward only, and where the schedule
    is not known here what the microbatch holds that runs backward.
    """
    saved_bytes = costs.saved_bytes[:, pipeline.parts]
    working_bytes = costs.working_bytes[:, pipeline.parts]
    if pipeline.schedule in _INTERLEAVED:
        return _active_interleaved(pipeline, saved_bytes, working_bytes, microbatches)
    behind = pipeline.stages - 1 - np.arange(pipeline.stages)
    held = np.ones((len(microbatches), len(pipeline.parts)), dtype=np.int64)
    if pipeline.schedule in _ONE_BY_ONE:
        held[:] = np.minimum(behind + 1, microbatches[:, None])
    if pipeline.schedule in _ALL_FORWARD_FIRST:
        held[:] = microbatches[:, None]
    active_bytes: Floats = held * saved_bytes[:, :, -1] + working_bytes[:, :, -1]
    return active_bytes


def _active_interleaved(
    pipeline: Pipeline, saved_bytes: Floats, working_bytes: Floats, microbatches: Ints
) -> Floats:
    """The same over all backwards of the first round, from the last chunk to the first."""
    active_bytes = np.empty(saved_bytes.shape[:2])
    for count in np.unique(microbatches).tolist():
        plans = np.flatnonzero(microbatches == count)
        held = _held_interleaved(pipeline, count)
        # Not a product of matrices: small ones are slower in the threads of a BLAS.
        held_bytes = np.einsum("rktc,prc->rktp", held, saved_bytes[plans])
        of_chunk = held_bytes.max(axis=2) + working_bytes[plans].transpose(1, 2, 0)[:, ::-1]
        active_bytes[plans] = of_chunk.max(axis=1).T
    return active_bytes


def _held_interleaved(pipeline: Pipeline, microbatches: int) -> Floats:
    """Microbatches held of each part at the backwards of a round that may be the fullest.

    Forwards run in rounds through the chunks, and as many more have run by then as run ahead of
    the first backward; backwards run in the same rounds from the last chunk on. After a round
    through all chunks everything repeats itself, until the forwards are done. While backwards of
    one chunk run, what is held grows or shrinks evenly, but where forwards change the chunk or end.

    Returns:
        Shape (ranks, chunks of the backward from the last on, moments, parts).
    """
    chunks, behind = pipeline.chunks, pipeline.stages - 1 - np.arange(pipeline.stages)
    length = round_length(pipeline.stages, microbatches)
    chunk, first = np.arange(chunks), np.arange(chunks) * length
    ahead = ((chunks - 1) * length + 2 * behind + 1)[:, None]
    done = np.clip(chunks * microbatches - ahead - first, 0, length - 1)
    moments = np.broadcast_arrays(0, -ahead % length, done, length - 1)
    turns = first[:, None] + np.stack(moments, axis=-1)
    ran = np.minimum(ahead[..., None] + turns, chunks * microbatches)
    forwards = _of_chunks(ran, length, chunks)
    backwards = np.clip(turns[..., None] - (chunks - 1 - chunk) * length, 0, length)
    held: Floats = (forwards - backwards).astype(np.float64)
    return held
