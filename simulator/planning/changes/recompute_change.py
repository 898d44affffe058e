"""What must change in a plan for backward to compute more or less again?"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.described.plan.plan import Plan, Recompute


def recompute_change(plan: Plan, to: Recompute) -> Mapping[str, object]:
    """Fields by path: the kind, and no modules or numbers of layers that only the old one has."""
    change: dict[str, object] = {"plan.recompute": to}
    if plan.recompute_modules:
        change["plan.recompute_modules"] = []
    if plan.recompute_layers is not None:
        change["plan.recompute_layers"] = None
    return change
