"""What does a result look like as plain data, for JSON and tables?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulator.described.job import Job
from simulator.program.ir import RankClass
from simulator.program.run.order import Asynchrony
from simulator.results.host_memory import HostMemory
from simulator.results.step import ClassMemory, StepResult
from simulator.results.words.expert_load_sentence import expert_load_sentence

SCHEMA_VERSION = 1
"""Raised whenever a field changes its name or meaning."""


def result_to_dict(result: StepResult, job: Job) -> dict[str, Any]:
    """The result of a job as JSON-ready data; times in seconds, sizes in bytes."""
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
        "synchronous": result.asynchrony is None,
        "asynchrony": _asynchrony_to_dict(result.asynchrony),
        "memory": [_memory_to_dict(memory) for memory in result.memory],
        "rank_classes": [_class_to_dict(each) for each in result.timeline.program.classes],
        "capacity_bytes": result.capacity_bytes,
        **({"host_memory": _host_to_dict(result.host)} if result.host else {}),
        "fits": result.fits,
        "expert_load": expert_load_sentence(result, job),
        "sources": source_counts(job),
        "job": dict(job.document),
    }


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
    profiles = {pool.profile.name: pool.profile for pool in job.cluster.pools or (job.cluster,)}
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


def _memory_to_dict(memory: ClassMemory) -> dict[str, Any]:
    return {
        "stage": memory.stage,
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "peak_device_bytes": memory.peak_device_bytes,
        "peak_time_s": memory.peak_time_s,
        "capacity_bytes": memory.capacity_bytes,
        "by_owner": {owner.value: num_bytes for owner, num_bytes in memory.by_owner.items()},
    }
