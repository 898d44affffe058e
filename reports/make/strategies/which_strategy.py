"""Which strategy when: does simulation reproduce the rules of thumb, and with which numbers?

``make advice`` writes ``reports/which-strategy.md`` and its picture. Each situation of the
well-known table is one job; every family of strategies is taken at its best
(:mod:`simulator.planning.compared_strategies`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.make.strategies.strategy_map import draw_strategy_map
from reports.make.tables import markdown_table
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.planning.changes.helpful_changes import nearest_fit
from simulator.planning.compared_strategies import FAMILIES, FamilyResult, compare_families
from simulator.planning.search.space import Axes
from simulator.processor import core_count
from simulator.units import format_bytes, format_seconds

RULES_SOURCE = (
    "Hugging Face Transformers documentation, Parallelism methods; S. Bekman, Machine Learning "
    "Engineering, model parallelism"
)
_TRIED: Axes = {
    "plan.vpp": (1,),
    "plan.cp": (1,),
    "plan.recompute": ("none", "full"),
    "batch.micro": (1, 2, 4),
}
"""What every strategy may choose besides its degrees and its ZeRO stage. Forty jobs are searched
here, most of them with slow networks, where few plans can be set aside without simulating them."""
_ON_A_PAR = 1.05
"""Families within 5 % of the best are on a par."""


@dataclass(frozen=True)
class Situation:
    """One row of the well-known table.

    Attributes:
        name: As people ask it.
        rule: The usual answer.
        model: Name of the model that stands for it.
        cluster: Block of the job.
    """

    name: str
    rule: str
    model: str
    cluster: Mapping[str, Any]


def _h100(gpus: int, gbit_per_s: int = 3200) -> dict[str, Any]:
    """H100 nodes whose eight GPUs share that much network."""
    nics = 8 if gbit_per_s >= 800 else 1
    fabric = {"nics_per_node": nics, "nic": f"{gbit_per_s // nics} Gbit/s"}
    return {"profile": "h100-sxm-80gb", "gpus": gpus, "network": {"fabric": fabric}}


_L40S = {"profile": "l40s", "gpus": 8}

SITUATIONS = (
    Situation("one GPU, the model fits", "nothing", "llama3.2-1b", _h100(1)),
    Situation("one GPU, it does not fit", "offload, or more GPUs", "llama3.1-8b", _h100(1)),
    Situation(
        "one node with NVLink, the model fits one GPU", "DDP or ZeRO", "llama3.2-1b", _h100(8)
    ),
    Situation(
        "one node with NVLink, it does not fit one GPU",
        "ZeRO, TP and PP on a par",
        "llama3.1-8b",
        _h100(8),
    ),
    Situation("one node without NVLink, the model fits", "DDP or ZeRO", "llama3.2-1b", _L40S),
    Situation("one node without NVLink, it does not fit", "PP before TP", "llama3.2-3b", _L40S),
    Situation("many nodes, 3200 Gbit/s each", "ZeRO, or TP + PP + DP", "llama3.1-8b", _h100(32)),
    Situation(
        "many nodes, 3200 Gbit/s each, a large model",
        "ZeRO, or TP + PP + DP",
        "llama3.1-70b",
        _h100(32),
    ),
    Situation(
        "many nodes, 25 Gbit/s each", "TP + PP + DP with ZeRO-1", "llama3.1-8b", _h100(32, 25)
    ),
    Situation(
        "many nodes, 25 Gbit/s each, a large model",
        "TP + PP + DP with ZeRO-1",
        "llama3.1-70b",
        _h100(32, 25),
    ),
)
"""The well-known table, each row with a model and a cluster that stand for it."""

MAP_MODELS = (
    "llama3.2-1b", "llama3.2-3b", "llama3.1-8b", "qwen2.5-14b", "qwen2.5-32b", "llama3.1-70b",
)  # fmt: skip
MAP_SPEEDS_GBIT = (10, 25, 100, 400, 3200)
"""Network of one node of eight GPUs [Gbit/s]."""
MAP_GPUS = 32


def situation_job(model: str, cluster: Mapping[str, Any]) -> Job:
    """64 sequences of 4096 tokens under torchtitan, which runs every family."""
    return job_from_document(
        {
            "model": model,
            "cluster": dict(cluster),
            "batch": {"global": 64, "seq_len": 4096},
            "plan": {"stack": "torchtitan", "zero": 0},
        }
    )


def situation_section(
    situation: Situation, job: Job, results: Sequence[FamilyResult], answer: str
) -> str:
    """One situation: what to take, and every family with its numbers."""
    lines = [
        f"### {situation.name[0].upper()}{situation.name[1:]}",
        "",
        f"{job.model.name} on {job.cluster.gpus} x {job.cluster.profile.name}. Rule of thumb: "
        f"{situation.rule}. **Simulated: {answer}.**",
        "",
        "| strategy | step | against the best | tokens/s per GPU | fullest GPU | its best plan |",
        "|---|---:|---:|---:|---:|---|",
        *(_row(job, each, results[0]) for each in results),
    ]
    return "\n".join(lines) + "\n"


def verdict(job: Job, results: Sequence[FamilyResult]) -> str:
    """What to take, in words."""
    best = results[0]
    if best.choice is None:
        way_out = nearest_fit(job).nearest
        if way_out is None:
            return "nothing fits, and no change that was tried does"
        changes = ", ".join(f"{path} = {value}" for path, value in way_out.changes.items())
        return (
            f"nothing fits; the nearest that does is {changes}, with steps of "
            f"{format_seconds(way_out.step_time_s)}"
        )
    if job.cluster.gpus == 1:
        return "nothing has to be divided"
    limit_s = best.choice.step_time_s * _ON_A_PAR
    on_a_par = [each for each in results if each.choice and each.choice.step_time_s <= limit_s]
    names = [each.family.name for each in on_a_par]
    return names[0] if len(names) == 1 else f"{names[0]}, on a par with {', '.join(names[1:])}"


def _row(job: Job, result: FamilyResult, best: FamilyResult) -> str:
    name, choice = result.family.name, result.choice
    if choice is None or best.choice is None:
        return f"| {name} | {result.obstacle} | | | | |"
    rate = job.batch.tokens / choice.step_time_s / job.cluster.gpus
    return (
        f"| {name} | {format_seconds(choice.step_time_s)} "
        f"| {choice.step_time_s / best.choice.step_time_s:.2f} x | {rate:,.0f} "
        f"| {format_bytes(choice.peak_device_bytes)} | {result.plan_text} |"
    )


_INTRODUCTION = f"""# Which parallel strategy, when?

Regenerated by `make advice`. For your own model and cluster: `clustersim advise JOB.yaml`.

The rules of thumb are the well-known ones ({RULES_SOURCE}).
Each situation is simulated: 64 sequences of 4096 tokens per step, torchtitan, and each strategy at
its best over its degrees, its ZeRO stages, microbatches of 1, 2 and 4 and full or no recomputation.
Strategies within 5 % of each other are called on a par. Pipelines run 1F1B without interleaving and
sequences are not divided; `clustersim advise` tries these, too.

| situation | model | rule of thumb | simulated |
|---|---|---|---|
"""

_MAP = """
## Where the crossover lies

![best strategy over model size and network speed](which-strategy.png)

{gpus} H100 in nodes of eight; the network speed is that of one node. The number in a cell is how
much longer the step takes with the best plan of plain data parallelism (DDP or ZeRO) than with the
best of all.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report to stdout; the argument is where the picture goes."""
    (picture,) = map(Path, sys.argv[1:] if arguments is None else arguments)
    with ProcessPoolExecutor(core_count()) as executor:
        answers = [_answer(situation, executor) for situation in SITUATIONS]
        cells = {
            (model, speed): _cell(model, speed, executor)
            for model in MAP_MODELS
            for speed in MAP_SPEEDS_GBIT
        }
    draw_strategy_map(
        f"Best strategy on {MAP_GPUS} H100", list(FAMILIES), MAP_MODELS, MAP_SPEEDS_GBIT, cells,
        picture,
    )  # fmt: skip
    summary = "\n".join(
        f"| {situation.name} | {situation.model} | {situation.rule} | {answer} |"
        for situation, (answer, _) in zip(SITUATIONS, answers, strict=True)
    )
    sections = "\n".join(section for _, section in answers)
    crossover = _MAP.format(gpus=MAP_GPUS) + _map_table(cells)
    print(
        f"{_INTRODUCTION}{summary}\n{crossover}\n\n## Situation by situation\n\n{sections}", end=""
    )
    return 0


def _answer(situation: Situation, executor: Executor) -> tuple[str, str]:
    """What to take, and the section with its numbers."""
    job = situation_job(situation.model, situation.cluster)
    results = compare_families(job, _TRIED, executor=executor, at_a_time=core_count())
    answer = verdict(job, results)
    print(f"{situation.name}: done", file=sys.stderr)
    return answer, situation_section(situation, job, results, answer)


def _cell(model: str, speed_gbit: int, executor: Executor) -> tuple[str, float]:
    """The best family of a cell, and how much slower plain data parallelism is."""
    job = situation_job(model, _h100(MAP_GPUS, speed_gbit))
    results = compare_families(job, _TRIED, executor=executor, at_a_time=core_count())
    print(f"{model} at {speed_gbit} Gbit/s: done", file=sys.stderr)
    return map_cell(results)


def map_cell(results: Sequence[FamilyResult]) -> tuple[str, float]:
    """Name of the best family, and the slow-down of the best plain data parallelism.

    Both empty where nothing fits: an empty name, and infinity.
    """
    plain = [
        each.choice.step_time_s
        for each in results
        if each.choice and not (each.family.has_tp or each.family.has_pp)
    ]
    best = results[0]
    if best.choice is None:
        return "", float("inf")
    return best.family.name, min(plain, default=float("inf")) / best.choice.step_time_s


def _map_table(cells: Mapping[tuple[str, int], tuple[str, float]]) -> str:
    heads = ("model", *(f"{speed} Gbit/s" for speed in MAP_SPEEDS_GBIT))
    rows = (
        (model, *(_map_text(*cells[model, speed]) for speed in MAP_SPEEDS_GBIT))
        for model in MAP_MODELS
    )
    return "\n".join(markdown_table(heads, rows, "l" * len(heads)))


def _map_text(best: str, slower: float) -> str:
    if not best:
        return "nothing fits"
    return best if slower <= 1 else f"{best}, {slower:.2f} x"


if __name__ == "__main__":
    sys.exit(main())
