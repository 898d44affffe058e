"""Orca: the batch is made anew for every iteration, memory is reserved for the whole answer.

Prompts are computed whole, beside the tokens of others (selective batching). Requests are
taken first come, first served while a slot and its memory are free.

Source: Yu et al., Orca (OSDI 2022), sections 3.1, 3.2 and algorithm 1. Left out: its pipeline
of batches.
"""

from __future__ import annotations

from simulator.serving.request import Request
from simulator.serving.schedulers.reserving import ReservingScheduler
from simulator.serving.schedulers.scheduler import Batch


class Orca(ReservingScheduler):
    """See the module."""

    def reserved_tokens(self, request: Request) -> int:
        """The longest answer that the engine is set up for: its cache is contiguous."""
        return max(super().reserved_tokens(request), self.limits.max_model_tokens)

    def _fill(self, batch: Batch) -> None:
        self._admit_reserved()
        for request in list(self.prefilling):
            self._compute(batch, request, request.known_tokens - request.computed)
        self._step_decodes(batch)
        self._begin_decodes(batch)
