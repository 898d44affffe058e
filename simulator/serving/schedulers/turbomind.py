"""LMDeploy's TurboMind before it counted the tokens of an iteration."""

from __future__ import annotations

import sys

from simulator.serving.schedulers.reserving import TrtllmMaxUtilisation


class TurboMind(TrtllmMaxUtilisation):
    """A step computes the prompts of all whom it admits, in parts of ``max_prefill_token_num``.

    Nobody gets a token before the last part is done, so all who come together have their first
    tokens together, and go on to end together.

    Source: LMDeploy 0.1, ``src/turbomind/models/llama/LlamaBatch.cc``: ``ContextDecode`` loops
    over sub-batches, and ``Generate`` follows it in ``InternalThreadEntry``.
    """

    def _prompt_budget(self) -> int:
        return sys.maxsize
