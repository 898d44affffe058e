"""Which plans are the fastest of several searches, of other batches or numbers of GPUs?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from simulator.planning.search.search import PlanChoice, PlanSearch, Pruned

BATCH, GPUS = "batch.global", "cluster.gpus"


def merged_searches(
    searches: Sequence[tuple[Mapping[str, Any], PlanSearch]], top: int
) -> PlanSearch:
    """One ranking of searches that differ in their global batch, their number of GPUs, or both.

    Args:
        searches: Each with what it changes of the job: ``{"batch.global": 256}``.
        top: Plans of each number of GPUs.

    Returns:
        The plans with the least time per sequence, first; their changes name batch and GPUs.
    """
    ranked = sorted(
        (
            (
                choice.step_time_s / changes.get(BATCH, 1),
                replace(choice, changes={**changes, **choice.changes}),
            )
            for changes, search in searches
            for choice in search.choices
        ),
        key=lambda pair: pair[0],
    )
    kept: list[PlanChoice] = []
    taken: Counter[Any] = Counter()
    for _, choice in ranked:
        gpus = choice.changes.get(GPUS)
        if taken[gpus] < top:
            kept.append(choice)
        taken[gpus] += 1
    parts = [search for _, search in searches]
    smallest = next(
        ({**changes, **s.smallest} for changes, s in searches if s.smallest is not None), None
    )
    return PlanSearch(
        choices=tuple(kept),
        plans=sum(part.plans for part in parts),
        replayed=sum(part.replayed for part in parts),
        simulated=sum(part.simulated for part in parts),
        pruned=_sum([part.pruned for part in parts]),
        smallest=None if ranked else smallest,
        gap_share=max((part.gap_share for part in parts), default=0.0),
    )


def _sum(parts: list[Pruned]) -> Pruned:
    refused = sum((Counter(part.refused) for part in parts), Counter())
    counts = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(Pruned)
        if field.name != "refused"
    }
    return Pruned(refused=dict(refused.most_common()), **counts)
