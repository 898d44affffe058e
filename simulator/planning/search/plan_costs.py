"""What do passes, states and updates cost in every plan of a space?

The simulator's own costs, computed once per distinct microbatch and run of layers; only their
sums over microbatches, stages and plans are columns of numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.described.job import Job
from simulator.planning.search.least_exchanges import least_exchanges
from simulator.planning.search.space import PlanSpace
from simulator.program.build import steps_around
from simulator.program.grid.rank_groups import pipeline_pair
from simulator.program.grid.stage_layers import Slice, ends_apart, stage_slices
from simulator.program.ir import total_bytes
from simulator.program.layer.layer_kinds import layer_kinds
from simulator.program.layer.layer_part import LayerKind
from simulator.program.price.schedule_costs import transfer_work
from simulator.program.price.stage_cost import StageCosts
from simulator.program.price.update_time import update_s
from simulator.program.states.cast_weights import cast_weight_bytes
from simulator.program.states.outside_memory import outside_memory
from simulator.program.states.placeholder_gradients import placeholder_gradient_bytes
from simulator.program.states.resident import (
    ParameterCount,
    device_update_bytes,
    resident_memory,
    slice_parameters,
    workspace_memory,
)
from simulator.program.states.update_memory import update_memory
from simulator.results.memory import least_unused_share
from simulator.schedule.slots import Phase, Placement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Key = tuple[int, ...]

_PIPELINE_FIELDS = ("plan.pp", "plan.vpp", "plan.schedule", "plan.layout", "plan.post_validation")
"""What the layout of layers and the order of passes depend on."""

_OVERLAPS = ("plan.overlap_grad_reduce", "plan.overlap_param_gather", "plan.overlap_p2p")
"""Fields that change none of these costs."""

_OF_PASSES = ("batch.micro", "plan.recompute")
"""Fields that change what passes cost, but nothing of weights, their states and exchanges."""


@dataclass(frozen=True)
class Pipeline:
    """What all plans with one layout of layers and one schedule share.

    Attributes:
        stages: Ranks of the pipeline.
        chunks: Virtual stages per rank and copy of the model.
        shapes: The distinct runs of layers among the virtual stages of the model.
        shape_of: Which of them each virtual stage of the model is, in order; shape (runs,).
        parts: Virtual stages of the model that each rank runs, those of all copies,
            ascending; shape (ranks, virtual stages of a rank).
        sends: After how many passes of a microbatch each rank sends, and runs nothing with them;
            shape (ranks,). 0 where stages are not dealt out in rounds.
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
    sends: Ints
    copies: int
    adds_up: bool
    splits_backward: bool
    tied_copy: bool


def _pipeline(job: Job) -> Pipeline:
    info, stages, chunks = job.choices.schedule, job.plan.pp, job.plan.vpp
    placement = info.placement
    parts: list[list[int]] = [[] for _ in range(stages)]
    for stage in range(placement.num_virtual_stages(stages, chunks)):
        part = placement.model_stage(stage, stages, chunks)
        parts[placement.rank(stage, stages)].append(part)
    runs = stage_slices(job, stages * chunks)
    kinds = layer_kinds(job.model)
    contents = [_content(run, kinds, job.plan.recompute_layers) for run in runs]
    known = list(dict.fromkeys(contents))
    held = np.sort(np.asarray(parts), axis=1)
    travels = placement is Placement.LOOP and stages > 1
    # What a forward and the backward beside it send leaves together, after the backward.
    forwards = (held < len(runs) - 1) * (info.paired_order is None)
    return Pipeline(
        schedule=info.name,
        stages=stages,
        chunks=chunks,
        shapes=tuple(runs[contents.index(content)] for content in known),
        shape_of=np.asarray([known.index(content) for content in contents]),
        parts=held,
        sends=travels * (forwards + np.sign(held)).sum(axis=1),
        copies=placement.copies,
        adds_up=steps_around(job).total == 1 and not info.joins_passes and not job.plan.overlap_ep,
        splits_backward=info.splits_backward,
        tied_copy=placement is Placement.LOOP and job.choices.copies_embedding,
    )


def _content(run: Slice, kinds: Sequence[LayerKind], recompute_layers: int | None) -> Hashable:
    """What the costs of a run depend on: what it holds and repeats, and how it ends."""
    layers = kinds[run.first : run.end]
    held, repeated = Counter(layers), Counter(layers[:recompute_layers])
    return (
        frozenset(held.items()), frozenset(repeated.items()), layers[-1:], run.has_embedding,
        run.has_head,
    )  # fmt: skip


class PlanActivations(NamedTuple):
    """What a microbatch of each plan of a group saves and works with: shape (plans, runs) [B]."""

    saved_bytes: Floats
    working_bytes: Floats


class PlanTimes(NamedTuple):
    """What each plan of a group takes, per virtual stage of the model: shape (plans, runs) [s].

    Data-parallel ranks reduce gradients and gather weights in every step, or for every microbatch,
    and compute meanwhile by such shares of full speed slower.
    """

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    step_reduced_s: Floats
    pass_reduced_s: Floats
    step_gathered_s: Floats
    pass_gathered_s: Floats
    reduction_share: Floats
    gather_share: Floats


class Exposure(NamedTuple):
    """What no computing hides of the exchanges of each plan of a group: shape (plans, 1).

    Attributes:
        transfer_s: From one stage to the next, at least [s].
        blocks: 1 where the sender computes nothing meanwhile.
        reduces_last: 1 where gradients are reduced with or after the last backward alone.
        reduces_alone: 1 where that is after it, and no rank computes meanwhile.
        gathers_alone: 1 where updated weights come after the update, and no rank computes.
        gathers_ahead: 1 where they come together while the first forward runs.
        agrees: 1 where no rank updates before all of them are through.
        reduces_between: 1 where no rank computes while its gradients are reduced, whenever that is.
        gathers_between: The same of weights.
    """

    transfer_s: Floats
    blocks: Floats
    reduces_last: Floats
    reduces_alone: Floats
    gathers_alone: Floats
    gathers_ahead: Floats
    agrees: Floats
    reduces_between: Floats
    gathers_between: Floats


class _Kinds(NamedTuple):
    """What of each plan some costs depend on.

    Attributes:
        of_plans: A number per plan, equal where that is equal; shape (plans,).
        keys: What it is, by that number.
    """

    of_plans: Ints
    keys: Sequence[_Key]

    def key(self, plan: int) -> _Key:
        """What it is of one plan."""
        return self.keys[int(self.of_plans[plan])]


@dataclass(frozen=True)
class KnownCosts:
    """Costs by what they depend on, whichever plans of a job they were first asked for."""

    pipelines: dict[_Key, Pipeline] = field(default_factory=dict)
    stages: dict[_Key, StageCosts] = field(default_factory=dict)
    activations: dict[_Key, StageCosts] = field(default_factory=dict)
    rows: dict[Hashable, list[float]] = field(default_factory=dict)
    neighbours: dict[Hashable, list[tuple[int, int]]] = field(default_factory=dict)


class CostTables:
    """Costs by what they depend on: each distinct combination is computed once.

    Args:
        space: The plans.
        known: Costs of other plans with the same axes; what is missing is added.
    """

    def __init__(self, space: PlanSpace, known: KnownCosts | None = None) -> None:
        self._space = space
        self._known = known or KnownCosts()
        zero, varied = space.column("plan.zero"), list(space.axes)
        separate = {*_PIPELINE_FIELDS, *_OVERLAPS, "plan.zero"}
        others = [path for path in varied if path not in separate]
        codes = [space.codes[:, varied.index(path)] for path in others]
        adds_up = (space.microbatches > 1) & (zero < 2)
        shards = np.where(zero == 3, space.dp * space.column("plan.cp"), 0)
        self._adds_up = adds_up
        casts = zero * space.job.plan.casts_by_zero
        # Both parts of a tied weight's gradient may meet on one rank.
        meets = (space.column("plan.pp") == 1) & space.job.model.tied_embeddings
        codes += [casts, meets]
        self._microbatch_kind = _kinds(*codes, adds_up, zero >= 2, shards)
        # How many microbatches and ranks there are changes times only.
        self._activation_kind = _kinds(*codes, np.maximum(zero, 1))
        self._held_kind = _kinds(*codes, np.maximum(zero, 1), adds_up)
        pairs = list(zip(others, codes[: len(others)], strict=True))
        shared = [codes for path, codes in pairs if path not in _OF_PASSES]
        self._tensor_kind = _kinds(*shared, np.zeros(len(space)))
        self._state_kind = _kinds(*shared, zero, space.dp)
        overlaps = [space.codes[:, varied.index(path)] for path in _OVERLAPS if path in varied]
        self._overlap_kind = _kinds(*shared, zero, space.dp, *overlaps)
        of_transfers = [codes for path, codes in pairs if path != "plan.recompute"]
        self._transfer_kind = _kinds(*of_transfers, casts)
        self.groups = [*_groups(space, _PIPELINE_FIELDS)]
        """Plans with the same pipeline together."""

    def pipeline(self, plan: int) -> Pipeline:
        """The pipeline of a plan."""
        names = list(self._space.axes)
        fields = [names.index(path) for path in _PIPELINE_FIELDS if path in names]
        key = tuple(self._space.codes[plan, fields].tolist())
        pipelines = self._known.pipelines
        if key not in pipelines:
            pipelines[key] = _pipeline(self._space.plan_job(plan))
        return pipelines[key]

    def activations(self, plans: Ints, pipeline: Pipeline) -> PlanActivations:
        """What passes of some plans that share a pipeline hold."""
        shapes = pipeline.shapes
        held = self._table(
            self._held_kind, plans, ("held", shapes), lambda n: self._held_row(n, shapes)
        )
        saved, working = np.split(held, 2, axis=1)
        return PlanActivations(saved[:, pipeline.shape_of], working[:, pipeline.shape_of])

    def hold_alike(self, plans: Ints) -> tuple[Ints, Ints]:
        """One of some plans for each kind of what passes hold and how many there are.

        Returns:
            The first place of each kind, shape (kinds,), and the kind of each plan, (plans,).
        """
        kinds, microbatches = self._held_kind.of_plans[plans], self._space.microbatches[plans]
        _, first, which = np.unique(
            kinds * (1 + microbatches.max()) + microbatches, return_index=True, return_inverse=True
        )
        return first, which

    def resident(self, plans: Ints, pipeline: Pipeline) -> Floats:
        """What the same keep of each run from step to step, in the same shape [B]."""
        by_shape = self._of_parameters(plans, pipeline, "kept", self._kept_row)
        return by_shape[:, pipeline.shape_of]

    def beside(self, plans: Ints, pipeline: Pipeline) -> Floats:
        """What each rank keeps beside parameters and their states; shape (plans, ranks) [B].

        Placeholders of gradients are those of its largest run: equal ones are kept once.
        """
        shapes = pipeline.shapes
        by_shape = self._table(
            self._tensor_kind, plans, ("beside", shapes), lambda n: self._beside_row(n, shapes)
        )
        placeholders, casts = np.split(by_shape[:, :-1], 2, axis=1)
        runs = pipeline.shape_of[pipeline.parts]
        beside: Floats = placeholders[:, runs].max(axis=2) + casts[:, runs].sum(axis=2)
        return beside + by_shape[:, -1:]

    def updates(self, plans: Ints, pipeline: Pipeline) -> Floats:
        """What their updates of each run hold, in the same shape [B]."""
        shapes, tied = pipeline.shapes, pipeline.tied_copy
        by_shape = self._table(
            self._state_kind, plans, ("update", shapes, tied),
            lambda n: self._update_row(n, shapes, tied),
        )  # fmt: skip
        return by_shape[:, pipeline.shape_of]

    def times(self, plans: Ints, pipeline: Pipeline) -> PlanTimes:
        """What the same take."""
        shapes, tied = pipeline.shapes, pipeline.tied_copy
        passes = self._table(
            self._microbatch_kind, plans, ("passes", shapes), lambda n: self._pass_row(n, shapes)
        )
        exchanges = self._table(
            self._state_kind, plans, ("exchange", pipeline.stages, shapes, tied),
            lambda n: self._exchange_row(n, shapes, tied),
        )  # fmt: skip
        updated_s = self._of_parameters(plans, pipeline, "updated", self._updated_row)
        by_shape = (*np.split(passes, 2, axis=1), updated_s, *np.split(exchanges, 6, axis=1))
        return PlanTimes(*(column[:, pipeline.shape_of] for column in by_shape))

    def outside(self, plans: Ints, pipeline: Pipeline) -> tuple[Floats, Floats]:
        """What is held beside tensors: a share of them, and bytes; shape (plans,) each."""
        table = self._table(
            self._state_kind, plans, ("outside", pipeline.stages), self._outside_row
        )
        return table[:, 0], table[:, 1]

    def _of_parameters(
        self, plans: Ints, pipeline: Pipeline, what: str, row: Callable[[int], list[float]]
    ) -> Floats:
        """What dense and expert parameters of each run add up to, by a number for each."""
        shapes, tied = pipeline.shapes, pipeline.tied_copy
        numel = self._table(
            self._tensor_kind, plans, (shapes, tied), lambda n: self._numel_row(n, shapes, tied)
        )
        dense, expert = np.split(numel, 2, axis=1)
        per = self._table(self._state_kind, plans, what, row)
        of_runs: Floats = per[:, [0]] * dense + per[:, [1]] * expert
        return of_runs

    def exposure(self, plans: Ints, pipeline: Pipeline) -> Exposure:
        """What of the exchanges of the same plans nothing hides."""
        hops = pipeline.stages, pipeline.chunks, bool(pipeline.sends.any())
        transfers = self._table(
            self._transfer_kind, plans, ("transfer", hops), lambda n: self._transfer_row(n, *hops)
        )
        flags = self._table(
            self._overlap_kind, plans, ("exposure", pipeline.schedule), self._exposure_row
        )
        return Exposure(transfers, *np.split(flags, len(Exposure._fields) - 1, axis=1))

    def _table(
        self, kinds: _Kinds, plans: Ints, what: Hashable, row: Callable[[int], list[float]]
    ) -> Floats:
        """A row per plan, computed once for each kind of plan."""
        of_plans = kinds.of_plans[plans]
        distinct, first, which = np.unique(of_plans, return_index=True, return_inverse=True)
        known, rows = self._known.rows, []
        for kind, position in zip(distinct.tolist(), first.tolist(), strict=True):
            key = what, kinds.keys[kind]
            if key not in known:
                known[key] = row(int(plans[position]))
            rows.append(known[key])
        return np.asarray(rows)[which]

    def _pass_row(self, plan: int, shapes: Sequence[Slice]) -> list[float]:
        """Forward and backward of one microbatch through each run [s]."""
        costs = self._costs(plan)
        phases = (Phase.FORWARD, Phase.BACKWARD)
        return [costs.seconds(run, phase) for phase in phases for run in shapes]

    def _held_row(self, plan: int, shapes: Sequence[Slice]) -> list[float]:
        """What one microbatch saves in each run, and what its backward works with [B]."""
        kind, known = self._activation_kind.key(plan), self._known.activations
        if kind not in known:
            known[kind] = self._costs(plan)
        costs = known[kind]
        # Backward may be cut into pieces; the first that runs ends the run, maybe with the loss.
        is_whole = self._adds_up[plan] and costs.job.plan.no_sync
        is_cut = costs.job.choices.frees_gradients or not is_whole
        pieces = [_last_piece(run) if is_cut else run for run in shapes]
        # How much of what layers keep is on its way to the host depends on the links.
        offloads = costs.job.plan.offload.activations is not None
        saved = [0.0 if offloads else costs.saved_bytes(run) for run in shapes]
        return [*saved, *map(costs.working_bytes, pieces)]

    def _costs(self, plan: int) -> StageCosts:
        kind, known = self._microbatch_kind.key(plan), self._known.stages
        if kind not in known:
            known[kind] = StageCosts(self._space.plan_job(plan))
        return known[kind]

    def _numel_row(self, plan: int, shapes: Sequence[Slice], tied: bool) -> list[float]:
        job = self._space.plan_job(plan)
        counts = [slice_parameters(job, run, tied_copy=tied) for run in shapes]
        return [*(count.dense for count in counts), *(count.expert for count in counts)]

    def _beside_row(self, plan: int, shapes: Sequence[Slice]) -> list[float]:
        """Placeholders and narrow copies of each run's weights, and what libraries keep [B]."""
        job = self._space.plan_job(plan)
        placeholders = [placeholder_gradient_bytes(job, [run]) for run in shapes]
        casts = [cast_weight_bytes(job, [run]) for run in shapes]
        return [*placeholders, *casts, total_bytes(workspace_memory(job))]

    def _update_row(self, plan: int, shapes: Sequence[Slice], tied: bool) -> list[float]:
        job = self._space.plan_job(plan)
        return [update_memory(job, [run], tied_copy=tied).most_bytes for run in shapes]

    def _exchange_row(self, plan: int, shapes: Sequence[Slice], tied: bool) -> list[float]:
        exchanges = least_exchanges(self._space.plan_job(plan), shapes, tied_copy=tied)
        return [seconds for column in zip(*exchanges, strict=True) for seconds in column]

    def _transfer_row(self, plan: int, stages: int, chunks: int, travels: bool) -> list[float]:
        job = self._space.plan_job(plan)
        if not travels:
            return [0.0]
        sent_bytes = StageCosts(job).boundary_bytes
        hops = (
            transfer_work(job, sent_bytes, pipeline_pair(job, *ranks))
            for ranks in self._hops(plan, job, stages, chunks)
        )
        return [min(hop.seconds for hop in hops)]

    def _hops(self, plan: int, job: Job, stages: int, chunks: int) -> list[tuple[int, int]]:
        """Pairs of ranks of the pipeline, one of each kind of way between neighbours."""
        key, known = (self._tensor_kind.key(plan), stages, chunks > 1), self._known.neighbours
        if key not in known:
            ranks = range(stages if chunks > 1 else stages - 1)
            pairs = [(rank, (rank + 1) % stages) for rank in ranks]
            known[key] = [*{pipeline_pair(job, *pair): pair for pair in pairs}.values()]
        return known[key]

    def _exposure_row(self, plan: int) -> list[float]:
        job = self._space.plan_job(plan)
        choices = job.choices
        every_backward = choices.reduces_every_backward or choices.keeps_gradients_of_a_turn
        reduces_last = not (every_backward or job.plan.offload.is_used)
        ahead = choices.overlaps_gather and not choices.updates_whole_parameters
        by_collectives = choices.data_parallelism.reduces_by_collectives
        hands_out = by_collectives and choices.hands_out_weights
        return [
            not choices.overlaps_transfers,
            reduces_last,
            reduces_last and by_collectives and not choices.overlaps_reduction,
            hands_out and not ahead,
            hands_out and ahead,
            job.plan.takes_gradient_norm or job.plan.precision == "fp16",
            not (choices.overlaps_reduction or choices.reduces_stages_once),
            not ahead if hands_out else not choices.overlaps_gather,
        ]

    def _kept_row(self, plan: int) -> list[float]:
        """Kept per dense and per expert parameter [B]."""
        job = self._space.plan_job(plan)
        return [total_bytes(resident_memory(job, each)) for each in _ONE_PARAMETER]

    def _updated_row(self, plan: int) -> list[float]:
        """Update per dense and per expert parameter [s]."""
        job, many = self._space.plan_job(plan), 1e9
        traffic_bytes = [many * device_update_bytes(job, each) for each in _ONE_PARAMETER]
        return [(update_s(job, size) - update_s(job, 0.0)) / many for size in traffic_bytes]

    def _outside_row(self, plan: int) -> list[float]:
        job = self._space.plan_job(plan)
        outside_bytes = math.fsum(outside_memory(job).values())
        return [least_unused_share(job.choices.allocator), outside_bytes]


def _last_piece(run: Slice) -> Slice:
    """The last layer of a run, or the end of the model behind it."""
    first = max(run.first, run.end - 1)
    has_embedding = run.has_embedding and first == run.first
    return ends_apart([run._replace(first=first, has_embedding=has_embedding)])[-1]


_ONE_PARAMETER = (ParameterCount(dense=1.0), ParameterCount(expert=1.0))


def _kinds(*columns: NDArray[np.generic]) -> _Kinds:
    """Rows that are equal are of one kind."""
    rows = np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1)
    distinct, of_plans = np.unique(rows, axis=0, return_inverse=True)
    return _Kinds(of_plans.reshape(-1), [*map(tuple, distinct.tolist())])


def _groups(space: PlanSpace, paths: Sequence[str]) -> Iterator[Ints]:
    """Numbers of the plans that agree in all of some fields."""
    names = list(space.axes)
    columns = [space.codes[:, names.index(path)] for path in paths if path in names]
    kinds = _kinds(np.zeros(len(space)), *columns)
    for kind in range(len(kinds.keys)):
        yield np.flatnonzero(kinds.of_plans == kind)
