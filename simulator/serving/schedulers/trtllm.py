"""TensorRT-LLM: in-flight batches.

A capacity scheduler decides who holds memory, a micro-batch scheduler who is in the step: all
who make tokens, then prompts in order while ``max_num_tokens`` lasts. GUARANTEED_NO_EVICT
reserves the whole answer; MAX_UTILIZATION only the next token, and pauses the last started
request where memory runs out.

Source: TensorRT-LLM, ``cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp`` and
``microBatchScheduler.cpp``. Left out: EQUAL_PROGRESS chunks, draft tokens in the budget.
"""

from __future__ import annotations

from simulator.serving.request import Request
from simulator.serving.schedulers.reserving import ReservingScheduler
from simulator.serving.schedulers.scheduler import Batch


class TrtllmNoEvict(ReservingScheduler):
    """GUARANTEED_NO_EVICT, the default."""

    def _fill(self, batch: Batch) -> None:
        self._admit_reserved()
        budget = self.limits.max_tokens - self.decodes.count
        self._compute_prompts(batch, budget, self.cache.block_tokens)
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
            self._compute_prompts(batch, self.limits.max_tokens - self.decodes.count)
            self._step_decodes(batch)
            self._begin_decodes(batch)
        else:
            super()._fill(batch)
