"""vLLM's first engine (V0) with its defaults: whole prompts first, answers while none waits.

A step computes either prompts or one token for everybody. Where blocks run out, the last
admitted request is computed anew later.

Source: vLLM 0.6.0, ``core/scheduler.py``, ``_schedule_default``. Left out: swapping of beam
groups, chunked prefill (that of :mod:`.vllm_v1` is much the same).
"""

from __future__ import annotations

from simulator.serving.schedulers.scheduler import Batch, Scheduler


class VllmV0(Scheduler):
    """See the module."""

    def _fill(self, batch: Batch) -> None:
        self._admit_prompts(batch)
        if batch.chunks:
            self._begin_decodes(batch)
            return
        for request in self.decodes.needing_a_block():
            if not request.is_decoding:
                continue
            if self._make_room(batch, request):
                self.cache.grow_by_block(request)
                self.decodes.got_block(request)
        self._step_decodes(batch)

    def _make_room(self, batch: Batch, request: object) -> bool:
        while not self.cache.free_blocks:
            victim = next(reversed(self.running))
            self._preempt(batch, victim)
            if victim is request:
                return False
        return True

    def _admit_prompts(self, batch: Batch) -> None:
        cache, limits = self.cache, self.limits
        budget = limits.max_tokens
        headroom = int(limits.watermark * cache.blocks)
        while self.waiting and len(self.running) < limits.max_requests:
            request = self.waiting[0]
            found = cache.found(request)
            tokens = request.known_tokens - len(found) * cache.block_tokens
            # A prompt longer than the budget is computed alone.
            if tokens > budget and batch.chunks:
                break
            needed = cache.missing_blocks(request, request.known_tokens, found)
            if needed + headroom > cache.free_blocks:
                break
            self.waiting.popleft()
            self._admit(request, len(found) * cache.block_tokens)
            cache.share(request, found)
            cache.grow(request, request.known_tokens)
            self._compute(batch, request, tokens)
            cache.name_full(request, request.known_tokens)
            budget -= tokens
            if budget <= 0:
                break
