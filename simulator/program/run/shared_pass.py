"""Which passes do ranks share that hold equal layers?

What a pass adds to a program follows from its layers, from what is under way on its rank and from
whether it begins or ends anything. Where all that is as it was on a rank with equal layers, the
same is added again on other lanes; a transfer goes to another rank, at a cost of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from simulator.program.grid.stand_ins import StandIns
from simulator.program.ir import Kind, Operation, Program, Stream, Work
from simulator.program.run.boundary_buffers import PassBuffers
from simulator.program.run.pipeline_parts import Route, Routes, SlotEdges
from simulator.program.run.repeated_pass import RankState, RepeatedPass
from simulator.program.states.gathered_memory import RankGradients
from simulator.schedule.slots import Slot


class _Kept(NamedTuple):
    """A pass, the gradients that are there after it, and its rank."""

    added: RepeatedPass
    gradients: RankGradients
    rank: int


@dataclass
class SharedPasses:
    """Passes of ranks that hold equal layers.

    Attributes:
        program: What they are added to.
        stand_ins: Which ranks hold the same.
        routes: Where passes belong.
        transfer_work: Cost of a transfer from a rank to another one.
        blocking: Whether a send holds the sender's compute stream.
    """

    program: Program
    stand_ins: StandIns
    routes: Routes
    transfer_work: Callable[[int, int], Work]
    blocking: bool
    _kept: dict[Hashable, _Kept] = field(default_factory=dict)

    def key(
        self, rank: int, slot: Slot, edges: SlotEdges, buffers: PassBuffers | None, state: RankState
    ) -> Hashable:
        """All that decides what a pass adds; None where its rank holds the same as no other."""
        leader = self.stand_ins.leader(rank)
        if leader is None:
            return None
        run, chunk, fed, target, _, feeds, turns = self.routes.of(slot)
        begins = slot in edges.first_forwards, slot in edges.first_backwards
        ends = slot in edges.last_backwards
        turn = slot in edges.turn_starts, slot in edges.turn_ends
        sends = fed is None, target - rank, feeds, turns
        stands = state.standing(), state.updated < 0, state.gradients.standing()
        return leader, slot.phase, run, chunk, begins, ends, turn, sends, buffers, stands

    def get(self, key: Hashable, rank: int, slot: Slot, state: RankState) -> RepeatedPass | None:
        """The pass of another rank as this one adds it, and the gradients as it leaves them."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        route = self.routes.of(slot)
        shift = self.stand_ins.shown(rank, route.run)[0]
        shift -= self.stand_ins.shown(kept.rank, route.run)[0]
        state.gradients = kept.gradients.copy()
        return kept.added.elsewhere(self.program, partial(self._moved, rank, route, shift))

    def keep(self, key: Hashable, added: RepeatedPass, rank: int, state: RankState) -> None:
        """Others may add what this rank has added."""
        self._kept[key] = _Kept(added, state.gradients.copy(), rank)

    def _moved(self, rank: int, route: Route, shift: int, operation: Operation) -> Operation:
        lanes, work = tuple([(rank, stream) for _, stream in operation.lanes]), operation.work
        if operation.kind is Kind.SEND_RECV:
            sends = (rank, Stream.COMPUTE) if self.blocking else route.lanes[0]
            lanes, work = (sends, route.lanes[1]), self.transfer_work(rank, route.target)
        moved = operation.elsewhere(lanes, work, ())
        first, end = operation.layers
        if first >= 0:
            moved.layers = first + shift, end + shift
        return moved
