"""Which number of the hardware profile matters most for this job, so what to calibrate first?

Each number of the profile is raised and lowered, all others kept, and the step simulated again. A
number that moves the step must be right; one that is assumed and moves it should be measured first.
A share cannot be raised above 1. Numbers that no step of the job reads change nothing, so it is not
simulated again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

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
    read = _read_numbers(job, engine)

    def change(field: str, value: str | float, factor: float) -> float | None:
        try:
            changed = job.replace(number_change(field, value, factor).fields)
            if field not in read:
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


def _read_numbers(job: Job, engine: Engine) -> set[str]:
    """Fields of the profile that a simulation of the job reads, by their paths in files."""
    read: set[str] = set()
    profile = _watched(job.cluster.profile, "", read)
    cluster = job.cluster.model_copy(update={"profile": profile})
    StepTimes(job.model_copy(update={"cluster": cluster}), engine)
    return read


def _watched(part: object, path: str, read: set[str]) -> object:
    """The same, of which every field that is read is taken down.

    Whoever compares, copies or hashes a block reads all of its fields. What a block once worked
    out is not copied, so that it is worked out, and read, again.
    """
    if isinstance(part, Mapping):
        return {name: _watched(each, f"{path}{name}.", read) for name, each in part.items()}
    if not isinstance(part, Spec):
        return part
    paths = {name: path + file_name_of_field(name) for name in type(part).model_fields}

    class Watched(type(part)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> object:
            if name in paths:
                read.add(paths[name])
            elif name == "__dict__":
                read.update(paths.values())
            return super().__getattribute__(name)

    fields = {name: _watched(getattr(part, name), f"{paths[name]}.", read) for name in paths}
    return Watched.model_construct(**fields)


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
