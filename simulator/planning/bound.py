"""How long must a step of each plan take at least, and how much memory must it need?

Closed forms for all plans of a space at once, so that few of them have to be simulated.
Costs are the simulator's own, computed once per distinct microbatch and run of layers; only
their sums over microbatches, stages and plans are columns of numbers.

**Time.** No rank can be done before it has run all of its microbatches forward and backward.
The first of them reaches it through the stages before it, and (where backward is in one
piece) the gradient of the last one has to travel back through them. No rank updates its
weights before the last rank is through, because all wait for the gradient norm. Transfers,
collectives that do not block, gaps inside the pipeline and contention are left out, so a
simulated step is never shorter. Nothing is claimed where steps overlap each other, or where a
forward and a backward run as one: the bound is 0 then.

**Memory.** What a rank keeps from step to step, and the most of what its update holds and of
the activations that its schedule holds when the first backward runs, or in interleaved 1F1B any.
Where passes run one by one and as a whole (1F1B, interleaved or not, and all forwards first, with
ZeRO 0 and 1, gradients in buffers that stay and transfers that block) that is what tensors take at
the simulated peak. Otherwise what the
data-parallel stream, transfers and pieces of passes hold is left out, so a simulated peak is
never smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cost.kernels import memory_bound_s
from simulator.cost.parameters import LayerKind, layer_kinds
from simulator.planning.space import PlanSpace
from simulator.program.build import steps_around
from simulator.program.ir import total_bytes
from simulator.program.layout import Slice, cut, ends_apart, stage_slices
from simulator.program.order import job_schedule
from simulator.program.stage import StageCosts
from simulator.program.states import (
    ParameterCount,
    copies_embedding,
    device_update_bytes,
    resident_memory,
    slice_parameters,
)
from simulator.program.update_memory import update_memory
from simulator.schedule.one_f_one_b import round_length
from simulator.schedule.slots import Phase, Placement
from simulator.spec.job import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PIPELINE_FIELDS = ("plan.pp", "plan.vpp", "plan.schedule", "plan.layout", "plan.post_validation")
"""What the layout of layers and the order of passes depend on."""

_OVERLAPS = ("plan.overlap_grad_reduce", "plan.overlap_param_gather", "plan.overlap_p2p")
"""Fields that change nothing of what is bounded here."""

ROUNDING = 1 - 1e-9
"""Sums in another order may differ in their last digits; a bound must not."""

_ONE_BY_ONE = frozenset({"1f1b", "dapple"})
_ALL_FORWARD_FIRST = frozenset({"gpipe"})
_INTERLEAVED = frozenset({"interleaved-1f1b"})
"""Schedules of which the activations at the first backward are known in closed form."""


@dataclass(frozen=True)
class PlanBounds:
    """Lower bounds of every plan of a space.

    Attributes:
        step_time_s: Shape (plans,) [s].
        peak_device_bytes: Of the fullest rank, shape (plans,) [B].
    """

    step_time_s: Floats
    peak_device_bytes: Floats


def plan_bounds(space: PlanSpace, tables: CostTables | None = None) -> PlanBounds:
    """Lower bounds of the step time and of the memory of every plan.

    Args:
        space: The plans.
        tables: Costs, where they are known already; they are filled as needed.
    """
    tables = tables or CostTables(space)
    step_s, allocated_bytes = np.zeros(len(space)), np.zeros(len(space))
    for plans in tables.groups:
        pipeline = tables.pipeline(int(plans[0]))
        costs = tables.of(plans, pipeline)
        microbatches = space.microbatches[plans]
        step_s[plans] = _step_s(pipeline, costs, microbatches)
        allocated_bytes[plans] = _allocated_bytes(pipeline, costs, microbatches)
    # What the allocator leaves unused, and communicators, come on top.
    device_bytes = allocated_bytes + space.job.cluster.profile.device.context_bytes
    bounds = np.stack([step_s, device_bytes])[:, tables.like] * ROUNDING
    return PlanBounds(*bounds)


@dataclass(frozen=True)
class _Pipeline:
    """What all plans with one layout of layers and one schedule share.

    Attributes:
        schedule: Its name.
        stages: Ranks of the pipeline.
        chunks: Virtual stages per rank and copy of the model.
        shapes: The distinct runs of layers among the virtual stages of the model.
        shape_of: Which of them each virtual stage of the model is, in order; shape (runs,).
        parts: Virtual stages of the model that each rank runs, those of all copies,
            ascending; shape (ranks, virtual stages of a rank).
        copies: Copies of the model.
        adds_up: Whether passes run one after another and steps meet at their ends.
        splits_backward: Whether weight gradients may come later.
        tied_copy: Whether the last run holds a copy of the embedding.
    """

    schedule: str
    stages: int
    chunks: int
    shapes: tuple[Slice, ...]
    shape_of: Ints
    parts: Ints
    copies: int
    adds_up: bool
    splits_backward: bool
    tied_copy: bool


def _pipeline(job: Job) -> _Pipeline:
    info, stages, chunks = job_schedule(job), job.plan.pp, job.plan.vpp
    placement = info.placement
    parts: list[list[int]] = [[] for _ in range(stages)]
    for stage in range(placement.num_virtual_stages(stages, chunks)):
        part = placement.model_stage(stage, stages, chunks)
        parts[placement.rank(stage, stages)].append(part)
    runs = stage_slices(job, stages * chunks)
    kinds = layer_kinds(job.model)
    contents = [_content(run, kinds, job.plan.recompute_layers) for run in runs]
    known = list(dict.fromkeys(contents))
    return _Pipeline(
        schedule=info.name,
        stages=stages,
        chunks=chunks,
        shapes=tuple(runs[contents.index(content)] for content in known),
        shape_of=np.asarray([known.index(content) for content in contents]),
        parts=np.sort(np.asarray(parts), axis=1),
        copies=placement.copies,
        adds_up=steps_around(job).total == 1
        and not job.plan.joins_passes
        and not job.plan.overlap_ep,
        splits_backward=info.splits_backward,
        tied_copy=placement is Placement.LOOP and copies_embedding(job),
    )


def _content(run: Slice, kinds: Sequence[LayerKind], recompute_layers: int | None) -> Hashable:
    """What the costs of a run depend on: what it holds and repeats, and how it ends."""
    layers = kinds[run.first : run.end]
    held, repeated = Counter(layers), Counter(layers[:recompute_layers])
    return (
        frozenset(held.items()), frozenset(repeated.items()), layers[-1:], run.has_embedding,
        run.has_head,
    )  # fmt: skip


class _Costs(NamedTuple):
    """Of each plan of a group, per virtual stage of the model: shape (plans, runs)."""

    forward_s: Floats
    backward_s: Floats
    saved_bytes: Floats
    working_bytes: Floats
    resident_bytes: Floats
    update_bytes: Floats
    optimizer_s: Floats


def _step_s(pipeline: _Pipeline, costs: _Costs, microbatches: Ints) -> Floats:
    """Lower bound of the step time, shape (plans,) [s]."""
    if not pipeline.adds_up:
        return np.zeros(len(microbatches))
    passes = microbatches[:, None] / pipeline.copies
    nearest = pipeline.parts[:, 0]
    through_s = _per_rank(pipeline, costs.forward_s + costs.backward_s) * passes
    through_s += _before(costs.forward_s)[:, nearest]
    if not pipeline.splits_backward:
        through_s += _before(costs.backward_s)[:, nearest]
    optimizer_s = _per_rank(pipeline, costs.optimizer_s)
    step_s: Floats = through_s.max(axis=1) + optimizer_s.max(axis=1)
    return step_s


def _before(stage_s: Floats) -> Floats:
    """Time that one microbatch spends in the stages before each, shape (plans, runs)."""
    return np.cumsum(stage_s, axis=1) - stage_s


def _per_rank(pipeline: _Pipeline, per_run: Floats) -> Floats:
    """Sum over the virtual stages of each rank, shape (plans, ranks)."""
    per_rank: Floats = per_run[:, pipeline.parts].sum(axis=2)
    return per_rank


def _allocated_bytes(pipeline: _Pipeline, costs: _Costs, microbatches: Ints) -> Floats:
    """What tensors take on the fullest rank at least, shape (plans,) [B]."""
    resident_bytes = _per_rank(pipeline, costs.resident_bytes)
    update_bytes = _per_rank(pipeline, costs.update_bytes)
    active_bytes = _active_bytes(pipeline, costs, microbatches)
    fullest: Floats = (resident_bytes + np.maximum(update_bytes, active_bytes)).max(axis=1)
    return fullest


def _active_bytes(pipeline: _Pipeline, costs: _Costs, microbatches: Ints) -> Floats:
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
    pipeline: _Pipeline, saved_bytes: Floats, working_bytes: Floats, microbatches: Ints
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


def _held_interleaved(pipeline: _Pipeline, microbatches: int) -> Floats:
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
    rounds, rest = np.divmod(ran, chunks * length)
    forwards = rounds[..., None] * length + np.clip(rest[..., None] - chunk * length, 0, length)
    backwards = np.clip(turns[..., None] - (chunks - 1 - chunk) * length, 0, length)
    held: Floats = (forwards - backwards).astype(np.float64)
    return held


class CostTables:
    """Costs by what they depend on: each distinct combination is computed once."""

    def __init__(self, space: PlanSpace) -> None:
        self._space = space
        self._pipelines: dict[tuple[int, ...], _Pipeline] = {}
        self._stage_costs: dict[int, StageCosts] = {}
        self._rows: dict[Hashable, list[float]] = {}
        zero, varied = space.column("plan.zero"), list(space.axes)
        apart = {*_PIPELINE_FIELDS, *_OVERLAPS, "plan.zero"}
        others = [path for path in varied if path not in apart]
        codes = [space.codes[:, varied.index(path)] for path in others]
        adds_up = (space.microbatches > 1) & (zero < 2)
        shards = np.where(zero == 3, space.dp * space.column("plan.cp"), 0)
        self._adds_up = adds_up
        self._microbatch_kind = _kinds(*codes, adds_up, zero >= 2, shards)
        self._tensor_kind = _kinds(*codes)
        self._state_kind = _kinds(*codes, zero, space.dp)
        bounded = [
            codes
            for path, codes in zip(varied, space.codes.T, strict=True)
            if path not in _OVERLAPS
        ]
        _, first, which = np.unique(
            _kinds(np.zeros(len(space)), *bounded), return_index=True, return_inverse=True
        )
        self.like: Ints = first[which]
        """Of each plan the first one that has the same costs."""
        self.groups = [np.intersect1d(plans, first) for plans in _groups(space, _PIPELINE_FIELDS)]
        """The first plans of each kind of costs, those with the same pipeline together."""

    def pipeline(self, plan: int) -> _Pipeline:
        """The pipeline of a plan."""
        names = list(self._space.axes)
        fields = [names.index(path) for path in _PIPELINE_FIELDS if path in names]
        key = tuple(self._space.codes[plan, fields].tolist())
        if key not in self._pipelines:
            self._pipelines[key] = _pipeline(self._space.plan_job(plan))
        return self._pipelines[key]

    def of(self, plans: Ints, pipeline: _Pipeline) -> _Costs:
        """Costs of some plans that share a pipeline."""
        shapes, tied = pipeline.shapes, pipeline.tied_copy
        passes = self._table(
            self._microbatch_kind, plans, shapes, lambda n: self._pass_row(n, shapes)
        )
        numel = self._table(
            self._tensor_kind, plans, (shapes, tied), lambda n: self._numel_row(n, shapes, tied)
        )
        per = self._table(self._state_kind, plans, "state", self._state_row)
        update = self._table(
            self._state_kind, plans, ("update", shapes, tied),
            lambda n: self._update_row(n, shapes, tied),
        )  # fmt: skip
        forward, backward, saved, working = np.split(passes, 4, axis=1)
        dense, expert = np.split(numel, 2, axis=1)
        kept = per[:, [0]] * dense + per[:, [1]] * expert
        updated_s = per[:, [2]] * dense + per[:, [3]] * expert
        by_shape = (forward, backward, saved, working, kept, update, updated_s)
        return _Costs(*(column[:, pipeline.shape_of] for column in by_shape))

    def _table(
        self, kinds: Ints, plans: Ints, what: Hashable, row: Callable[[int], list[float]]
    ) -> Floats:
        """A row per plan, computed once for each kind of plan."""
        distinct, first, which = np.unique(kinds[plans], return_index=True, return_inverse=True)
        rows = []
        for kind, position in zip(distinct.tolist(), first.tolist(), strict=True):
            if (what, kind) not in self._rows:
                self._rows[what, kind] = row(int(plans[position]))
            rows.append(self._rows[what, kind])
        return np.asarray(rows)[which]

    def _pass_row(self, plan: int, shapes: Sequence[Slice]) -> list[float]:
        passes = [self._pass(plan, run) for run in shapes]
        return [number for column in zip(*passes, strict=True) for number in column]

    def _pass(self, plan: int, run: Slice) -> tuple[float, float, float, float]:
        """Forward, backward [s], saved and working [B] of one microbatch through a run."""
        kind = int(self._microbatch_kind[plan])
        if kind not in self._stage_costs:
            self._stage_costs[kind] = StageCosts(self._space.plan_job(plan))
        costs = self._stage_costs[kind]
        # Backward may be cut into pieces; the first that runs ends the run, maybe with the loss.
        stack, is_whole = costs.job.plan.stack, self._adds_up[plan] and costs.job.plan.no_sync
        is_cut = stack.frees_gradients or not is_whole
        first_piece = ends_apart(cut(run, 1))[-1] if is_cut else run
        # How much of what layers keep is on its way to the host depends on the links.
        offloads = costs.job.plan.offload.activations is not None
        return (
            costs.work(run, Phase.FORWARD).seconds,
            costs.work(run, Phase.BACKWARD).seconds,
            0.0 if offloads else total_bytes(costs.saved(run)),
            total_bytes(costs.working(first_piece)),
        )

    def _numel_row(self, plan: int, shapes: Sequence[Slice], tied: bool) -> list[float]:
        """Dense and then expert parameters of each shape."""
        job = self._space.plan_job(plan)
        counts = [slice_parameters(job, run, tied_copy=tied) for run in shapes]
        return [*(count.dense for count in counts), *(count.expert for count in counts)]

    def _update_row(self, plan: int, shapes: Sequence[Slice], tied: bool) -> list[float]:
        """What the update of each shape holds [B]."""
        job = self._space.plan_job(plan)
        return [update_memory(job, [run], tied_copy=tied).most_bytes for run in shapes]

    def _state_row(self, plan: int) -> list[float]:
        """Bytes kept and seconds of the update, per dense and per expert parameter."""
        job = self._space.plan_job(plan)
        one, many = (ParameterCount(dense=1.0), ParameterCount(expert=1.0)), 1e9
        floor_s = memory_bound_s(job.cluster.profile, 0.0)
        kept = [total_bytes(resident_memory(job, each)) for each in one]
        traffic_bytes = [many * device_update_bytes(job, each) for each in one]
        update_s = [memory_bound_s(job.cluster.profile, size) - floor_s for size in traffic_bytes]
        return [*kept, *(seconds / many for seconds in update_s)]


def _kinds(*columns: NDArray[np.generic]) -> Ints:
    """A number per row, equal where all columns are equal."""
    rows = np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)


def _groups(space: PlanSpace, paths: Sequence[str]) -> Iterator[Ints]:
    """Numbers of the plans that agree in all of some fields."""
    names = list(space.axes)
    columns = [space.codes[:, names.index(path)] for path in paths if path in names]
    kinds = _kinds(np.zeros(len(space)), *columns)
    for kind in range(kinds.max(initial=-1) + 1):
        yield np.flatnonzero(kinds == kind)
