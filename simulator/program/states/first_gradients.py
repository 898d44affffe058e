"""Which gradients does the first backward of a step make, where none stay from the step before?

Source: PyTorch's ``zero_grad(set_to_none=True)``.
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Memory, Owner
from simulator.program.states.gather_units import Units
from simulator.program.states.resident import new_gradient_bytes

_EMBEDDING, _HEAD = -1, -2
"""Stand for embedding and head among the indices of layers."""


class MadeGradients:
    """Gradients of every rank of a job that exist since its last update."""

    def __init__(self, job: Job, units: Units) -> None:
        self._job, self._units = job, units
        self._owned: dict[int, set[int]] = {}
        """Layers, embedding and head of each rank whose gradients exist."""
        self._made: dict[int, Memory] = {}

    def by_backward(self, rank: int, run: Slice) -> Memory:
        """Gradients that a run's first backward makes and that stay until the step.

        Those of ZeRO 2 and 3 are shards, made by the reduction that follows; then ``run`` is what
        it reduces.
        """
        if not self._job.choices.frees_gradients:
            return ()
        owned = set(range(run.first, run.end))
        owned |= {_EMBEDDING} if run.has_embedding else set()
        owned |= {_HEAD} if run.has_head else set()
        known = self._owned.setdefault(rank, set())
        if owned <= known:
            return ()
        known |= owned
        num_bytes = new_gradient_bytes(self._job, self._units.whole(run).parameters)
        made = ((Owner.GRADIENTS, num_bytes),)
        self._made[rank] = self._made.get(rank, ()) + made
        return made

    def freed(self, rank: int) -> Memory:
        """What backward made since the last update; forgotten, because the update frees it."""
        self._owned.pop(rank, None)
        return self._made.pop(rank, ())
