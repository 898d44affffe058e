"""What does a run of layers cost one rank, in time and memory, in each direction?

Costs are computed once per distinct layer kind; a run is a sum over kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from simulator.cost.kernels import memory_bound_s
from simulator.cost.parameters import LayerKind, layer_kinds
from simulator.program.divided_layer import divided
from simulator.program.expert_load import ExpertShare
from simulator.program.experts import expert_layer
from simulator.program.host_pace import Launched, launched, waiting_s
from simulator.program.ir import (
    COMMUNICATION,
    Category,
    Collective,
    Memory,
    Owner,
    Part,
    Work,
    total_bytes,
)
from simulator.program.layer import Axis, Layer, Piece
from simulator.program.layer_time import Hiding, LayerTime, PassTime, layer_time
from simulator.program.layout import Slice, recomputed_layers
from simulator.program.model_ends import embedding_layer, head_layer, join_layer, loss_layer
from simulator.program.partitioned_checkpoints import kept_in_parts, with_gather
from simulator.program.ranks import (
    context_group,
    context_lines,
    expert_group,
    expert_tensor_group,
    grid_groups,
    shard_group,
    tensor_group,
)
from simulator.program.recompute import recomputation
from simulator.program.split_backward import (
    Halves,
    backward_memory,
    checkpoint_ends,
    freed_half_way,
    pending_bytes,
    whole_until_the_end,
)
from simulator.program.states import padded_vocab, slice_parameters, state_bytes
from simulator.program.tensor_grid import GRID_LINES
from simulator.program.timing import PieceTimer
from simulator.program.transformer import (
    Shape,
    microbatch_shape,
    transformer_layer,
)
from simulator.schedule.slots import Phase
from simulator.spec.job import Job

SHARDING_COPY = "sharding_copy"
"""Name of the part that copies between whole parameters and shards on the device."""

_EMBEDDING = "embedding"
_HEAD = "head"
_LOSS = "loss"
_JOIN = "join"


class LayerUnit(NamedTuple):
    """Layers that cost the same.

    Attributes:
        kind: What they consist of.
        is_repeated: Whether backward computes them again, as far as the plan says.
    """

    kind: LayerKind
    is_repeated: bool


Unit = LayerUnit | str
"""A layer, the embedding, the head, the loss, or what joins two of them for multi-token
prediction."""


@dataclass(frozen=True, eq=False, slots=True)
class _Contents:
    """What a run consists of; one object for all runs that consist of the same."""

    units: tuple[tuple[Unit, int], ...]


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Time and memory of one layer, the embedding, or the head.

    Attributes:
        time: All directions.
        saved: Kept from forward to backward.
        passing: Held while forward runs.
        working: Held while backward runs.
        halves: What the halves of a split backward take and free.
    """

    time: LayerTime
    saved: Memory
    passing: Memory
    working: Memory
    halves: Halves


@dataclass
class StageCosts:
    """Costs of any run of layers of one job; every distinct one is computed once."""

    job: Job
    share: ExpertShare | None = None
    """What the routed experts of the rank receive; None is as much as all others."""
    _units: dict[Unit, UnitCost] = field(default_factory=dict)
    _contents: dict[Slice, _Contents] = field(default_factory=dict)
    _distinct: dict[tuple[tuple[Unit, int], ...], _Contents] = field(default_factory=dict)
    _work: dict[tuple[Phase, _Contents, float, float], Work] = field(default_factory=dict)
    _saved: dict[_Contents, Memory] = field(default_factory=dict)
    _halves: dict[_Contents, Halves] = field(default_factory=dict)
    _passing: dict[_Contents, Memory] = field(default_factory=dict)
    _working: dict[tuple[_Contents, Phase], Memory] = field(default_factory=dict)

    def work(self, run: Slice, phase: Phase, exposed: float = 1.0, host_s: float = 0.0) -> Work:
        """Cost of one microbatch through a run of layers.

        Args:
            run: The layers.
            phase: Direction.
            exposed: Share of the exchanges with experts that delays it.
            host_s: Time that the device waits for the host before the first kernel [s].
        """
        contents = self._contents_of(run)
        key = (phase, contents, exposed, host_s)
        if key not in self._work:
            work = self._sum(run, contents, phase, exposed)
            if host_s:
                wait = Part("host", Category.HOST, host_s)
                work = replace(work, seconds=work.seconds + host_s, parts=(wait, *work.parts))
            self._work[key] = work
        return self._work[key]

    def exposed_share(self, run: Slice, phase: Phase, beside: Slice, beside_phase: Phase) -> float:
        """Share of a pass's expert exchanges that a pass beside it does not hide, 0 to 1.

        Tokens of one microbatch travel while the other one computes. Either they take longer
        than its computation and stick out, or they only slow it by the multiprocessors they
        hold. Ignored: which layer's exchange meets which layer's computation.

        Source: DeepSeek-V3 (arXiv 2412.19437, section 3.2.1).
        """
        exchange_s = self._seconds(run, phase, lambda c: c is Category.EXPERT_PARALLEL)
        if not exchange_s or not self._overlaps_experts:
            return 1.0
        compute_s = self._seconds(beside, beside_phase, lambda c: c not in COMMUNICATION)
        held = self._timer.multiprocessor_share(Axis.EXPERT)
        return max(1.0 - compute_s / exchange_s, held)

    def _seconds(self, run: Slice, phase: Phase, counts: Callable[[Category], bool]) -> float:
        """Time of the parts of a pass whose category counts [s]."""
        return sum(part.seconds for part in self.work(run, phase).parts if counts(part.category))

    def saved(self, run: Slice) -> Memory:
        """Activations that a run keeps from forward to backward, per microbatch."""
        contents = self._contents_of(run)
        if contents not in self._saved:
            self._saved[contents] = tuple(
                block for unit, count in contents.units for block in self._unit(unit).saved * count
            )
        return self._saved[contents]

    def working(self, run: Slice, phase: Phase = Phase.BACKWARD) -> Memory:
        """Memory held while a backward pass of a run is under way: its largest unit's.

        What is computed again is part of it unless it stays beyond the pass, and no part of a
        weight gradient.
        """
        key = self._contents_of(run), phase
        if key not in self._working:
            self._working[key] = self._largest_working(*key)
        return self._working[key]

    def _largest_working(self, contents: _Contents, phase: Phase) -> Memory:
        working = self._largest(contents, lambda unit: self._unit(unit).working)
        keeps = self.job.plan.stack.keeps_graph_for_weights
        if phase is Phase.BACKWARD or (phase is Phase.BACKWARD_INPUT and not keeps):
            return working
        return tuple((owner, size) for owner, size in working if owner is not Owner.RECOMPUTE)

    def _largest(self, contents: _Contents, memory: Callable[[Unit], Memory]) -> Memory:
        candidates = (memory(unit) for unit, _ in contents.units)
        return max(candidates, key=total_bytes, default=())

    def halves(self, run: Slice) -> Halves:
        """What a backward in two halves takes and frees, per microbatch."""
        contents = self._contents_of(run)
        if contents not in self._halves:
            of_units = [(self._unit(unit).halves, count) for unit, count in contents.units]
            self._halves[contents] = Halves(
                *(
                    tuple(chain.from_iterable(halves[i] * count for halves, count in of_units))
                    for i in range(len(Halves._fields))
                )
            )
        return self._halves[contents]

    def passing(self, run: Slice) -> Memory:
        """Memory held while forward of a run is under way: its largest unit's."""
        contents = self._contents_of(run)
        if contents not in self._passing:
            self._passing[contents] = self._largest(contents, lambda unit: self._unit(unit).passing)
        return self._passing[contents]

    @cached_property
    def boundary_bytes(self) -> float:
        """Activation that one rank sends to the next stage, per microbatch [B]."""
        whole = self._shape.tokens * self.job.model.hidden * self._shape.element_bytes
        return whole / self.job.plan.tp if self.job.plan.cuts_boundary else whole

    @cached_property
    def host_s_per_kernel(self) -> float:
        """Host time that the framework spends on each kernel [s]."""
        launch_s = self.job.cluster.profile.kernels.launch_s
        return launch_s * self.job.plan.stack.host_work_per_launch

    @cached_property
    def _host_s_per_exchange(self) -> float:
        """Host time that the framework spends on each collective of a layer [s]."""
        work = self.job.plan.stack.host_work_per_exchange
        if work is None:
            return self.host_s_per_kernel
        return self.job.cluster.profile.kernels.launch_s * work

    @property
    def _python_turns(self) -> int:
        """Copies of the model whose Python code takes turns in one process."""
        return self.job.dp if self.job.plan.data_parallel == "data-parallel" else 1

    @cached_property
    def _layers(self) -> tuple[LayerUnit, ...]:
        repeated = recomputed_layers(self.job)
        kinds = layer_kinds(self.job.model)
        return tuple(LayerUnit(kind, index in repeated) for index, kind in enumerate(kinds))

    @cached_property
    def _shape(self) -> Shape:
        batch, plan = self.job.batch, self.job.plan
        return microbatch_shape(plan, batch.micro_batch, batch.seq_len // plan.cp)

    @cached_property
    def _timer(self) -> PieceTimer:
        plan, stack = self.job.plan, self.job.plan.stack
        element_bytes = self._shape.element_bytes
        groups = {
            Axis.TENSOR: tensor_group(self.job),
            Axis.CONTEXT: context_group(self.job),
            Axis.EXPERT: expert_group(self.job),
            Axis.EXPERT_TENSOR: expert_tensor_group(self.job),
        }
        if plan.cp_method == "all_to_all+ring":
            groups[Axis.CONTEXT_HEADS], groups[Axis.CONTEXT] = context_lines(self.job)
        if plan.tensor_grid is not None:
            lines = GRID_LINES[plan.tensor_grid.method]
            groups.update(zip(lines, grid_groups(self.job), strict=True))
        # Gradients that leave after every microbatch are not added up in place.
        leave = plan.zero >= 2 or plan.data_parallel == "data-parallel"
        adds_up = self.job.microbatches > 1 and not leave
        fp32_sums = state_bytes(self.job).gradients > element_bytes
        # On a grid a weight's gradient is added up between ranks first.
        fused = stack.fused_accumulation and plan.tensor_grid is None
        return PieceTimer(
            self.job.cluster.profile,
            plan.precision,
            groups,
            stack.flash_kernel,
            accumulate_fp32=adds_up and fp32_sums and fused,
            accumulation_bytes=0.0
            if fused or not adds_up
            else element_bytes + 2 * state_bytes(self.job).gradients,
        )

    @cached_property
    def _hiding(self) -> Hiding:
        plan, stack = self.job.plan, self.job.plan.stack
        pipelines_steps = plan.tensor_grid is not None and plan.tensor_grid.method != "3d"
        default = stack.overlap_tp or pipelines_steps
        overlap_tp = default if plan.overlap_tp is None else plan.overlap_tp
        chunks = plan.tp if overlap_tp and plan.tp > 1 else 0
        return Hiding(stack.overlap_tp_backward, chunks)

    @property
    def _overlaps_experts(self) -> bool:
        """By default only in schedules that are made for it."""
        plan = self.job.plan
        if plan.overlap_ep is None:
            return plan.joins_passes
        return plan.overlap_ep

    def _contents_of(self, run: Slice) -> _Contents:
        if run not in self._contents:
            units = tuple(Counter(self._run_units(run)).items())
            self._contents[run] = self._distinct.setdefault(units, _Contents(units))
        return self._contents[run]

    def _run_units(self, run: Slice) -> tuple[Unit, ...]:
        """What a run consists of, in order of the model."""
        modules = self.job.model.multi_token_layers
        units: tuple[Unit, ...] = self._layers[run.first : run.end]
        if run.has_embedding:
            units = (_EMBEDDING, *units)
        loss = (_LOSS,) if run.has_loss else ()
        if not run.has_head:
            return (*units, *loss * (1 + modules))
        # A multi-token-prediction module is a join of hidden state and embedding, a
        # layer like the last, and the shared head (arXiv 2412.19437, section 2.2).
        module = (_EMBEDDING, _JOIN, self._layers[-1], _HEAD, *loss)
        return (*units, _HEAD, *loss, *module * modules)

    def layer_pieces(self, kind: LayerKind) -> tuple[tuple[Piece, ...], PieceTimer]:
        """What one rank runs of a layer in forward order, and what times it."""
        return self._divided(LayerUnit(kind, is_repeated=False)).pieces, self._timer

    def all_pieces(self) -> Iterator[Piece]:
        """What one rank runs of the layers and of the model's ends, each kind of layer once."""
        units: list[Unit] = [*dict.fromkeys(self._layers), _EMBEDDING, _HEAD, _LOSS, _JOIN]
        for unit in units:
            yield from self._divided(unit).pieces

    def _unit(self, unit: Unit) -> UnitCost:
        if unit not in self._units:
            self._units[unit] = self._unit_cost(unit)
        return self._units[unit]

    def _unit_cost(self, unit: Unit) -> UnitCost:
        layer = self._divided(unit)
        is_repeated = isinstance(unit, LayerUnit) and unit.is_repeated
        recompute = self.job.plan.recompute if is_repeated else "none"
        stack = self.job.plan.stack
        outcome = recomputation(
            layer,
            recompute,
            stack.selective_policy,
            modules=self.job.plan.recompute_modules,
            compiled=stack.fused_elementwise,
            stops_early=stack.recompute_stops_early,
        )
        time = layer_time(layer, self._timer, self._hiding, outcome.repeated)
        if self.job.plan.partition_activations and is_repeated:
            outcome = kept_in_parts(outcome, layer, self.job.plan.tp)
            time = with_gather(time, layer, self._timer)
        owner = Owner.LOGITS if unit in (_HEAD, _LOSS) else Owner.ACTIVATIONS
        kept = tuple((owner, num_bytes) for num_bytes in outcome.kept_bytes if num_bytes)
        restored = tuple((Owner.RECOMPUTE, size) for size in outcome.restored_bytes if size)
        passing = tuple(
            (Owner.TEMPORARIES, size)
            for size in outcome.passing_bytes + layer.passing_bytes + layer.buffer_bytes
            if size
        )
        if stack.keeps_graph_for_weights:
            halves = whole_until_the_end(kept, restored)
        else:
            shape = self._shape
            sizes = pending_bytes(layer, self.job.plan.tp, shape.element_bytes, shape.gemm_bytes)
            halves = freed_half_way(kept, tuple((owner, size) for size in sizes if size))
        # Without reentrant autograd no function of its own computes a layer again.
        calls_backward = recompute == "full" and not stack.recompute_stops_early
        ends = checkpoint_ends(layer) if calls_backward else ()
        working = ends + backward_memory(layer, outcome.restored_bytes)
        return UnitCost(time, kept, passing, working, halves)

    def _divided(self, unit: Unit) -> Layer:
        return divided(self._whole_layer(unit), self.job, self._shape, self.share)

    def _whole_layer(self, unit: Unit) -> Layer:
        job = self.job
        if unit == _EMBEDDING:
            return embedding_layer(job.model, job.plan, self._shape)
        if unit == _HEAD:
            return head_layer(job.model, job.plan, self._shape, padded_vocab(job))
        if unit == _LOSS:
            return loss_layer(job.model, job.plan, self._shape, padded_vocab(job))
        if unit == _JOIN:
            return join_layer(job.model, job.plan, self._shape)
        assert isinstance(unit, LayerUnit)
        build = expert_layer if unit.kind.has_experts else transformer_layer
        return build(job.model, unit.kind, job.plan, self._shape)

    def _sum(self, run: Slice, contents: _Contents, phase: Phase, exposed: float) -> Work:
        parts: dict[tuple[str, Category], Part] = {}
        flop, launches, queue = 0.0, 0, list[Launched]()
        profile = self.job.cluster.profile
        for unit, count in contents.units:
            time = self._unit(unit).time
            device_s, host_s, unit_launches = 0.0, 0.0, 0
            for pass_time in _directions(time, phase):
                runs_python = pass_time is time.forward or pass_time is time.recompute
                turns = self._python_turns if runs_python else 1
                flop += pass_time.flop * count
                unit_launches += (pass_time.kernels + pass_time.exchanges) * turns
                host_s += pass_time.kernels * turns * self.host_s_per_kernel
                host_s += pass_time.exchanges * turns * self._host_s_per_exchange
                for part in pass_time.parts:
                    hides = part.category is Category.EXPERT_PARALLEL
                    share = exposed if hides else 1.0
                    device_s += part.seconds * share
                    _add_part(parts, part, count, share)
            queue.append(launched(profile, count, device_s, host_s, unit_launches))
            launches += unit_launches * count
        if phase is not Phase.FORWARD:
            queue.reverse()
        copies = self._sharding_copies(run, phase)
        if copies is not None:
            _add_part(parts, copies, 1)
            queue.insert(0, Launched(1, copies.seconds, 0.0))
        if waits_s := waiting_s(queue, launches_ahead=self.job.plan.stack.launches_ahead):
            parts["launch", Category.HOST] = Part("launch", Category.HOST, waits_s, launches)
        ordered = tuple(parts.values())
        return Work(
            sum(part.seconds for part in ordered),
            ordered,
            flop=flop,
            collectives=self._collectives(run, phase),
        )

    def _collectives(self, run: Slice, phase: Phase) -> tuple[Collective, ...]:
        """What one microbatch through the run issues; backward starts at the last unit."""
        units = self._run_units(run)
        return tuple(
            collective
            for unit in (units if phase is Phase.FORWARD else reversed(units))
            for pass_time in _directions(self._unit(unit).time, phase)
            for collective in pass_time.collectives
        )

    def _sharding_copies(self, run: Slice, phase: Phase) -> Part | None:
        """What ZeRO 3 copies on the compute stream.

        Weights out of the gathered buffer, and gradients into the one that is reduced.
        """
        job, stack = self.job, self.job.plan.stack
        if job.plan.zero < 3 or shard_group(job).ranks == 1:
            return None
        per_parameter = {
            Phase.FORWARD: stack.gather_copy_bytes,
            Phase.BACKWARD: stack.gather_copy_bytes + stack.reduce_copy_bytes,
            Phase.BACKWARD_INPUT: stack.gather_copy_bytes,
            Phase.BACKWARD_WEIGHT: stack.reduce_copy_bytes,
        }[phase]
        num_bytes = slice_parameters(job, run).total * per_parameter
        if not num_bytes:
            return None
        seconds = memory_bound_s(job.cluster.profile, num_bytes)
        return Part(SHARDING_COPY, Category.DATA_PARALLEL, seconds)


def _directions(time: LayerTime, phase: Phase) -> list[PassTime]:
    match phase:
        case Phase.FORWARD:
            return [time.forward]
        case Phase.BACKWARD:
            return [time.recompute, time.backward_input, time.backward_weight]
        case Phase.BACKWARD_INPUT:
            return [time.recompute, time.backward_input]
        case Phase.BACKWARD_WEIGHT:
            return [time.backward_weight]


def _add_part(
    parts: dict[tuple[str, Category], Part], part: Part, count: int, share: float = 1.0
) -> None:
    key = (part.name, part.category)
    known = parts.get(key)
    seconds, repeats = part.seconds * count * share, part.repeats * count
    if known is not None:
        seconds, repeats = seconds + known.seconds, repeats + known.repeats
    parts[key] = Part(part.name, part.category, seconds, repeats)
