"""How far is a captured step from the simulator's own program of the same job?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from reports.make.captures.captured_case import CapturedCase
from reports.make.captures.cases import Case
from reports.make.captures.causes import NO_LAUNCHES, NOTHING, Issued, Without
from simulator.capture.result import CaptureResult, simulate_capture
from simulator.capture.table import Capture
from simulator.described.job import Job
from simulator.program.ir import Owner
from simulator.results.simulation import run_step
from simulator.results.step import ClassMemory, StepResult
from simulator.results.traffic import rank_collectives

PROFILES = ("h100-sxm-80gb", "a100-sxm-80gb", "b200-sxm-180gb")

_HELD_FOR: Mapping[Owner, str] = MappingProxyType(
    {
        Owner.WEIGHTS: "weights",
        Owner.MASTER_WEIGHTS: "weights",
        Owner.OPTIMIZER_STATES: "optimizer states",
        Owner.GRADIENTS: "gradients",
        Owner.PLACEHOLDER_GRADIENTS: "gradients",
        Owner.GATHERED_WEIGHTS: "gathered weights",
        Owner.COMMUNICATION: "communication",
    }
)
"""What both sides tell apart; all others are activations and what is made of them."""
_REST = "activations"

_AXES: Mapping[str, str] = MappingProxyType({"dp_shard": "dp", "dp_replicate": "dp"})
"""Degrees that the own program names otherwise."""
_NORM_BYTES = 4

_Both = tuple[CaptureResult, StepResult]
"""The captured step and the own program's."""
STEP_LIMIT, PEAK_LIMIT = 0.03, 0.01
"""Beyond which a difference needs a cause."""


@dataclass(frozen=True)
class StageComparison:
    """One pipeline stage.

    Attributes:
        captured, own: Exchanges of each degree in order of issue. Between degrees, which have
            communicators of their own, the order is the host's alone: FSDP2 gathers a layer when
            the host comes to it, the own program a layer ahead.
        tracked_bytes: Peak that torch's tracker counts [B]; None where it cannot follow.
        memory: Memory of both, the captured first.
        without: What is left out of the comparison.
    """

    captured: Mapping[str, Sequence[Issued]]
    own: Mapping[str, Sequence[Issued]]
    tracked_bytes: int | None
    memory: tuple[ClassMemory, ClassMemory]
    without: Without = NOTHING

    @property
    def exchanges_are_equal(self) -> bool:
        """Operation for operation, in order."""
        return self.without.issued(self.captured) == self.without.issued(self.own)

    @property
    def peak_difference(self) -> float:
        """Captured peak over the own program's, less one."""
        captured, own = map(_tensor_bytes, self.memory)
        return captured / own - 1

    @property
    def tracked_difference(self) -> float | None:
        """Captured peak over the tracker's, less one."""
        if self.tracked_bytes is None:
            return None
        return _tensor_bytes(self.memory[0]) / self.tracked_bytes - 1

    @property
    def exchanges(self) -> int:
        """How many the captured step has."""
        return sum(map(len, self.captured.values()))

    @property
    def owner_difference(self) -> tuple[str, float]:
        """The owner that differs most at the peak, and by how much of the own program's peak."""
        captured, own = (self.without.held(_held(each)) for each in self.memory)
        peak_bytes = self.memory[1].peak_allocated_bytes
        parts = {name: (captured[name] - own[name]) / peak_bytes for name in captured | own}
        worst = max(parts, key=lambda name: abs(parts[name]))
        return worst, parts[worst]

    @property
    def is_far(self) -> bool:
        """Whether exchanges differ, or memory beyond the limit."""
        apart = max(abs(self.peak_difference), abs(self.owner_difference[1]))
        return apart > PEAK_LIMIT or not self.exchanges_are_equal


@dataclass(frozen=True)
class Comparison:
    """One case.

    Attributes:
        case: The job.
        stages: In order of the pipeline, on the first profile.
        steps: The captured step and the own program's, by profile.
        device_steps: The same where launches take no time.
        rest: Without the causes that are known, where anything is beyond a limit.
    """

    case: Case
    stages: tuple[StageComparison, ...]
    steps: Mapping[str, _Both]
    device_steps: Mapping[str, _Both]
    rest: Comparison | None = None

    @property
    def is_far(self) -> bool:
        """Whether anything is beyond a limit."""
        steps = any(abs(each) > STEP_LIMIT for each in self.step_differences)
        return steps or any(stage.is_far for stage in self.stages)

    @property
    def step_differences(self) -> tuple[float, ...]:
        """Captured step times over the own program's, less one, by profile."""
        return tuple(map(_difference, self.steps.values()))

    @property
    def device_differences(self) -> tuple[float, ...]:
        """The same where launches take no time."""
        return tuple(map(_difference, self.device_steps.values()))


def _difference(both: _Both) -> float:
    captured, own = both
    return captured.step_time_s / own.step_time_s - 1


def compared(case: Case, found: CapturedCase, profiles: Sequence[str] = PROFILES) -> Comparison:
    """Both sides of a case, on every profile; again without its causes where they are far apart."""
    one = _compared(case, found, profiles, NOTHING)
    return replace(one, rest=_compared(case, found, profiles, case.without)) if one.is_far else one


def _compared(
    case: Case, found: CapturedCase, profiles: Sequence[str], without: Without
) -> Comparison:
    capture = without.capture(found.capture)
    jobs = [found.job.replace({"cluster.profile": name}) for name in profiles]
    steps, device_steps = (
        {
            name: _simulated(capture, job.replace(each.changes(job.cluster.profile)))
            for name, job in zip(profiles, jobs, strict=True)
        }
        for each in (without, without | Without(systems=(NO_LAUNCHES,)))
    )
    captured, own = steps[profiles[0]]
    ranks = [table.rank for table in capture.tables]
    stages = tuple(
        StageComparison(
            issued(captured, stage),
            issued(own, stage),
            found.tracked_bytes.get(rank),
            (captured.memory[stage], own.memory[stage]),
            without,
        )
        for stage, rank in enumerate(ranks)
    )
    return Comparison(case, stages, steps, device_steps)


def _simulated(capture: Capture, job: Job) -> _Both:
    return simulate_capture(capture, job.cluster.profile), run_step(job)


def issued(result: StepResult, stage: int) -> dict[str, list[Issued]]:
    """What a stage's ranks issue, by degree, in order."""
    found: dict[str, list[Issued]] = {}
    for each in rank_collectives(result.timeline.program, stage):
        ports = ((port, round(num_bytes)) for port, num_bytes in sorted(each.port_bytes.items()))
        one = (each.kind.value, each.ranks, each.num_bytes, tuple(ports))
        # The norm of the gradients is one number, of whichever ranks have different ones.
        is_norm = each.num_bytes == _NORM_BYTES
        degree = "all" if is_norm else _AXES.get(each.axis, str(each.axis))
        found.setdefault(degree, []).append(one)
    return found


def _tensor_bytes(memory: ClassMemory) -> float:
    """At the peak, without what a library keeps, which torch's tracker does not see [B]."""
    return memory.peak_allocated_bytes - memory.by_owner.get(Owner.WORKSPACES, 0.0)


def _held(memory: ClassMemory) -> Counter[str]:
    held: Counter[str] = Counter()
    for owner, num_bytes in memory.by_owner.items():
        if owner is Owner.WORKSPACES:
            continue
        held[_HELD_FOR.get(owner, _REST)] += round(num_bytes)
    return held
