"""Orca: the batch is made anew for every iteration, memory is reserved for the whole answer.

Prompts are computed whole, beside the tokens of others (selective batching). Requests are
taken first come, first served while a slot and its memory are free.

How much is reserved: what the engine is set up for, the next power of two of the answer, or (with
an oracle) the answer itself; buddy allocation makes each piece a power of two.

Source: Yu et al., Orca (OSDI 2022), sections 3.1, 3.2 and algorithm 1; Kwon et al., vLLM
(arXiv 2309.06180), section 6.1 for the three reservations. Left out: its pipeline of batches.
"""

from __future__ import annotations

from simulator.serving.request import Request
from simulator.serving.schedulers.reserving import ReservingScheduler
from simulator.serving.schedulers.scheduler import Batch


class OrcaOracle(ReservingScheduler):
    """Prompt and answer are reserved, as if the answer were known."""

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
