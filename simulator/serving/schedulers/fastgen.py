"""DeepSpeed-FastGen: Dynamic SplitFuse.

Every step has about the same number of tokens: those of all answers, then pieces of prompts;
long prompts are split, short ones put together. That is the rule of :mod:`.vllm_v1` with
admission as soon as one piece fits.

Source: Holmes et al., DeepSpeed-FastGen (arXiv 2401.08671), section 3.2. Which request loses
its blocks first where they run out is assumed to be as in vLLM.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.serving.block_cache import BlockCache
from simulator.serving.schedulers.scheduler import Limits
from simulator.serving.schedulers.vllm_v1 import VllmV1


class FastGen(VllmV1):
    """See the module."""

    def __init__(self, limits: Limits, cache: BlockCache) -> None:
        super().__init__(replace(limits, chunked_prefill=True, reserves_prompt=False), cache)
