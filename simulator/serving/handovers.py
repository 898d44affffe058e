"""How do keys and values get from the replicas that compute prompts to those that make tokens?

A prompt that is computed goes to the replica with the fewest requests. It waits there until its
blocks are free, then crosses the links, and its own blocks are kept until it is through. All that
cross at once share the ports of their replicas max-min fairly, as the exchanges of training do.

Sent layer by layer, a prompt crosses while its last step computes it, if its blocks are free when
that begins; only the last layer then follows the step. What is slower, the step or the links, sets
the pace of all layers but one.

Source: DistServe (arXiv 2401.09670) section 4.3, where the makers of tokens pull; Splitwise
(arXiv 2311.18677) section 4.2, for layer by layer, too. Ignores: what earlier steps of a long
prompt computed crosses with its last one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.engine.fluid_network import FULL_SPEED, Port, max_min_rates
from simulator.serving.described import Deployment
from simulator.serving.engine import Replica
from simulator.serving.requests import Request
from simulator.serving.shapes import cache_bytes_per_token

_PORT = "cache"


@dataclass(slots=True, eq=False)
class _Flow:
    """Keys and values on their way; ``left_s`` is what they would take alone from now on."""

    prompt: Request
    request: Request
    source: int
    target: int
    left_s: float
    loads: dict[Port, float]
    rate: float = FULL_SPEED


class Handovers:
    """Everything between the two pools of one deployment.

    Args:
        deployment: With its pool for prompts.
        prompts: Replicas that compute prompts.
        answers: Replicas that make tokens.
        requests: All requests, whose prompts go by the same numbers.
    """

    def __init__(
        self,
        deployment: Deployment,
        prompts: Sequence[Replica],
        answers: Sequence[Replica],
        requests: Sequence[Request],
    ) -> None:
        self.prompts, self.answers = prompts, answers
        for replica in prompts:
            replica.scheduler.hands_over = True
        self._requests = {request.number: request for request in requests}
        self._awaiting = [deque[tuple[Request, int]]() for _ in answers]
        self._coming = [0 for _ in answers]
        self._flows: list[_Flow] = []
        self._early: set[Request] = set()
        self._now_s = 0.0
        assert deployment.prefill is not None
        self._layer_wise, self._layers = deployment.prefill.layer_wise, deployment.model.layers
        network, pool = deployment.profile.network, deployment.prefill_deployment
        is_near = deployment.all_gpus <= network.scale_up.gpus
        up, fabric = network.scale_up, network.fabric
        rate = network.scale_up_bytes_per_s if is_near else network.fabric_bytes_per_s
        self._latency_s = up.bulk_latency_s if is_near else fabric.bulk_latency_s
        # Each rank that makes tokens pulls its own part; latent caches are the same on all.
        pulled_bytes = cache_bytes_per_token(deployment)
        sent_bytes = pulled_bytes * deployment.tp * deployment.pp / (pool.tp * pool.pp)
        self._out_s, self._in_s = sent_bytes / rate, pulled_bytes / rate

    @staticmethod
    def prompt_of(request: Request) -> Request:
        """The request as the replicas for prompts see it: its first token is its last."""
        told = (request.number, request.arrival_s, request.prompt_tokens, 1, request.prefix)
        return Request(*told, adapter=request.adapter)

    @property
    def next_end_s(self) -> float:
        """When the next one is through, if nothing else happens [s]."""
        ends = (self._now_s + flow.left_s / flow.rate for flow in self._flows)
        return min(ends, default=math.inf)

    def take(self, prompts: Sequence[Request], source: int) -> int:
        """Take computed prompts over; returns how many answers ended with their first token."""
        ended = 0
        for prompt in prompts:
            request = self._requests[prompt.number]
            request.scheduled_s, request.cached_tokens = prompt.scheduled_s, prompt.cached_tokens
            request.first_token_s, request.generated = prompt.first_token_s, 1
            if request.output_tokens == 1:
                request.last_token_s = request.first_token_s
                self.prompts[source].scheduler.hand_over(prompt)
                ended += 1
                continue
            if request in self._early:
                self._early.remove(request)
                continue
            target = min(range(len(self.answers)), key=self._load)
            self._coming[target] += 1
            self._awaiting[target].append((prompt, source))
        return ended

    def send_layers(self, now_s: float, source: int) -> None:
        """Let prompts cross that a replica's step, which begins now, computes to their end."""
        if not self._layer_wise:
            return
        replica = self.prompts[source]
        for prompt, tokens, context in replica.running_chunks:
            request = self._requests[prompt.number]
            if context + tokens < prompt.prompt_tokens or request.output_tokens == 1:
                continue
            target = min(range(len(self.answers)), key=self._load)
            if self._awaiting[target] or not self.answers[target].scheduler.reserve(request):
                continue
            self._coming[target] += 1
            self._early.add(request)
            self._begin(now_s, prompt, source, target, replica.end_s - now_s)
        self._share(now_s)

    def start(self, now_s: float) -> None:
        """Let everybody go whose blocks are free, in order for each replica."""
        begun = False
        for target, queue in enumerate(self._awaiting):
            scheduler = self.answers[target].scheduler
            while queue and scheduler.reserve(self._requests[queue[0][0].number]):
                prompt, source = queue.popleft()
                self._begin(now_s, prompt, source, target)
                begun = True
        if begun:
            self._share(now_s)

    def arrivals(self, now_s: float) -> Iterator[tuple[int, int]]:
        """End what is through by now; gives the replicas that it came from and went to."""
        if now_s < self.next_end_s:
            return
        # By the same sum as next_end_s, so that who ends first ends.
        through = [f for f in self._flows if self._now_s + f.left_s / f.rate <= now_s]
        self._pass(now_s)
        self._flows = [flow for flow in self._flows if flow not in through]
        self._share(now_s)
        for flow in through:
            self._coming[flow.target] -= 1
            self.prompts[flow.source].scheduler.hand_over(flow.prompt)
            self.answers[flow.target].scheduler.receive(flow.request)
            yield flow.source, flow.target

    def _load(self, target: int) -> int:
        return self.answers[target].load + self._coming[target]

    def _begin(
        self, now_s: float, prompt: Request, source: int, target: int, computing_s: float = 0.0
    ) -> None:
        """Let a prompt go that is computed, or will be after so much time."""
        self._pass(now_s)
        out_s, in_s = prompt.prompt_tokens * self._out_s, prompt.prompt_tokens * self._in_s
        sending_s = max(out_s, in_s)
        # The first layer is computed alone, and the last is sent alone.
        ends_s = (computing_s + sending_s) / self._layers
        paced_s = (1.0 - 1.0 / self._layers) * max(computing_s, sending_s)
        alone_s = self._latency_s + ends_s + paced_s
        loads: dict[Port, float] = {
            (source, _PORT, "out"): out_s / alone_s,
            (target, _PORT, "in"): in_s / alone_s,
        }
        request = self._requests[prompt.number]
        self._flows.append(_Flow(prompt, request, source, target, alone_s, loads))

    def _pass(self, now_s: float) -> None:
        """Book what has crossed until now."""
        for flow in self._flows:
            flow.left_s -= (now_s - self._now_s) * flow.rate
        self._now_s = now_s

    def _share(self, now_s: float) -> None:
        self._pass(now_s)
        rates = max_min_rates([flow.loads for flow in self._flows])
        for flow, rate in zip(self._flows, rates, strict=True):
            flow.rate = rate
