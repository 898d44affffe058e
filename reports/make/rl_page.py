"""How right are predicted steps of reinforcement learning?

Rows are published steps; what their pages do not state is assumed and said on the page.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pandas as pd

from simulator.cells import read_table
from simulator.errors import InputError
from simulator.planning.reinforcement.rl_job import load_rl
from simulator.planning.reinforcement.rl_step import RLStep, rl_step

PROMPT_TOKENS = 150
"""Of a problem with its instruction (assumed)."""
ANSWER_VARIATION = 0.8
"""Standard deviation over mean of lengths of answers, before they are cut (assumed)."""
_GROUP = 32
"""Answers to a prompt, in all recipes."""
_ENGINE_VERSIONS = {"0.4": "0.11.0", "0.6": "0.17.1"}
"""vLLM by release of NeMo RL: before the change to 0.11.2 (NVIDIA-NeMo/RL, issue 1539), and before
that from 0.17.1 to 0.20.0 of May 2026 (pull request 2384)."""
_MEMORY_SHARES = {"alternating": 0.6, "one-step-off": 0.8}
"""Of the engine (``gpu_memory_utilization`` in the recipes)."""

_PREDICTED = "predicted_step_s"
_HALVINGS = 60
_COLUMNS = (
    "run", "model", "GPUs", "order", "measured", "predicted", "error %", "at first sight %",
    "generation", "log-probabilities", "training",
)  # fmt: skip

_PAGE = """# Reinforcement learning, predicted and published

Steps of GRPO as NeMo RL's performance summaries give them. Made by
`make rl-report` from `reports/data/rl_runs.csv`. Parallel degrees, orders and lengths are those of
the tables; recomputation, sequence packing, networks of the loss and the engine's share of memory
those of the recipes that they name, and vLLM's version that of the release.

Assumed, because no page says it: prompts have {prompt} tokens, lengths of answers are log-normal
with a standard deviation of {variation} times their mean before they are cut, experts are loaded
evenly. Of rows of grade B the share of the GPUs that generate is assumed, too.

{summary}

*First sight* is the first prediction of each, and stays as it was
(`reports/data/rl_first_sight.csv`). The table had been read to copy it, so the times were known;
no prediction had been compared with one, and no number of the simulator follows from them.

{columns}
|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|
{rows}
"""


@dataclass(frozen=True)
class PublishedStep:
    """A row of the table.

    Attributes:
        id: Its name.
        release: Of NeMo RL.
        grade: A- where the page and the recipe say all that is not assumed for every row.
        model, profile, order, precision, recompute: As in a job.
        gpus, generation_gpus: All of them, and those that only generate; 0 where they are shared.
        sequences, update_sequences: Answers of a step, and those of an update.
        longest_tokens, mean_tokens: Of a sequence.
        generation_tp, tp, cp, ep, pp: Degrees of the engine and of training.
        measured_step_s: The step [s].
    """

    id: str
    release: str
    grade: str
    model: str
    profile: str
    order: str
    precision: str
    recompute: str
    gpus: int
    generation_gpus: int
    sequences: int
    update_sequences: int
    longest_tokens: int
    mean_tokens: int
    generation_tp: int
    tp: int
    cp: int
    ep: int
    pp: int
    measured_step_s: float


_READ = {"str": str, "int": int, "float": float}


def published_steps(path: Path) -> list[PublishedStep]:
    """The rows of the table."""
    named = [(each.name, _READ[str(each.type)]) for each in fields(PublishedStep)]
    rows = read_table(path, [name for name, _ in named])
    return [PublishedStep(**{name: read(row[name]) for name, read in named}) for row in rows]


def job_document(row: PublishedStep) -> dict[str, Any]:
    """The job of a row."""
    generation: dict[str, Any] = {
        "engine": "vllm", "version": _ENGINE_VERSIONS[row.release], "tp": row.generation_tp,
        "memory_share": _MEMORY_SHARES[row.order],
    }  # fmt: skip
    if row.generation_gpus:
        generation["gpus"] = row.generation_gpus
    if row.precision == "fp8":
        generation["weights"] = "fp8"
    longest = row.longest_tokens - PROMPT_TOKENS
    mean = uncut_mean(row.mean_tokens - PROMPT_TOKENS, longest)
    return {
        "training": {
            "model": row.model,
            "cluster": {"profile": row.profile, "gpus": row.gpus - row.generation_gpus},
            "batch": {"global": row.update_sequences, "seq_len": row.longest_tokens},
            "plan": {
                "tp": row.tp, "cp": row.cp, "ep": row.ep, "pp": row.pp,
                "precision": row.precision, "recompute": row.recompute, "stack": "megatron-core",
            },
        },
        "generation": generation,
        "rollout": {
            "prompts": row.sequences // _GROUP,
            "answers_per_prompt": _GROUP,
            "prompt": {"mean": PROMPT_TOKENS},
            "answer": {"mean": mean, "variation": ANSWER_VARIATION, "longest": longest},
        },
        "order": row.order,
    }  # fmt: skip


def uncut_mean(cut_mean: float, longest: int, variation: float = ANSWER_VARIATION) -> int:
    """Mean of log-normal lengths whose mean is ``cut_mean`` once the longest are cut [tokens]."""
    low, high = cut_mean, 100.0 * longest
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if cut_mean_of(middle, longest, variation) < cut_mean:
            low = middle
        else:
            high = middle
    return round(low)


def cut_mean_of(mean: float, longest: float, variation: float) -> float:
    """Mean of the smaller of a log-normal length and ``longest`` [tokens]."""
    variance = math.log1p(variation**2)
    sigma, middle = math.sqrt(variance), math.log(mean) - variance / 2
    place = (math.log(longest) - middle) / sigma
    normal = NormalDist()
    return mean * normal.cdf(place - sigma) + longest * (1 - normal.cdf(place))


def predicted(row: PublishedStep) -> RLStep | None:
    """The step of a row; None where the job is refused."""
    try:
        return rl_step(load_rl(job_document(row)))
    except InputError:
        return None


def keep_first_sight(path: Path, steps: Mapping[str, RLStep | None]) -> dict[str, float | None]:
    """What was predicted first [s]; runs that the file has keep what it says."""
    known = {row["id"]: row[_PREDICTED] for row in read_table(path, ("id", _PREDICTED))}
    for name, step in steps.items():
        known.setdefault(name, "" if step is None else str(step.step_time_s))
    table = pd.DataFrame({"id": list(known), _PREDICTED: list(known.values())})
    table.to_csv(path, index=False, lineterminator="\n")
    return {name: float(text) if text else None for name, text in known.items()}


def page_text(
    rows: Sequence[PublishedStep],
    steps: Mapping[str, RLStep | None],
    first_s: Mapping[str, float | None],
) -> str:
    """The page in Markdown."""
    groups: dict[str, list[float]] = {name: [] for name in ("A-", "B", "all", "at first sight")}
    lines = []
    for row in rows:
        step, said_s = steps[row.id], first_s[row.id]
        said = None if said_s is None else _error_pct(said_s, row)
        if said is not None:
            groups["at first sight"].append(said)
        if step is not None:
            for name in (row.grade, "all"):
                groups[name].append(_error_pct(step.step_time_s, row))
        lines.append(_line(row, step, said))
    return _PAGE.format(
        prompt=PROMPT_TOKENS,
        variation=ANSWER_VARIATION,
        summary="\n".join(_summary(groups)),
        columns=f"| {' | '.join(_COLUMNS)} |",
        rows="\n".join(lines),
    )


def _error_pct(predicted_s: float, row: PublishedStep) -> float:
    return 100 * (predicted_s / row.measured_step_s - 1)


def _line(row: PublishedStep, step: RLStep | None, said: float | None) -> str:
    words = [row.id, row.model, str(row.gpus), row.order, f"{row.measured_step_s:.1f} s"]
    at_first = "" if said is None else f"{said:+.1f}"
    if step is None:
        return f"| {' | '.join([*words, 'refused', '', at_first, '', '', ''])} |"
    seconds = (step.generation_s, step.logprobs_s, step.training_s)
    parts = [f"{each:.1f} s" for each in seconds]
    error = f"{_error_pct(step.step_time_s, row):+.1f}"
    return f"| {' | '.join([*words, f'{step.step_time_s:.1f} s', error, at_first, *parts])} |"


def _summary(groups: Mapping[str, Sequence[float]]) -> list[str]:
    lines = ["| grade | runs | mean % | median % | bias % |", "|---|---:|---:|---:|---:|"]
    for name, errors in groups.items():
        if errors:
            sizes = [abs(error) for error in errors]
            mean, middle = statistics.fmean(sizes), statistics.median(sizes)
            bias = statistics.fmean(errors)
            lines.append(f"| {name} | {len(sizes)} | {mean:.1f} | {middle:.1f} | {bias:+.1f} |")
    return lines


def main() -> None:
    """Write the page to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="published steps (CSV)")
    parser.add_argument("first_sight", type=Path, help="what was predicted first (CSV), completed")
    options = parser.parse_args()
    rows = published_steps(options.runs)
    steps = {row.id: predicted(row) for row in rows}
    print(page_text(rows, steps, keep_first_sight(options.first_sight, steps)), end="")


if __name__ == "__main__":
    main()
