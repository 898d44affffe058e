"""Where do the passes of a virtual stage belong, and which way do their results go?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Lane, Stream
from simulator.schedule.slots import Phase, Placement, Slot


class Route(NamedTuple):
    """Where the passes of one phase of a virtual stage belong.

    Attributes:
        run: Their layers.
        chunk: Which part of their rank it is.
        fed: Virtual stage that needs what they compute; None if no other does.
        target: Rank of that stage; -1 if there is none.
        lanes: Those that a transfer to it occupies.
    """

    run: Slice
    chunk: int
    fed: int | None
    target: int
    lanes: tuple[Lane, Lane]


@dataclass
class Routes:
    """Routes of all passes, each found once.

    Attributes:
        placement: Which rank holds which virtual stage.
        stages: Ranks of the pipeline.
        chunks: Virtual stages per rank.
        runs: Layers of each virtual stage.
    """

    placement: Placement
    stages: int
    chunks: int
    runs: Sequence[Slice]
    found: dict[tuple[Phase, int], Route] = field(default_factory=dict)

    def of(self, slot: Slot) -> Route:
        """The route of a slot."""
        key = slot.phase, slot.stage
        route = self.found.get(key)
        if route is None:
            route = self.found[key] = self._find(slot)
        return route

    def _find(self, slot: Slot) -> Route:
        placement, stages, chunks = self.placement, self.stages, self.chunks
        fed = placement.feeds(slot, stages, chunks)
        target = -1 if fed is None else placement.rank(fed, stages)
        source, is_forward = placement.rank(slot.stage, stages), slot.phase is Phase.FORWARD
        return Route(
            run=self.runs[placement.model_stage(slot.stage, stages, chunks)],
            chunk=placement.chunk(slot.stage, stages),
            fed=fed,
            target=target,
            lanes=self._lanes(source, target, is_forward=is_forward),
        )

    def _lanes(self, source: int, target: int, *, is_forward: bool) -> tuple[Lane, Lane]:
        """Send and receive lanes; each receive lane has one sender, so order is kept."""
        loops = self.placement is Placement.LOOP
        to_next = is_forward if loops else target > source
        send = Stream.SEND_NEXT if to_next else Stream.SEND_PREVIOUS
        receive = Stream.RECV_PREVIOUS if to_next else Stream.RECV_NEXT
        return (source, send), (target, receive)
