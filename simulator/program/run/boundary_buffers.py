"""Which buffers do the transfers between pipeline stages take?

Where sends overlap, the receive of the next pass is posted while a pass runs, and what the
pass before it sent is freed once it is sent (Megatron's ``deallocate_pipeline_outputs``).
Where sends block, a received activation is the pass's input from the start and none is under
way beside a pass. PyTorch's pipelines instead make a receive buffer for each microbatch of a
step and keep what a forward sent until its backward. The received activation of a microbatch
in flight is the input that backward needs anyway, so it is booked there.

Source: Megatron-Core, ``pipeline_parallel/schedules.py``; PyTorch 2.13,
``distributed/pipelining/stage.py`` (``PipelineStage``: one ``_RecvInfo`` with a buffer per
microbatch; ``fwd_cache`` holds the outputs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate

from simulator.program.ir import Memory, Owner
from simulator.schedule.slots import Phase, Placement, Slot
from simulator.schedule.unit_time import dependencies, peak_in_flight


@dataclass(frozen=True)
class PassBuffers:
    """Boundary buffers around one pass.

    Attributes:
        holds: While it runs.
        takes: From its start on.
        gives: From its end on.
    """

    holds: Memory = ()
    takes: Memory = ()
    gives: Memory = ()


@dataclass(frozen=True)
class BoundaryBuffers:
    """The buffers of one pipeline.

    Attributes:
        boundary_bytes: One boundary activation, or its gradient, on one rank [B].
        stages, chunks, placement: Of the pipeline.
        per_microbatch: Whether every microbatch of a step has receive buffers of its own and
            outputs stay until backward.
        blocking: Whether no transfer is under way while a pass runs.
    """

    boundary_bytes: float = 0.0
    stages: int = 1
    chunks: int = 1
    placement: Placement = Placement.LOOP
    per_microbatch: bool = False
    blocking: bool = False
    _block: Memory = field(init=False, default=())

    def __post_init__(self) -> None:
        """Make the one block that all buffers consist of."""
        block = ((Owner.COMMUNICATION, self.boundary_bytes),) if self.boundary_bytes else ()
        object.__setattr__(self, "_block", block)

    def resident(self, slots: Sequence[Slot], microbatches: int) -> Memory:
        """What a rank keeps from step to step.

        Args:
            slots: All that it runs in a step.
            microbatches: Per step.
        """
        if not self.per_microbatch:
            return ()
        inputs = [slot for slot in slots if self._receives(self._forward(slot))]
        gradients = {slot.stage for slot in slots if self._sends(self._forward(slot))}
        own = len({slot.stage for slot in inputs}) * microbatches - peak_in_flight(inputs)
        blocks = (own + len(gradients) * microbatches) // self.placement.copies
        return ((Owner.COMMUNICATION, blocks * self.boundary_bytes),) if blocks else ()

    def of_passes(self, slots: Sequence[Slot]) -> Mapping[Slot, PassBuffers]:
        """The buffers around each pass of a rank; passes that have none are left out."""
        if not self._block:
            return {}
        if self.per_microbatch:
            return dict(self._outputs(slots))
        return {} if self.blocking else dict(self._under_way(slots))

    def _outputs(self, slots: Sequence[Slot]) -> Sequence[tuple[Slot, PassBuffers]]:
        """What a forward sends is kept until its backward, or its input gradient."""
        sent = [slot for slot in slots if self._sends(self._forward(slot))]
        return [
            (slot, PassBuffers(takes=self._block))
            if slot.phase is Phase.FORWARD
            else (slot, PassBuffers(gives=self._block))
            for slot in sent
            if slot.phase is not Phase.BACKWARD_WEIGHT
        ]

    def _under_way(self, slots: Sequence[Slot]) -> Sequence[tuple[Slot, PassBuffers]]:
        """Receives of the group after a pass, and sends of the group before it."""
        passes = [slot[:2] for slot in slots]
        like = dict(zip(passes, slots, strict=True))
        sends = {each: self._sends(slot) for each, slot in like.items()}
        receives = {each: self._receives(slot) for each, slot in like.items()}
        buffers = cache(lambda count: PassBuffers(holds=self._block * count))
        sent, received = (
            [0, *accumulate(map(each.__getitem__, passes))] for each in (sends, receives)
        )
        # Slots that run together end here; before and after them one more group each.
        ends = [n for n, slot in enumerate(slots, 1) if not slot.overlaps_next]
        edges = [0, 0, *ends, len(slots)]
        counts = [
            sent[start] - sent[before] + received[after] - received[end]
            for before, start, end, after in zip(edges, edges[1:], ends, edges[3:], strict=False)
        ]
        return [
            (slots[end - 1], buffers(count))
            for end, count in zip(ends, counts, strict=True)
            if count
        ]

    def _forward(self, slot: Slot) -> Slot:
        return slot._replace(phase=Phase.FORWARD)

    def _receives(self, slot: Slot) -> bool:
        needed = dependencies(slot, self.stages, self.chunks, self.placement)
        return any(self._is_elsewhere(product.stage, slot) for product in needed)

    def _sends(self, slot: Slot) -> bool:
        fed = self.placement.feeds(slot, self.stages, self.chunks)
        return fed is not None and self._is_elsewhere(fed, slot)

    def _is_elsewhere(self, stage: int, slot: Slot) -> bool:
        return self.placement.rank(stage, self.stages) != self.placement.rank(
            slot.stage, self.stages
        )
