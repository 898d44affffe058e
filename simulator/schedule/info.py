"""What must a user and a cost model know about a schedule besides its order?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulator.errors import Fault, InputError, UnsupportedError
from simulator.schedule.slots import Order, Phase, Placement, Slot
from simulator.schedule.unit_time import EQUAL_COSTS


@dataclass(frozen=True)
class PassCosts:
    """Time and memory of the passes of one microbatch, in any units.

    Most orders are fixed by their sizes. Those that are searched or found at run time depend on
    how long passes and sends take and on what they hold.

    Attributes:
        seconds: Duration by phase and virtual stage.
        transfer_s: Time that a result takes from one rank to another, as (sender, receiver).
        saved_bytes: Activations that a forward leaves, per virtual stage.
        pending_bytes: What of them, or made from them, an input gradient leaves for the weight
            gradient, per virtual stage.
    """

    seconds: Mapping[tuple[Phase, int], float]
    transfer_s: Callable[[int, int], float]
    saved_bytes: Sequence[float]
    pending_bytes: Sequence[float]

    def slot_s(self, slot: Slot) -> float:
        """Duration of a slot."""
        return self.seconds[slot.phase, slot.stage]


def even_pass_costs(stages: int, costs: Mapping[Phase, float] = EQUAL_COSTS) -> PassCosts:
    """All stages equal, free transfers, and nothing freed half-way."""
    seconds = {(phase, stage): s for phase, s in costs.items() for stage in range(stages)}
    return PassCosts(seconds, lambda *_: 0.0, [1.0] * stages, [1.0] * stages)


OrderFunction = Callable[[int, int, int], Order]
"""(stages, chunks, microbatches) -> order."""

CostedOrderFunction = Callable[[int, int, int, PassCosts], Order]
"""(stages, chunks, microbatches, costs of the job's passes) -> order."""

RuleFunction = Callable[[int, int, int], tuple[str, str] | None]
"""(stages, chunks, microbatches) -> (the rule that is broken, the way out), or None."""

SizeFunction = Callable[[int, int, int], int]
"""(stages, chunks, microbatches) -> a number."""

BoundFunction = Callable[[int, int, int, int], int]
"""(rank, stages, chunks, microbatches) -> upper bound of activations held at once."""


MOST_PASSES = 400_000
"""Passes of all stages in a step. Each takes about 0.2 ms and 3.5 kB, so these are more than a
minute and 1.4 GB; the largest steps in print have some 130,000."""
_SIZE_HINTS = {
    "plan.pp": "use as many ranks as it has rows",
    "plan.vpp": "use as many chunks per rank as its rows have stages",
    "microbatches": "change batch.global or batch.micro: batch.global = microbatches x micro x dp",
}


def _by_field(stages: int, chunks: int, microbatches: int) -> dict[str, int]:
    return {"plan.pp": stages, "plan.vpp": chunks, "microbatches": microbatches}


def _no_rule(_stages: int, _chunks: int, _microbatches: int) -> None:
    """Every size is allowed."""


def _no_buffers(_stages: int, _chunks: int, _microbatches: int) -> int:
    """A send may wait for its receive."""
    return 0


def _one_version(_rank: int, _stages: int) -> int:
    """Synchronous training keeps one version of the weights."""
    return 1


def _up_to_date(_rank: int, _stages: int) -> int:
    """Synchronous training applies gradients to the weights that they were computed with."""
    return 0


def one_message(stages: int, _chunks: int, _microbatches: int) -> int:
    """Two neighbours send to each other at once, while none of them receives."""
    return min(1, stages - 1)


ONE_F_ONE_B_BUBBLE, EQUAL_TIMES = "(p - 1) * (tF + tB)", "tF = tI = tW"


@dataclass(frozen=True, kw_only=True)
class Note:
    """One schedule in words and closed forms.

    Formulas are Python expressions of p stages, v chunks per rank, m microbatches and the times
    tF, tI, tW and tB = tI + tW of one microbatch on a whole rank; tests hold them against runs.
    They assume at least as many microbatches as the schedule needs to fill the pipeline.

    Attributes:
        text: What it does and why, a short paragraph.
        bubble: Idle time per rank and step; empty where no closed form is known.
        bubble_when: What the formula assumes; empty is nothing.
        bubble_is_bound: Whether the bubble is at most the formula, instead of equal.
        bubble_is_between: Whether idle time counts from a rank's own first start to its own
            last end, as in the zero-bubble papers.
        activations: Most activations on the fullest rank [microbatches of its whole share].
    """

    text: str
    bubble: str
    bubble_when: str = ""
    bubble_is_bound: bool = False
    bubble_is_between: bool = False
    activations: str


@dataclass(frozen=True, kw_only=True)
class ScheduleInfo:
    """One pipeline schedule.

    Attributes:
        name: As the user writes it in ``plan.schedule``.
        order: Builds the order; sizes must have passed :meth:`check`.
        costed_order: Builds the order that a job runs, where that depends on its costs;
            ``order`` is then the one of equal costs.
        summary: One line for people.
        source: Paper or program it comes from.
        in_flight: Upper bound of (virtual stage, microbatch) activations that a rank holds at
            once, from the start of the forward to the end of the backward (of the weight
            gradient where it is computed on its own). One chunk holds 1/chunks of a rank's layers.
        placement: Which rank runs which virtual stage.
        chunks: Smallest and largest number of chunks per rank; None is no upper limit.
        rule: Further limits on the sizes.
        sizes: The only (stages, chunks, microbatches) that it has an order for; None is any.
        splits_backward: Whether input and weight gradients are separate slots.
        synchronous: Whether every step ends with one weight update that all microbatches
            of the step precede. Otherwise the pipeline never drains between steps.
        updates_every_microbatch: Whether a rank updates its weights after the backward of every
            microbatch; otherwise after those of a whole step.
        weight_versions: Versions of the weights that a rank keeps.
        staleness: Updates by which the weights that a gradient was computed with are older
            than those it is applied to.
        buffers: Upper bound of messages that must fit between a rank and each one it sends to
            where sends block (:mod:`simulator.schedule.rendezvous`); 0 runs where a send waits
            for its receive. Of an order with ``costed_order``: that of equal costs.
        joins_passes: Whether it is made to run a forward beside a backward.
        paired_order: Builds its order with every forward joined to the backward after it, where
            an implementation has that, too.
        waits: Whether its implementations, in Megatron and in PyTorch, wait for every transfer
            before they go on (``overlap_p2p_comm`` is for interleaved schedules only).
        in_megatron: Whether Megatron-LM runs it.
        recomputes_blocks: Whether Megatron recomputes part of the layers of a stage under it.
        offloads: Whether a framework offloads states or activations under it: all ranks update
            together, and backward passes are whole.
        torch_name: What ``torch.distributed.pipelining`` calls it; empty where it has none.
        note: What it does and costs, for people; None for one that a file holds.
    """

    name: str
    order: OrderFunction
    summary: str
    source: str
    in_flight: BoundFunction
    costed_order: CostedOrderFunction | None = None
    placement: Placement = Placement.LOOP
    chunks: tuple[int, int | None] = (1, 1)
    rule: RuleFunction = _no_rule
    sizes: tuple[int, int, int] | None = None
    splits_backward: bool = False
    synchronous: bool = True
    updates_every_microbatch: bool = False
    weight_versions: Callable[[int, int], int] = _one_version
    staleness: Callable[[int, int], int] = _up_to_date
    buffers: SizeFunction = _no_buffers
    joins_passes: bool = False
    paired_order: OrderFunction | None = None
    waits: bool = False
    in_megatron: bool = False
    recomputes_blocks: bool = False
    offloads: bool = False
    torch_name: str = ""
    note: Note | None = None

    def check(self, stages: int, chunks: int, microbatches: int) -> None:
        """Raise unless the schedule runs with these sizes.

        Raises:
            InputError: A size is not a positive whole number.
            UnsupportedError: The schedule has no order for these sizes.
        """
        for path, size in _by_field(stages, chunks, microbatches).items():
            if size < 1:
                raise InputError.single(path, "must be 1 or more", size)
        passes = stages * chunks * microbatches
        if passes > MOST_PASSES:
            rule = f"makes {passes:,} passes (pp x vpp x microbatches), of at most {MOST_PASSES:,}"
            hint = "each pass is simulated; use fewer stages or microbatches"
            raise InputError.single("microbatches", rule, microbatches, hint)
        faults = self.size_faults(stages, chunks, microbatches)
        if faults:
            raise UnsupportedError(faults)

    def size_faults(self, stages: int, chunks: int, microbatches: int) -> list[Fault]:
        """What is wrong with sizes that the schedule has no order for."""
        if others := self._other_sizes(_by_field(stages, chunks, microbatches)):
            return others
        broken = self._broken_chunk_rule(chunks) or self.rule(stages, chunks, microbatches)
        if not broken:
            return []
        rule, way_out = broken
        asked = f"(given: pp = {stages}, vpp = {chunks}, {microbatches} microbatches)"
        return [Fault("plan.schedule", f"{rule} {asked}", self.name, way_out)]

    def _other_sizes(self, given: Mapping[str, int]) -> list[Fault]:
        """What differs from the only sizes that there is an order for."""
        own = dict(zip(given, self.sizes or given.values(), strict=True))
        return [
            Fault(path, f"{self.name} is an order for {own[path]}", size, _SIZE_HINTS[path])
            for path, size in given.items()
            if size != own[path]
        ]

    def _broken_chunk_rule(self, chunks: int) -> tuple[str, str] | None:
        least, most = self.chunks
        if chunks < least:
            rule = f"needs {least} {'or more ' if most is None else ''}chunks per rank"
            return rule, f"set plan.vpp = {least}"
        if most is not None and chunks > most:
            plural = "chunk" if most == 1 else "chunks"
            way_out = f"set plan.vpp = {most}"
            if most == 1:
                way_out += ", or use interleaved-1f1b"
            return f"runs with {most} {plural} per rank", way_out
        return None
