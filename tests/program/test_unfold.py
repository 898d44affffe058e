"""Folded against unfolded: the same timeline, whoever is simulated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Job
from simulator.described.model import Experts
from simulator.described.plan.plan_blocks import ExpertLoad
from simulator.described.variation import Perturbation
from simulator.engine.des import simulate_program
from simulator.engine.replay import replay
from simulator.errors import UnsupportedError
from simulator.program.build import build_program
from simulator.program.ir import Category, Kind, Part, Work
from simulator.program.unlike.conditions import Condition, rank_conditions, slowed
from simulator.results.simulation import run_step
from simulator.schedule import SCHEDULES, schedule_info
from tests.jobs import FAST_HOST, NO_LATENCY, jobs, network_profile, small_job, small_model
from tests.unfolded import check_unfolds, ranks_of, timelines_by_rank

some = settings(max_examples=30, deadline=None)


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
def clusters(draw: st.DrawFn) -> HardwareProfile:
    """Half nodes, nodes or racks of two nodes joined by links from slow to fast."""
    rates, sm_count = st.sampled_from(["10 MB/s", "1 GB/s", "100 GB/s"]), draw(st.integers(0, 3))
    return network_profile(
        {
            "kind": draw(st.sampled_from(["nvswitch", "full-mesh"])),
            "gpus": draw(st.sampled_from([2, 4, 8])),
            "bandwidth": draw(rates),
            "sm_count": sm_count,
            "in_switch_reduction": draw(st.booleans()),
        },
        {"nic": draw(rates), "nics_per_node": draw(st.sampled_from([1, 4])), "sm_count": sm_count},
    )


@st.composite
def perturbed_jobs(draw: st.DrawFn) -> Job:
    """Random plans on up to 32 ranks with random perturbations and loads of experts."""
    job = draw(jobs(draw(clusters())).filter(lambda job: job.cluster.gpus <= 32))
    loads = [None, ExpertLoad(hot=2.0), ExpertLoad(zipf=0.5), ExpertLoad(loads=(1, 2, 3, 1))]
    load = draw(st.sampled_from(loads)) if job.model.experts else None
    plan = job.plan.model_copy(update={"expert_load": load})
    perturbed = draw(perturbations(job.cluster.gpus))
    return job.model_copy(update={"plan": plan, "perturbations": perturbed})


@some
@given(perturbed_jobs())
def test_folded_and_unfolded_runs_give_every_rank_the_same_timeline(job):
    check_unfolds(job)


@some
@given(perturbed_jobs())
def test_folded_and_unfolded_replays_give_every_rank_the_same_timeline(job):
    check_unfolds(job, replay)


@some
@given(perturbed_jobs())
def test_folded_and_unfolded_runs_give_the_same_breakdown_and_every_rank_the_same_memory(job):
    folded, unfolded = (run_step(job, unfolded=whole) for whole in (False, True))
    assert folded.breakdown_s.keys() == unfolded.breakdown_s.keys()
    for category, seconds in folded.breakdown_s.items():
        assert unfolded.breakdown_s[category] == pytest.approx(seconds, abs=1e-12, rel=1e-9)
    peaks = [
        {
            rank: memory.peak_allocated_bytes
            for rank_class, memory in zip(
                result.timeline.program.classes, result.memory, strict=True
            )
            for rank in ranks_of(rank_class)
        }
        for result in (folded, unfolded)
    ]
    assert peaks[0] == pytest.approx(peaks[1])


@pytest.mark.parametrize("perturbed_gpu", [(), ({"gpu": 1, "slowdown": 0.5},)])
@pytest.mark.parametrize("whole", [False, True])
def test_a_hot_expert_is_felt_beside_perturbations_and_rank_by_rank(perturbed_gpu, whole):
    """Whoever is simulated: the hot rank holds more, and the others wait for it."""
    experts = Experts(count=8, top_k=2, ffn_hidden=128)
    plain = small_job(small_model(layers=2, experts=experts), gpus=8, ep=4, stack=FAST_HOST)
    even, hot = (
        run_step(
            perturbed(
                plain.model_copy(
                    update={"plan": plain.plan.model_copy(update={"expert_load": load})}
                ),
                *perturbed_gpu,
            ),
            unfolded=whole,
        )
        for load in (None, ExpertLoad(hot=4.0))
    )
    assert hot.step_time_s > even.step_time_s
    classes = hot.timeline.program.classes
    holds = ["holds the busiest experts" in each.cause for each in classes]
    peaks = [memory.peak_allocated_bytes for memory in hot.memory]
    assert sum(each.count for each, is_hot in zip(classes, holds, strict=True) if is_hot) == 2
    hottest = min(peak for peak, is_hot in zip(peaks, holds, strict=True) if is_hot)
    assert hottest > max(peak for peak, is_hot in zip(peaks, holds, strict=True) if not is_hot)


def test_communicators_and_segments_do_not_depend_on_who_is_simulated():
    plain = small_job(gpus=4, tp=2, stack={"expandable_segments": True})
    folded = build_program(plain)
    for other in (
        build_program(plain, unfolded=True),
        build_program(perturbed(plain, {"gpu": 1, "slowdown": 0.5})),
    ):
        assert other.outside == folded.outside != {}
        assert other.allocator.expandable_segments is True


@pytest.mark.parametrize(
    "schedule", [name for name in SCHEDULES if schedule_info(name).synchronous]
)
def test_every_schedule_unfolds_to_the_same_timeline(schedule):
    vpp = 2 if schedule in {"interleaved-1f1b", "zb-v", "v-half", "v-min", "dualpipev"} else 1
    model = small_model(layers=8, tied_embeddings=True)
    plain = small_job(model, gpus=16, tp=2, pp=4, vpp=vpp, schedule=schedule, global_batch=16)
    job = perturbed(plain, {"gpu": 6, "slowdown": 0.3}, {"gpu": 9, "nic_share": 0.4})
    check_unfolds(job)


@pytest.mark.parametrize("order", ["pp-dp-tp-cp-ep", "dp-tp-pp-cp-ep", "tp-cp-pp-ep-dp"])
def test_every_order_of_ranks_unfolds_to_the_same_timeline(order):
    plain = small_job(gpus=16, tp=2, cp=2, pp=2, zero=2, rank_order=order)
    job = perturbed(plain, {"gpu": 6, "slowdown": 0.3}, {"gpu": 9, "nic_share": 0.4})
    check_unfolds(job)


SIZES = {"slowdown": [0.0, 0.01, 0.2, 1.0], "nic_share": [1.0, 0.9, 0.5, 0.1],
         "scale_up_share": [1.0, 0.9, 0.5, 0.1], "jitter": [0.0, 0.01, 0.2, 1.0]}  # fmt: skip
"""Perturbations from none to large."""


@st.composite
def growing(draw: st.DrawFn) -> tuple[Job, Job, Job]:
    """A job as it is, with a perturbation, and with a larger one of the same rank."""
    job = draw(jobs().filter(lambda job: job.cluster.gpus <= 16))
    kind = draw(st.sampled_from(list(SIZES)))
    rank = draw(st.integers(0, job.cluster.gpus - 1))
    small, large = sorted(draw(st.tuples(st.integers(0, 3), st.integers(0, 3))))
    return tuple(
        job.model_copy(update={"perturbations": (Perturbation(gpu=rank, **{kind: size}),)})
        for size in (SIZES[kind][i] for i in (0, small, large))
    )


@some
@given(growing())
def test_a_larger_perturbation_is_never_faster(cases):
    steps = [replay(build_program(job)).step_time_s for job in cases]
    assert steps[0] <= steps[1] * (1 + 1e-12)
    assert steps[1] <= steps[2] * (1 + 1e-12)


@some
@given(growing())
def test_a_perturbation_of_size_zero_changes_nothing(cases):
    unperturbed = cases[0].model_copy(update={"perturbations": ()})
    for unfolded in (False, True):
        before, after = (
            simulate_program(build_program(job, unfolded=unfolded))
            for job in (unperturbed, cases[0])
        )
        assert timelines_by_rank(before) == timelines_by_rank(after)


@some
@given(perturbed_jobs())
def test_contention_between_unequal_ranks_never_makes_anything_faster(job):
    program = build_program(job)
    alone, shared = replay(program), simulate_program(program)
    assert np.all(alone.operation_end_s <= shared.operation_end_s * (1 + 1e-9))


@some
@given(perturbed_jobs())
def test_without_contention_unequal_ranks_simulate_to_the_longest_path(job):
    program = build_program(job)
    longest, simulated = replay(program), simulate_program(program, contention=False)
    assert np.array_equal(longest.operation_end_s, simulated.operation_end_s)


@some
@given(growing())
def test_under_contention_a_larger_perturbation_is_not_faster_either(cases):
    """But for what a delay saves that keeps two transfers from meeting: less than 1 %."""
    steps = [simulate_program(build_program(job)).step_time_s for job in cases]
    assert steps[0] <= steps[1] * 1.01
    assert steps[1] <= steps[2] * 1.01


def perturbed(job: Job, *listed: dict[str, object]) -> Job:
    return job.model_copy(update={"perturbations": tuple(Perturbation(**each) for each in listed)})


def test_one_slow_gpu_splits_each_stage_into_itself_its_group_and_those_who_meet_either():
    """Tp 2, dp 4: rank 9 is the second of its pair, in the first replica of stage 1."""
    job = perturbed(small_job(gpus=16, tp=2, pp=2), {"gpu": 9, "slowdown": 0.2})
    classes = build_program(job).classes
    assert [(c.stage, c.ranks) for c in classes] == [
        (0, (0,)),
        (0, (1,)),
        (0, (2, 4, 6)),
        (0, (3, 5, 7)),
        (1, (8,)),
        (1, (9,)),
        (1, (10, 12, 14)),
        (1, (11, 13, 15)),
    ]
    assert {c.first_rank: c.cause for c in classes} == {
        0: "is in the same pipeline as rank 9",
        1: "is in the same pipeline as rank 9",
        2: "reduces gradients with ranks that wait for rank 9",
        3: "reduces gradients with ranks that wait for rank 9",
        8: "waits in every pass for rank 9",
        9: "20 % slower",
        10: "reduces gradients with ranks that wait for rank 9",
        11: "reduces gradients with rank 9",
    }


def test_a_slow_gpu_delays_the_reduction_by_what_its_passes_take_longer():
    """Two replicas of one rank: the sound one ends its passes first and waits."""
    stack = {"base": "megatron-core", "host_work_per_launch": 1}
    job = small_job(gpus=2, zero=0, global_batch=4, overlap_grad_reduce=False, stack=stack)
    slow = perturbed(job, {"gpu": 1, "slowdown": 0.5})
    starts_s = []
    for each in (job, slow):
        timeline = replay(build_program(each))
        kinds = [operation.kind for operation in timeline.program.operations]
        starts_s.append(timeline.operation_start_s[kinds.index(Kind.ALL_REDUCE)])
    assert Category.HOST not in {part.category for part in first_work(job).parts}
    assert starts_s[1] == pytest.approx(1.5 * starts_s[0])


def first_work(job: Job) -> Work:
    return build_program(job).operations[0].work


def test_a_network_card_at_half_its_rate_doubles_every_transfer_of_its_group():
    """Eight replicas on two nodes; cards are slower than scale-up links, and nothing waits."""
    profile = network_profile({**NO_LATENCY, "launch": "0 s"}, {**NO_LATENCY, "nic": "10 MB/s"})
    job = small_job(gpus=8, zero=0, profile=profile)
    slow = perturbed(job, {"gpu": 3, "nic_share": 0.5})
    (before,), (after,) = (
        [op.work for op in build_program(each).operations if op.kind is Kind.ALL_REDUCE]
        for each in (job, slow)
    )
    assert after.seconds == pytest.approx(2 * before.seconds)


def test_each_gpu_of_a_node_is_meant_by_its_node():
    job = small_job(gpus=8)
    by_node = rank_conditions(perturbed(job, {"node": 1, "slowdown": 0.1}))
    by_rank = rank_conditions(perturbed(job, {"gpu": "4-7", "slowdown": 0.1}))
    assert by_node.number.tolist() == by_rank.number.tolist() == [[0] * 4 + [1] * 4]


def test_perturbations_of_one_rank_multiply():
    job = perturbed(
        small_job(gpus=2),
        {"gpu": 0, "slowdown": 0.5, "nic_share": 0.5},
        {"gpu": "0-1", "slowdown": 1.0, "nic_share": 0.5},
    )
    conditions = rank_conditions(job)
    assert conditions.of(0, 0) == Condition(2.0, 0.25)
    assert conditions.of(0, 1) == Condition(1.0, 0.5)


def test_the_same_seed_draws_the_same_spread_and_another_draws_another():
    job = small_job(gpus=8)
    drawn = [rank_conditions(perturbed(job, {"jitter": 0.1, "seed": seed})) for seed in (1, 1, 2)]
    slow = [{c.slowdown for c in each.distinct} for each in drawn]
    assert slow[0] == slow[1] != slow[2]
    assert all(0 <= each <= 0.1 for each in slow[0])
    assert len(slow[0]) == 8


def test_what_waits_for_the_host_shrinks_by_what_the_device_takes_longer():
    """2 s of computing take 3 s; of 1.5 s that the host was behind, 0.5 s are left."""
    parts = (
        Part("product", Category.FORWARD, 2.0),
        Part("reduce", Category.TENSOR_PARALLEL, 1.0),
        Part("launch", Category.HOST, 1.5),
    )
    work = slowed(Work(4.5, parts), 0.5)
    assert [part.seconds for part in work.parts] == [3.0, 1.0, 0.5]
    assert work.seconds == 4.5


def test_more_kinds_of_ranks_than_can_be_simulated_are_refused(monkeypatch):
    monkeypatch.setattr("simulator.program.unlike.unfold._MOST_OPERATIONS", 10)
    with pytest.raises(UnsupportedError, match=r"perturbations: needs 8 classes of ranks"):
        build_program(perturbed(small_job(gpus=8), {"jitter": 0.1}))
    with pytest.raises(UnsupportedError, match=r"unfolded: needs 8 classes of ranks"):
        build_program(small_job(gpus=8), unfolded=True)
