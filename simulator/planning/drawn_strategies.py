"""What do ways of data parallelism cost beside each other, as a picture?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.planning.compared_strategies import Comparison, Outcome, known_strategies
from simulator.plots.style import save
from simulator.plots.variant_comparison import Bar, build_strategies_figure
from simulator.units import counted

_MOST_WORDS = 5
"""Longest refusal that a bar has room for."""


def draw_comparisons(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Draw strategies on all numbers of nodes; the suffix names the format."""
    job = comparisons[0].job
    rows = {
        strategy.name: [
            _bar(comparison.nodes, comparison.outcomes[number]) for comparison in comparisons
        ]
        for number, strategy in enumerate(known_strategies())
    }
    per_gpu = job.microbatches * job.batch.micro_batch
    title = f"{job.model.name} on {job.cluster.profile.name}: ways of data parallelism"
    subtitle = (
        f"every GPU trains {per_gpu} sequences of {job.batch.seq_len} tokens per step, "
        f"{job.batch.micro_batch} at a time"
    )
    capacity_bytes = job.cluster.profile.device.memory_bytes
    save(build_strategies_figure(title, subtitle, rows, capacity_bytes), path)


def _bar(nodes: int, outcome: Outcome) -> Bar:
    name = counted(nodes, "node")
    if outcome.step is None:
        words = outcome.refusal.split(":")[0].split()
        short = "does not run: one node only" if "one node only" in outcome.refusal else ""
        return Bar(name, remark=short or "does not run: " + " ".join(words[:_MOST_WORDS]) + " ...")
    fullest = outcome.fullest
    return Bar(name, outcome.step.breakdown_s, fullest.by_owner, fullest.peak_device_bytes)
