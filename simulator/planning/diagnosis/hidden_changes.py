"""What may a real run do otherwise than its job says?

The list is data: ``simulator/facts/hidden_changes.yaml``. Each entry is one change of a job, in
one or several sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.described.job import Job
from simulator.facts import shipped_facts
from simulator.planning.changes.single_changes import Change

_PERTURBATIONS = "perturbations"
_HOST_FACTORS = (1.5, 2, 4)
"""How many times as long a launch takes."""
_WAITING_SHARES = (0.05, 0.1, 0.2, 0.4)
"""How long the host waits in every step, as a share of it."""


@dataclass(frozen=True)
class HiddenChange:
    """Something that a run may do without saying.

    Attributes:
        words: What is otherwise, as a clause: ``sequence parallelism is off``.
        odds: How often a run that surprises has it, relative to the other entries (assumption).
        check: What settles it.
        variants: The change of the job, in each size that is tried.
    """

    words: str
    odds: float
    check: str
    variants: tuple[Change, ...]


def hidden_changes(job: Job, step_s: float) -> Iterator[HiddenChange]:
    """Everything on the list, written for one job.

    Args:
        job: What is said to have run.
        step_s: Its predicted step [s], of which waits of the host are a share.
    """
    facts = shipped_facts("hidden_changes")
    values = _values_by_name(job, step_s)
    for entry in facts["changes"]:
        yield HiddenChange(
            words=entry["change"],
            odds=float(facts["odds"][entry["odds"]]),
            check=entry["check"],
            variants=tuple(
                _variant(job, entry["change"], each, values) for each in entry["variants"]
            ),
        )


def _variant(job: Job, words: str, entry: Mapping[str, Any], values: Mapping[str, Any]) -> Change:
    fields: dict[str, Any] = _filled_in(entry["fields"], values)
    if _PERTURBATIONS in fields:
        fields[_PERTURBATIONS] = [*job.document.get(_PERTURBATIONS, ()), *fields[_PERTURBATIONS]]
    size = entry.get("size")
    return Change(f"{words} ({size})" if size else words, fields)


def _values_by_name(job: Job, step_s: float) -> dict[str, Any]:
    """What stands in the list in braces."""
    work = job.choices.host_work_per_launch
    return {
        "{all_gpus}": f"0-{job.cluster.gpus - 1}" if job.cluster.gpus > 1 else 0,
        "{gpus_per_node}": job.cluster.profile.network.scale_up.gpus,
        **{f"{{host_work_times_{factor:g}}}": factor * work for factor in _HOST_FACTORS},
        **{f"{{step_times_{share:g}}}": f"{share * step_s!r} s" for share in _WAITING_SHARES},
    }


def _filled_in(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled_in(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled_in(each, values) for each in value]
    return values.get(value, value) if isinstance(value, str) else value
