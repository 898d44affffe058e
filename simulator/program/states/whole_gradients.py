"""Which gradients of ZeRO 2 are whole while backwards of one virtual stage follow one another?

The first backward of such a turn makes them, the later ones add to them, and the reductions
after the last one shard them. Ignores the memory traffic of adding up, and that frameworks may
add up in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.program.ir import Memory
from simulator.program.states.gather_memory import UnitMemory
from simulator.program.states.gather_units import Piece


class WholeGradients:
    """Gradients of every rank of a job whose turn goes on."""

    def __init__(self, memory: UnitMemory) -> None:
        self._memory = memory
        self._ranks: set[int] = set()

    def keep(self, rank: int, pieces: Iterable[Piece]) -> Memory:
        """What a backward takes whose turn goes on: nothing where an earlier one of it has.

        Args:
            rank: Which rank.
            pieces: Of the virtual stage, as they will be reduced.
        """
        if rank in self._ranks:
            return ()
        self._ranks.add(rank)
        made = (piece.makes for piece in pieces if piece.makes)
        return tuple(taken for units in made for taken in self._memory.gradients(units))

    def complete(self, rank: int, piece: Piece) -> Memory:
        """What a backward takes whose gradients are reduced: nothing where they were kept."""
        made = () if rank in self._ranks else piece.makes
        return self._memory.gradients(made) if made else ()

    def end_turn(self, rank: int) -> None:
        """The rank turns to other gradients."""
        self._ranks.discard(rank)
