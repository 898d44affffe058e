"""Which layers stand for equal ones of later ranks?

Most ranks of a pipeline hold as many equal layers as one before them. What follows from layers is
found once if their passes are written as those of that rank; only what is shown of them differs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

from simulator.program.grid.stage_layers import Slice


class StandIns:
    """Runs of layers that stand for equal ones; each stands for itself where nothing is known.

    Args:
        runs_of: Runs of each rank, none of which another one holds, too.
        layers: What each layer of the model is; equal ones do the same.
    """

    def __init__(
        self, runs_of: Sequence[Sequence[Slice]] = (), layers: Sequence[Hashable] = ()
    ) -> None:
        first: dict[Hashable, tuple[int, Sequence[Slice]]] = {}
        self._stand_ins: dict[Slice, Slice] = {}
        self._shifts: dict[int, list[tuple[Slice, int]]] = {}
        self._leaders: dict[int, int] = {}
        for rank, runs in enumerate(runs_of):
            held = tuple((run[2:], *layers[run.first : run.end]) for run in runs)
            leader, stand_ins = first.setdefault(held, (rank, runs))
            if leader == rank or not _are_apart(stand_ins):
                continue
            self._leaders[leader] = self._leaders[rank] = leader
            pairs = [*zip(stand_ins, runs, strict=True)]
            self._stand_ins.update((run, stand_in) for stand_in, run in pairs)
            self._shifts[rank] = [(each, run.first - each.first) for each, run in pairs]

    def of(self, run: Slice) -> Slice:
        """What stands for a run."""
        return self._stand_ins.get(run, run)

    def leader(self, rank: int) -> int | None:
        """The rank whose layers stand for those of a rank; None where it is like no other."""
        return self._leaders.get(rank)

    def shown(self, rank: int, piece: Slice) -> tuple[int, int]:
        """First and one past the last layer that a piece of a rank's stand-ins stands for."""
        for run, shift in self._shifts.get(rank, ()):
            if run.first <= piece.first and piece.end <= run.end:
                return piece.first + shift, piece.end + shift
        return piece.first, piece.end


def _are_apart(runs: Sequence[Slice]) -> bool:
    """Whether no run ends where another one starts."""
    return all(one.end < other.first for one, other in pairwise(sorted(runs)))
