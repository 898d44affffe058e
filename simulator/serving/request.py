"""What is one request, and what has become of it so far?"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and its answer.

    Attributes:
        number: Its place in the workload, from 0.
        arrival_s: When it reaches the router [s].
        prompt_tokens: Tokens of the prompt, >= 1.
        output_tokens: Tokens of the answer, >= 1.
        prefix: Parts of the prompt that other requests may share, first to last: what names the
            part, and where it ends [token].
        computed: Tokens whose keys and values are in the cache, or will be after this step.
        decoded_tokens: Places that its answer took since it last joined, steps times their mean.
        named_tokens: Tokens that its full blocks may be known by.
        generated: Tokens of the answer so far; of a running decode, as it joined.
        blocks: Blocks of the cache that it holds, by place.
        order: When it was last admitted, counted over all admissions of its replica.
        preemptions: How often it lost its blocks.
        adapter: Number of the adapter that it wants; below 0 is none.
        cached_tokens: Prompt tokens that it found in the cache when it was first admitted.
        joined_step: Decode step at which it began to make tokens.
        is_decoding: Whether it makes tokens now.
        is_finishing: Whether its last token is under way.
        scheduled_s: When it was first part of a step [s].
        first_token_s: When its first token came [s].
        last_token_s: When its last token came [s].
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[tuple[Hashable, int], ...] = ()
    computed: int = 0
    decoded_tokens: float = 0
    named_tokens: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    order: int = -1
    preemptions: int = 0
    adapter: int = -1
    cached_tokens: int = -1
    joined_step: int = -1
    is_decoding: bool = False
    is_finishing: bool = False
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    last_token_s: float = -1.0

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.prompt_tokens + self.generated

    @property
    def ttft_s(self) -> float:
        """Time to the first token [s]."""
        return self.first_token_s - self.arrival_s

    @property
    def end_to_end_s(self) -> float:
        """Time to the last token [s]."""
        return self.last_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean time of a token after the first [s]; 0 where there is only one."""
        more = self.output_tokens - 1
        return (self.last_token_s - self.first_token_s) / more if more else 0.0
