"""How long does a step of reinforcement learning take, and what does it wait for?

A step generates answers, computes their probabilities anew, trains on them, and hands the weights
to the engine. Ignores rewards, advantages and data, which processors compute, and sleeping and
waking of the engine but for the states that are moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from simulator.errors import InputError
from simulator.planning.reinforcement.policy_passes import forward_s, update_step
from simulator.planning.reinforcement.rl_job import RLJob
from simulator.planning.reinforcement.sequences import (
    Microbatches,
    microbatches,
    rollout_requests,
)
from simulator.planning.reinforcement.weight_refit import refit_s, states_move_s
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.serving.cluster import serve
from simulator.serving.workload import Workload

Phase = tuple[str, float, float]
"""Its name, and when it begins and ends [s]."""
_GENERATION, _REFIT = "generation", "weights to the engine"
_TAIL_SHARE = 0.1
"""Below this share of the answers under way, generation is in its tail."""


@dataclass(frozen=True)
class RLStep:
    """One step.

    Attributes:
        job: What runs.
        generation_s: From the first prompt to the last token [s].
        tail_s: Of it, the end in which less than a tenth of the answers is under way [s].
        logprobs_s: Probabilities of the answers, of all networks that compute them [s].
        training_s: All updates [s].
        refit_s: Until the engine has the weights [s].
        states_move_s: States of the optimizer to the host and back [s].
        tokens: Of all sequences, prompts included.
        longest_tokens: Of the longest sequence.
        answer_ends_s: When each answer ends, in order [s].
        update: One update, of microbatches of their mean length.
        longest: An update of sequences that are all as long as the longest may be: its memory is
            what a rank must have room for.
        packing: Microbatches of one update.
    """

    job: RLJob
    generation_s: float
    tail_s: float
    logprobs_s: float
    training_s: float
    refit_s: float
    states_move_s: float
    tokens: int
    longest_tokens: int
    answer_ends_s: tuple[float, ...]
    update: StepResult
    longest: StepResult
    packing: Microbatches

    @property
    def step_time_s(self) -> float:
        """The step [s]: one after the other, or the longer of generation and what trains."""
        trained_s = self.logprobs_s + self.training_s
        if self.job.order == "one-step-off":
            return max(self.generation_s, trained_s) + self.refit_s
        return self.generation_s + trained_s + self.refit_s + self.states_move_s

    @property
    def phases_s(self) -> dict[str, float]:
        """How long each phase takes, by name, in order [s]; one without time is left out."""
        named = {
            _GENERATION: self.generation_s,
            "log-probabilities": self.logprobs_s,
            "training": self.training_s,
            _REFIT: self.refit_s,
            "states to the host and back": self.states_move_s,
        }
        return {name: seconds for name, seconds in named.items() if seconds}

    @property
    def lanes(self) -> dict[str, list[Phase]]:
        """Phases over time, by the GPUs that run them."""
        phases_s = self.phases_s
        if self.job.order != "one-step-off":
            return {"all GPUs": _one_after_another(phases_s)}
        end_s = self.step_time_s
        sent = _REFIT, end_s - self.refit_s, end_s
        trained = {each: phases_s[each] for each in phases_s if each not in {_GENERATION, _REFIT}}
        return {
            "engine's GPUs": [(_GENERATION, 0.0, self.generation_s), sent],
            "trainer's GPUs": [*_one_after_another(trained), sent],
        }

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of the sequences for each second and GPU, those that generate included."""
        return self.tokens / self.step_time_s / self.job.gpus

    @property
    def idle_share(self) -> float:
        """Share of GPU time in which one of the two halves waits for the other."""
        if self.job.order != "one-step-off":
            return 0.0
        training, generation = self.job.training.cluster.gpus, self.job.generation.gpus
        step_s, trained_s = self.step_time_s, self.logprobs_s + self.training_s
        waits = training * (step_s - trained_s) + generation * (step_s - self.generation_s)
        return waits / (step_s * self.job.gpus)


def rl_step(job: RLJob, on_ended: Callable[[int, int], None] | None = None) -> RLStep:
    """Simulate one step.

    Args:
        job: What runs.
        on_ended: Called with how many more answers ended, and the number of all.

    Raises:
        InputError: A sequence is longer than the cache.
        DoesNotFitError: The model leaves no room for a cache.
    """
    requests = rollout_requests(job)
    lengths = [request.prompt_tokens + request.output_tokens for request in requests]
    served = serve(job.generation, Workload(requests=1), requests=requests, on_ended=on_ended)
    ends_s = sorted(request.last_token_s for request in served.requests)
    trained = _microbatches(job, lengths, micro=job.training.batch.micro_batch)
    per_update = Microbatches(
        -(-trained.count // job.updates), trained.mean_tokens, trained.sequence_tokens,
        trained.filled_share,
    )  # fmt: skip
    update, longest = update_step(job.training, per_update), run_step(job.training)
    scored = _microbatches(job, lengths, micro=job.logprobs.micro)
    passes = len(job.logprobs.networks)
    return RLStep(
        job=job,
        generation_s=ends_s[-1],
        tail_s=_tail_s(ends_s),
        logprobs_s=passes * forward_s(job.training, scored) if passes else 0.0,
        training_s=job.updates * update.step_time_s,
        refit_s=refit_s(job),
        states_move_s=states_move_s(job, longest),
        tokens=sum(lengths),
        longest_tokens=max(lengths),
        answer_ends_s=tuple(ends_s),
        update=update,
        longest=longest,
        packing=per_update,
    )


def _microbatches(job: RLJob, lengths: Sequence[int], *, micro: int) -> Microbatches:
    most = job.training.batch.seq_len * micro
    return microbatches(lengths, most_tokens=most, micro=micro, packed=job.packed)


def _one_after_another(phases_s: Mapping[str, float]) -> list[Phase]:
    ends_s = [*accumulate(phases_s.values())]
    return [*zip(phases_s, [0.0, *ends_s[:-1]], ends_s, strict=True)]


def _tail_s(ends_s: Sequence[float]) -> float:
    """The end of generation in which few answers are under way."""
    still = math.ceil(_TAIL_SHARE * len(ends_s))
    return ends_s[-1] - ends_s[-still]


def need_rl(job: object) -> None:
    """Refuse what is no job of reinforcement learning.

    Raises:
        InputError: It is none.
    """
    if not isinstance(job, RLJob):
        hint = 'sim.load_rl("grpo.yaml"), or a shipped name'
        raise InputError.single("job", "must be an RLJob; load one first", job, hint)
