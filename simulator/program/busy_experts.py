"""Who waits where the experts of one rank receive more tokens than those of the others?

Two programs of the same job, one as the busiest rank of every expert-parallel group runs
it and one as the others do, become one with two classes per stage. The others enter every
exchange early and leave it with the busiest rank. That time is one operation after each
of their passes: in a profile it is the part of all_to_all kernels in which nothing moves.

Ignores: that ranks other than the busiest differ, too; they do what they do on average.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.program.expert_load import busiest_rank
from simulator.program.ir import Category, Kind, Operation, Part, Program, RankClass, Stream, Work
from simulator.spec.job import Job

WAIT = "wait_for_experts"
"""Name of the part in which a rank waits for the busiest one."""


def with_waiting_ranks(job: Job, busiest: Program, others: Program) -> Program:
    """Both programs side by side, operation for operation.

    Args:
        job: With an uneven load of its experts.
        busiest: One class per stage, as the busiest ranks run it.
        others: The same operations, as the others run them.
    """
    program = Program(
        classes=tuple(
            new
            for rank_class in busiest.classes
            for new in _split_class(job, rank_class, others.classes[rank_class.stage])
        ),
        ports=dict(busiest.ports),
        sm_count=busiest.sm_count,
    )
    starts: tuple[list[int], list[int]] = ([], [])
    ends: tuple[list[int], list[int]] = ([], [])
    for pair in zip(busiest.operations, others.operations, strict=True):
        longest_s = max(operation.work.seconds for operation in pair)
        for part, operation in enumerate(pair):
            starts[part].append(len(program.operations))
            ends[part].append(_add(program, operation, part, longest_s))
    # Only now, because a pass may wait for operations that come later in the list.
    for part, source in enumerate((busiest, others)):
        for operation, start in zip(source.operations, starts[part], strict=True):
            program.operations[start].after = tuple(ends[part][i] for i in operation.after)
    return program


def _add(program: Program, operation: Operation, part: int, longest_s: float) -> int:
    """Append an operation, and the wait after it; returns the last of the two."""
    lanes = tuple((2 * stage + part, stream) for stage, stream in operation.lanes)
    index = program.add(replace(operation, lanes=lanes, after=()))
    wait_s = longest_s - operation.work.seconds
    if wait_s <= 0 or operation.lanes[0][1] is not Stream.COMPUTE:
        return index
    work = Work(wait_s, (Part(WAIT, Category.EXPERT_PARALLEL, wait_s),))
    return program.add(
        Operation(
            Kind.ALL_TO_ALL, lanes, work, Category.EXPERT_PARALLEL, (index,),
            operation.microbatch, operation.chunk, operation.layers,
        )
    )  # fmt: skip


def _split_class(job: Job, busiest: RankClass, others: RankClass) -> tuple[RankClass, RankClass]:
    ep, etp, place = job.plan.ep, job.plan.expert_tp, busiest_rank(job)
    count = busiest.count // ep
    first_other = etp if place == 0 else 0
    return (
        replace(
            busiest,
            name=f"{busiest.name} hot",
            count=count,
            first_rank=busiest.first_rank + place * etp,
            cause="holds the busiest experts",
        ),
        replace(
            others,
            name=f"{others.name} cold",
            count=others.count - count,
            first_rank=others.first_rank + first_other,
            cause="waits for the busiest experts in every pass",
        ),
    )
