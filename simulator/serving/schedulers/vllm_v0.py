"""vLLM's first engine (V0) with its defaults: whole prompts first, answers while none waits.

A step computes either prompts or one token for everybody. Where blocks run out, the last
admitted request is computed anew later or, with memory of the host, moves there. While anybody is
on the host no prompt is computed, and they come back in order, if nobody is preempted in that step.

Source: vLLM 0.6.0, ``core/scheduler.py``, ``_schedule_default``, ``_schedule_swapped`` and
``_preempt``; ``core/block_manager_v1.py``, ``can_swap_in``. Left out: beam groups, chunked prefill
(that of :mod:`.vllm_v1` is much the same).
"""

from __future__ import annotations

from simulator.serving.request import Request
from simulator.serving.schedulers.scheduler import Batch, Scheduler


class VllmV0(Scheduler):
    """See the module."""

    def _fill(self, batch: Batch) -> None:
        if not self.cache.on_host:
            self._admit_prompts(batch)
        if batch.chunks:
            self._begin_decodes(batch)
            return
        self._grow_decodes(batch)
        if self.cache.on_host and not batch.preempted:
            self._swap_in(batch)
        self._step_decodes(batch)

    def _grow_decodes(self, batch: Batch) -> None:
        """Give everybody a block whose token of this step has no place yet."""
        for request in self.decodes.needing_a_block():
            if not request.is_decoding:
                continue
            if self._make_room(batch, request):
                self.cache.grow_by_block(request)
                self.decodes.got_block(request)

    def _swap_in(self, batch: Batch) -> None:
        """Bring requests back from the host while there is room, with a block more for each."""
        cache, limits = self.cache, self.limits
        while cache.on_host and len(self.running) < limits.max_requests:
            request, blocks = next(iter(cache.on_host.items()))
            headroom = int(limits.watermark * cache.blocks) if self.running else 0
            if blocks + 1 + headroom > cache.free_blocks:
                return
            batch.swapped_blocks += cache.swap_in(request)
            self._enter(request)
            self.decodes.join(request)
            self._grow_decodes(batch)

    def _preempt(self, batch: Batch, request: Request) -> None:
        """Move a request to the host, or have it computed anew."""
        if not self.cache.host_blocks or request.is_finishing:
            super()._preempt(batch, request)
            return
        self.decodes.leave(request)
        del self.running[request]
        batch.swapped_blocks += len(request.blocks)
        self.cache.swap_out(request)
        request.preemptions += 1
        batch.preempted.append(request)

    def _make_room(self, batch: Batch, request: Request) -> bool:
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
