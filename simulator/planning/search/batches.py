"""Which plan is the fastest where the global batch may vary too?

Each batch has its own exact search; the plans of all are ranked by their time per token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace

from simulator.planning.search.search import PlanSearch, Pruned

BATCH = "batch.global"


def merged_searches(searches: Mapping[int, PlanSearch], top: int) -> PlanSearch:
    """One ranking of searches that differ in their global batch.

    Args:
        searches: By global batch [sequences]; at least one.
        top: How many plans to keep.

    Returns:
        The plans with the least time per sequence; their changes name the batch.
    """
    ranked = sorted(
        (
            (choice.step_time_s / batch, replace(choice, changes={BATCH: batch, **choice.changes}))
            for batch, search in searches.items()
            for choice in search.choices
        ),
        key=lambda pair: pair[0],
    )
    parts = list(searches.values())
    smallest = next(
        ({BATCH: b, **s.smallest} for b, s in searches.items() if s.smallest is not None), None
    )
    return PlanSearch(
        choices=tuple(choice for _, choice in ranked[:top]),
        plans=sum(part.plans for part in parts),
        replayed=sum(part.replayed for part in parts),
        simulated=sum(part.simulated for part in parts),
        pruned=_sum([part.pruned for part in parts]),
        smallest=None if ranked else smallest,
    )


def _sum(parts: list[Pruned]) -> Pruned:
    refused: Counter[str] = Counter()
    for part in parts:
        refused.update(part.refused)
    counts = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(Pruned)
        if field.name != "refused"
    }
    return Pruned(refused=dict(refused.most_common()), **counts)
