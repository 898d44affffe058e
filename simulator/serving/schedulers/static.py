"""Static batches: nobody comes before the last token of the batch, as in FasterTransformer.

Prompts are padded to the longest of the batch, and requests that are done go on making
tokens that nobody reads. The cache is one piece for each, as long as the engine is set up for.

Source: described as the baseline in Orca (OSDI 2022), section 2, and in TensorRT-LLM's
STATIC_BATCH policy.
"""

from __future__ import annotations

from simulator.serving.request import Request
from simulator.serving.schedulers.reserving import ReservingScheduler
from simulator.serving.schedulers.scheduler import Batch, Chunk


class Static(ReservingScheduler):
    """See the module."""

    _size = 0

    def reserved_tokens(self, request: Request) -> int:
        """Places that a request holds while it runs [tokens]."""
        return max(super().reserved_tokens(request), self.limits.max_model_tokens)

    def _fill(self, batch: Batch) -> None:
        if not self.running and self.waiting:
            self._admit_reserved()
            self._size = len(self.running)
            longest = max(request.known_tokens for request in self.running)
            for request in list(self.running):
                self._compute(batch, request, request.known_tokens - request.computed)
            batch.chunks = [Chunk(chunk.request, longest, 0) for chunk in batch.chunks]
        self._step_decodes(batch)
        if batch.decodes:
            batch.decode_context *= self._size / batch.decodes
            batch.decodes = self._size
        self._begin_decodes(batch)
