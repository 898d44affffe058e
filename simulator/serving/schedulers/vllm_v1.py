"""vLLM's second engine (V1): one token budget for prompts and answers alike.

Requests that run come first, in order of admission; what is left of the budget admits new
ones, whose prompts may be cut anywhere. Where blocks run out, the last admitted request loses
its own and computes them anew, and nobody is admitted in that step.

Source: vLLM 0.33.0, ``v1/core/sched/scheduler.py``, ``Scheduler.schedule`` and
``_preempt_request``. Left out: priorities, encoders.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulator.serving.request import Request
from simulator.serving.schedulers.scheduler import Batch, Scheduler


class VllmV1(Scheduler):
    """See the module."""

    def _fill(self, batch: Batch) -> None:
        budget = self._run(batch)
        if self.waiting and not batch.preempted:
            self._admit_waiting(batch, budget)
        self._step_decodes(batch)
        for request in self._held:
            self.decodes.join(request)
        self._begin_decodes(batch)

    def _run(self, batch: Batch) -> int:
        """Schedule what runs; returns what is left of the budget [tokens]."""
        self._held: list[Request] = []
        if self._prompts_are_last():
            visited = self.decodes.needing_a_block()
            if self.prefilling:
                visited = [*visited, *self.prefilling]
            return self._walk(batch, visited, self.limits.max_tokens - self.decodes.count)
        return self._walk_all(batch)

    def _prompts_are_last(self) -> bool:
        """Whether no decode comes after an unfinished prompt, as is the rule."""
        if not self.prefilling:
            return True
        newest_first = reversed(self.running)
        return all(next(newest_first) in self.prefilling for _ in range(len(self.prefilling)))

    def _walk(self, batch: Batch, visited: Iterable[Request], budget: int) -> int:
        """Give each its blocks, in order; decodes are paid for already."""
        cache, decodes = self.cache, self.decodes
        for request in visited:
            if request not in self.running:
                continue
            if request.is_decoding:
                if not cache.free_blocks:
                    before = decodes.count
                    if not self._make_room(batch, request, 1):
                        break
                    budget += before - decodes.count
                cache.grow_by_block(request)
                decodes.got_block(request)
            elif budget > 0:
                before = decodes.count
                tokens = self._chunk_tokens(request, budget)
                blocks = cache.missing_blocks(request, request.computed + tokens)
                if not self._make_room(batch, request, blocks):
                    break
                budget += before - decodes.count - tokens
                self._grow_and_compute(batch, request, tokens)
        return budget

    def _walk_all(self, batch: Batch) -> int:
        """As :meth:`_walk` where the budget may end before the last decode; slower."""
        due = set(self.decodes.needing_a_block())
        budget = self.limits.max_tokens
        for request in list(self.running):
            if request not in self.running or request.is_finishing:
                continue
            if request.is_decoding:
                if budget <= 0:
                    self.decodes.leave(request)
                    self._held.append(request)
                    continue
                budget -= 1
                if request in due:
                    self._walk(batch, [request], 0)
            elif budget > 0:
                budget = self._walk(batch, [request], budget)
        return budget

    def _chunk_tokens(self, request: Request, budget: int) -> int:
        tokens = request.known_tokens - request.computed
        limit = self.limits.long_prefill_tokens
        if limit and self.load > 1:
            tokens = min(tokens, limit)
        return min(tokens, budget)

    def _make_room(self, batch: Batch, request: Request, blocks: int) -> bool:
        """Preempt the last admitted until blocks are free; False if it was the request itself."""
        while blocks > self.cache.free_blocks:
            victim = next(reversed(self.running))
            self._preempt(batch, victim)
            if victim is request:
                return False
        return True

    def _grow_and_compute(self, batch: Batch, request: Request, tokens: int) -> None:
        self.cache.grow(request, request.computed + tokens)
        if request.prefix:
            self.cache.name_full(
                request,
                min(request.computed + tokens, request.known_tokens),
                request.computed // self.cache.block_tokens,
            )
        self._compute(batch, request, tokens)

    def _admit_waiting(self, batch: Batch, budget: int) -> None:
        cache, limits = self.cache, self.limits
        headroom = int(limits.watermark * cache.blocks) if self.running else 0
        while budget > 0 and len(self.running) < limits.max_requests:
            request = self._next_with_adapter()
            if request is None:
                break
            found = cache.found(request)
            computed = len(found) * cache.block_tokens
            tokens = request.known_tokens - computed
            if limits.long_prefill_tokens and self.load > 1:
                tokens = min(tokens, limits.long_prefill_tokens)
            if not limits.chunked_prefill and tokens > budget:
                break
            tokens = min(tokens, budget)
            whole = request.known_tokens if limits.reserves_prompt else computed + tokens
            if cache.missing_blocks(request, whole, found) + headroom > cache.free_blocks:
                break
            self.waiting.remove(request)
            self._admit(request, computed)
            cache.share(request, found)
            self._grow_and_compute(batch, request, tokens)
            budget -= tokens
            headroom = int(limits.watermark * cache.blocks)
