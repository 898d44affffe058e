"""Which number of the hardware profile matters most for this job, so what to calibrate first?

Each number of the profile is raised and lowered, all others kept, and the step simulated again. A
number that moves the step must be right; one that is assumed and moves it should be measured first.
A share cannot be raised above 1. Numbers of blocks that are never read change nothing, so their
steps are not simulated again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from simulator.cost.rates import ELEMENT_BYTES
from simulator.described.base import Spec, file_name_of_field
from simulator.described.job import Job
from simulator.described.rules.pool_rules import refuse_pools
from simulator.errors import InputError
from simulator.planning.changes.single_changes import number_change, profile_numbers
from simulator.planning.changes.trials import OnTrial
from simulator.results.simulation import Engine, StepTimes
from simulator.results.views.verdict import Influence

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
        job: The job to analyse.
        share: Relative change of each number, down and up.
        engine: Engine that simulates the steps.
        fields: Dotted paths of the only numbers to move; all if None.
        on_trial: Called with the count of finished numbers and their total.

    Raises:
        InputError: The job cannot run.
    """
    refuse_pools(job, "the weight of a number")
    profile, steps = job.cluster.profile, StepTimes(job, engine)
    numbers = profile_numbers(profile)
    moved = {f: value for f, value in numbers.items() if fields is None or f in fields}
    unread = tuple(f"{block}." for block in _unread_blocks(job, steps, moved))

    def change(field: str, value: str | float, factor: float) -> float | None:
        try:
            changed = job.replace(number_change(field, value, factor).fields)
            if field.startswith(unread):
                return 0.0
            return steps.of(changed) / steps.step_time_s - 1
        except InputError:
            return None  # not a number that a profile may have

    found = []
    for count, (field, value) in enumerate(moved.items(), start=1):
        source = profile.provenance.get(field)
        lower, higher = (change(field, value, factor) for factor in (1 - share, 1 + share))
        kind = source.kind if source else DEFAULT
        found.append(Sensitivity(field, value, kind, lower, higher))
        if on_trial:
            on_trial(count, len(moved))
    return tuple(sorted(found, key=lambda each: -each.effect))


class _ReadError(Exception):
    """Something was read of a block that stands for what nobody reads."""


class _Unread:
    """Stands in a profile for a block that nobody reads."""

    def __getattribute__(self, name: str) -> object:
        raise _ReadError(name)

    def __eq__(self, other: object) -> bool:
        raise _ReadError

    def __hash__(self) -> int:
        raise _ReadError


_Whole = Callable[[object], object]
"""The profile with something else in place of one of its blocks."""


def _unread_blocks(job: Job, steps: StepTimes, fields: Collection[str]) -> Iterator[str]:
    """Blocks that have some of the fields and that no step of the job reads, as files name them.

    ``steps``: times of the job's step.
    """

    def is_unread(profile: object) -> bool:
        cluster = job.cluster.model_copy(update={"profile": profile})
        try:
            steps.of(job.model_copy(update={"cluster": cluster}))
        except _ReadError:
            return False
        return True

    def within(block: Spec | Mapping[str, object], path: str, whole: _Whole) -> Iterator[str]:
        for name, part, changed in _parts(block):
            inner = f"{path}{name}."
            if not any(field.startswith(inner) for field in fields):
                continue
            inside = partial(_inside, whole, changed)
            if isinstance(part, Spec) and is_unread(inside(_Unread())):
                yield inner[:-1]
            else:
                yield from within(part, inner, inside)

    yield from within(job.cluster.profile, "", lambda profile: profile)


def _inside(whole: _Whole, changed: _Whole, part: object) -> object:
    return whole(changed(part))


def _parts(
    block: Spec | Mapping[str, object],
) -> Iterator[tuple[str, Spec | Mapping[str, object], _Whole]]:
    """Blocks of a block by their names in files, and how to put something in their place."""
    names = block if isinstance(block, Mapping) else type(block).model_fields
    for name in names:
        part = block[name] if isinstance(block, Mapping) else getattr(block, name)
        if isinstance(part, Spec | Mapping):
            yield file_name_of_field(name), part, partial(_with_part, block, name)


def _with_part(block: Spec | Mapping[str, object], name: str, part: object) -> object:
    if isinstance(block, Mapping):
        return {**block, name: part}
    return block.model_copy(update={name: part})


def influences(job: Job, *, on_trial: OnTrial | None = None) -> tuple[Influence, ...]:
    """The few numbers that most steps feel, by how much the step grows where one is a tenth worse.

    Steps are replayed without contention; the largest influence comes first.

    Raises:
        InputError: The job itself cannot run.
    """

    def count(_done: int, _all: int) -> None:
        if on_trial:
            on_trial()

    provenance = job.cluster.profile.provenance
    found = [
        Influence(
            each.field,
            max(each.lower or 0.0, each.higher or 0.0),
            each.source,
            provenance[each.field].reference if each.field in provenance else "",
        )
        for each in sensitivities(
            job, engine="replay", fields=frozenset(_felt_fields(job)), on_trial=count
        )
    ]
    return tuple(sorted(found, key=lambda influence: -influence.slower_share))


def _felt_fields(job: Job) -> Iterator[str]:
    """Rates, efficiencies and times that the job can feel, as files write them."""
    profile, plan = job.cluster.profile, job.plan
    flash = "flash_attention"
    if job.choices.flash_kernel != "best" and profile.kernels.flash_attention_2 is not None:
        flash = "flash_attention_2"
    yield f"kernels.gemm.{plan.precision}.efficiency"
    if plan.attention_kernel == "flash":
        yield f"kernels.{flash}.forward_efficiency"
        yield f"kernels.{flash}.backward_efficiency"
    yield "kernels.memory_efficiency"
    yield "kernels.sustained_clock"
    if profile.kernels.sustained_clock_8_bit is not None and ELEMENT_BYTES[plan.precision] < 2:
        yield "kernels.sustained_clock_8_bit"
    yield "kernels.launch"
    if job.cluster.gpus > 1:
        yield "network.scale_up.efficiency"
    if job.cluster.gpus > profile.network.scale_up.gpus:
        yield "network.fabric.efficiency"
