"""What does the page show of one simulated step?

Numbers for scripts, texts for people, both from the functions that write the page of
``clustersim run --html``.
"""

from __future__ import annotations

from typing import Any

from simulator.api import Result, simulate
from simulator.described.job import Job
from simulator.exporters.html.run_report import (
    memory_owners,
    memory_rows,
    timeline_legend,
    waterfall,
)
from simulator.exporters.html.timeline_data import source_blocks, timeline_data
from simulator.planning.campaign.training_run import campaign_time, energy, money
from simulator.results.plain_data import fit_to_dict
from simulator.results.verdict import verdict
from simulator.studio.controls import State, job_of
from simulator.units import HOUR_S, format_bytes, format_count, format_seconds

_MOST_ROWS = 20_000
"""Operations of the timeline; beyond it classes of ranks are left out, so that it stays quick."""


def step_answer(state: State, *, with_timeline: bool = True) -> dict[str, Any]:
    """The step of a state's job.

    Args:
        state: Fields of the job.
        with_timeline: Whether the page will draw its operations.

    Raises:
        InputError: The job cannot run.
    """
    job = job_of(state)
    result = simulate(job)
    return {
        "title": result.title,
        "verdict": verdict(result),
        "step_time_s": result.step_time_s,
        "step": format_seconds(result.step_time_s),
        "band": result.step_time_band_s and [format_seconds(s) for s in result.step_time_band_s],
        "mfu": result.mfu,
        "hfu": result.hfu,
        "tokens_per_s_per_gpu": result.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": result.model_tflops_per_gpu,
        "bubble_fraction": result.bubble_fraction,
        **fit_to_dict(result),
        "dp": job.dp,
        "microbatches": job.microbatches,
        "memory": _memory(result),
        "breakdown": [
            {**row, "key": row["key"].value, "time": format_seconds(row["seconds"])}
            for row in waterfall(result)
        ],
        "cost": _cost(job, result),
        **(_timeline(job, result) if with_timeline else {}),
    }


def _memory(result: Result) -> dict[str, Any]:
    """Peaks by owner of the fullest ranks of each class, and of the fullest of all."""
    rows = [
        {
            "name": row["name"],
            "need_bytes": row["memory"].peak_device_bytes,
            "need": format_bytes(row["memory"].peak_device_bytes),
            "capacity": format_bytes(row["memory"].capacity_bytes),
            "is_fullest": row["memory"] is result.fullest,
            "fits": row["fits"],
            "limit_share": row["capacity_share"],
            "shares": [bar["share"] for bar in row["bars"]],
        }
        for row in memory_rows(result)
    ]
    fullest = result.fullest
    owners = memory_owners(result)
    held = [fullest.by_owner.get(owner["key"], 0.0) for owner in owners if "key" in owner]
    held.append(fullest.peak_device_bytes - fullest.peak_allocated_bytes)
    return {
        "rows": rows,
        "owners": [
            {"name": owner["name"], "color": owner["color"], "held": format_bytes(size)}
            for owner, size in zip(owners, held, strict=True)
        ],
    }


def _cost(job: Job, result: Result) -> dict[str, Any] | None:
    """Days, GPU-hours and money of the training run; None where no tokens are given.

    Ignores failures and checkpoints unless the job describes them.
    """
    if job.campaign.tokens is None or job.cluster.pools:
        return None
    time = campaign_time(job, result, members=20)
    paid = money(job, time, energy(job, time)).cheapest
    return {
        "tokens": format_count(time.tokens),
        "wall": format_seconds(time.wall_s),
        "gpu_hours": time.gpu_s / HOUR_S,
        "usd": paid and paid[1],
    }


def _timeline(job: Job, result: Result) -> dict[str, Any]:
    blocks = source_blocks(job)
    return {
        "timeline": timeline_data(result, blocks, most_rows=_MOST_ROWS),
        "sources": blocks,
        "legend": list(timeline_legend(result)),
    }
