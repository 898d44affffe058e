"""SGLang: prompts first, in batches of their own; memory for answers to come is estimated.

Every step is either pieces of prompts, at most ``chunked_prefill_size`` tokens, or one token
for everybody who runs. A prompt that is cut goes on first in the next step. Where memory runs
out, requests with the fewest tokens of answer are retracted and computed anew.

Source: SGLang 0.5.23, ``managers/scheduler.py`` (``get_next_batch_to_run``),
``managers/schedule_policy.py`` (``PrefillAdder``), ``managers/schedule_batch.py``
(``retract_decode``), ``new_token_ratio_tracker.py``. Left out: mixed chunks, priorities,
longest-prefix-match order, the simulation of the peak for answers of known length, for which
the whole of them is kept here instead.
"""

from __future__ import annotations

from collections import deque

from simulator.serving.block_cache import BlockCache
from simulator.serving.radix import RadixCache
from simulator.serving.requests import Request
from simulator.serving.schedulers.scheduler import Batch, Limits, Scheduler

_MAX_PROMPT_TOKENS = 16384
"""``max_prefill_tokens``: uncached tokens of prompts in a step."""
_CLIPPED_ANSWER_TOKENS = 4096
"""``CLIP_MAX_NEW_TOKENS``: an answer counts as no longer than this."""
_FIRST_RATIO, _LEAST_SHARE, _DECAY_STEPS = 0.7, 0.14, 600
"""``SGLANG_INIT_NEW_TOKEN_RATIO``, its least share and the steps to it."""


class Sglang(Scheduler):
    """See the module; its cache counts tokens."""

    grows_blocks = False
    waits_for_an_end = False

    def __init__(self, limits: Limits, cache: BlockCache) -> None:
        super().__init__(limits, cache)
        tokens = cache.blocks * cache.block_tokens
        self.tree = RadixCache(tokens, keeps_prefixes=cache.keeps_prefixes)
        self._held: dict[Request, float] = {}
        self._first_ratio = min(1.0, _FIRST_RATIO * limits.conservativeness)
        self._ratio = self._first_ratio
        self._unseen: deque[Request] = deque()
        self._steps_unlooked = 0

    def arrive(self, request: Request) -> None:
        """Reach the socket; the scheduler looks there every ``receive_steps`` of answers."""
        self._unseen.append(request)

    def reserve(self, request: Request) -> bool:
        """Take the tokens of a prompt, if those of answers to come fit beside them.

        Source: ``disaggregation/decode.py``, ``DecodePreallocQueue``.
        """
        answer = min(request.output_tokens, _CLIPPED_ANSWER_TOKENS)
        kept = self._tokens_to_come() + answer if self.running else 0
        tokens = request.known_tokens
        if self.waiting or self._unseen or tokens + kept > self.tree.available_tokens:
            return False
        self._held[request] = tokens
        return self.tree.take(tokens)

    @property
    def load(self) -> int:
        """Requests that run or wait, seen or not."""
        return super().load + len(self._unseen)

    def _receive(self) -> None:
        """Look at what has arrived; after a step of prompts and while idle, always.

        Source: ``managers/scheduler_recv_skipper.py``: steps of answers count 1, others 1000.
        """
        if self._steps_unlooked >= self.limits.receive_steps or not self.running:
            self._steps_unlooked = 0
            self.waiting.extend(self._unseen)
            self._unseen.clear()

    def repeat(self, batch: Batch, most: int) -> int:
        """As of all schedulers, while there is memory for every step's tokens."""
        per_step = self.decodes.count * self.limits.tokens_per_step
        room = int(self.tree.available_tokens / per_step) if per_step else 0
        if self._unseen:
            room = min(room, self.limits.receive_steps - self._steps_unlooked + 1)
        steps = super().repeat(batch, min(most, max(0, room - 1)))
        self._steps_unlooked += steps
        self.tree.take(steps * per_step)
        for _ in range(steps):
            self._lower_ratio()
        return steps

    @property
    def used_share(self) -> float:
        """Share of the cache that requests hold."""
        return 1.0 - self.tree.available_tokens / self.tree.tokens

    def _fill(self, batch: Batch) -> None:
        self._receive()
        self._prefill(batch)
        if batch.chunks:
            self._steps_unlooked = self.limits.receive_steps
        else:
            self._steps_unlooked += 1
            self._decode(batch)
        self._begin_decodes(batch)

    def _prefill(self, batch: Batch) -> None:
        chunk = self.limits.max_tokens if self.limits.chunked_prefill else _MAX_PROMPT_TOKENS
        for request in list(self.prefilling):
            chunk -= self._compute_chunk(batch, request, chunk)
        if not self.waiting:
            return
        kept = self._tokens_to_come()
        left = max(_MAX_PROMPT_TOKENS, self.limits.max_tokens)
        while chunk > 0 and left > 0 and len(self.running) < self.limits.max_requests:
            chosen = self._next_with_adapter()
            if chosen is None:
                break
            request = chosen
            found = self.tree.found_tokens(request)
            tokens = request.known_tokens - found
            answer = min(request.output_tokens - request.generated, _CLIPPED_ANSWER_TOKENS)
            if tokens + answer + kept >= self.tree.available_tokens:
                break
            if tokens > left and batch.chunks:
                break
            self.waiting.remove(request)
            self._admit(request, found)
            self.tree.lock(request)
            left -= tokens
            kept += answer + tokens - min(tokens, chunk)
            chunk -= self._compute_chunk(batch, request, chunk)

    def _compute_chunk(self, batch: Batch, request: Request, budget: int) -> int:
        tokens = min(request.known_tokens - request.computed, budget)
        if tokens <= 0 or not self.tree.take(tokens):
            return 0
        self._held[request] = self._held.get(request, 0) + tokens
        self._compute(batch, request, tokens)
        if request not in self.prefilling:
            before = self.tree.locked_tokens(request)
            self.tree.keep(request)
            self._held[request] -= self.tree.locked_tokens(request) - before
        return tokens

    def _tokens_to_come(self) -> float:
        """Tokens that answers of running requests are thought to need still."""
        decodes, clip = self.decodes, _CLIPPED_ANSWER_TOKENS
        left = 0
        for request in self.running:
            left += min(request.output_tokens - decodes.generated(request), clip)
        return left * self._ratio

    def _decode(self, batch: Batch) -> None:
        if not self.decodes.count:
            return
        needed = self.limits.tokens_per_step
        while self.tree.available_tokens < self.decodes.count * needed and self.decodes.count > 1:
            self._retract(batch)
        if batch.preempted:
            self._raise_ratio()
        else:
            self._lower_ratio()
        self.tree.take(self.decodes.count * self.limits.tokens_per_step)
        self._step_decodes(batch)

    def _lower_ratio(self) -> None:
        step = self._first_ratio * (1.0 - _LEAST_SHARE) / _DECAY_STEPS
        self._ratio = max(self._ratio - step, self._first_ratio * _LEAST_SHARE)

    def _retract(self, batch: Batch) -> None:
        made = self.decodes.generated
        decoding = (request for request in self.running if request.is_decoding)
        victim = min(decoding, key=lambda r: (made(r), -r.prompt_tokens))
        self._preempt(batch, victim)

    def _raise_ratio(self) -> None:
        running = [request for request in self.running if request.is_decoding]
        made = sum(self.decodes.generated(request) for request in running)
        wanted = sum(request.output_tokens for request in running)
        self._ratio = min(1.0, (made + 20 * len(running)) / max(1, wanted))

    def _give_back(self, request: Request) -> None:
        self.running.pop(request, None)
        self.prefilling.pop(request, None)
        held = self._held.pop(request, 0)
        self.tree.give_back(held + request.decoded_tokens)
        request.decoded_tokens = 0
        self.tree.unlock(request)
