"""Do ranks do the same, whether they are simulated by themselves or once for all alike?"""

from __future__ import annotations

from collections.abc import Callable

from simulator.described.job import Job
from simulator.engine.des import simulate_program
from simulator.engine.timeline import STREAMS, Timeline
from simulator.program.build import build_program
from simulator.program.ir import Program, RankClass


def ranks_of(rank_class: RankClass) -> range | tuple[int, ...]:
    first = rank_class.first_rank
    return rank_class.ranks or range(first, first + rank_class.count)


def timelines_by_rank(timeline: Timeline) -> dict[int, dict[str, list[tuple]]]:
    """What every rank does and when, stream by stream."""
    program = timeline.program
    start_s, end_s = timeline.operation_start_s.tolist(), timeline.operation_end_s.tolist()
    by_rank: dict[int, dict[str, list[tuple]]] = {}
    for number, rank_class in enumerate(program.classes):
        streams = {}
        for stream in STREAMS:
            lane = program.lanes.get((number, stream), [])
            streams[stream.value] = [
                (op.kind, op.microbatch, op.chunk, op.layers, start_s[i], end_s[i])
                for i in lane
                for op in [program.operations[i]]
            ]
        by_rank.update(dict.fromkeys(ranks_of(rank_class), streams))
    return by_rank


def check_unfolds(job: Job, run: Callable[[Program], Timeline] = simulate_program) -> None:
    """Every rank does the same at the same time, alone or with those like it."""
    folded, unfolded = (run(build_program(job, unfolded=whole)) for whole in (False, True))
    assert len(unfolded.program.classes) == job.cluster.gpus
    assert timelines_by_rank(folded) == timelines_by_rank(unfolded)
