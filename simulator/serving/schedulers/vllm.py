"""vLLM's two engines, and DeepSpeed-FastGen, which works by the rule of the second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simulator.serving.block_cache import BlockCache
from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Batch, Limits, Scheduler


class VllmV1(Scheduler):
    """vLLM's second engine (V1): one token budget for prompts and answers alike.

    Requests that run come first, in order of admission; what is left of the budget admits new
    ones, whose prompts may be cut anywhere. Where blocks run out, the last admitted request loses
    its own and computes them anew, and nobody is admitted in that step.

    Source: vLLM 0.33.0, ``v1/core/sched/scheduler.py``, ``Scheduler.schedule`` and
    ``_preempt_request``. Left out: priorities, encoders.
    """

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


class VllmV0(Scheduler):
    """vLLM's first engine (V0) with its defaults: whole prompts first, answers while none waits.

    A step computes either prompts or one token for everybody. Where blocks run out, the last
    admitted request is computed anew later or, with memory of the host, moves there. While anybody
    is on the host no prompt is computed, and they come back in order, if nobody is preempted in
    that step.

    Source: vLLM 0.6.0, ``core/scheduler.py``, ``_schedule_default``, ``_schedule_swapped`` and
    ``_preempt``; ``core/block_manager_v1.py``, ``can_swap_in``. Left out: beam groups, chunked
    prefill (that of :class:`VllmV1` is much the same).
    """

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


class FastGen(VllmV1):
    """DeepSpeed-FastGen: Dynamic SplitFuse.

    Every step has about the same number of tokens: those of all answers, then pieces of prompts;
    long prompts are split, short ones put together. That is the rule of :class:`VllmV1` with
    admission as soon as one piece fits.

    Source: Holmes et al., DeepSpeed-FastGen (arXiv 2401.08671), section 3.2. Which request loses
    its blocks first where they run out is assumed to be as in vLLM.
    """

    def __init__(self, limits: Limits, cache: BlockCache) -> None:
        super().__init__(replace(limits, chunked_prefill=True, reserves_prompt=False), cache)
