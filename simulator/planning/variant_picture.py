"""How does the comparison of ways of data parallelism become a picture?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.planning.data_parallel_variants import STRATEGIES, Comparison, Outcome
from simulator.plots.variant_comparison import Bar, draw_strategies

_MOST_WORDS = 5
"""Longest refusal that a bar has room for."""


def draw_comparisons(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Draw strategies on all numbers of nodes; the suffix names the format."""
    job = comparisons[0].job
    rows = {
        strategy.name: [
            _bar(comparison.nodes, comparison.outcomes[number]) for comparison in comparisons
        ]
        for number, strategy in enumerate(STRATEGIES)
    }
    per_gpu = job.microbatches * job.batch.micro_batch
    title = f"{job.model.name} on {job.cluster.profile.name}: ways of data parallelism"
    subtitle = (
        f"every GPU trains {per_gpu} sequences of {job.batch.seq_len} tokens per step, "
        f"{job.batch.micro_batch} at a time"
    )
    capacity_bytes = job.cluster.profile.device.memory_bytes
    draw_strategies(title, subtitle, rows, capacity_bytes, path)


def _bar(nodes: int, outcome: Outcome) -> Bar:
    name = node_count_text(nodes)
    if outcome.step is None:
        words = outcome.refusal.split(":")[0].split()
        short = "does not run: one node only" if "one node only" in outcome.refusal else ""
        return Bar(name, remark=short or "does not run: " + " ".join(words[:_MOST_WORDS]) + " ...")
    fullest = outcome.fullest
    return Bar(name, outcome.step.breakdown_s, fullest.by_owner, fullest.peak_device_bytes)


def node_count_text(count: int) -> str:
    """``1 node``, ``8 nodes``."""
    return f"{count} node" if count == 1 else f"{count} nodes"
