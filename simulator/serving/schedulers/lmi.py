"""Rolling batch of the Deep Java Library's large-model containers (LMI).

Up to ``max_rolling_batch_size`` requests run; whenever one is done, waiting ones take its
place: a step computes their prompts, at most ``max_rolling_batch_prefill_tokens``, and while
none waits, every step makes a token for all.

Source: DJL Serving, LMI configuration guide, ``option.max_rolling_batch_size`` and
``option.max_rolling_batch_prefill_tokens``; ``rolling_batch.py``.
"""

from __future__ import annotations

from simulator.serving.schedulers.reserving import ReservingScheduler
from simulator.serving.schedulers.scheduler import Batch


class LmiRollingBatch(ReservingScheduler):
    """See the module."""

    def _fill(self, batch: Batch) -> None:
        self._admit_reserved()
        self._compute_prompts(batch, self.limits.max_tokens)
        if not batch.chunks:
            self._step_decodes(batch)
        self._begin_decodes(batch)
