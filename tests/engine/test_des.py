"""The simulation against the longest path, closed forms, and itself."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.dependencies import dependencies
from simulator.engine.des import Limit, LimitError, simulate_program
from simulator.engine.replay import remaining_s, replay
from simulator.processor import without_collection
from simulator.program.build import build_program
from simulator.program.ir import (
    Category,
    Kind,
    Operation,
    Program,
    RankClass,
    Stream,
    Traffic,
    Work,
)
from tests.engine.kept_waits import assert_waits_are_kept
from tests.factories import device_of
from tests.jobs import jobs, network_profile, pipeline_program, profiles, small_job, small_model

few = settings(max_examples=40, deadline=None)


@few
@given(jobs())
def test_without_contention_the_simulation_equals_the_longest_path_to_the_last_bit(job):
    program = build_program(job)
    longest, simulated = replay(program), simulate_program(program, contention=False)
    assert np.array_equal(longest.operation_start_s, simulated.operation_start_s)
    assert np.array_equal(longest.operation_end_s, simulated.operation_end_s)


@few
@given(jobs())
def test_contention_never_speeds_anything_up(job):
    program = build_program(job)
    longest, simulated = replay(program), simulate_program(program)
    assert np.all(longest.operation_end_s <= simulated.operation_end_s * (1 + 1e-9))


@few
@given(jobs(), st.floats(0.9, 1.1))
def test_a_simulation_is_given_up_only_if_the_program_takes_longer_than_its_limit(job, share):
    program = build_program(job)
    left_s, step_s = remaining_s(program), simulate_program(program).step_time_s
    assert max(left_s) == pytest.approx(replay(program).step_time_s, rel=1e-12)
    limit = Limit(share * step_s, left_s, dependencies(program))

    def least_s():
        try:
            return simulate_program(program, limit=limit).step_time_s
        except LimitError as error:
            return error.least_s

    found_s = least_s()
    assert found_s == step_s or limit.most_s < found_s <= step_s * (1 + 1e-9)


def test_a_program_is_let_go_of_once_its_simulation_has_been_given_up():
    """Not only when garbage is collected: a search gives up many, one after another."""
    program = build_program(small_job(gpus=8, tp=2, pp=4, global_batch=64))
    known = dependencies(program)
    held = sys.getrefcount(program)
    left_s = remaining_s(program, known)
    with without_collection():
        with pytest.raises(LimitError):
            simulate_program(program, limit=Limit(1.0001 * max(left_s), left_s, known))
        assert sys.getrefcount(program) == held


@few
@given(jobs())
def test_the_same_job_gives_the_same_timeline_bit_by_bit(job):
    first, second = (simulate_program(build_program(job)) for _ in range(2))
    assert np.array_equal(first.operation_end_s, second.operation_end_s)


@few
@given(jobs())
def test_no_step_is_faster_than_the_busiest_stream(job):
    program = build_program(job)
    busiest = max(
        sum(program.operations[i].work.seconds for i in lane) for lane in program.lanes.values()
    )
    assert simulate_program(program).step_time_s >= busiest * (1 - 1e-9)


@few
@given(jobs())
def test_every_operation_starts_after_what_it_waits_for(job):
    assert_waits_are_kept(simulate_program(build_program(job)))


def with_network(job, **changes):
    """The job with some numbers of its links changed."""
    profile = job.cluster.profile
    network = profile.network
    for side in ("scale_up", "fabric"):
        values = {key.removeprefix(f"{side}__"): v for key, v in changes.items() if side in key}
        link = getattr(network, side).model_copy(update=values)
        network = network.model_copy(update={side: link})
    cluster = job.cluster.model_copy(
        update={"profile": profile.model_copy(update={"network": network})}
    )
    return job.model_copy(update={"cluster": cluster})


@few
@given(jobs(), st.sampled_from(["scale_up", "fabric"]), st.floats(1.01, 100))
def test_more_link_bandwidth_is_never_slower(job, side, factor):
    link = getattr(job.cluster.profile.network, side)
    name = "bandwidth_bytes_per_s" if side == "scale_up" else "nic_bytes_per_s"
    faster = with_network(job, **{f"{side}__{name}": getattr(link, name) * factor})
    before, after = (replay(build_program(each)).step_time_s for each in (job, faster))
    assert after <= before * (1 + 1e-12)


@few
@given(jobs(), st.sampled_from(["scale_up", "fabric"]), st.floats(1e-6, 1e-2))
def test_more_link_latency_is_never_faster(job, side, extra_s):
    link = getattr(job.cluster.profile.network, side)
    slower = with_network(
        job,
        **{
            f"{side}__latency_s": link.latency_s + extra_s,
            f"{side}__bulk_latency_s": link.bulk_latency_s + extra_s,
        },
    )
    before, after = (replay(build_program(each)).step_time_s for each in (job, slower))
    assert after >= before * (1 - 1e-12)


@few
@given(jobs(), profiles())
def test_a_faster_device_is_never_slower(job, profile):
    """Twice the matrix rate and the memory bandwidth, over any links."""
    device = profile.device.model_copy(
        update={
            "memory_bandwidth_bytes_per_s": profile.device.memory_bandwidth_bytes_per_s * 2,
            "peak": profile.device.peak.model_copy(
                update={"bf16_flop_per_s": 2 * profile.device.peak.bf16_flop_per_s}
            ),
        }
    )
    faster = profile.model_copy(update={"device": device})
    times = [
        replay(
            build_program(
                job.model_copy(update={"cluster": job.cluster.model_copy(update={"profile": each})})
            )
        ).step_time_s
        for each in (profile, faster)
    ]
    assert times[1] <= times[0] * (1 + 1e-12)


def two_streams(communication: Work, computation: Work) -> Program:
    """One rank that computes beside a communication."""
    program = Program(
        (RankClass("stage 0", 0, 1, 0),), ports={"fabric": 1e9}, device=device_of(100)
    )
    lanes = ((0, Stream.DATA_PARALLEL),), ((0, Stream.COMPUTE),)
    program.add(Operation(Kind.ALL_GATHER, lanes[0], communication, Category.DATA_PARALLEL))
    program.add(Operation(Kind.FORWARD, lanes[1], computation, Category.FORWARD))
    return program


def test_computing_beside_a_collective_is_slowed_by_the_multiprocessors_it_holds():
    """20 of 100 for 1 s: 0.8 s of work done, 1.2 s left."""
    communication = Work(1.0, traffic=Traffic({"fabric": 1e9}, sm_count=20))
    timeline = simulate_program(two_streams(communication, Work(2.0)))
    assert timeline.operation_end_s.tolist() == pytest.approx([1.0, 2.2])


def test_latency_holds_multiprocessors_too():
    communication = Work(1.0, traffic=Traffic({"fabric": 0.5e9}, latency_s=0.5, sm_count=20))
    timeline = simulate_program(two_streams(communication, Work(2.0)))
    assert timeline.operation_end_s.tolist() == pytest.approx([1.0, 2.2])


def test_without_contention_nothing_is_slowed():
    communication = Work(1.0, traffic=Traffic({"fabric": 1e9}, sm_count=20))
    timeline = simulate_program(two_streams(communication, Work(2.0)), contention=False)
    assert timeline.operation_end_s.tolist() == [1.0, 2.0]


def transfers(*routes: tuple[int, Stream, int, Stream]) -> Program:
    """Sends of one second each, between three ranks with a fabric port of 1 GB/s."""
    program = Program(
        tuple(RankClass(f"stage {i}", i, 1, i) for i in range(3)), ports={"fabric": 1e9}
    )
    work = Work(1.0, traffic=Traffic({"fabric": 1e9}))
    for source, send, target, receive in routes:
        lanes = ((source, send), (target, receive))
        program.add(Operation(Kind.SEND_RECV, lanes, work, Category.PIPELINE))
    return program


TO_NEXT = (0, Stream.SEND_NEXT, 1, Stream.RECV_PREVIOUS)
BACK = (1, Stream.SEND_PREVIOUS, 0, Stream.RECV_NEXT)
ONWARDS = (1, Stream.SEND_NEXT, 2, Stream.RECV_PREVIOUS)


def test_ports_are_full_duplex_so_opposite_transfers_do_not_share():
    assert simulate_program(transfers(TO_NEXT, BACK)).operation_end_s.tolist() == [1.0, 1.0]


def test_a_rank_passes_on_at_full_speed_while_it_receives():
    assert simulate_program(transfers(TO_NEXT, ONWARDS)).operation_end_s.tolist() == [1.0, 1.0]


def test_two_transfers_out_of_one_rank_share_its_port():
    assert simulate_program(transfers(BACK, ONWARDS)).operation_end_s.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_fills_and_drains_once_per_transfer_and_stage(schedule):
    """One microbatch: p forwards, p backwards, and 2 (p - 1) transfers in a row."""
    program = pipeline_program(schedule, 4, 1, 1, transfer=Work(0.5))
    assert simulate_program(program).step_time_s == pytest.approx(4 * 1 + 4 * 2 + 6 * 0.5)


def test_a_blocking_send_delays_the_sender_by_the_transfer():
    """Stage 0 runs two forwards; with blocking sends the second starts 0.5 s later."""
    starts = []
    for blocking in (False, True):
        program = pipeline_program("gpipe", 2, 1, 2, transfer=Work(0.5), blocking=blocking)
        timeline = simulate_program(program)
        second = next(
            i
            for i, op in enumerate(program.operations)
            if op.kind is Kind.FORWARD and op.microbatch == 1 and op.lanes[0][0] == 0
        )
        starts.append(timeline.operation_start_s[second])
    assert starts == [1.0, 1.5]


def test_more_microbatches_take_longer_and_the_bubble_is_paid_once():
    job = small_job(small_model(), gpus=2, pp=2, global_batch=4, profile=network_profile())
    steps = [
        simulate_program(build_program(job.model_copy(update={"batch": batch}))).step_time_s
        for batch in (job.batch.model_copy(update={"global_batch": size}) for size in (4, 8, 12))
    ]
    assert steps[1] < 2 * steps[0]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=1e-6)
