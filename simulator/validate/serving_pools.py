"""Which GPUs of a measured run compute prompts, and which make the tokens after the first?"""

from __future__ import annotations

import re
from typing import Any

from simulator.serving.described import PrefillPool

_POOL = r"(\d+) workers? on (\d+) GPUs? \(tp(\d+)(?: ep(\d+))?(?: dpattn (True|False))?\)"
_POOLS = re.compile(rf"disaggregated: prefill {_POOL}, decode {_POOL}")


class SkippedRowError(Exception):
    """A row that cannot be predicted; its text is the reason."""


def is_apart(scenario: str) -> bool:
    """Whether prompts are computed apart from answers."""
    return "disaggregated" in scenario


def pools_of(notes: str) -> dict[str, Any]:
    """Fields of a deployment whose notes say how each pool's GPUs are divided.

    Raises:
        SkippedRowError: They do not, or some GPUs of a pool are in none of its workers.
    """
    match = _POOLS.search(notes)
    if match is None:
        raise SkippedRowError("the row does not say which GPUs compute prompts")
    cells = match.groups()
    prompts, answers = _degrees("prefill", cells[:5]), _degrees("decode", cells[5:])
    return {**answers, "pp": 1, "prefill": PrefillPool.model_validate(prompts)}


def _degrees(name: str, cells: tuple[str | None, ...]) -> dict[str, int]:
    """Degrees of a pool; where attention is data-parallel, ``tp`` counts its groups."""
    workers, gpus, tp, ep = (int(cell or 1) for cell in cells[:4])
    if workers * tp != gpus:
        raise SkippedRowError(f"{workers} {name} workers of tp {tp} are not its {gpus} GPUs")
    groups = tp if cells[4] == "True" else 1
    return {"gpus": gpus, "tp": tp // groups, "attention_dp": groups, "ep": ep}
