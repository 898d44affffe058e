"""Schedulers that give a request all its blocks when they admit it, so nobody loses any."""

from __future__ import annotations

from simulator.serving.block_cache import BlockCache
from simulator.serving.requests import Request
from simulator.serving.schedulers.prompt_balance import PromptBalance
from simulator.serving.schedulers.scheduler import Batch, Chunk, Limits, Scheduler


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


class Static(ReservingScheduler):
    """Static batches: nobody comes before the last token of the batch, as in FasterTransformer.

    Prompts are padded to the longest of the batch, and requests that are done go on making
    tokens that nobody reads. The cache is one piece for each, as long as the engine is set up for.

    Source: described as the baseline in Orca (OSDI 2022), section 2, and in TensorRT-LLM's
    STATIC_BATCH policy.
    """

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


class LmiRollingBatch(ReservingScheduler):
    """Rolling batch of the Deep Java Library's large-model containers (LMI).

    Up to ``max_rolling_batch_size`` requests run; whenever one is done, waiting ones take its
    place: a step computes their prompts, at most ``max_rolling_batch_prefill_tokens``, and while
    none waits, every step makes a token for all.

    Source: DJL Serving, LMI configuration guide, ``option.max_rolling_batch_size`` and
    ``option.max_rolling_batch_prefill_tokens``; ``rolling_batch.py``.
    """

    def _fill(self, batch: Batch) -> None:
        self._admit_reserved()
        self._compute_prompts(batch, self.limits.max_tokens)
        if not batch.chunks:
            self._step_decodes(batch)
        self._begin_decodes(batch)


class OrcaOracle(ReservingScheduler):
    """Orca: the batch is made anew for every iteration, memory is reserved for the whole answer.

    Prompts are computed whole, beside the tokens of others (selective batching). Requests are
    taken first come, first served while a slot and its memory are free.

    How much is reserved: what the engine is set up for, the next power of two of the answer, or
    (with an oracle) the answer itself; buddy allocation makes each piece a power of two.

    Source: Yu et al., Orca (OSDI 2022), sections 3.1, 3.2 and algorithm 1; Kwon et al., vLLM
    (arXiv 2309.06180), section 6.1 for the three reservations. Left out: its pipeline of batches.

    Here prompt and answer are reserved, as if the answer were known.
    """

    def reserved_tokens(self, request: Request) -> int:
        """Places that a request holds while it runs [tokens]."""
        return _power_of_two(self.wanted_tokens(request))

    def wanted_tokens(self, request: Request) -> int:
        """What is asked for before it is rounded [tokens]."""
        return request.prompt_tokens + request.output_tokens

    def _fill(self, batch: Batch) -> None:
        self._admit_reserved()
        for request in list(self.prefilling):
            self._compute(batch, request, request.known_tokens - request.computed)
        self._step_decodes(batch)
        self._begin_decodes(batch)


class OrcaPow2(OrcaOracle):
    """Prompt and the next power of two of the answer are reserved."""

    def wanted_tokens(self, request: Request) -> int:
        """What is asked for before it is rounded [tokens]."""
        return request.prompt_tokens + _power_of_two(request.output_tokens)


class Orca(OrcaOracle):
    """The longest prompt and answer that the engine is set up for are reserved."""

    def reserved_tokens(self, request: Request) -> int:
        """Places that a request holds while it runs [tokens]."""
        return max(self.wanted_tokens(request), self.limits.max_model_tokens)


def _power_of_two(tokens: int) -> int:
    return 1 << (tokens - 1).bit_length()


class TrtllmNoEvict(ReservingScheduler):
    """TensorRT-LLM: in-flight batches.

    A capacity scheduler decides who holds memory, a micro-batch scheduler who is in the step: all
    who make tokens, then prompts in order while ``max_num_tokens`` lasts. GUARANTEED_NO_EVICT
    reserves the whole answer; MAX_UTILIZATION only the next token, and pauses the last started
    request where memory runs out.

    Source: TensorRT-LLM, ``cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp`` and
    ``microBatchScheduler.cpp``. Left out: EQUAL_PROGRESS chunks, draft tokens in the budget.

    This is GUARANTEED_NO_EVICT, the default.
    """

    def __init__(self, limits: Limits, cache: BlockCache) -> None:
        super().__init__(limits, cache)
        waits = limits.groups > 1 and limits.prompt_wait_steps > 0
        self._balance = PromptBalance(limits) if waits else None

    def repeat(self, batch: Batch, most: int) -> int:
        """Make a batch last for more steps that are like it, as prompts that wait allow."""
        if self._balance and self.prefilling:
            most = min(most, self._balance.steps_left(self.decodes.step))
        return super().repeat(batch, most)

    def _enter(self, request: Request) -> None:
        super()._enter(request)
        if self._balance:
            self._balance.enter(request)

    def _give_back(self, request: Request) -> None:
        super()._give_back(request)
        if self._balance:
            self._balance.leave(request)

    def _compute_prompts(self, batch: Batch, budget: int, unit_tokens: int = 1) -> None:
        balance = self._balance
        if balance is None or balance.may_start(self.prefilling, self.decodes.step):
            super()._compute_prompts(batch, budget, unit_tokens)

    def _prompt_budget(self) -> int:
        """Tokens of prompts that a step may compute."""
        return self.limits.max_tokens - self.decodes.count

    def _fill(self, batch: Batch) -> None:
        self._admit_reserved()
        self._compute_prompts(batch, self._prompt_budget(), self.cache.block_tokens)
        self._step_decodes(batch)
        self._begin_decodes(batch)


class TrtllmMaxUtilisation(TrtllmNoEvict):
    """MAX_UTILIZATION."""

    grows_blocks = True

    def reserved_tokens(self, request: Request) -> int:
        """Prompt and answer so far, and the next token."""
        return request.known_tokens + 1

    def _fill(self, batch: Batch) -> None:
        for request in self.decodes.needing_a_block():
            while request.is_decoding and not self.cache.free_blocks:
                self._preempt(batch, next(reversed(self.running)))
            if request.is_decoding:
                self.cache.grow_by_block(request)
                self.decodes.got_block(request)
        if batch.preempted:
            self._compute_prompts(batch, self._prompt_budget())
            self._step_decodes(batch)
            self._begin_decodes(batch)
        else:
            super()._fill(batch)
