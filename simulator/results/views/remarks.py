"""What should a person be told of a step beside its numbers, and what can be done about it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from simulator.described.job import Job
from simulator.errors import InputError
from simulator.program.ir import Category
from simulator.results.step import StepResult
from simulator.units import percent

_WORTH_A_REMARK = 1 / 3
"""Share of the step for which GPUs wait for their host, from which on it is said."""
_GROUPS = "plan.stack.grouped_experts=true"
_EAGER = "plan.stack.grouped_experts=false --set plan.stack.expert_waits=expert"
"""``experts_implementation="eager"`` of transformers: a loop over experts, which autocast casts."""


def remarks(result: StepResult, job: Job) -> Iterator[str]:
    """Sentences on experts that run one by one or in fp32, and on GPUs that wait for their host."""
    yield from _on_experts(job)
    yield from _on_the_host(result, job)


def _on_experts(job: Job) -> Iterator[str]:
    count = job.experts_one_by_one
    if count > 1:
        way = f"; --set {_GROUPS} computes them together" if job.can_group_experts else ""
        yield f"A GPU computes the {count} experts that it has of a layer one after another{way}."
    if job.model.experts and job.plan.has_wide_experts:
        half = job.plan.precision
        yield (
            f"Autocast leaves grouped products of experts in the format of their weights, so they "
            f"run in fp32, one expert after another. --set plan.master_weights=false loads {half} "
            f'weights; --set {_EAGER} is experts_implementation="eager"; FSDP and DeepSpeed cast.'
        )


def _on_the_host(result: StepResult, job: Job) -> Iterator[str]:
    share = result.breakdown_s.get(Category.HOST, 0.0) / result.step_time_s
    if share <= _WORTH_A_REMARK:
        return
    graphs = {"plan.cuda_graphs": "layer"}
    ways = [
        *_ways(job, {"batch.micro": 2 * job.batch.micro_batch}, "larger kernels"),
        *([f"--set {_GROUPS}"] if job.can_group_experts else []),
        *(_ways(job, graphs, "CUDA graphs") if job.can_replay_layers else ()),
    ]
    advice = f" What may help: {', '.join(ways)}." if ways else ""
    yield (
        f"GPUs wait for their host for {percent(share)} of the step: it launches kernels more "
        f"slowly than they compute them.{advice}"
    )


def _ways(job: Job, fields: dict[str, Any], words: str) -> Iterator[str]:
    """A change in words, where the job can take it."""
    with suppress(InputError):
        if job.replace(fields) != job:
            yield f"{words} (--set {' --set '.join(f'{k}={v}' for k, v in fields.items())})"
