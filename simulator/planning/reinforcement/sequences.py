"""Which sequences does a rollout hold, and which microbatches do they make?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from simulator.errors import InputError
from simulator.planning.reinforcement.rl_job import RLJob
from simulator.serving.requests import Request, requests_of
from simulator.serving.workload import Workload


@dataclass(frozen=True)
class Microbatches:
    """Sequences as training computes them.

    Attributes:
        count: Microbatches of all ranks.
        mean_tokens: Tokens of one in the mean, what pads it included.
        sequence_tokens: Length of a sequence, in the mean over tokens: what attention sees.
        filled_share: Part of the computed tokens that belong to a sequence.
    """

    count: int
    mean_tokens: float
    sequence_tokens: float
    filled_share: float


def rollout_requests(job: RLJob) -> list[Request]:
    """Every answer of a step as a request at time 0; those of one group share their prompt."""
    rollout = job.rollout
    groups = requests_of(_workload(job, rollout.prompts))
    requests = requests_of(_workload(job, rollout.sequences))
    most = job.training.batch.seq_len
    for number, request in enumerate(requests):
        group = number // rollout.answers_per_prompt
        request.prompt_tokens = groups[group].prompt_tokens
        request.output_tokens = min(request.output_tokens, most - request.prompt_tokens)
        if request.output_tokens < 1:
            rule = f"leaves no room for an answer in training.batch.seq_len = {most}"
            hint = "give shorter prompts, or cut them by rollout.prompt.longest"
            raise InputError.single("rollout.prompt", rule, request.prompt_tokens, hint)
        request.prefix = ((("prompt", group), request.prompt_tokens),)
    return requests


def _workload(job: RLJob, count: int) -> Workload:
    rollout = job.rollout
    return Workload(requests=count, prompt=rollout.prompt, answer=rollout.answer, seed=rollout.seed)


def microbatches(
    lengths: Sequence[int], *, most_tokens: int, micro: int, packed: bool
) -> Microbatches:
    """Sequences, dealt to microbatches.

    Packed, the longest comes first, into the first microbatch with room (first-fit decreasing);
    else ``micro`` sequences of the order they have are as long as the longest of them.

    Args:
        lengths: Of the sequences, prompts included [tokens].
        most_tokens: Of a packed microbatch.
        micro: Sequences of a padded microbatch.
        packed: Whether they are joined.
    """
    if packed:
        filled = _first_fit_decreasing(lengths, most_tokens)
    else:
        groups = [lengths[first : first + micro] for first in range(0, len(lengths), micro)]
        filled = [micro * max(group) for group in groups]
    tokens = math.fsum(lengths)
    return Microbatches(
        count=len(filled),
        mean_tokens=fmean(filled),
        sequence_tokens=math.fsum(n * n for n in lengths) / tokens,
        filled_share=tokens / math.fsum(filled),
    )


def _first_fit_decreasing(lengths: Sequence[int], most_tokens: int) -> list[int]:
    """Tokens of each microbatch."""
    filled = np.zeros(len(lengths), dtype=np.int64)
    used = 0
    for length in sorted(lengths, reverse=True):
        place = int(np.argmax(filled[: used + 1] + length <= most_tokens))
        filled[place] += length
        used = max(used, place + 1)
    return [int(tokens) for tokens in filled[:used]]
