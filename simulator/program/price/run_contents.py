"""What does a run of layers consist of, and what is in memory while it runs?

Units that cost the same are kept once, with how often the run has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from simulator.program.ir import Memory, Owner, UnitBlocks, total_bytes
from simulator.program.price.unit_cost import ForwardMemory, UnitCost
from simulator.program.strategies.backward_memory import BackwardMemory
from simulator.program.strategies.router_graph import router_graph
from simulator.program.strategies.split_backward import Halves


@dataclass(frozen=True, eq=False)
class Contents:
    """What a run consists of; one object for all runs that consist of the same.

    Attributes:
        units: Cost of each distinct unit, and how often the run has it.
    """

    units: tuple[tuple[UnitCost, int], ...]
    _backward: dict[tuple[float, bool], BackwardMemory] = field(default_factory=dict)

    @cached_property
    def saved(self) -> Memory:
        """Activations that forward keeps for backward."""
        return tuple(block for unit, count in self.units for block in unit.saved * count)

    @property
    def saved_bytes(self) -> float:
        """The sum of that [B]."""
        return math.fsum(unit.saved_bytes * count for unit, count in self.units)

    @cached_property
    def recomputed_inputs(self) -> Memory:
        """Of each layer that a function computes again, and the gradient of it, as large."""
        units = ((unit.backward, count) for unit, count in self.units)
        return tuple(
            (backward.owner, num_bytes)
            for backward, count in units
            for num_bytes in backward.inputs * (2 * count * backward.calls_backward)
        )

    @cached_property
    def router_graphs(self) -> Memory:
        """What layers that were computed again keep with the results of their routers."""
        graphs = (router_graph(unit.backward) * count for unit, count in self.units)
        return tuple(chain.from_iterable(graphs))

    @cached_property
    def halves(self) -> Halves:
        """What a backward in two halves takes and frees."""
        of_units = [unit.halves for unit, count in self.units for _ in range(count)]
        columns = zip(*of_units, strict=True) if of_units else ((),) * len(Halves._fields)
        return Halves(*(tuple(chain.from_iterable(column)) for column in columns))

    @cached_property
    def forward(self) -> ForwardMemory:
        """Its fullest moment; units behind the one that runs have saved nothing yet."""
        found, most_bytes = ForwardMemory((), self.saved, ()), -math.inf
        early: Memory = ()
        by_unit: tuple[UnitBlocks, ...] = ()
        for number, (unit, count) in enumerate(self.units):
            saved = unit.saved * count
            early += saved
            held_bytes = total_bytes(early) + total_bytes(unit.passing)
            if held_bytes >= most_bytes:
                behind = self.units[number + 1 :]
                later = (block for unit, count in behind for block in unit.saved * count)
                now = (*by_unit, UnitBlocks(saved, ()))
                found = ForwardMemory(unit.passing, early, tuple(later), by_unit=now)
                most_bytes = held_bytes
            by_unit += (UnitBlocks(saved, (*unit.turns, unit.passing)),)
        return found

    def backward(self, made_bytes: float = 0.0, *, frees: bool = True) -> BackwardMemory:
        """Its fullest moment; what the units behind the one that runs saved is free by then."""
        key = made_bytes, frees
        if key not in self._backward:
            self._backward[key] = self._fullest(made_bytes, frees=frees)
        return self._backward[key]

    def _fullest(self, made_bytes: float, *, frees: bool) -> BackwardMemory:
        ordered = [unit for unit, count in reversed(self.units) for _ in range(count)]
        if not ordered:
            return BackwardMemory()
        weights = math.fsum(unit.backward.weights for unit in ordered)
        per_weight = made_bytes / weights if weights else 0.0
        # Of each distinct unit: gradients that it makes, what it holds beyond all that was saved,
        # and what is free after it [B].
        of_unit: dict[int, tuple[float, float, float]] = {}
        for unit, _ in self.units:
            own_bytes = unit.backward.weights * per_weight
            more_bytes = unit.backward.memory(own_bytes, frees=frees).more_bytes
            saved_bytes = unit.saved_bytes if frees else 0.0
            of_unit[id(unit)] = own_bytes, more_bytes, saved_bytes
        # Of each unit: gradients made before it [B], and what is held beyond all that was saved.
        made, moments = [0.0 if weights else made_bytes], list[float]()
        freed_bytes = 0.0
        for unit in ordered:
            own_bytes, more_bytes, saved_bytes = of_unit[id(unit)]
            moments.append(made[-1] - freed_bytes + more_bytes)
            made.append(made[-1] + own_bytes)
            freed_bytes += saved_bytes
        fullest = moments.index(max(moments))
        before, unit, after = ordered[:fullest], ordered[fullest], ordered[fullest + 1 :]
        at = unit.backward.memory(unit.backward.weights * per_weight, frees=frees)
        freed = (block for unit in before if frees for block in unit.saved)
        earlier = (block for unit in after for block in unit.saved)
        holds = (*at.holds, (Owner.GRADIENTS, made[fullest])) if made[fullest] else at.holds
        return BackwardMemory((*freed, *at.freed), (*at.rest, *earlier), holds, at.in_attention)
