"""Schedulers that give a request all its blocks when they admit it, so nobody loses any."""

from __future__ import annotations

from simulator.serving.request import Request
from simulator.serving.schedulers.scheduler import Batch, Scheduler


class ReservingScheduler(Scheduler):
    """A request holds the places of its whole answer from the beginning."""

    grows_blocks = False

    def reserved_tokens(self, request: Request) -> int:
        """Places that a request holds while it runs [tokens]."""
        return request.prompt_tokens + request.output_tokens

    def _admit_reserved(self) -> None:
        """Admit waiting requests in order while their reservations fit."""
        cache = self.cache
        while self.waiting and len(self.running) < self.limits.max_requests:
            request = self.waiting[0]
            found = cache.found(request)
            tokens = self.reserved_tokens(request)
            if cache.missing_blocks(request, tokens, found) > cache.free_blocks:
                return
            self.waiting.popleft()
            self._admit(request, len(found) * cache.block_tokens)
            cache.share(request, found)
            cache.grow(request, tokens)

    def _compute_prompts(self, batch: Batch, budget: int, unit_tokens: int = 1) -> None:
        """Compute admitted prompts in order; pieces are whole units but for a prompt's end."""
        for request in list(self.prefilling):
            tokens = request.known_tokens - request.computed
            if tokens > budget:
                if not self.limits.chunked_prefill:
                    # A prompt that no step can hold runs without other prompts.
                    if batch.chunks or tokens <= self.limits.max_tokens:
                        return
                else:
                    tokens = budget // unit_tokens * unit_tokens
            if tokens <= 0:
                return
            self._compute(batch, request, tokens)
            if request.prefix:
                self.cache.name_full(request, request.computed)
            budget -= tokens
