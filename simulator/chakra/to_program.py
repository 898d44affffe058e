"""How do execution traces become a program again, and how long does it take on another cluster?

A collective of several ranks' files is one operation on a stream of each: the k-th of a process
group on one rank meets the k-th on the others, and likewise between a sender and a receiver. Ranks
without a file are taken to behave like those with one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.chakra.execution_trace import RankTrace
from simulator.chakra.rank_parts import RankPart, RankReader, category_of, kind_of
from simulator.described.cluster.hardware import HardwareProfile
from simulator.engine.dependencies import DeadlockError
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.engine.timeline import Timeline
from simulator.errors import InputError
from simulator.program.ir import COMMUNICATION, Lane, Operation, Program, RankClass


def _traced_program(traces: Sequence[RankTrace], profile: HardwareProfile) -> Program:
    """The program that traces describe, on the links of a profile.

    Raises:
        InputError: A trace contradicts itself, or the ranks contradict each other.
    """
    program = Program(
        classes=tuple(
            RankClass(f"rank {trace.rank}", number, 1, trace.rank, ranks=(trace.rank,))
            for number, trace in enumerate(traces)
        ),
        ports=dict(profile.network.ports_bytes_per_s),
        device=profile.device,
        common=profile.common,
    )
    all_ranks = tuple(trace.rank for trace in traces)
    network = profile.network.taken_by(len(traces))
    readers = [RankReader(number, trace, network, all_ranks) for number, trace in enumerate(traces)]
    joint = _joined([reader.operations() for reader in readers])
    waits = _Waits(traces)
    for each in _in_order(joint):
        waits.added(each, program.add(each.operation()))
    for index, operation in enumerate(program.operations):
        operation.after = waits.of(index)
    return program


@dataclass(slots=True)
class _Joint:
    """What several ranks do as one."""

    parts: list[RankPart] = field(default_factory=list)

    def operation(self) -> Operation:
        """As a program has it, without what it waits for; senders come first."""
        parts = sorted(self.parts, key=lambda part: (not part.sends, part.number))
        longest = max(parts, key=lambda part: len(part.nodes))
        first = longest.nodes[0]
        lanes = tuple((part.number, part.stream) for part in parts)
        return Operation(kind_of(first), lanes, longest.work, category_of(first))


def _joined(ranks: Sequence[list[RankPart]]) -> list[list[_Joint]]:
    """Operations of every rank; those that meet are one."""
    met: dict[Hashable, _Joint] = {}
    found: list[list[_Joint]] = []
    for parts in ranks:
        found.append([])
        for part in parts:
            joint = _Joint() if part.key is None else met.setdefault(part.key, _Joint())
            joint.parts.append(part)
            found[-1].append(joint)
    return found


def _in_order(ranks: Sequence[Sequence[_Joint]]) -> Iterator[_Joint]:
    """The operations, each after all that come before it on any of its streams.

    Raises:
        InputError: There is no such order.
    """
    lanes: dict[Lane, deque[_Joint]] = {}
    for number, joints in enumerate(ranks):
        for joint in joints:
            stream = next(part.stream for part in joint.parts if part.number == number)
            lanes.setdefault((number, stream), deque()).append(joint)
    heads = Counter(id(lane[0]) for lane in lanes.values())
    firsts = {id(lane[0]): lane[0] for lane in lanes.values()}.values()
    ready = deque(joint for joint in firsts if heads[id(joint)] == len(joint.parts))
    while ready:
        joint = ready.popleft()
        yield joint
        for part in joint.parts:
            lane = lanes[part.number, part.stream]
            lane.popleft()
            if lane:
                heads[id(lane[0])] += 1
                if heads[id(lane[0])] == len(lane[0].parts):
                    ready.append(lane[0])
    stuck = next((lane[0] for lane in lanes.values() if lane), None)
    if stuck is not None:
        node = stuck.parts[0].nodes[0]
        rule = "runs its communication in another order than other ranks"
        raise InputError.single(f"node {node.id}", rule, node.name)


class _Waits:
    """What operations wait for, found from what their nodes wait for."""

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        self._traces = traces
        self._operation_of: dict[tuple[int, int], int] = {}
        self._parts: list[list[RankPart]] = []

    def added(self, joint: _Joint, index: int) -> None:
        """Note the index that an operation has in the program."""
        self._parts.append(joint.parts)
        for part in joint.parts:
            for node in part.nodes:
                self._operation_of[part.number, node.id] = index

    def of(self, index: int) -> tuple[int, ...]:
        """Indices of what an operation waits for.

        Raises:
            InputError: A node waits for one that is not there.
        """
        found: dict[int, None] = {}
        for part in self._parts[index]:
            for node in part.nodes:
                for other in node.waits_for:
                    before = self._operation_of.get((part.number, other))
                    if before is None:
                        file = self._traces[part.number].file
                        rule = f"waits for node {other}, which the trace does not have"
                        raise InputError.single(f"node {node.id}", rule, node.name, file=file)
                    if before != index:
                        found[before] = None
        return tuple(found)


@dataclass(frozen=True)
class TracedStep:
    """A step replayed from traces.

    Attributes:
        timeline: What ran when, one class per traced rank.
        recorded_step_s: What the step took where it was traced; None if unknown [s].
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
    program = _traced_program(traces, profile)
    try:
        timeline = simulate_program(program) if contention else replay(program)
    except DeadlockError as error:
        rule = f"deadlock: {error}"
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
