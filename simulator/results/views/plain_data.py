"""What does a result look like as plain data, for JSON and tables?"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from simulator.described.job import Job
from simulator.program.grid.expert_tokens import busiest_share
from simulator.program.ir import RankClass, Stream
from simulator.program.layer.model_totals import parameter_count_by_part
from simulator.program.price.roofline import measured_share
from simulator.program.run.order import Asynchrony
from simulator.program.unlike.causes import WAIT
from simulator.results.simulation import PerturbationCost
from simulator.results.step import ClassMemory, HostMemory, StepResult
from simulator.results.unseen_runs import unseen_runs_of
from simulator.units import format_bytes, format_count, format_seconds

SCHEMA_VERSION = 1
"""Raised whenever a field changes its name or meaning."""


def json_text(document: Mapping[str, Any], indent: int | None = 2) -> str:
    """One JSON object, as commands print it: whole bytes; null for what is no finite number."""
    versioned = {"schema_version": SCHEMA_VERSION, **document}
    return json.dumps(_plain(versioned), indent=indent, allow_nan=False)


def _plain(value: Any, *, is_bytes: bool = False) -> Any:
    if isinstance(value, float):
        is_finite = value - value == 0
        return (round(value) if is_bytes else value) if is_finite else None
    if isinstance(value, Mapping):
        return {
            str(key): _plain(child, is_bytes=is_bytes or _holds_bytes(str(key)))
            for key, child in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(child, is_bytes=is_bytes) for child in value]
    return value


def _holds_bytes(key: str) -> bool:
    return key.endswith(("_bytes", "by_owner")) or key == "device_shares"


def result_to_dict(
    result: StepResult, job: Job, cost: PerturbationCost | None = None
) -> dict[str, Any]:
    """The result of a job as JSON-ready data; times in seconds, sizes in bytes.

    ``cost`` is that of its perturbations; without, the key is left out.
    """
    return {
        **step_to_dict(result),
        "mfu_causal": result.mfu_causal,
        "synchronous": result.asynchrony is None,
        "asynchrony": _asynchrony_to_dict(result.asynchrony),
        "memory": [memory_to_dict(memory) for memory in result.memory],
        "rank_classes": [_class_to_dict(each) for each in result.timeline.program.classes],
        "capacity_bytes": result.capacity_bytes,
        **({"host_memory": _host_to_dict(result.host)} if result.host else {}),
        **fit_to_dict(result),
        **({"perturbation_cost": asdict(cost)} if cost else {}),
        "unseen_runs": unseen_runs_of(job)._asdict(),
        "expert_load": expert_load_sentence(result, job),
        "sources": source_counts(job),
        **_measured_kernels(job),
        **_resolved(job),
        "job": dict(job.document),
    }


def _resolved(job: Job) -> dict[str, Any]:
    """Size of the model, and what decides most of the plan, whether the job says it or not."""
    count, plan, batch = parameter_count_by_part(job.model), job.plan, job.batch
    names = ("tp", "pp", "vpp", "cp", "ep", "zero", "recompute", "precision")
    return {
        "parameters": count.parameters,
        "active_parameters": count.active_parameters,
        "resolved": {
            "plan.stack": job.stack_name,
            **{f"plan.{name}": getattr(plan, name) for name in names},
            "plan.dp": job.dp,
            "batch.micro": batch.micro_batch,
            "microbatches": job.microbatches,
        },
    }


def setup_text(job: Job) -> str:
    """The same in words, without the degrees that the title has."""
    found = _resolved(job)
    plan = found["resolved"]
    size = f"{format_count(found['parameters'])} parameters"
    if job.model.experts:
        size += f", {format_count(found['active_parameters'])} active"
    compiled = {None: "", True: " compiled", False: " without torch.compile"}[job.plan.compile]
    return (
        f"{size}; {plan['plan.stack']}{compiled}, {plan['plan.precision']}, "
        f"ZeRO {plan['plan.zero']}, microbatch {plan['batch.micro']}, "
        f"recompute {plan['plan.recompute']}"
    )


def _measured_kernels(job: Job) -> dict[str, float]:
    """Share of kernel time that follows from measured products, where a profile names some."""
    has_table = job.cluster.profile.kernels.table is not None and not job.cluster.pools
    return {"measured_kernel_share": measured_share(job)} if has_table else {}


def step_to_dict(result: StepResult) -> dict[str, Any]:
    """Rates and times of a step, of a job or captured."""
    return {
        "schema_version": SCHEMA_VERSION,
        "title": result.title,
        "step_time_s": result.step_time_s,
        "step_time_band_s": result.step_time_band_s and list(result.step_time_band_s),
        "tokens_per_s_per_gpu": result.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": result.model_tflops_per_gpu,
        "mfu": result.mfu,
        "hfu": result.hfu,
        "bubble_fraction": result.bubble_fraction,
        "breakdown_s": {category.value: s for category, s in result.breakdown_s.items()},
        "exposed_comm_s": {category.value: s for category, s in result.exposed_comm_s.items()},
    }


def fit_to_dict(result: StepResult) -> dict[str, Any]:
    """Whether the step fits, and how sure that is."""
    probability = result.fits_probability
    return {"fits": result.fits, "fits_probability": probability, "fit": result.fit.value}


def _host_to_dict(host: HostMemory) -> dict[str, Any]:
    """The fullest node; given only where something leaves the GPUs."""
    return {
        "by_owner": {owner.value: num_bytes for owner, num_bytes in host.held_bytes.items()},
        "capacity_bytes": host.capacity_bytes,
        "nvme_by_owner": {o.value: num_bytes for o, num_bytes in host.nvme_held_bytes.items()},
        "nvme_capacity_bytes": host.nvme_capacity_bytes,
        "fits": host.fits,
    }


def _class_to_dict(rank_class: RankClass) -> dict[str, Any]:
    """Which ranks an entry of ``memory`` stands for, and why they are not the whole stage."""
    return {
        "name": rank_class.name,
        "stage": rank_class.stage,
        "ranks": rank_class.count,
        "first_rank": rank_class.first_rank,
        "cause": rank_class.cause,
        **({"gpu": rank_class.role} if rank_class.device else {}),
    }


def source_counts(job: Job) -> dict[str, int]:
    """How many numbers of the hardware profile are measured, fitted, assumed, and so on."""
    profiles = {pool.profile.name: pool.profile for pool in job.cluster.kinds}
    sources = [source for profile in profiles.values() for source in profile.provenance.values()]
    return dict(Counter(source.kind for source in sources).most_common())


def _asynchrony_to_dict(found: Asynchrony | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "statement": found.statement,
        "microbatches_per_update": found.microbatches_per_update,
        "weight_versions": list(found.weight_versions),
        "staleness_updates": list(found.staleness_updates),
    }


def memory_to_dict(memory: ClassMemory) -> dict[str, Any]:
    """Peaks of one class of ranks [B], and who holds them."""
    return {
        "stage": memory.stage,
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "peak_device_bytes": memory.peak_device_bytes,
        "least_device_bytes": memory.least_device_bytes,
        "peak_time_s": memory.peak_time_s,
        "capacity_bytes": memory.capacity_bytes,
        "by_owner": {owner.value: num_bytes for owner, num_bytes in memory.by_owner.items()},
        "device_shares": memory.device_shares,
    }


def expert_load_sentence(result: StepResult, job: Job) -> str:
    """Who waits for whom, how long, and where memory peaks; empty where the load is even."""
    share = busiest_share(job)
    if share is None:
        return ""
    hottest = f"The busiest expert receives {max(share.loads):.2f} times its share"
    if job.plan.ep == 1:
        return f"{hottest}, but every rank holds all experts, so no rank waits."
    classes = result.timeline.program.classes
    waits_s = {index: _wait_s(result, index) for index in range(len(classes))}
    waiting = max(waits_s, key=lambda index: waits_s[index])
    stage = classes[waiting].stage
    beside = [index for index, rank_class in enumerate(classes) if rank_class.stage == stage]
    busiest = min(beside, key=lambda index: waits_s[index])
    wait_s = waits_s[waiting]
    share_of_step = f"{100 * wait_s / result.step_time_s:.1f} %"
    peaks = [result.memory[index].peak_allocated_bytes for index in (busiest, waiting)]
    return (
        f"{hottest} and its rank {share.busiest:.2f} times the mean of all ranks. Of every "
        f"{job.plan.ep} ranks that share the experts, {job.plan.ep - 1} wait for it, "
        f"{format_seconds(wait_s)} of a step of {format_seconds(result.step_time_s)} "
        f"({share_of_step}, stage {stage}). Its memory peaks at {format_bytes(peaks[0])}, "
        f"that of the others at {format_bytes(peaks[1])}."
    )


def _wait_s(result: StepResult, rank_class: int) -> float:
    program = result.timeline.program
    lane = program.lanes.get((rank_class, Stream.COMPUTE), [])
    parts = (part for index in lane for part in program.operations[index].work.parts)
    return math.fsum(part.seconds for part in parts if part.name == WAIT)
