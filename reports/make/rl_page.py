"""How right are predicted steps of reinforcement learning?

Rows are published steps; what their pages do not state is assumed and said on the page.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pandas as pd

from simulator.errors import InputError
from simulator.planning.reinforcement.described import load_rl
from simulator.planning.reinforcement.rl_step import RLStep, rl_step

PROMPT_TOKENS = 150
"""Of a problem with its instruction (assumed)."""
ANSWER_VARIATION = 0.8
"""Standard deviation over mean of lengths of answers, before they are cut (assumed)."""
_GROUP = 32
"""Answers to a prompt, in all recipes."""
_MEMORY_SHARES = {"alternating": 0.6, "one-step-off": 0.8}
"""Of the engine (``gpu_memory_utilization`` in the recipes)."""
_GPUS_OF_A_NODE = {"h100-sxm-80gb": 8, "gb200-nvl72": 4}

_PAGE = """# Reinforcement learning, predicted and published

Steps of GRPO as NeMo RL's performance summaries give them. Made by
`make rl-report` from `reports/data/rl_runs.csv`. Parallel degrees, orders and lengths are those of
the tables; recomputation, sequence packing, networks of the loss and the engine's share of memory
those of the recipes that they name.

Assumed, because no page says it: prompts have {prompt} tokens, lengths of answers are log-normal
with a standard deviation of {variation} times their mean before they are cut, experts are loaded
evenly. Of rows of grade B the share of the GPUs that generate is assumed, too.

{summary}

*First sight* was predicted before any of these rows had been looked at, and stays as it was
(`reports/data/rl_first_sight.csv`).

| run | model | GPUs | order | measured | predicted | error % | at first sight % | generation | probabilities | training |
|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|
{rows}
"""


def job_document(row: Any) -> dict[str, Any]:
    """The job of a row of the table."""
    training_gpus = row.gpus - row.generation_gpus
    generation: dict[str, Any] = {
        "engine": "vllm", "tp": row.generation_tp, "memory_share": _MEMORY_SHARES[row.order],
    }  # fmt: skip
    if row.generation_gpus:
        generation["gpus"] = row.generation_gpus
    if row.precision == "fp8":
        generation["weights"] = "fp8"
    longest = row.longest_tokens - PROMPT_TOKENS
    return {
        "training": {
            "model": row.model,
            "cluster": {"profile": row.profile, "gpus": training_gpus},
            "batch": {"global": row.update_sequences, "seq_len": row.longest_tokens},
            "plan": {
                "tp": row.tp, "cp": row.cp, "ep": row.ep, "pp": row.pp,
                "precision": row.precision, "recompute": row.recompute,
                "stack": "megatron-core",
            },
        },
        "generation": generation,
        "rollout": {
            "prompts": row.sequences // _GROUP,
            "answers_per_prompt": _GROUP,
            "prompt": {"mean": PROMPT_TOKENS},
            "answer": {
                "mean": uncut_mean(row.mean_tokens - PROMPT_TOKENS, longest),
                "variation": ANSWER_VARIATION,
                "longest": longest,
            },
        },
        "order": row.order,
    }  # fmt: skip


def uncut_mean(cut_mean: float, longest: int, variation: float = ANSWER_VARIATION) -> int:
    """Mean of log-normal lengths whose mean is ``cut_mean`` once the longest are cut [tokens]."""
    low, high = cut_mean, 100.0 * longest
    for _ in range(60):
        middle = math.sqrt(low * high)
        if _cut_mean(middle, longest, variation) < cut_mean:
            low = middle
        else:
            high = middle
    return round(low)


def _cut_mean(mean: float, longest: float, variation: float) -> float:
    """Mean of the smaller of a log-normal length and ``longest``."""
    variance = math.log1p(variation**2)
    sigma, middle = math.sqrt(variance), math.log(mean) - variance / 2
    place = (math.log(longest) - middle) / sigma
    below = NormalDist().cdf(place - sigma)
    return mean * below + longest * (1 - NormalDist().cdf(place))


def predicted(row: Any) -> RLStep | str:
    """The step of a row, or why there is none."""
    try:
        return rl_step(load_rl(job_document(row)))
    except InputError as error:
        return str(error)


def keep_first_sight(path: Path, steps: dict[str, RLStep | str]) -> pd.DataFrame:
    """What was predicted first; runs that the file has keep what it says."""
    known = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["id", "predicted_step_s"])
    new = [
        {"id": name, "predicted_step_s": "" if isinstance(step, str) else step.step_time_s}
        for name, step in steps.items()
        if name not in set(known["id"])
    ]
    if new:
        known = pd.concat([known, pd.DataFrame(new)]) if len(known) else pd.DataFrame(new)
        known.to_csv(path, index=False, lineterminator="\n")
    return pd.read_csv(path)


def page_text(runs: pd.DataFrame, steps: dict[str, RLStep | str], first: pd.DataFrame) -> str:
    """The page in Markdown."""
    at_first = dict(zip(first["id"], first["predicted_step_s"], strict=True))
    lines, errors, first_errors = [], {"A-": [], "B": []}, []  # type: ignore[var-annotated]
    for row in runs.itertuples():
        step = steps[row.id]
        measured = float(row.measured_step_s)
        said = 100 * (float(at_first[row.id]) / measured - 1)
        words = [row.id, row.model, str(row.gpus), row.order, f"{measured:.1f} s"]
        if isinstance(step, str):
            lines.append(f"| {' | '.join([*words, 'refused', '', '', '', '', ''])} |")
            continue
        error = 100 * (step.step_time_s / measured - 1)
        errors[row.grade].append(error)
        if not math.isnan(said):
            first_errors.append(said)
        numbers = [
            f"{step.step_time_s:.1f} s", f"{error:+.1f}", f"{said:+.1f}",
            f"{step.generation_s:.1f} s", f"{step.logprobs_s:.1f} s", f"{step.training_s:.1f} s",
        ]  # fmt: skip
        lines.append(f"| {' | '.join([*words, *numbers])} |")
    groups = {**errors, "all": [*errors["A-"], *errors["B"]], "all, at first sight": first_errors}
    return _PAGE.format(
        prompt=PROMPT_TOKENS,
        variation=ANSWER_VARIATION,
        summary="\n".join(_summary(groups)),
        rows="\n".join(lines),
    )


def _summary(groups: dict[str, Sequence[float]]) -> list[str]:  # type: ignore[type-arg]
    lines = ["| grade | runs | mean % | median % | bias % |", "|---|---:|---:|---:|---:|"]
    for name, errors in groups.items():
        sizes = [abs(error) for error in errors]
        if sizes:
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
    runs = pd.read_csv(options.runs, keep_default_na=False)
    steps = {row.id: predicted(row) for row in runs.itertuples()}
    first = keep_first_sight(options.first_sight, steps)
    print(page_text(runs, steps, first), end="")


if __name__ == "__main__":
    main()
