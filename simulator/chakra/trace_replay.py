"""How long does a traced step take on the links of another cluster?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.chakra.execution_trace import RankTrace
from simulator.chakra.to_program import traced_program
from simulator.described.cluster.hardware import HardwareProfile
from simulator.engine.dependencies import DeadlockError
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.engine.timeline import Timeline
from simulator.errors import InputError
from simulator.program.ir import COMMUNICATION


@dataclass(frozen=True)
class TracedStep:
    """A step replayed from traces.

    Attributes:
        timeline: What ran when, one class per traced rank.
        recorded_step_s: What the step took where it was traced; None if that is not said [s].
        computation_s: Computation of the rank that has most [s].
        communication_s: What all communication of that rank takes, by kind, the part that
            runs beside computation included [s].
    """

    timeline: Timeline
    recorded_step_s: float | None
    computation_s: float
    communication_s: Mapping[str, float]

    @property
    def step_time_s(self) -> float:
        """Duration of the step on these links [s]."""
        return self.timeline.step_time_s


def replay_traces(
    traces: Sequence[RankTrace], profile: HardwareProfile, *, contention: bool = True
) -> TracedStep:
    """The step that traces describe, on the links of a profile.

    Args:
        traces: One per rank.
        profile: Whose links; computation takes as long as was recorded.
        contention: Whether communications share links, and slow computation beside them.

    Raises:
        InputError: The traces contradict themselves or each other.
    """
    program = traced_program(traces, profile)
    try:
        timeline = simulate_program(program) if contention else replay(program)
    except DeadlockError as error:
        rule = f"wait for each other in a circle: {error}"
        raise InputError.single("", rule, file=traces[0].file) from error
    times = [_rank_times(timeline, number) for number in range(len(program.classes))]
    computation_s, communication_s = max(times, key=lambda pair: pair[0])
    return TracedStep(timeline, traces[0].step_s, computation_s, communication_s)


def _rank_times(timeline: Timeline, number: int) -> tuple[float, dict[str, float]]:
    """Computation and communication of one rank, by kind [s]."""
    computed_s = 0.0
    exchanged: dict[str, float] = {}
    program = timeline.program
    for (owner, _), indices in program.lanes.items():
        if owner != number:
            continue
        for index in indices:
            for part in program.operations[index].work.parts:
                if part.category in COMMUNICATION:
                    exchanged[part.category.value] = (
                        exchanged.get(part.category.value, 0.0) + part.seconds
                    )
                else:
                    computed_s += part.seconds
    return computed_s, exchanged
