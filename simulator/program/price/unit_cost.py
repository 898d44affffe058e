"""What is a layer, or an end of the model, and what does it cost one rank?

Written by :mod:`simulator.program.price.layer_cost`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from simulator.program.ir import Memory, UnitBlocks, total_bytes
from simulator.program.layer.layer_part import LayerKind
from simulator.program.price.expert_waits import ExpertWaits
from simulator.program.price.layer_time import LayerTime
from simulator.program.strategies.backward_memory import Backward
from simulator.program.strategies.split_backward import Halves


class LayerUnit(NamedTuple):
    """Layers that cost the same.

    Attributes:
        kind: What they consist of.
        is_repeated: Whether backward computes them again, as far as the plan says.
        frozen: Names of their parameters that are not trained.
        has_backward: Whether anything in them or before them is trained.
        starts_gradients: Whether nothing before them is, so that their input needs no gradient.
        in_bf16: Whether their products stay in bf16 where the others are narrower.
    """

    kind: LayerKind
    is_repeated: bool
    frozen: frozenset[str] = frozenset()
    has_backward: bool = True
    starts_gradients: bool = False
    in_bf16: bool = False


class End(Enum):
    """What a model has beside its layers."""

    EMBEDDING = "embedding"
    HEAD = "head"
    LOSS = "loss"
    JOIN = "join"
    """Joins the hidden state and an embedding for multi-token prediction."""


Unit = LayerUnit | End


class UnitTimes(NamedTuple):
    """Time of one layer or end.

    Attributes:
        time: All directions.
        launched: What of them the host launches kernel by kernel.
        graphs: CUDA graphs that it launches for each of them beside.
        waits: Where the host waits for counts of its experts.
        repeats_waits: Whether it does so again where forward is repeated.
        hooks_s: Host time of hooks that gather its weights, each time it is visited [s].
        unit_hooks_s: Of those that gather it whole, the same, but where it is repeated [s].
        host_work: Host time per launch, over that of a layer with experts.
        python_s: Host time beside its launches, forward and backward [s].
    """

    time: LayerTime
    launched: LayerTime
    graphs: int = 0
    waits: ExpertWaits | None = None
    repeats_waits: bool = False
    hooks_s: float = 0.0
    unit_hooks_s: float = 0.0
    host_work: float = 1.0
    python_s: tuple[float, float] = (0.0, 0.0)


class ForwardMemory(NamedTuple):
    """A forward at its fullest.

    Attributes:
        holds: Blocks that are gone afterwards.
        early, later: What it has saved for backward by then, and what it saves afterwards.
        lingers: What it gave back before that moment, and nothing else has before its end.
        by_unit: What it has saved by then, unit after unit, and what came and went meanwhile.
    """

    holds: Memory
    early: Memory
    later: Memory
    lingers: Memory = ()
    by_unit: tuple[UnitBlocks, ...] = ()


@dataclass(frozen=True, eq=False)
class UnitCost:
    """Time and memory of one layer or end; the time is found when it is asked for.

    Attributes:
        saved: Kept from forward to backward.
        passing: Held while forward runs.
        alone: Held while forward runs where no backward follows.
        freed: Given back before forward's fullest moment, and not used again by then.
        reduced: Given back once the device has added it up between tensor-parallel ranks: the
            allocator records that the collective's stream reads it.
        backward: What backward holds.
        halves: What the halves of a split backward take and free.
        turns: What pieces of forward make and backward does not need, one after another.
    """

    saved: Memory
    passing: Memory
    alone: Memory
    backward: Backward
    halves: Halves
    _timed: Callable[[], UnitTimes]
    freed: Memory = ()
    reduced: Memory = ()
    turns: tuple[Memory, ...] = ()

    @cached_property
    def saved_bytes(self) -> float:
        """All that is kept from forward to backward [B]."""
        return total_bytes(self.saved)

    @cached_property
    def times(self) -> UnitTimes:
        """What its passes take."""
        return self._timed()
