"""What does data parallelism add to a pipeline: gradient reduction, sharding, gathers?

- ZeRO 0 and 1 reduce gradients once all microbatches are done, ZeRO 2 and 3 after every
  microbatch, because nobody keeps whole gradients. Of several virtual stages on a rank ZeRO 2
  keeps those of the one whose turn it is, and reduces them when the rank turns to another.
  ZeRO 3 gathers each run of weights before every use, too.
- With overlap the work runs on its own stream, unit by unit
  (:mod:`simulator.program.states.gather_units`): reduction follows the last backward, gathers
  precede the first forward. Without, it blocks the compute stream.

When this happens is decided here; what ranks exchange then is the matter of
:class:`~simulator.program.run.data_parallel_exchanges.Exchanges`.

Source: ZeRO (arXiv 1910.02054, sections 5 and 7); Megatron-LM's distributed optimizer;
PyTorch FSDP (arXiv 2304.11277, section 3.3) for prefetch and its limit; Breadth-First Pipeline
Parallelism (arXiv 2211.05953) for one reduction of all microbatches of a virtual stage.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice, cut, ends_apart
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
from simulator.program.run.data_parallel_exchanges import Exchanges
from simulator.program.run.host_copies import Shard, StateOffload
from simulator.program.run.pipeline_parts import Gather
from simulator.program.run.repeated_pass import RankState
from simulator.program.states.data_parallel_collectives import BucketCopies, partial_gradients_work
from simulator.program.states.gather_units import Piece, Unit, Units
from simulator.program.states.gathered_memory import (
    MadeGradients,
    OfUnits,
    UnitMemory,
    WholeGradients,
)
from simulator.program.states.resident import ParameterCount, added_up, shard_numel, state_bytes


class _Due(NamedTuple):
    """Gradients that a piece of a rank's backward completes.

    Attributes:
        rank: Whose.
        run: The piece.
        units: Whose gradients are complete.
    """

    rank: int
    run: Slice
    units: Sequence[Unit]


class DataParallel:
    """Emits the data-parallel operations of one job into a program.

    Args:
        job: The job.
        program: Appended to.
        units: What is reduced and gathered together.
        exchanges: How.
    """

    def __init__(self, job: Job, program: Program, units: Units, exchanges: Exchanges) -> None:
        choices = job.choices
        self._job, self._program, self._units, self._exchanges = job, program, units, exchanges
        self._choices = choices
        self._offload = StateOffload(job, program)
        self._memory = UnitMemory(job)
        self._gathers = {
            is_forward: OfUnits(partial(exchanges.gather, is_forward=is_forward))
            for is_forward in (True, False)
        }
        self._reduction = OfUnits(exchanges.reduction)
        self._partial_gradients = OfUnits(partial(partial_gradients_work, job))
        self._bucket_copies = BucketCopies(job)
        self._made = MadeGradients(job, units)
        self._whole = WholeGradients(self._memory)
        streams = self._offload.streams_gradients or self._offload.fetches_parameters
        self._is_active = exchanges.is_needed or streams
        self._overlaps_reduce = choices.overlaps_reduction
        self._overlaps_gather = choices.overlaps_gather
        self._gathers_once = exchanges.gathers_ahead and self._overlaps_gather
        """Whether updated weights are gathered while the next step's first forward runs."""
        self._pieces: dict[Slice, Piece] = {}
        """Every piece that is run as one operation, by its layers."""
        self._cuts: dict[Slice, tuple[Piece, ...]] = {}
        self.ranks: defaultdict[int, RankState] = defaultdict(RankState)
        self._backward: tuple[Piece, ...] = ()
        """Pieces of the backward at hand, as its gradients are reduced."""
        self._ends_backward: Slice | None = None
        """Last piece of the backward at hand, if its gradients are reduced."""

    def forward_runs(self, run: Slice, *, is_first: bool) -> list[Slice]:
        """The pieces in which a forward is run, so that gathers can precede them."""
        every_pass = self._choices.shards_weights and not self._choices.reduces_stages_once
        gathers_first = self._gathers_once or self._choices.shards_weights
        gathers = every_pass or self.gathers_every_pass or (gathers_first and is_first)
        return [piece.run for piece in self._cut(run)] if self._is_active and gathers else [run]

    def backward_runs(self, run: Slice, *, is_first: bool, reduces: bool) -> list[Slice]:
        """The pieces in which a backward is run, in order of execution (last layer first)."""
        self._backward = self._cut(run) if self._is_active else ()
        self._ends_backward = None
        sums = self._choices.shards_gradients and self._choices.accumulates_gradients
        adds_up = self._is_active and sums
        if reduces or self.gathers_every_pass or (adds_up and is_first):
            runs = [piece.run for piece in reversed(self._cut(run))]
            self._ends_backward = runs[-1] if reduces else None
            return runs
        # Gradients that are made here come layer by layer, as activations go.
        makes = is_first and self._choices.frees_gradients
        return ends_apart(cut(run, 1))[::-1] if makes else [run]

    def makes_gradients(self, *, is_first: bool) -> bool:
        """Whether a backward makes its gradients anew."""
        makes_first = is_first and self._choices.frees_gradients
        return self._choices.shards_gradients or makes_first

    def makes_in_order(self, run: Slice) -> bool:
        """Whether all gradients of a piece stay as they come, so that most come late."""
        return not any(unit.separate for unit in self._piece(run).makes)

    def before(self, rank: int, run: Slice, *, is_first: bool, is_forward: bool) -> Gather:
        """Gathers the weights that a run needs."""
        state = self.ranks[rank]
        awaited, state.awaited = state.awaited, ()
        if awaited:
            return Gather(awaited)
        per_use = self._choices.shards_weights
        if not self._is_active or not (per_use or (self._gathers_once and is_first)):
            return Gather()
        needed = [unit for unit in self._piece(run).needs if unit not in state.held]
        if not needed:
            return Gather()
        if per_use:
            state.held.update(needed)
        after = self._prefetch_limit(rank) if per_use else self._last_update(rank)
        after = (*after, *self._offload.launched_after(rank))
        gathered = self._memory.weights(needed)
        takes = gathered if per_use else ()
        if per_use and is_forward:
            takes += self._memory.kept_weights(needed)
        shard: Memory = ()
        if self._offload.fetches_parameters:
            shard = self._memory.shard(needed) if self._exchanges.is_needed else ()
            after = (self._offload.fetch(Shard(rank, run, _parameters(needed)), after, shard),)
            if not self._exchanges.is_needed:
                return Gather(after, takes)
        gather = Operation(
            self._exchanges.gather_kind,
            ((rank, Stream.DATA_PARALLEL if self._overlaps_gather else Stream.COMPUTE),),
            self._gathers[is_forward](needed),
            Category.DATA_PARALLEL,
            after=after,
            layers=self._units.stand_ins.shown(rank, run),
            scope=Scope.SHARDS,
            gives=shard,
            lingers=self._copied_from(rank, gathered, is_forward=is_forward),
        )
        return Gather((self._program.add(gather),), takes)

    def _copied_from(self, rank: int, gathered: Memory, *, is_forward: bool) -> Memory:
        """The buffer that the weights before these were gathered into: forward still copies it.

        The one that these are gathered into counts as the weights themselves, which are as large.
        Source: PyTorch FSDP2, ``AllGatherState``.
        """
        state = self.ranks[rank]
        before = state.buffered
        is_kept = is_forward and self._choices.gathers_into_buffers
        state.buffered = gathered if is_kept else ()
        return before if is_forward else ()

    def weights_in_turn(
        self, run: Slice, *, is_forward: bool, in_attention: bool = False
    ) -> Memory:
        """What is gathered at once while a piece runs whose parameters come one by one.

        With ``in_attention``, only the moments count in which backward of attention runs.
        """
        if not (self._is_active and self._choices.shards_weights):
            return ()
        return self._memory.weights_in_turn(
            self._piece(run), is_forward=is_forward, in_attention=in_attention
        )

    def launched_after(self, rank: int) -> tuple[int, ...]:
        """What the host waits for before it launches a rank's next piece."""
        return self._offload.launched_after(rank)

    def reads_weights(self, run: Slice) -> bool:
        """Whether a piece has weights of its own, so that the next gather is issued with it."""
        return bool(self._piece(run).needs)

    def after_use(self, rank: int, operation: int, run: Slice, *, is_forward: bool) -> Memory:
        """Books a run that used its weights; returns the gathered ones to give back."""
        state = self.ranks[rank]
        state.computed = operation
        if not (self._is_active and self._choices.shards_weights):
            return ()
        piece = self._piece(run)
        done = [u for u in piece.needs if not u.stays] if is_forward else piece.closes
        if not is_forward and self._choices.reduces_stages_once:
            done = ()
        given = [unit for unit in done if unit in state.held]
        state.held.difference_update(given)
        return self._memory.given_back(given, is_forward=is_forward)

    def after_backward(
        self, rank: int, operation: int, run: Slice, *, is_last: bool, reduces: bool
    ) -> Memory:
        """Reduces gradients that a run completes, where due; returns those that it makes."""
        shards_later = self._is_active and self._choices.shards_gradients
        of_rank = self.ranks[rank].gradients
        taken = () if shards_later else self._made.by_backward(of_rank, run)
        if reduces:
            read, self.ranks[rank].in_flight = self.ranks[rank].in_flight, ()
            self._program.operations[operation].gives += read
            piece = self._piece(run)
            if piece.closes:
                self._reduce_after(operation, _Due(rank, run, piece.closes), is_last=is_last)
                if sums := self._whole.sums(of_rank, piece.closes):
                    self._program.operations[self.ranks[rank].reductions[-1]].gives += sums
            taken += self._whole.complete(of_rank, piece)
        elif self._choices.keeps_gradients_of_a_turn:
            taken += self._whole.keep(of_rank, self._backward)
        elif shards_later:
            taken += self._whole.add_up(of_rank, self._piece(run))
        if run == self._ends_backward:
            self._offload.end_backward(rank)
            of_rank.in_turn = False
        return taken

    def _reduce_after(self, operation: int, due: _Due, *, is_last: bool) -> None:
        """Reduces what a piece of backward completes while the next one runs, or before it."""
        if self._choices.shards_gradients:
            self._limit_reductions(due.rank, operation)
        numel = math.fsum(unit.parameters.trained for unit in due.units)
        self._bucket_copies.add(self._program, operation, numel)
        if self._offload.streams_gradients:
            self._send_gradients(operation, due, is_last=is_last)
        else:
            self._emit_reduction(due, (operation,), overlapped=self._overlaps_reduce)
        if self._choices.shards_gradients:
            of_rank = self.ranks[due.rank].gradients
            shards = (self._made.by_backward(of_rank, unit.run) for unit in due.units)
            reduction = self._program.operations[self.ranks[due.rank].reductions[-1]]
            reduction.takes += tuple(block for shard in shards for block in shard)
        is_whole = not self._choices.shards_gradients
        if is_whole and not is_last and due.run == self._ends_backward:
            self.ranks[due.rank].awaited = self.ranks[due.rank].taken_reductions()

    def reduces_after(self, *, is_last: bool, ends_turn: bool) -> bool:
        """Whether a backward's gradients are reduced while it runs.

        Those that are streamed to the host are, after every backward.

        Args:
            is_last: Whether no other of its virtual stage follows before the update.
            ends_turn: Whether the rank's next backward is of another virtual stage; where there
                is only one, every backward ends its turn.
        """
        if not self._is_active:
            return False
        if self._choices.reduces_every_backward or self._offload.streams_gradients:
            return True
        if self._choices.reduces_stages_once:
            return False
        if self._choices.keeps_gradients_of_a_turn:
            return ends_turn
        return is_last and (self._overlaps_reduce or self._choices.shards_gradients)

    def _send_gradients(self, operation: int, due: _Due, *, is_last: bool) -> None:
        """Reduces gradients and copies them to the host; backward waits for both."""
        shard, after = Shard(due.rank, due.run, _parameters(due.units)), operation
        gives = self._memory.gradients(due.units)
        if self._exchanges.is_needed:
            numel = shard_numel(self._job, shard.parameters)
            gives = ((Owner.GRADIENTS, numel * state_bytes(self._job).gradients),)
            self._emit_reduction(due, (operation,), overlapped=self._overlaps_reduce)
            after = self.ranks[due.rank].reductions.pop()
            self._program.operations[after].takes = gives
        copy = self._offload.send_gradients(shard, (after,), gives, is_last=is_last)
        self.ranks[due.rank].reductions.append(copy)

    def update_on_host(
        self, rank: int, parameters: ParameterCount, after: Sequence[int]
    ) -> tuple[int, ...]:
        """What CPUs update of a rank's states; what the end of the step waits for."""
        return self._offload.update(rank, parameters, after)

    def freed_gradients(self, rank: int) -> Memory:
        """Gradients that backward made since the last update, and that are freed after this one."""
        return self._made.freed(self.ranks[rank].gradients)

    def finish_gradients(self, rank: int, runs: Sequence[Slice]) -> tuple[int, ...]:
        """Whatever reduction is left once backward is done; returns what to wait for."""
        units = [self._units.whole(run) for run in runs]
        if self._is_active and self._choices.reduces_stages_once:
            for run in runs:
                self._reduce_stage(rank, run)
        elif self._is_active and not self.reduces_after(is_last=True, ends_turn=True):
            for unit in units:
                numel = unit.parameters.trained
                self._bucket_copies.add(self._program, self.ranks[rank].computed, numel)
                self._emit_reduction(_Due(rank, unit.run, (unit,)), (), overlapped=False)
        self._add_partial_gradients(rank, units)
        return self.ranks[rank].taken_reductions()

    def _reduce_stage(self, rank: int, run: Slice) -> None:
        """Reduces what a stage added up over a step, from its root on, and frees its weights.

        Source: PyTorch 2.13, ``perform_reduce_grad`` of ``distributed/pipelining/stage.py``.
        """
        units = dict.fromkeys(unit for piece in self._cut(run) for unit in piece.closes)
        for unit in sorted(units, key=lambda unit: not unit.parts):
            due, after = _Due(rank, unit.run, (unit,)), (self.ranks[rank].computed,)
            added_up = self._whole.added_up(self.ranks[rank].gradients, unit)
            self._emit_reduction(due, after, overlapped=True, gradients=added_up)
            reduction = self._program.operations[self.ranks[rank].reductions[-1]]
            reduction.takes += self._made.by_backward(self.ranks[rank].gradients, unit.run)
            if unit in self.ranks[rank].held:
                self.ranks[rank].held.remove(unit)
                reduction.gives += self._memory.weights([unit])

    @property
    def repeats_passes(self) -> bool:
        """Whether passes of equal standing differ in nothing but what they wait for."""
        return not (self._offload.streams_gradients or self._offload.fetches_parameters)

    @property
    def gathers_every_pass(self) -> bool:
        """Whether each forward gathers weights, although gradients are reduced once."""
        is_kept = self._job.plan.reshard_after_forward is False
        is_once = self._choices.reduces_stages_once and is_kept
        sums = self._choices.shards_weights and self._choices.accumulates_gradients
        return self._is_active and sums and not is_once

    def updated(self, rank: int, operation: int) -> None:
        """Books an update; weights that are gathered after it wait for it."""
        self.ranks[rank].updated = self.ranks[rank].computed = operation

    def _add_partial_gradients(self, rank: int, units: Sequence[Unit]) -> None:
        """Adds up gradients of norms over the ranks that cut the sequence, where still due."""
        if self._is_active and not self._choices.sums_partial_gradients_once:
            return
        work = self._partial_gradients(units)
        if work is None:
            return
        after = tuple(self.ranks[rank].reductions)
        operation = Operation(
            Kind.ALL_REDUCE, ((rank, Stream.COMPUTE),), work, Category.TENSOR_PARALLEL, after,
            scope=Scope.PASS,
        )  # fmt: skip
        self.ranks[rank].reductions.append(self._program.add(operation))

    def finish_weights(self, rank: int, runs: Sequence[Slice]) -> None:
        """Gathers updated weights after the optimizer, where nothing hides that."""
        if not self._is_active:
            return
        if small := self._exchanges.gather_small(runs):
            self._hand_out(rank, self._exchanges.gather_kind, small)
        if self._exchanges.hands_out and not self._gathers_once:
            for run in runs:
                self._hand_out(rank, *self._exchanges.hand_out(run))

    def _hand_out(self, rank: int, kind: Kind, work: Work) -> None:
        lanes = ((rank, Stream.COMPUTE),)
        operation = Operation(kind, lanes, work, Category.DATA_PARALLEL, scope=Scope.SHARDS)
        self._program.add(operation)

    def _cut(self, run: Slice) -> tuple[Piece, ...]:
        if run not in self._cuts:
            cuts = self._cuts[run] = self._units.pieces(run)
            self._pieces.update((piece.run, piece) for piece in cuts)
        return self._cuts[run]

    def _piece(self, run: Slice) -> Piece:
        if run not in self._pieces:
            cuts = self._units.pieces(run)
            needs = dict.fromkeys(unit for piece in cuts for unit in piece.needs)
            closes = tuple(unit for piece in reversed(cuts) for unit in piece.closes)
            ahead_numel = max((piece.ahead_numel for piece in cuts), default=0.0)
            self._pieces[run] = Piece(run, tuple(needs), closes, ahead_numel)
        return self._pieces[run]

    def _emit_reduction(
        self,
        due: _Due,
        after: tuple[int, ...],
        *,
        overlapped: bool,
        gradients: Memory | None = None,
    ) -> None:
        """Adds the reduction of gradients, which are given back; by default those of a pass."""
        buffer = self._memory.reduced(due.units)
        gradients = self._memory.gradients(due.units) if gradients is None else gradients
        turns: tuple[Memory, ...] = ()
        overlaps_backward = not self._choices.reduces_stages_once
        if self._memory.copies_gradients and after and overlaps_backward:
            computed = self._program.operations[after[-1]]
            computed.gives += gradients
            turns, gradients = (gradients,), ()
            if due.run != self._ends_backward:
                # The next piece waits for the reduction before it gives this back.
                computed.leaves += buffer
                self.ranks[due.rank].in_flight, buffer = buffer, ()
            else:
                turns = (turns[0] + buffer,)
        operation = Operation(
            self._exchanges.reduction_kind,
            ((due.rank, Stream.DATA_PARALLEL if overlapped else Stream.COMPUTE),),
            self._reduction(due.units),
            Category.DATA_PARALLEL,
            after=after,
            layers=self._units.stand_ins.shown(due.rank, due.run),
            gives=gradients,
            holds=buffer,
            turns=turns,
            scope=Scope.COPIES,
        )
        self.ranks[due.rank].reductions.append(self._program.add(operation))

    def _limit_reductions(self, rank: int, operation: int) -> None:
        """One reduction may be under way while a run computes; it waits for the one before.

        Otherwise unsharded gradients would pile up behind a slow network (FSDP2 keeps one
        input buffer of a reduce_scatter in flight).
        """
        under_way = self.ranks[rank].reductions
        if len(under_way) > 1:
            computed = self._program.operations[operation]
            computed.after = (*computed.after, under_way[-2])

    def _prefetch_limit(self, rank: int) -> tuple[int, ...]:
        """What a gather waits for, so that two gathered runs exist at a time.

        Gathers are issued one run ahead; each waits for the run before the next one.
        """
        computed = self.ranks[rank].computed
        return (computed,) if computed >= 0 else ()

    def _last_update(self, rank: int) -> tuple[int, ...]:
        """What gathered weights must have seen, where a step follows another."""
        updated = self.ranks[rank].updated
        return (updated,) if updated >= 0 else ()


def _parameters(units: Sequence[Unit]) -> ParameterCount:
    return added_up(unit.parameters for unit in units)
