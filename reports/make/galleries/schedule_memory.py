"""How much memory does each stage of a pipeline hold under one schedule or another?

One row per schedule, simulated on the same job: at the left what each stage has allocated
over the step, at the right its peak. 1F1B makes a staircase (the first stage holds a
microbatch for every stage behind it), interleaving a higher and flatter one; schedules that
come back to the first rank (zb-v, dualpipe) are level.

``python -m reports.make.galleries.schedule_memory JOB.yaml FILE.png`` draws it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from simulator.described.job import Job
from simulator.described.load import load_job
from simulator.plots import style
from simulator.results.simulation import run_step
from simulator.results.step import ClassMemory, StepResult

SCHEDULES: Sequence[Mapping[str, Any]] = (
    {"plan.schedule": "gpipe"},
    {"plan.schedule": "1f1b"},
    {"plan.schedule": "interleaved-1f1b", "plan.vpp": 2},
    {"plan.schedule": "zb-h1"},
    {"plan.schedule": "zb-v", "plan.vpp": 2},
    {"plan.schedule": "dualpipe"},
    {"plan.schedule": "dualpipev", "plan.vpp": 2},
)
"""What is compared, as changes of the job."""

_PIPELINED = {"plan.pp": 4, "plan.tp": 2, "batch.global": 12, "batch.micro": 1}
"""What makes a pipeline of a job for eight GPUs."""

_GIB = 1024.0**3
_LEFT_IN, _TOP_IN, _ROW_IN, _GAP_IN = 0.75, 1.0, 1.05, 0.42
_CURVES_IN, _BARS_IN, _BETWEEN_IN = 6.0, 2.2, 0.6


def draw_schedule_memory(job: Job, path: str | Path) -> None:
    """Simulate a job under every schedule and write the picture; the suffix names the format."""
    results = [(changes, run_step(job.replace(changes), "replay")) for changes in SCHEDULES]
    style.save(build_schedule_memory_figure(job.title, results), path)


def build_schedule_memory_figure(
    title: str, results: Sequence[tuple[Mapping[str, Any], StepResult]]
) -> Figure:
    """Curves and peaks of all results, on common axes."""
    height_in = _TOP_IN + len(results) * (_ROW_IN + _GAP_IN) + 0.25
    figure = style.new_figure(height_in)
    style.add_title(
        figure,
        "Memory of every stage, by schedule",
        f"{title}; allocated, lighter for later stages",
        left=_LEFT_IN,
    )
    most = max(step.peak_allocated_bytes for _, step in results)
    longest_s = max(step.step_time_s for _, step in results)
    for row, (changes, step) in enumerate(results):
        _draw_row(figure, row, changes, step, most / _GIB, longest_s)
    return figure


def _draw_row(
    figure: Figure,
    row: int,
    changes: Mapping[str, Any],
    step: StepResult,
    most_gib: float,
    longest_s: float,
) -> None:
    top_in = _TOP_IN + row * (_ROW_IN + _GAP_IN)
    curves = style.add_axes_in(figure, left=_LEFT_IN, top=top_in, width=_CURVES_IN, height=_ROW_IN)
    left_in = _LEFT_IN + _CURVES_IN + _BETWEEN_IN
    bars = style.add_axes_in(figure, left=left_in, top=top_in, width=_BARS_IN, height=_ROW_IN)
    stages = len(step.memory)
    for memory in step.memory:
        shade = style.chunk_shade(style.BLUE, memory.stage, stages)
        time_s = np.append(memory.time_s, step.step_time_s)
        held = _allocated_gib(memory)
        curves.step(time_s, np.append(held, held[-1]), where="post", color=shade, linewidth=1.0)
        drawn = bars.bar(memory.stage, memory.peak_allocated_bytes / _GIB, color=shade, width=0.8)
        bars.bar_label(drawn, fmt="%.0f", fontsize=style.SMALL_PT, color=style.INK)
    style.add_heading(curves, _name(changes))
    curves.set_xlim(0, longest_s)
    style.show_seconds(curves.xaxis, longest_s)
    for axes in (curves, bars):
        axes.set_ylim(0, 1.18 * most_gib)
        axes.grid(axis="y", color=style.GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    curves.set_ylabel("GiB", fontsize=style.TEXT_PT, color=style.INK)
    bars.set_xticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    bars.tick_params(axis="x", length=0)
    bars.tick_params(axis="y", labelleft=False)
    if row == 0:
        style.add_heading(bars, "peak of each stage")
    if row + 1 < len(SCHEDULES):
        curves.tick_params(axis="x", labelbottom=False)
        curves.set_xlabel("")


def _name(changes: Mapping[str, Any]) -> str:
    chunks = changes.get("plan.vpp", 1)
    return f"{changes['plan.schedule']}" + (f", {chunks} chunks per stage" if chunks > 1 else "")


def _allocated_gib(memory: ClassMemory) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From each moment on, shape (changes,) [GiB]."""
    return sum(memory.owner_bytes.values(), np.zeros_like(memory.time_s)) / _GIB


if __name__ == "__main__":
    draw_schedule_memory(load_job(sys.argv[1]).replace(_PIPELINED), sys.argv[2])
