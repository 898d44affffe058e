"""What do the schedulers of all engines have in common?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.serving.block_cache import BlockCache
from simulator.serving.decodes import Decodes
from simulator.serving.requests import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of an engine that decide about batches.

    Attributes:
        max_requests: Requests that run at once.
        max_tokens: Tokens of a step.
        max_model_tokens: Tokens of prompt and answer that the engine is set up for.
        chunked_prefill: Whether a prompt may be computed in pieces.
        long_prefill_tokens: Tokens of a prompt in a step while others wait; 0 is no limit.
        reserves_prompt: Whether a request is admitted only if its whole prompt fits.
        conservativeness: SGLang's factor on the memory kept for answers to come.
        watermark: Share of blocks that admission leaves free.
        tokens_per_step: Tokens that a decode makes in a step, above 1 with speculation.
        draft_tokens: Tokens that speculation proposes to each request in a step.
        plans_ahead: Whether a step is planned while the one before it runs.
        receive_steps: Steps of answers between two looks at what has arrived.
        groups: Groups of ranks with requests of their own.
        prompt_wait_steps: Steps that prompts wait at most until each group has one.
        max_adapters: Adapters that the requests of a step may have between them.
    """

    max_requests: int
    max_tokens: int
    max_model_tokens: int = 1 << 30
    chunked_prefill: bool = True
    long_prefill_tokens: int = 0
    reserves_prompt: bool = True
    conservativeness: float = 1.0
    watermark: float = 0.0
    tokens_per_step: float = 1.0
    draft_tokens: int = 0
    plans_ahead: bool = False
    receive_steps: int = 0
    groups: int = 1
    prompt_wait_steps: int = 0
    max_adapters: int = 0


class Chunk(NamedTuple):
    """Part of a prompt that one step computes: so many tokens after ``context`` earlier ones."""

    request: Request
    tokens: int
    context: int


@dataclass(slots=True)
class Batch:
    """What one step computes.

    Attributes:
        decodes: Requests that make one token each.
        decode_context: Tokens that these attend to, all together.
        chunks: Parts of prompts.
        started: Requests whose prompt this step completes: their next token comes with it.
        finished: Requests whose last token comes with it.
        preempted: Requests that lost their blocks for it.
        swapped_blocks: Blocks that move to the host or back before it.
        adapters: Adapters of those who run.
        adapted_share: Share of those who run that have one.
    """

    decodes: int = 0
    decode_context: float = 0.0
    chunks: list[Chunk] = field(default_factory=list)
    started: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    swapped_blocks: int = 0
    adapters: int = 0
    adapted_share: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens that go through the products."""
        return self.decodes + sum(chunk.tokens for chunk in self.chunks)


class Scheduler(ABC):
    """Queues of one replica; :meth:`schedule` makes the next batch.

    Args:
        limits: Settings of the engine.
        cache: The blocks that it gives away.
    """

    grows_blocks = True
    """Whether a decode takes blocks as it goes; otherwise it has all from the beginning."""

    waits_for_an_end = True
    """Whether who is not admitted now will not be before somebody is done."""

    def __init__(self, limits: Limits, cache: BlockCache) -> None:
        self.limits = limits
        self.cache = cache
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self.received: deque[Request] = deque()
        self.hands_over = False
        """Whether requests that are done keep their blocks until :meth:`hand_over`."""
        block_tokens = cache.block_tokens if self.grows_blocks else 0
        self.decodes = Decodes(
            block_tokens,
            limits.tokens_per_step,
            limits.draft_tokens,
            unnamed_tokens=int(limits.plans_ahead),
        )
        self._admissions = 0

    def arrive(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def reserved_tokens(self, request: Request) -> int:
        """Places that a request holds when it begins to make tokens."""
        return request.known_tokens

    def reserve(self, request: Request) -> bool:
        """Take the blocks of a prompt that another replica has computed, if there are enough.

        Those who lost their blocks come first. Source: vLLM 0.33.0, ``WAITING_FOR_REMOTE_KVS``:
        blocks are allocated before they are pulled.
        """
        tokens = self.reserved_tokens(request)
        is_short = self.cache.missing_blocks(request, tokens) > self.cache.free_blocks
        if self.waiting or self.cache.on_host or is_short:
            return False
        self.cache.grow(request, tokens)
        return True

    def receive(self, request: Request) -> None:
        """Let a request whose keys and values lie in its blocks make tokens from now on."""
        self.received.append(request)

    def hand_over(self, request: Request) -> None:
        """Take the blocks of a prompt back that lies elsewhere now."""
        self._give_back(request)

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self.running) + self.waits

    @property
    def waits(self) -> int:
        """Requests that wait for a place among those that run."""
        return len(self.waiting) + len(self.received) + len(self.cache.on_host)

    @property
    def used_share(self) -> float:
        """Share of the cache that requests hold."""
        return 1.0 - self.cache.free_blocks / self.cache.blocks

    def schedule(self) -> Batch | None:
        """The next step's batch, or None if there is nothing to do."""
        batch = Batch()
        while self.received and len(self.running) < self.limits.max_requests:
            request = self.received.popleft()
            self._admit(request, request.prompt_tokens)
            del self.prefilling[request]
            self.decodes.join(request)
        self._fill(batch)
        if not batch.chunks and not batch.decodes:
            return batch if batch.preempted else None
        if self.limits.max_adapters and self.running:
            adapted = [r.adapter for r in self.running if r.adapter >= 0]
            batch.adapters = len(set(adapted))
            batch.adapted_share = len(adapted) / len(self.running)
        return batch

    def _next_with_adapter(self) -> Request | None:
        """The first that waits and whose adapter is loaded or has room; others are passed over.

        Source: vLLM 0.33.0, ``Scheduler.schedule``: requests whose adapter would exceed
        ``max_loras`` are skipped, those behind them are not.
        """
        most = self.limits.max_adapters
        if not most:
            return self.waiting[0] if self.waiting else None
        loaded = {request.adapter for request in self.running} - {-1}
        is_full = len(loaded) >= most
        fitting = (r for r in self.waiting if not is_full or r.adapter in loaded or r.adapter < 0)
        return next(fitting, None)

    def repeat(self, batch: Batch, most: int) -> int:
        """Make a batch of answers only last for more steps that are like it.

        Returns:
            Steps added; until somebody arrives, is done or needs a block, at most ``most``.
        """
        if batch.chunks or batch.finished or batch.preempted or not batch.decodes:
            return 0
        if batch.swapped_blocks:
            return 0
        if self.waiting and not self.waits_for_an_end:
            return 0
        steps = self.decodes.quiet_steps(most)
        self.decodes.skip(steps)
        return steps

    @abstractmethod
    def _fill(self, batch: Batch) -> None:
        """Put requests into a batch and take their blocks."""

    def complete(self, batch: Batch, now_s: float) -> None:
        """Account for the tokens of a step that has ended."""
        for request in batch.started:
            if request.first_token_s < 0:
                request.first_token_s = now_s
        for request in batch.finished:
            request.last_token_s = now_s
            if self.hands_over:
                self.running.pop(request, None)
            else:
                self._release(request)

    def _admit(self, request: Request, computed: int) -> None:
        """Move a request to those that run; ``computed`` of its tokens were found."""
        request.computed = computed
        if request.cached_tokens < 0:
            request.cached_tokens = computed
        self._enter(request)
        self.prefilling[request] = None

    def _enter(self, request: Request) -> None:
        """Put a request behind those that run."""
        self._admissions += 1
        request.order = self._admissions
        self.running[request] = None

    def _compute(self, batch: Batch, request: Request, tokens: int) -> None:
        """Put part of a prompt into the batch; after its last part the request makes tokens."""
        batch.chunks.append(Chunk(request, tokens, request.computed))
        request.computed += tokens
        request.named_tokens = request.computed
        if request.computed < request.known_tokens:
            return
        del self.prefilling[request]
        batch.started.append(request)

    def _step_decodes(self, batch: Batch) -> None:
        """Make a token for every decode."""
        decodes = self.decodes
        if decodes.count:
            batch.decodes = decodes.count
            batch.decode_context = decodes.context_tokens
            for request in decodes.advance():
                self._finish(batch, request)
        else:
            decodes.step += 1

    def _begin_decodes(self, batch: Batch) -> None:
        """Let the requests whose prompt is complete make tokens from the next step on."""
        for request in batch.started:
            request.generated += 1
            if request.generated >= request.output_tokens:
                self._finish(batch, request)
            else:
                self.decodes.join(request)

    def _finish(self, batch: Batch, request: Request) -> None:
        request.is_finishing = True
        batch.finished.append(request)

    def _preempt(self, batch: Batch, request: Request) -> None:
        """Take all blocks of a request; it will compute all its tokens anew, first of all."""
        if request.is_decoding:
            self.decodes.leave(request)
        # What it has computed is worth finding again.
        self.cache.name_full(request, request.named_tokens)
        self._give_back(request)
        request.preemptions += 1
        batch.preempted.append(request)
        if not request.is_finishing:
            request.computed = 0
            self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        """Forget a request that is done."""
        if request in self.running:
            # None of its tokens is under way any more, so the last full block is known, too.
            # Source: vLLM 0.33.0, AsyncScheduler._update_request_with_output, cache_blocks.
            request.named_tokens = request.computed
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self.running.pop(request, None)
        self.prefilling.pop(request, None)
        if request.preemptions:
            self.cache.name_full(request, request.named_tokens)
        self.cache.release(request)
