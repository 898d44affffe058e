"""Which way of data parallelism should a newcomer take, on one page with pictures?

``python -m reports.make.strategies.strategies_report JOB.yaml DIR`` writes the page: one model on
two systems, on one node and on eight, and what ZeRO costs inside a pipeline.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reports.make.strategies.zero_in_pipeline_costs import STAGES, ZeroRun, zero_runs
from reports.make.strategies.zero_in_pipeline_picture import ZeroCurve, draw_zero_in_pipeline
from simulator.described.job import Job
from simulator.described.load import load_job
from simulator.planning.compared_strategies import (
    Comparison,
    Outcome,
    compare_strategies,
    known_strategies,
    on_nodes,
)
from simulator.planning.drawn_strategies import draw_comparisons
from simulator.units import counted, format_bytes, format_seconds

PAGE = "README.md"
PROFILES = ("h100-sxm-80gb", "a100-sxm-80gb")
NODE_COUNTS = (1, 8)
MICROBATCHES = (4, 8, 16, 32, 64)
_PIPELINE: dict[str, Any] = {
    "plan.pp": 4,
    "plan.stack": {"base": "torchtitan", "keeps_half_weights": True},
    "batch.micro": 1,
}
"""torchtitan runs every stage of ZeRO inside a pipeline. In all of them 16-bit weights live beside
fp32 ones: else stages for which no FSDP casts would run under autocast, in other formats."""
_PIPELINE_NODES = 8


def write_report(job: Job, folder: Path) -> Iterator[Path]:
    """Write the page and its pictures into a folder; yields each file when it is there.

    Args:
        job: The model and the batch of one GPU.
        folder: Made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sections = [_head(job)]
    for profile in PROFILES:
        found = compare_strategies(job.replace({"cluster.profile": profile}), NODE_COUNTS)
        picture = folder / f"{profile}.png"
        draw_comparisons(found, picture)
        yield picture
        sections.append(_system_section(profile, picture.name, found))
    pipeline = on_nodes(job.replace(_PIPELINE), _PIPELINE_NODES)
    runs = zero_runs(pipeline, MICROBATCHES)
    picture = folder / "zero-in-a-pipeline.png"
    _draw_runs(pipeline, runs, picture)
    yield picture
    sections.append(_pipeline_section(pipeline, picture.name, runs))
    page = folder / PAGE
    page.write_text("\n".join(sections), encoding="utf-8")
    yield page


def _head(job: Job) -> str:
    advice = [f"| **{s.name}** | {s.shards} | {s.advice} |" for s in known_strategies()]
    tokens = job.microbatches * job.batch.micro_batch * job.batch.seq_len
    return "\n".join(
        [
            "# Ways of data parallelism",
            "",
            f"One model, {job.model.name}, on one node and on eight; every GPU trains "
            f"{tokens:,} tokens per step, {job.batch.micro_batch} sequences of "
            f"{job.batch.seq_len} at a time, without recomputation. Model, kernels and number "
            "formats are the same in all rows; only what the data-parallel ranks share out, and "
            "what they hide, differs. Simulated, not measured. The same for any job:",
            "",
            "    clustersim strategies JOB.yaml --nodes 1,8 --plot strategies.png",
            "",
            "| strategy | shards | what it does and when to take it |",
            "|---|---|---|",
            *advice,
            "",
        ]
    )


def _system_section(profile: str, picture: str, found: Sequence[Comparison]) -> str:
    lines = [f"## {profile}", "", f"![strategies on {profile}]({picture})", ""]
    for comparison in found:
        gpus = comparison.job.cluster.gpus
        lines += [
            f"On {counted(comparison.nodes, 'node')}, {gpus} GPUs:",
            "",
            "| strategy | step time | tokens/s per GPU | exposed | moved per GPU | memory | fits |",
            "|---|--:|--:|--:|--:|--:|---|",
            *(_line(outcome) for outcome in comparison.outcomes),
            "",
        ]
    return "\n".join(lines)


def _line(outcome: Outcome) -> str:
    step, name = outcome.step, outcome.strategy.name
    if step is None:
        return f"| {name} | | | | | | no: {outcome.refusal} |"
    cells = (
        name,
        format_seconds(step.step_time_s),
        f"{step.tokens_per_s_per_gpu:,.0f}",
        f"{100 * outcome.exposed_s / step.step_time_s:.1f} %",
        format_bytes(outcome.moved_bytes),
        format_bytes(outcome.fullest.peak_device_bytes),
        "yes" if outcome.fits else "no",
    )
    return f"| {' | '.join(cells)} |"


def _draw_runs(job: Job, runs: Sequence[ZeroRun], path: Path) -> None:
    curves = []
    for zero in STAGES:
        own = [run for run in runs if run.zero == zero]
        curves.append(
            ZeroCurve(
                zero,
                [run.microbatches for run in own],
                [run.step.step_time_s for run in own],
                [run.moved_bytes for run in own],
                [run.peak_bytes for run in own],
            )
        )
    title = f"ZeRO in a pipeline of {job.plan.pp} stages"
    draw_zero_in_pipeline(title, f"{job.title}, {job.plan.schedule or '1f1b'}", curves, path)


def _pipeline_section(job: Job, picture: str, runs: Sequence[ZeroRun]) -> str:
    lines = [
        "## ZeRO in a pipeline",
        "",
        f"{job.title}, torchtitan's way, {job.plan.schedule or '1f1b'}, with 16-bit weights "
        "beside the fp32 ones. ZeRO 0 and 1 exchange "
        "gradients once per step, however many microbatches fill the pipeline. ZeRO 2 has to "
        "reduce after every microbatch, because nobody keeps whole gradients. Under ZeRO 3 torch "
        "keeps them until the end of the step and reduces them once, but gathers the weights of "
        "its stage once more for every microbatch. A pipeline needs many microbatches to keep "
        "its bubble small, and every one of them pays.",
        "",
        f"![ZeRO in a pipeline]({picture})",
        "",
        "| microbatches | ZeRO | step time | over ZeRO 1 | moved per GPU | per microbatch more | "
        "exposed | memory |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    by_size = {(run.zero, run.microbatches): run for run in runs}
    for count in MICROBATCHES:
        lines += [_run_line(by_size[zero, count], by_size[1, count], by_size) for zero in STAGES]
    worst = {zero: by_size[zero, MICROBATCHES[-1]] for zero in STAGES}
    saved = {z: worst[z - 1].peak_bytes - worst[z].peak_bytes for z in STAGES if z}
    slower = {z: worst[z].step.step_time_s / worst[1].step.step_time_s - 1 for z in STAGES}
    lines += [
        "",
        f"That is why stage 1 is the one in use: with {MICROBATCHES[-1]} microbatches it frees "
        f"{format_bytes(saved[1])} per GPU and costs nothing; ZeRO 2 frees "
        f"{format_bytes(saved[2])} more and makes the step {100 * slower[2]:.0f} % longer. ZeRO 3, "
        f"whose gradients stay whole, holds {format_bytes(worst[3].peak_bytes)} and makes it "
        f"{100 * slower[3]:.0f} % longer. The pipeline has divided "
        f"weights and gradients by {job.plan.pp} already, so little is left to save. DeepSpeed's "
        "pipeline engine refuses stages 2 and 3, and Megatron-Core's distributed optimizer is "
        "stage 1.",
        "",
    ]
    return "\n".join(lines)


def _run_line(run: ZeroRun, base: ZeroRun, by_size: dict[tuple[int, int], ZeroRun]) -> str:
    first, second = (by_size[run.zero, count] for count in MICROBATCHES[:2])
    added = second.microbatches - first.microbatches
    more = (second.moved_bytes - first.moved_bytes) / added
    step_s = run.step.step_time_s
    exposed = math.fsum(
        seconds
        for category, seconds in run.step.exposed_comm_s.items()
        if category.value == "data_parallel"
    )
    cells = (
        str(run.microbatches),
        str(run.zero),
        format_seconds(step_s),
        f"{100 * (step_s / base.step.step_time_s - 1):+.1f} %",
        format_bytes(run.moved_bytes),
        format_bytes(more),
        f"{100 * exposed / step_s:.1f} %",
        format_bytes(run.peak_bytes),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    for written in write_report(load_job(sys.argv[1]), Path(sys.argv[2])):
        sys.stderr.write(f"wrote {written}\n")
