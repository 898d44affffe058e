"""Folded against unfolded: the same timeline, whoever is simulated."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.engine.timeline import STREAMS, Timeline
from simulator.program.build import build_program
from simulator.program.ir import RankClass
from simulator.spec.job import Job
from simulator.spec.perturbations import Perturbation
from tests.jobs import jobs

some = settings(max_examples=60, deadline=None)


@st.composite
def perturbations(draw: st.DrawFn, gpus: int) -> tuple[Perturbation, ...]:
    """Up to three slow GPUs, nodes or links of a job."""
    listed = []
    for _ in range(draw(st.integers(0, 3))):
        who = draw(
            st.one_of(
                st.builds(lambda rank: {"gpu": rank}, st.integers(0, gpus - 1)),
                st.just({"node": 0}),
            )
        )
        what = draw(
            st.one_of(
                st.builds(lambda size: {"slowdown": size}, st.sampled_from([0.0, 0.2, 1.0])),
                st.builds(lambda share: {"nic_share": share}, st.sampled_from([0.1, 0.5, 1.0])),
                st.builds(lambda share: {"scale_up_share": share}, st.sampled_from([0.1, 0.5])),
            )
        )
        listed.append(Perturbation(**who, **what))
    return tuple(listed)


@st.composite
def perturbed_jobs(draw: st.DrawFn) -> Job:
    """Random plans on up to 32 ranks with random perturbations."""
    job = draw(jobs().filter(lambda job: job.cluster.gpus <= 32))
    return job.model_copy(update={"perturbations": draw(perturbations(job.cluster.gpus))})


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


@some
@given(perturbed_jobs())
def test_folded_and_unfolded_runs_give_every_rank_the_same_timeline(job):
    folded, unfolded = (
        simulate_program(build_program(job, unfolded=whole)) for whole in (False, True)
    )
    assert len(unfolded.program.classes) == job.cluster.gpus
    assert timelines_by_rank(folded) == timelines_by_rank(unfolded)


@some
@given(perturbed_jobs())
def test_folded_and_unfolded_replays_give_every_rank_the_same_timeline(job):
    folded, unfolded = (replay(build_program(job, unfolded=whole)) for whole in (False, True))
    assert timelines_by_rank(folded) == timelines_by_rank(unfolded)
