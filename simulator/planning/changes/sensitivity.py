"""Which number of the hardware profile matters most for this job, so what to calibrate first?

Every number of the profile is raised and lowered alone, and the step simulated anew. Whole
numbers (GPUs per node, multiprocessors) are facts and stay. A number that is a share cannot
be raised above 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.documents import validated, with_changes
from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError
from simulator.results.simulation import Engine, run_step

_QUANTITY = re.compile(r"([0-9.eE+-]+) (\S+)")
DEFAULT = "default"
"""Source of a number that the profile leaves to its default."""


@dataclass(frozen=True)
class Sensitivity:
    """What one number of the profile does to the step.

    Attributes:
        field: Dotted path in the profile.
        value: As files have it.
        source: Where the profile has it from.
        lower, higher: Change of the step time, as a share, with the number lowered and
            raised; None where that is no valid profile.
    """

    field: str
    value: str | float
    source: str
    lower: float | None
    higher: float | None

    @property
    def effect(self) -> float:
        """The larger of the two, without its sign."""
        return max(abs(self.lower or 0.0), abs(self.higher or 0.0))


def sensitivities(
    job: Job,
    *,
    share: float = 0.1,
    engine: Engine = "des",
    fields: Collection[str] | None = None,
    on_trial: Callable[[int, int], None] | None = None,
) -> tuple[Sensitivity, ...]:
    """What every number of the job's profile does to its step, the largest effect first.

    Args:
        job: With its plan.
        share: By how much each number is lowered and raised.
        engine: How steps are simulated.
        fields: Dotted paths of the only numbers to move; all if None.
        on_trial: Called with how many numbers are done, and how many there are.

    Raises:
        InputError: The job cannot run.
    """
    refuse_pools(job, "the weight of a number")
    profile = job.cluster.profile
    document = profile.model_dump(by_alias=True, exclude_none=True, exclude={"step_time_band"})
    base_s = run_step(job, engine).step_time_s
    numbers = [(f, value) for f, value in _numbers(document) if fields is None or f in fields]
    found = []
    for count, (field, value) in enumerate(numbers, start=1):
        changes = [
            _change(job, document, field, _scaled(value, factor), engine, base_s)
            for factor in (1 - share, 1 + share)
        ]
        source = profile.provenance.get(field)
        found.append(Sensitivity(field, value, source.kind if source else DEFAULT, *changes))
        if on_trial:
            on_trial(count, len(numbers))
    return tuple(sorted(found, key=lambda each: -each.effect))


def _numbers(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | float]]:
    """Path and value of every number with a unit or a fraction, but those that are 0."""
    for key, value in block.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from _numbers(value, path)
        elif isinstance(value, float) and value:
            yield path, value
        elif isinstance(value, str):
            match = _QUANTITY.fullmatch(value)
            if match and float(match[1]):
                yield path, value


def _scaled(value: str | float, factor: float) -> str | float:
    if isinstance(value, float):
        return value * factor
    number, unit = value.split(" ")
    return f"{float(number) * factor!r} {unit}"


def _change(
    job: Job,
    document: Mapping[str, Any],
    field: str,
    value: str | float,
    engine: Engine,
    base_s: float,
) -> float | None:
    """Change of the step time with another value of a field, as a share."""
    try:
        profile = validated(HardwareProfile, with_changes(document, {field: value}))
        cluster = job.cluster.model_copy(update={"profile": profile})
        changed = run_step(job.model_copy(update={"cluster": cluster}), engine)
    except InputError:
        return None
    return changed.step_time_s / base_s - 1
