"""How does a pipeline order become operations, transfers and memory events?

Each slot of the order becomes one operation on its rank's compute stream, or several
where data parallelism attaches between layers. What a slot produces for another rank
travels as one operation that occupies a send and a receive lane; a blocking send
occupies the sender's compute stream instead.

A joint forward and backward waits for the inputs of both, and the results of both leave at
its end, as in DualPipe, in torch's ``OVERLAP_F_B`` and where Megatron exchanges once per
pair. Its halves run one after the other here, each without the expert exchanges that hide
behind the other (:meth:`StageCosts.exposed_share`), which comes to the same sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest

from simulator.program.grid.stage_layers import Slice, cut
from simulator.program.grid.stand_ins import StandIns
from simulator.program.ir import (
    Category,
    Kind,
    Memory,
    Operation,
    Program,
    Scope,
    Stream,
    Work,
    total_bytes,
)
from simulator.program.price.stage_cost import StageCosts
from simulator.program.run.boundary_buffers import BoundaryBuffers, PassBuffers
from simulator.program.run.data_parallel import DataParallel
from simulator.program.run.host_copies import ActivationOffload
from simulator.program.run.pipeline_parts import (
    ENDS_BACKWARD,
    Gather,
    Routes,
    SlotEdges,
    Task,
    slot_edges,
    without_common,
)
from simulator.program.run.repeated_pass import RankState, RepeatedPass, recorder
from simulator.program.run.shared_pass import SharedPasses
from simulator.program.run.untrained import UntrainedPass
from simulator.schedule.slots import Order, Phase, Placement, Slot, joint_groups

_KINDS = {
    Phase.FORWARD: (Kind.FORWARD, Category.FORWARD),
    Phase.BACKWARD: (Kind.BACKWARD, Category.BACKWARD),
    Phase.BACKWARD_INPUT: (Kind.BACKWARD_INPUT, Category.BACKWARD),
    Phase.BACKWARD_WEIGHT: (Kind.BACKWARD_WEIGHT, Category.BACKWARD),
}

# Members of enumerations are slow to look up, and there is a slot for every microbatch.
_BACKWARD, _BACKWARD_INPUT = Phase.BACKWARD, Phase.BACKWARD_INPUT
_SEND_RECV, _PIPELINE = Kind.SEND_RECV, Category.PIPELINE

TransferWork = Callable[[int, int], Work]
"""(sender, receiver) -> cost."""

_Key = tuple[Phase, int, int]
"""Phase, virtual stage and microbatch of a slot."""


@dataclass(frozen=True)
class Pipeline:
    """An order and where it runs.

    Attributes:
        order: Slots of every rank.
        placement: Which rank holds which virtual stage.
        chunks: Virtual stages per rank.
        runs: Layers of each virtual stage, or those that stand for them.
        blocking: Whether a send holds the sender's compute stream.
        forward_host_s: Time that every forward waits for the host [s].
        buffers: What transfers hold around the passes.
        update_every: Microbatches after which a rank updates its weights on its own, in the
            middle of the order; 0 is never.
        copies: Takes activations off the GPU, where they do not stay.
        untrained: What runs before every forward of another network.
        returned: What the model returned of the microbatch before, held while forward runs.
        stand_ins: Which runs stand for equal ones of later ranks.
    """

    order: Order
    placement: Placement
    chunks: int
    runs: Sequence[Slice]
    blocking: bool
    forward_host_s: float = 0.0
    buffers: BoundaryBuffers = field(default_factory=BoundaryBuffers)
    update_every: int = 0
    copies: ActivationOffload | None = None
    untrained: UntrainedPass | None = None
    returned: Memory = ()
    stand_ins: StandIns = field(default_factory=StandIns)


def add_pipeline(
    program: Program,
    pipeline: Pipeline,
    costs: StageCosts,
    transfer_work: TransferWork,
    attachment: DataParallel,
    update: Callable[[int], object] | None = None,
) -> None:
    """Append all passes and transfers of a pipeline to the program.

    Args:
        program: Has one class per rank of the order, and no compute operations yet.
        pipeline: What to run.
        costs: Cost of runs of layers.
        transfer_work: Cost of a boundary activation.
        attachment: Data parallelism.
        update: Appends a rank's own update, where the pipeline asks for them.
    """
    emitter = _Emitter(program, pipeline, costs, transfer_work, attachment, update)
    for rank, slots in enumerate(pipeline.order):
        emitter.add_rank(rank, slots)
    emitter.connect()


@dataclass(frozen=True)
class _Rank:
    """One rank while its slots become operations.

    Attributes:
        number: Which one.
        edges: Its first and last slots.
        buffers: What transfers hold around its passes.
        repeated: Passes that others repeat, by what makes them so: phase and stage, those of the
            slot beside it, identity of buffers, whether a turn ends, what is under way. Filled in.
    """

    number: int
    edges: SlotEdges
    buffers: Mapping[Slot, PassBuffers]
    repeated: dict[object, RepeatedPass] = field(default_factory=dict)


@dataclass
class _Emitter:
    """Adds one rank after another to a program."""

    program: Program
    pipeline: Pipeline
    costs: StageCosts
    transfer_work: TransferWork
    attachment: DataParallel
    update: Callable[[int], object] | None = None
    arrivals: dict[_Key, int] = field(default_factory=dict)
    """Operation after which the input of a slot is there."""
    waiting: list[tuple[int, _Key]] = field(default_factory=list)
    """Operations, and the slots whose input they wait for."""
    shared: dict[tuple[Memory, Memory], Memory] = field(default_factory=dict)
    """Blocks that passes hold together, by what each of two causes holds."""

    @cached_property
    def routes(self) -> Routes:
        """Where the passes of every virtual stage belong."""
        pipeline = self.pipeline
        stages = len(pipeline.order)
        return Routes(pipeline.placement, stages, pipeline.chunks, pipeline.runs)

    @cached_property
    def shared_passes(self) -> SharedPasses:
        """Passes of ranks that hold equal layers."""
        stand_ins, blocking = self.pipeline.stand_ins, self.pipeline.blocking
        return SharedPasses(self.program, stand_ins, self.routes, self.transfer_work, blocking)

    def add_rank(self, number: int, slots: Sequence[Slot]) -> None:
        """Append what a rank runs; what it waits for is known once all ranks are there."""
        edges = slot_edges(
            slots,
            chunks=self.pipeline.chunks,
            update_every=self.pipeline.update_every,
            reduces_by_turn=self._reduces_by_turn,
        )
        rank = _Rank(number, edges, self.pipeline.buffers.of_passes(slots))
        for group in joint_groups(slots):
            self._add_group(rank, group)
            if self.update and group[-1] in edges.last_backwards:
                self.update(number)

    @cached_property
    def _reduces_by_turn(self) -> bool:
        reduces = partial(self.attachment.reduces_after, is_last=False)
        return reduces(ends_turn=True) and not reduces(ends_turn=False)

    def _add_group(self, rank: _Rank, group: Sequence[Slot]) -> None:
        """Slots that start on the inputs of all of them and whose results leave together."""
        if len(group) == 1:
            self._add_slot(rank, group[0], group)
            return
        first_wait, end = len(self.waiting), -1
        for slot in group:
            end = self._add_slot(rank, slot, group)
        start = self.waiting[first_wait][0]
        inner = {_key(slot)[1:] for slot in group[:-1]}
        later = self.waiting[first_wait + 1 :]
        self.waiting += [(start, key) for _, key in later if key[1:] not in inner]
        for slot in group:
            blocks = self.pipeline.blocking and slot is group[-1]
            self._send(rank.number, slot, end, blocks=blocks)

    def _add_slot(self, rank: _Rank, slot: Slot, group: Sequence[Slot]) -> int:
        """The operations of a slot, with what it sends where it is alone; returns its last run."""
        buffers, edges = rank.buffers.get(slot), rank.edges
        beside = group[slot is group[0]] if len(group) > 1 else None
        state, repeats = self.attachment.ranks[rank.number], self.repeats and slot not in edges.all
        ends_turn = slot in edges.turn_ends
        key = slot[:2], beside and beside[:2], id(buffers), ends_turn, repeats and state.standing()
        if repeats and (known := rank.repeated.get(key)):
            return self._repeat(slot, known, state)
        shares = self.repeats and beside is None
        alike = self.shared_passes.key(rank.number, slot, edges, buffers, state) if shares else None
        if alike and (shared := self.shared_passes.get(alike, rank.number, slot, state)):
            if repeats:
                rank.repeated[key] = shared
            return self._repeat(slot, shared, state)
        written = recorder(self.program, state) if repeats or alike else None
        is_last = slot in edges.last_backwards
        task = Task(
            rank.number,
            slot,
            is_first=slot in edges.first_forwards or slot in edges.first_backwards,
            is_last=is_last,
            reduces=self._reduces(slot, is_last=is_last, ends_turn=ends_turn),
            exposed=self._exposed(slot, beside),
        )
        is_forward = slot.phase is Phase.FORWARD
        end = self._add_forward(task) if is_forward else self._add_backward(task)
        operation = self.program.operations[end]
        if buffers is not None:
            self._add_buffers(operation, buffers)
        self._turn(slot, end)
        arrives = -1
        if beside is None:
            arrives = self._send(rank.number, slot, end, blocks=self.pipeline.blocking)
        if written and (known := written(self.waiting[-1][0], end, arrives)):
            if repeats:
                rank.repeated[key] = known
            if alike:
                self.shared_passes.keep(alike, known, rank.number, state)
        return end

    def _turn(self, slot: Slot, end: int) -> None:
        """Where the model ends, what forward computes is what its backward needs."""
        if self.routes.of(slot).turns:
            self.arrivals[_BACKWARD, slot.stage, slot.microbatch] = end

    def _reduces(self, slot: Slot, *, is_last: bool, ends_turn: bool) -> bool:
        return slot.phase in ENDS_BACKWARD and self.attachment.reduces_after(
            is_last=is_last, ends_turn=ends_turn
        )

    @cached_property
    def repeats(self) -> bool:
        """Whether passes between the first and the last differ in nothing but the microbatch."""
        runs_others = self.pipeline.copies is not None or self.pipeline.untrained is not None
        return self.attachment.repeats_passes and not runs_others

    def _repeat(self, slot: Slot, like: RepeatedPass, state: RankState) -> int:
        first, route = like.add(self.program, state, slot.microbatch), self.routes.of(slot)
        self.waiting.append((first + like.receives, _key(slot)))
        if route.turns:
            self.arrivals[_BACKWARD, slot.stage, slot.microbatch] = first + like.end
        if like.arrives >= 0 and route.fed is not None:
            self.arrivals[route.feeds, route.fed, slot.microbatch] = first + like.arrives
        return first + like.end

    def _add_buffers(self, operation: Operation, buffers: PassBuffers) -> None:
        operation.holds = self._joined(operation.holds, buffers.holds)
        operation.takes = self._joined(operation.takes, buffers.takes)
        operation.gives = self._joined(operation.gives, buffers.gives)

    def _joined(self, memory: Memory, more: Memory) -> Memory:
        """Both; passes that hold the same share it, so that it is summed once."""
        return self.shared.setdefault((memory, more), memory + more) if more else memory

    def _exposed(self, slot: Slot, beside: Slot | None) -> float:
        """Share of a slot's expert exchanges that the one beside it leaves."""
        if beside is None:
            return 1.0
        return self.costs.exposed_share(
            self._run(slot), slot.phase, self._run(beside), beside.phase
        )

    def connect(self) -> None:
        """Make every pass wait for its input, now that all producers are known."""
        for index, key in self.waiting:
            arrival = self.arrivals.get(key)
            if arrival is not None:
                operation = self.program.operations[index]
                operation.after = (*operation.after, arrival)

    def _add_forward(self, task: Task) -> int:
        """A forward, piece by piece; returns the last one."""
        rank, is_first, end = task.rank, task.is_first, -1
        whole = self._run(task.slot)
        if self.pipeline.untrained is not None:
            self._add_untrained(task, self.pipeline.untrained)
        runs = self._by_layer(self.attachment.forward_runs(whole, is_first=is_first))
        gathers = self._with_gathers(rank, runs, is_first=is_first, is_forward=True)
        for run, after, gathered in gathers:
            end = self._add_pass(task, run, after, receives=run is runs[0])
            operation = self.program.operations[end]
            memory = self.costs.forward(run)
            operation.takes, operation.leaves = gathered + memory.early, memory.later
            operation.lingers, operation.by_unit = memory.lingers, memory.by_unit
            in_turn = self.attachment.weights_in_turn(run, is_forward=True)
            held = self._joined(in_turn, self.pipeline.returned)
            operation.holds = self._joined(memory.holds, held)
            operation.gives = self.attachment.after_use(rank, end, run, is_forward=True)
            if not is_first:
                operation.gives += self.costs.router_graphs(run)
            if self.pipeline.copies is not None:
                self.pipeline.copies.send(rank, end, run)
        return end

    def _add_untrained(self, task: Task, untrained: UntrainedPass) -> None:
        lanes = ((task.rank, Stream.COMPUTE),)
        microbatch, chunk = task.slot.microbatch, self.routes.of(task.slot).chunk
        operation = Operation(
            Kind.FORWARD, lanes, untrained.work, Category.FORWARD,
            microbatch=microbatch, chunk=chunk, scope=Scope.PASS,
        )  # fmt: skip
        operation.takes, operation.holds = untrained.keeps, untrained.holds
        self.program.add(operation)

    def _by_layer(self, runs: list[Slice]) -> list[Slice]:
        return [piece for run in runs for piece in cut(run, 1)] if self.pipeline.copies else runs

    def _add_backward(self, task: Task) -> int:
        """A backward or one half of it, piece by piece; returns the last one."""
        rank, phase, copies, end = task.rank, task.slot.phase, self.pipeline.copies, -1
        runs = self._backward_runs(task)
        waiting = self.costs.waiting_gradient if phase is Phase.BACKWARD else ()
        after_loss = next((run for run in runs if not run.has_loss), None)
        kept: Memory = ()
        # Weight gradients need no weights, so nothing is gathered for them.
        uses_weights = phase is not Phase.BACKWARD_WEIGHT
        gathers = (
            self._with_gathers(rank, runs, is_first=False, is_forward=False)
            if uses_weights
            else ((run, (), ()) for run in runs)
        )
        for run, after, gathered in gathers:
            fetched = copies.fetch(rank, run) if copies else ()
            end = self._add_pass(task, run, (*after, *fetched), receives=run is runs[0])
            if copies is not None:
                copies.ran_backward(rank, end)
            operation = self.program.operations[end]
            operation.takes = gathered
            if uses_weights:
                operation.gives = self.attachment.after_use(rank, end, run, is_forward=False)
            made: Memory = ()
            if phase in ENDS_BACKWARD:
                made = self.attachment.after_backward(
                    rank, end, run, is_last=task.is_last, reduces=task.reduces
                )
            self._book_backward(operation, task, run, made)
            if run is runs[0] and self.pipeline.untrained is not None:
                operation.gives += self.pipeline.untrained.keeps
            stays, operation.gives = without_common(self.costs.router_graphs(run), operation.gives)
            operation.takes += stays
            _, operation.holds = without_common(stays, operation.holds)
            if run is after_loss:
                operation.takes += waiting
            if run.has_embedding and after_loss is not None:
                operation.gives += waiting
            if phase is Phase.BACKWARD and run is not runs[-1]:
                kept += self.costs.kept_inputs(run)
                operation.leaves += self.costs.kept_inputs(run)
        self.program.operations[end].gives += kept
        return end

    def _book_backward(self, operation: Operation, task: Task, run: Slice, made: Memory) -> None:
        """What a piece of backward holds, frees and leaves; ``made`` are its weights' gradients."""
        phase, costs, attachment = task.slot.phase, self.costs, self.attachment
        if phase is not Phase.BACKWARD:
            halves = costs.halves(run)
            is_first = phase is Phase.BACKWARD_INPUT
            operation.takes += halves.takes if is_first else made
            operation.gives += halves.gives if is_first else halves.pending
            operation.holds = costs.half_working(run, phase)
            in_attention = False
        else:
            in_order = attachment.makes_in_order(run)
            makes_gradients = attachment.makes_gradients(is_first=task.is_first)
            new_bytes = total_bytes(made) if in_order else 0.0
            if not makes_gradients:
                new_bytes += costs.added_at_once(run)
            memory = costs.backward(run, new_bytes, makes_gradients=makes_gradients)
            operation.holds = memory.holds if in_order else self._joined(memory.holds, made)
            operation.frees = memory.freed
            stays, given = without_common(made, operation.gives)
            operation.leaves += stays
            operation.gives = given + memory.rest
            in_attention = memory.in_attention
        if phase is not Phase.BACKWARD_WEIGHT:
            in_turn = attachment.weights_in_turn(run, is_forward=False, in_attention=in_attention)
            operation.holds = self._joined(operation.holds, in_turn)

    def _backward_runs(self, task: Task) -> list[Slice]:
        run = self._run(task.slot)
        if task.slot.phase not in ENDS_BACKWARD:
            return [run]
        is_first, reduces = task.is_first, task.reduces
        runs = self.attachment.backward_runs(run, is_first=is_first, reduces=reduces)
        return self._by_layer(runs)[::-1] if runs == [run] else runs

    def _with_gathers(
        self, rank: int, runs: Sequence[Slice], *, is_first: bool, is_forward: bool
    ) -> Iterator[tuple[Slice, tuple[int, ...], Memory]]:
        """Each run with what it waits for, and the weights that are asked for before it.

        The next run's gather is issued one run ahead. Its memory is taken when the host
        issues it, which is with the run before; a run without weights, such as the loss,
        issues none.
        """
        before = partial(self.attachment.before, rank, is_first=is_first, is_forward=is_forward)
        gather = before(runs[0])
        due = gather.takes
        for run, following in zip_longest(runs, runs[1:]):
            current, gather = gather, Gather()
            if following is not None:
                gather = before(following)
            issues = self.attachment.reads_weights(run)
            after = (*current.operations, *self.attachment.launched_after(rank))
            yield run, after, due + gather.takes if issues else due
            due = () if issues else gather.takes

    def _add_pass(self, task: Task, run: Slice, after: tuple[int, ...], *, receives: bool) -> int:
        """One piece of a slot; the first one ``receives`` what another slot made."""
        slot, (kind, category) = task.slot, _KINDS[task.slot.phase]
        waits_for_host = receives and slot.phase is Phase.FORWARD
        host_s = self.pipeline.forward_host_s if waits_for_host else 0.0
        operation = Operation(
            kind,
            ((task.rank, Stream.COMPUTE),),
            self.costs.work(run, slot.phase, task.exposed, host_s),
            category,
            after,
            slot.microbatch,
            self.routes.of(slot).chunk,
            self.pipeline.stand_ins.shown(task.rank, run),
            scope=Scope.PASS,
        )
        end = self.program.add(operation)
        if receives:
            self.waiting.append((end, _key(slot)))
        return end

    def _send(self, rank: int, slot: Slot, end: int, *, blocks: bool) -> int:
        """Pass the result on to the slot that needs it, over the network if need be.

        Returns:
            The operation after which it is there; -1 where no slot needs it.
        """
        _, chunk, stage, target, lanes, phase, _ = self.routes.of(slot)
        if stage is None:
            return -1
        arrival = end
        if target != rank:
            if blocks:
                lanes = (rank, Stream.COMPUTE), lanes[1]
            work, after = self.transfer_work(rank, target), (end,)
            arrival = self.program.add(
                Operation(_SEND_RECV, lanes, work, _PIPELINE, after, slot.microbatch, chunk)
            )
        self.arrivals[phase, stage, slot.microbatch] = arrival
        return arrival

    def _run(self, slot: Slot) -> Slice:
        return self.routes.of(slot).run


def _key(slot: Slot) -> _Key:
    """Whose input it needs: both kinds of backward take the same."""
    phase, stage, microbatch, _ = slot
    return _BACKWARD if phase is _BACKWARD_INPUT else phase, stage, microbatch
