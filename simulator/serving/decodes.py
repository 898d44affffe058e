"""Which requests make tokens, who of them needs a block now, and who is done?

All of them make tokens in every step, so nothing is done per request and step: a request
waits in the bucket of the step at which something happens to it. A step costs as much as
it changes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from operator import attrgetter

from simulator.serving.requests import Request


class Decodes:
    """The requests of one replica that make tokens.

    Args:
        block_tokens: Tokens of a block; 0 asks for none on the way.
        tokens_per_step: Tokens that a request makes in a step; above 1 with speculation, where
            it is the mean of accepted drafts plus one.
        lookahead_tokens: Places that must be there beyond the token that is computed.
        unnamed_tokens: Last tokens of a decode that its full blocks are not known by yet.
    """

    def __init__(
        self,
        block_tokens: int,
        tokens_per_step: float = 1.0,
        lookahead_tokens: int = 0,
        unnamed_tokens: int = 0,
    ) -> None:
        self._block_tokens = block_tokens
        # Whole numbers stay whole: counts of tokens then are exact.
        self._rate = int(tokens_per_step) if tokens_per_step % 1 == 0 else tokens_per_step
        self._lookahead = lookahead_tokens
        self._unnamed = unnamed_tokens
        self._due: dict[int, list[tuple[Request, int]]] = defaultdict(list)
        self._done: dict[int, list[tuple[Request, int]]] = defaultdict(list)
        self.step = 0
        self.count = 0
        self.context_tokens: float = 0

    def join(self, request: Request) -> None:
        """Make tokens from the next step on; its prompt is computed and gave the first token."""
        request.is_decoding = True
        request.joined_step = self.step
        self.count += 1
        self.context_tokens += request.computed
        left = request.output_tokens - request.generated
        last = self.step + math.ceil(left / self._rate) - 1
        self._done[last].append((request, self.step))
        if self._block_tokens:
            self._await_block(request, self.step)

    def leave(self, request: Request) -> None:
        """Make no more tokens; its counts are brought up to now."""
        made = (self.step - request.joined_step) * self._rate
        self.count -= 1
        self.context_tokens -= request.computed + made
        request.generated += int(made)
        request.computed += int(made)
        request.decoded_tokens = made
        request.named_tokens = request.computed - (self._unnamed if made else 0)
        request.is_decoding = False
        request.joined_step = -1
        if self.count == 0:
            self.context_tokens = 0

    def needing_a_block(self) -> list[Request]:
        """Requests whose token of the next step has no place yet, in order of admission."""
        due = self._due.pop(self.step, None)
        if due is None:
            return []
        return _in_order(due)

    def got_block(self, request: Request) -> None:
        """Wait until the blocks that it now holds are full."""
        self._await_block(request, self.step + 1)

    def advance(self) -> list[Request]:
        """Make one step's tokens; returns the requests whose last one is among them."""
        self.context_tokens += self.count * self._rate
        self.step += 1
        done = self._done.pop(self.step - 1, None)
        if done is None:
            return []
        finished = _in_order(done)
        for request in finished:
            self.leave(request)
            request.generated = request.output_tokens
        return finished

    def quiet_steps(self, most: int) -> int:
        """Steps from now on in which nobody is done or needs a block, at most so many."""
        step = self.step
        for quiet in range(most):
            if step + quiet in self._done or step + quiet in self._due:
                return quiet
        return most

    def skip(self, steps: int) -> None:
        """Make the tokens of so many quiet steps."""
        self.context_tokens += self.count * self._rate * steps
        self.step += steps

    def generated(self, request: Request) -> int:
        """Tokens of its answer so far."""
        made = (self.step - request.joined_step) * self._rate if request.is_decoding else 0
        return request.generated + int(made)

    def _await_block(self, request: Request, earliest: int) -> None:
        held_tokens = len(request.blocks) * self._block_tokens
        steps = (held_tokens - self._lookahead - request.computed) / self._rate
        joined = request.joined_step
        at = joined + math.floor(steps)
        self._due[at if at > earliest else earliest].append((request, joined))


def _in_order(bucket: list[tuple[Request, int]]) -> list[Request]:
    """Requests of a bucket that have not left since they joined, in order of admission."""
    fresh = [request for request, joined in bucket if request.joined_step == joined]
    if len(fresh) > 1:
        fresh.sort(key=attrgetter("order"))
    return fresh
