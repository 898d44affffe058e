"""What does a run of layers cost one rank, in time and memory, in each direction?

Costs are computed once per distinct unit (:mod:`simulator.program.price.layer_cost`); a run is a
sum over its units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from simulator.cost.kernel_time import memory_bound_s
from simulator.described.job import Job
from simulator.program.grid.expert_tokens import ExpertShare
from simulator.program.grid.rank_groups import shard_group
from simulator.program.grid.stage_layers import Slice
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
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.pieces import Axis, Piece
from simulator.program.price.expert_waits import ExpertWaits, Step, answers_s, stall_s
from simulator.program.price.hooked_weights import with_hooks_s
from simulator.program.price.host_pace import (
    Launched,
    launched,
    launched_ahead,
    unpredicted_wait_s,
    waiting_s,
)
from simulator.program.price.layer_cost import UnitCosts
from simulator.program.price.layer_time import LayerTime, PassTime
from simulator.program.price.piece_time import PieceTimer
from simulator.program.price.run_contents import Contents
from simulator.program.price.unit_cost import End, ForwardMemory, Unit, UnitCost, UnitTimes
from simulator.program.states.gathered_memory import TiedGradient
from simulator.program.states.resident import new_gradient_bytes, slice_parameters
from simulator.program.strategies.backward_memory import BackwardMemory
from simulator.program.strategies.split_backward import Halves
from simulator.schedule.slots import Phase

SHARDING_COPY = "sharding_copy"
"""Name of the part that copies between whole parameters and shards on the device."""

_Sums = dict[tuple[str, Category], tuple[float, int]]
"""Seconds and repeats, by name and category."""


@dataclass
class StageCosts:
    """Costs of any run of layers of one job; every distinct one is computed once.

    Attributes:
        job: The job.
        share: What the routed experts of the rank receive; None is as much as all others.
    """

    job: Job
    share: ExpertShare | None = None
    _contents: dict[Slice, Contents] = field(default_factory=dict)
    _distinct: dict[tuple[tuple[Unit, int], ...], Contents] = field(default_factory=dict)
    _work: dict[tuple[Phase, Contents, float, float], Work] = field(default_factory=dict)
    _tied: dict[tuple[Slice, float, bool], BackwardMemory] = field(default_factory=dict)
    _forward: dict[Contents, ForwardMemory] = field(default_factory=dict)
    _one: dict[tuple[UnitCost, Phase, float], tuple[float, float, int]] = field(
        default_factory=dict
    )

    @cached_property
    def units(self) -> UnitCosts:
        """Costs of what runs consist of."""
        return UnitCosts(self.job, self.share)

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
            work = self._total(run, contents, phase, exposed)
            if host_s:
                wait = Part("host", Category.HOST, host_s)
                work = replace(work, seconds=work.seconds + host_s, parts=(wait, *work.parts))
            self._work[key] = work
        return self._work[key]

    def seconds(self, run: Slice, phase: Phase) -> float:
        """Duration of that, to the last bit, for those who need nothing else of it [s]."""
        sums, _ = self._sums(run, self._contents_of(run), phase, 1.0)
        return math.fsum(seconds for seconds, _ in sums.values())

    def exposed_share(self, run: Slice, phase: Phase, beside: Slice, beside_phase: Phase) -> float:
        """Share of a pass's expert exchanges that a pass beside it does not hide, 0 to 1.

        Tokens of one microbatch travel while the other one computes. Either they take longer
        than its computation and stick out, or they only slow it. Ignored: which layer's exchange
        meets which layer's computation.

        Source: DeepSeek-V3 (arXiv 2412.19437, section 3.2.1).
        """
        exchange_s = self._seconds(run, phase, lambda c: c is Category.EXPERT_PARALLEL)
        if not exchange_s or not self.job.choices.overlaps_experts:
            return 1.0
        compute_s = self._seconds(beside, beside_phase, lambda c: c not in COMMUNICATION)
        slowing = self.units.timer.slowing_share_of_group(Axis.EXPERT)
        return max(1.0 - compute_s / exchange_s, slowing)

    def _seconds(self, run: Slice, phase: Phase, counts: Callable[[Category], bool]) -> float:
        return math.fsum(
            part.seconds for part in self.work(run, phase).parts if counts(part.category)
        )

    def saved(self, run: Slice) -> Memory:
        """Activations that a run keeps from forward to backward, per microbatch."""
        return self._contents_of(run).saved

    def saved_bytes(self, run: Slice) -> float:
        """The sum of that, but for rounding [B]."""
        return self._contents_of(run).saved_bytes

    @cached_property
    def tied_gradient(self) -> TiedGradient:
        """What waits of the gradient of a tied embedding."""
        return TiedGradient(self.job, self)

    def half_working(self, run: Slice, phase: Phase) -> Memory:
        """Memory held while one half of a backward of a run is under way.

        What is computed again is part of it unless it stays beyond the pass, and no part of a
        weight gradient.
        """
        holds = self._contents_of(run).backward(frees=False).holds
        keeps = self.job.plan.stack.keeps_graph_for_weights
        if phase is Phase.BACKWARD_INPUT and not keeps:
            return holds
        return tuple(block for block in holds if block[0] is not Owner.RECOMPUTE)

    def backward(
        self, run: Slice, made_bytes: float = 0.0, *, makes_gradients: bool = False
    ) -> BackwardMemory:
        """A run's backward in one piece at its fullest.

        Args:
            run: The layers.
            made_bytes: Gradients of their weights that it makes one after another [B].
            makes_gradients: Whether it makes gradients anew, all at once or one after another.
        """
        key = run, made_bytes, makes_gradients
        if key not in self._tied:
            plain = self._contents_of(run).backward(made_bytes)
            tied = self.tied_gradient.working(
                run, plain.more_bytes, made_bytes, is_new=makes_gradients
            )
            self._tied[key] = plain._replace(holds=plain.holds + tied) if tied else plain
        return self._tied[key]

    def kept_inputs(self, run: Slice) -> Memory:
        """What stays of a run's layers until backward of all layers ends."""
        keeps = self.job.choices.keeps_recomputed_inputs
        return self._contents_of(run).recomputed_inputs if keeps else ()

    def router_graphs(self, run: Slice) -> Memory:
        """What a run's backward leaves until its next forward."""
        holds = self.job.plan.holds_router_graphs
        return self._contents_of(run).router_graphs if holds else ()

    def added_at_once(self, run: Slice) -> float:
        """Gradients that a backward makes before any is added to those of earlier ones [B]."""
        if not self.job.plan.stack.gradients_at_once:
            return 0.0
        return new_gradient_bytes(self.job, slice_parameters(self.job, run))

    def alone(self, run: Slice) -> Memory:
        """Memory held while a forward runs that no backward follows: its largest unit's."""
        units = (unit for unit, _ in self._contents_of(run).units)
        return max((unit.alone for unit in units), key=total_bytes, default=())

    def working_bytes(self, run: Slice) -> float:
        """What backward of a run holds at its fullest beyond what forward saved [B]."""
        return self.backward(run).more_bytes

    def plain_working_bytes(self, run: Slice) -> float:
        """The same without gradients of a tied embedding [B]."""
        return self._contents_of(run).backward().more_bytes

    @property
    def waiting_gradient(self) -> Memory:
        """Gradient of a tied head that waits for that of the embedding."""
        return self.tied_gradient.waiting

    def halves(self, run: Slice) -> Halves:
        """What a backward in two halves takes and frees, per microbatch."""
        return self._contents_of(run).halves

    def forward(self, run: Slice) -> ForwardMemory:
        """A run's forward at its fullest."""
        contents = self._contents_of(run)
        if contents not in self._forward:
            lingers = self._lingering(contents)
            self._forward[contents] = contents.forward._replace(lingers=lingers)
        return self._forward[contents]

    def _lingering(self, contents: Contents) -> Memory:
        """What forward gave back, but the allocator has not at its end."""
        units = [(unit, count) for unit, count in reversed(contents.units) if unit.reduced]
        each = [self._launched(unit, count, Phase.FORWARD, 1.0) for unit, count in units]
        # Hosts that compare collectives wait for each other, and at a stage's end for the device.
        waits = self.job.plan.stack.exchange_check_s > 0
        meets = self.job.plan.pp > 1 and not self.job.choices.overlaps_transfers
        lead = [0 for _ in each] if waits and meets else launched_ahead(each, hosts_wait=waits)
        blocks = [block for unit, count in contents.units for block in unit.freed * count]
        for (unit, _), times in zip(units, lead, strict=True):
            blocks += unit.reduced * times
        return tuple(blocks)

    @cached_property
    def boundary_bytes(self) -> float:
        """Activation that one rank sends to the next stage, per microbatch [B]."""
        shape, plan = self.units.shape, self.job.plan
        size = shape.stream_bytes if plan.streams_wide else shape.element_bytes
        whole = shape.tokens * self.job.model.hidden * size
        return whole / self.job.choices.tensor_ranks if plan.cuts_boundary else whole

    @cached_property
    def host_s_per_kernel(self) -> float:
        """Host time that the framework spends on each kernel [s]."""
        launch_s = self.job.cluster.profile.kernels.launch_s
        return launch_s * self.job.plan.stack.host_work_per_launch

    def _host_s_per_exchange(self, work: float) -> float:
        """Host time of each collective of a layer whose kernels take so many times as long [s]."""
        stack = self.job.plan.stack
        check_s = (self.job.choices.tensor_ranks - 1) * stack.exchange_check_s
        if stack.host_work_per_exchange is None:
            return (self.host_s_per_kernel + check_s) * work
        return self.job.cluster.profile.kernels.launch_s * stack.host_work_per_exchange + check_s

    @property
    def _host_s_per_call(self) -> float:
        """Host time of each product in a library's loop over experts [s]."""
        work = self.job.plan.stack.host_work_per_call
        if work is None:
            return self.host_s_per_kernel
        return self.job.cluster.profile.kernels.launch_s * work

    @property
    def _python_turns(self) -> int:
        """Copies of the model whose Python code takes turns in one process."""
        return self.job.dp if self.job.choices.data_parallelism.is_one_process else 1

    def layer_pieces(self, kind: LayerKind) -> tuple[tuple[Piece, ...], PieceTimer]:
        """What one rank runs of a layer in forward order, and what times it."""
        return self.units.divided(self.units.of_kind(kind)).pieces, self.units.timer

    def all_pieces(self) -> Iterator[Piece]:
        """What one rank runs of the layers and of the model's ends, each kind of layer once."""
        for unit in (*dict.fromkeys(self.units.layers), *End):
            yield from self.units.divided(unit).pieces

    def _contents_of(self, run: Slice) -> Contents:
        if run not in self._contents:
            counts = tuple(Counter(self._run_units(run)).items())
            if counts not in self._distinct:
                costs = tuple((self.units.of(unit), count) for unit, count in counts)
                self._distinct[counts] = Contents(costs)
            self._contents[run] = self._distinct[counts]
        return self._contents[run]

    def _run_units(self, run: Slice) -> tuple[Unit, ...]:
        modules, layers = self.job.model.multi_token_layers, self.units.layers
        units: tuple[Unit, ...] = layers[run.first : run.end]
        if run.has_embedding:
            units = (End.EMBEDDING, *units)
        loss = (End.LOSS,) if run.has_loss else ()
        if not run.has_head:
            return (*units, *loss * (1 + modules))
        # A multi-token-prediction module is a join of hidden state and embedding, a
        # layer like the last, and the shared head (arXiv 2412.19437, section 2.2).
        module = (End.EMBEDDING, End.JOIN, layers[-1], End.HEAD, *loss)
        return (*units, End.HEAD, *loss, *module * modules)

    def _total(self, run: Slice, contents: Contents, phase: Phase, exposed: float) -> Work:
        """The units of a run one after another, and what the device waits for its host."""
        sums, flop = self._sums(run, contents, phase, exposed)
        ordered = tuple(Part(*named, *total) for named, total in sums.items())
        seconds = math.fsum(part.seconds for part in ordered)
        return Work(seconds, ordered, flop=flop, collectives=self._collectives(run, phase))

    def _sums(
        self, run: Slice, contents: Contents, phase: Phase, exposed: float
    ) -> tuple[_Sums, float]:
        """Seconds and repeats of parts that have one name and category, and floating point work."""
        sums: _Sums = {}
        flop, launches, queue = 0.0, 0, list[Launched]()
        for unit, count in contents.units:
            for pass_time in _directions(unit.times.time, phase):
                flop += pass_time.flop * count
                for part in pass_time.parts:
                    _add_part(sums, part, count, _exposed_share(part, exposed))
            pieces, unit_launches = self._launched(unit, count, phase, exposed)
            queue.append(pieces)
            launches += unit_launches * count
        if phase is not Phase.FORWARD:
            queue.reverse()
        copies = self._sharding_copies(run, phase)
        if copies is not None:
            _add_part(sums, copies, 1)
            queue.insert(0, Launched(1, copies.seconds, 0.0))
        waits_s = waiting_s(queue, launches_ahead=self.job.plan.stack.launches_ahead)
        share = (2 if phase is Phase.BACKWARD else 1) / 3  # backward launches twice as many kernels
        layer_wait_s = self.job.cluster.profile.host.layer_wait_s
        waits_s += unpredicted_wait_s(layer_wait_s, share * (run.end - run.first), queue)
        if waits_s:
            sums["launch", Category.HOST] = waits_s, launches
        return sums, flop

    def _launched(
        self, unit: UnitCost, count: int, phase: Phase, exposed: float
    ) -> tuple[Launched, int]:
        """So many equal units as the host launches them, and the launches of one."""
        key = unit, phase, exposed
        if key not in self._one:
            self._one[key] = self._launched_once(*key)
        device_s, host_s, launches = self._one[key]
        return launched(self.job.cluster.profile, count, device_s, host_s, launches), launches

    def _launched_once(
        self, unit: UnitCost, phase: Phase, exposed: float
    ) -> tuple[float, float, int]:
        """Time of the device and of the host for a unit [s], and its launches."""
        device_s, host_s, launches = 0.0, 0.0, 0
        steps: list[Step] = []
        times, time = unit.times, unit.times.time
        by_host = _directions(times.launched, phase)
        for direction, launched_alone in zip(_directions(time, phase), by_host, strict=True):
            runs_python = direction is time.forward or direction is time.recompute
            turns = self._python_turns if runs_python else 1
            kernels = launched_alone.kernels + (times.graphs if direction.parts else 0)
            counts = tuple(
                count * turns for count in (kernels, launched_alone.exchanges, launched_alone.calls)
            )
            launches += sum(counts)
            steps.append(self._step(direction, exposed, *counts, work=times.host_work))
            host_s += steps[-1].host_s
            device_s += steps[-1].device_s
        repeats = times.repeats_waits and phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT)
        visited = [direction for direction in _directions(time, phase) if direction.parts]
        visits, repeated = len(visited), sum(each is time.recompute for each in visited)
        # The hooks of a layer run before its first kernel, behind those of the layer before.
        hooks_s = (visits - repeated) * times.unit_hooks_s
        hooks = Step(0.0, hooks_s + _python_s(times, visited), 0)
        host_s += hooks.host_s
        if times.waits and (phase is Phase.FORWARD or repeats):
            host_s = device_s + self._expert_stall_s(times.waits, [*steps[1:], hooks], exposed)
        return device_s, with_hooks_s(self.job, host_s, device_s, visits * times.hooks_s), launches

    def _step(self, time: PassTime, exposed: float, *counts: int, work: float = 1.0) -> Step:
        """A pass, or a piece of one, as the host launches it."""
        device_s = 0.0
        for part in time.parts:  # sum() rounds otherwise from Python 3.12 on
            device_s += part.seconds * _exposed_share(part, exposed)
        each_s = (
            self.host_s_per_kernel * work, self._host_s_per_exchange(work), self._host_s_per_call
        )  # fmt: skip
        host_s = sum(count * seconds for count, seconds in zip(counts, each_s, strict=True))
        return Step(device_s, host_s, sum(counts))

    def _expert_stall_s(self, waits: ExpertWaits, behind: Sequence[Step], exposed: float) -> float:
        """What the device waits for its host in a layer, from one question to the next [s]."""
        after, before = (
            [self._step(each, exposed, each.kernels, each.exchanges, each.calls) for each in side]
            for side in (waits.after, waits.before)
        )
        launch_s = self.job.cluster.profile.kernels.launch_s
        return stall_s([*after, *behind, *before], answers_s(waits, launch_s), waits.hidden_s)

    def _collectives(self, run: Slice, phase: Phase) -> tuple[Collective, ...]:
        """What one microbatch through the run issues; backward starts at the last unit."""
        units = self._run_units(run)
        issued = {
            unit: [
                collective
                for pass_time in _directions(self.units.of(unit).times.time, phase)
                for collective in pass_time.collectives
            ]
            for unit in dict.fromkeys(units)
        }
        in_order = units if phase is Phase.FORWARD else reversed(units)
        return tuple(chain.from_iterable(issued[unit] for unit in in_order))

    def _sharding_copies(self, run: Slice, phase: Phase) -> Part | None:
        """What ZeRO 3 copies on the compute stream.

        Weights out of the gathered buffer, and gradients into the one that is reduced. Backward
        gathers only what forward did not keep: never the ends of the model.
        """
        job, stack = self.job, self.job.plan.stack
        if not job.choices.shards_weights or shard_group(job).ranks == 1:
            return None
        numel, gathered_numel = slice_parameters(job, run), 0.0
        if phase is Phase.FORWARD:
            gathered_numel = numel.total
        elif phase is not Phase.BACKWARD_WEIGHT and job.plan.reshard_after_forward is not False:
            layers = run._replace(has_embedding=False, has_head=False, has_loss=False)
            gathered_numel = slice_parameters(job, layers).total
        makes_gradients = phase in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT)
        reduced_numel = numel.trained if makes_gradients else 0.0
        if job.choices.reduces_stages_once:
            # Once in a step, here as a share of every pass.
            reduced_numel /= job.microbatches
            is_gathered_once = job.plan.reshard_after_forward is False
            gathered_numel /= job.microbatches if is_gathered_once else 1
        elif stack.sums_unsharded:
            reduced_numel /= job.microbatches
        num_bytes = gathered_numel * stack.gather_copy_bytes
        num_bytes += reduced_numel * stack.reduce_copy_bytes
        if not num_bytes:
            return None
        seconds = memory_bound_s(job.cluster.profile, num_bytes)
        return Part(SHARDING_COPY, Category.DATA_PARALLEL, seconds)


def _exposed_share(part: Part, exposed: float) -> float:
    """What counts of a part where only ``exposed`` of the exchanges with experts delays a pass."""
    return exposed if part.category is Category.EXPERT_PARALLEL else 1.0


def _python_s(times: UnitTimes, visited: Sequence[PassTime]) -> float:
    """Host time of some passes beside their launches [s]; weights have none of their own."""
    (forward_s, backward_s), time = times.python_s, times.time
    forwards = sum(each is time.forward or each is time.recompute for each in visited)
    backwards = sum(each is time.backward_input for each in visited)
    return forwards * forward_s + backwards * backward_s


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


def _add_part(sums: _Sums, part: Part, count: int, share: float = 1.0) -> None:
    """Add so many parts to the seconds and repeats of those of their name."""
    key = (part.name, part.category)
    seconds, repeats = sums.get(key, (0.0, 0))
    sums[key] = seconds + part.seconds * count * share, repeats + part.repeats * count
