"""Which single change would make training faster, found by simulating a few?

Each candidate changes one decision of the job on the GPUs there are: microbatches,
recomputation, pipeline order, layers of the stages, degrees, dispatch to experts, sharding. It is
replayed without contention and compared with the job replayed likewise, so that gains are of one
kind.
Doubling the microbatches also doubles the global batch, which decides what is learned; its
gain says what the bubble and the reductions of a step cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from simulator.described.job import Job
from simulator.described.plan.plan import Recompute
from simulator.errors import InputError
from simulator.planning.changes.balance import better_layout
from simulator.planning.changes.recompute_change import recompute_change
from simulator.planning.search.feasible import is_data_parallel_only, still_shards
from simulator.planning.search.space import powers_of_two
from simulator.program.grid.rank_groups import shard_group
from simulator.results.simulation import run_step
from simulator.results.step import StepResult
from simulator.results.verdict import WhatIf

Changes = Mapping[str, object]

_FLAGS = ("overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "overlap_tp")
_RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
MOST_TRIED = 24
"""Changes that one search simulates at most."""


def what_ifs(job: Job, *, on_trial: Callable[[], None] | None = None) -> tuple[WhatIf, ...]:
    """The changes that could be simulated, the largest gain first.

    Args:
        job: Where to start from.
        on_trial: Called after each simulated candidate, for progress.

    Raises:
        InputError: The job itself cannot run.
    """
    base = run_step(job, "replay")
    found = []
    for words, changes in list(_candidates(job))[:MOST_TRIED]:
        try:
            changed = job.replace(changes)
            step = run_step(changed, "replay") if still_shards(changed, job) else None
        except InputError:
            continue  # a rule forbids it
        if step is None:
            continue
        if on_trial:
            on_trial()
        found.append(_what_if(words, changes, step, base))
    return tuple(sorted(found, key=lambda each: -each.gain))


def _what_if(words: str, changes: Changes, step: StepResult, base: StepResult) -> WhatIf:
    gain = step.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu - 1
    return WhatIf(words, changes, gain, step.step_time_s, step.peak_device_bytes, step.fits)


def _candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    yield from _batch_candidates(job)
    yield from _recompute_candidates(job)
    if not is_data_parallel_only(job):
        yield from _pipeline_candidates(job)
        yield from _degree_candidates(job)
    yield from _sharding_candidates(job)
    yield from _flag_candidates(job)


def _batch_candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    count, micro = job.microbatches, job.batch.micro_batch
    yield (
        _moved("microbatches", count, 2 * count),
        {"batch.global": 2 * job.batch.global_batch},
    )
    for other in (2 * micro, micro // 2):
        if other and job.batch.global_batch % (other * job.dp) == 0:
            yield _moved("the microbatch", micro, other), {"batch.micro": other}


def _recompute_candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    now = job.plan.recompute
    for other in _RECOMPUTE:
        if other != now:
            yield f"changing recompute from {now} to {other}", recompute_change(job.plan, other)


def _pipeline_candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    plan = job.plan
    if plan.pp == 1:
        return
    if plan.layout is None and plan.schedule in (None, "1f1b", "interleaved-1f1b"):
        changes = {"plan.vpp": 2 * plan.vpp, "plan.schedule": "interleaved-1f1b"}
        yield _moved("vpp", plan.vpp, 2 * plan.vpp), changes
    if plan.vpp == 1 and plan.schedule in (None, "1f1b"):
        yield "changing the schedule from 1f1b to zb-h1", {"plan.schedule": "zb-h1"}
    layout = better_layout(job)
    if layout is not None:
        yield layout


def _degree_candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    for name in ("tp", "pp", "cp"):
        now = getattr(job.plan, name)
        for other in (now // 2, 2 * now):
            if other and not (name == "cp" and now == 1):
                yield _moved(name, now, other), {f"plan.{name}": other}
    yield from _expert_candidates(job)


def _expert_candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    """Fewer or more ranks, as many as the scale-up links join, and two-level dispatch."""
    if job.model.experts is None:
        return
    now, domain = job.plan.ep, job.cluster.profile.network.scale_up.gpus
    inside = max(n for n in powers_of_two(domain) if job.model.experts.count % n == 0)
    for other in sorted({now // 2, 2 * now, inside} - {0, now}):
        yield _moved("ep", now, other), {"plan.ep": other}
    dispatch = job.plan.ep_dispatch
    if now > 1 and dispatch != "hierarchical":
        words = f"changing ep_dispatch from {dispatch} to hierarchical"
        yield words, {"plan.ep_dispatch": "hierarchical"}


def _sharding_candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    """Other ZeRO stages, and shards of weights inside a scale-up domain or over all ranks."""
    plan, ranks = job.plan, job.dp * job.plan.cp
    if plan.offload.is_used:
        yield "offloading nothing", {"plan.offload": {}}
    if ranks == 1 or plan.offload.is_used:
        return
    for other in (1, 2, 3):
        if other != plan.zero:
            yield _moved("zero", plan.zero, other), {"plan.zero": other}
    if plan.zero == 3:
        now = plan.zero_group or ranks
        domain = shard_group(job).local_ranks
        other = ranks if plan.zero_group else domain
        if other != now:
            words = f"sharding over {other} ranks instead of {now}"
            yield words, {"plan.zero_group": 0 if other == ranks else other}


def _flag_candidates(job: Job) -> Iterator[tuple[str, Changes]]:
    for name in _FLAGS:
        if getattr(job.plan, name) is False:
            yield f"turning {name} on", {f"plan.{name}": True}


def _moved(name: str, now: int, then: int) -> str:
    verb = "raising" if then > now else "lowering"
    return f"{verb} {name} from {now} to {then}"
