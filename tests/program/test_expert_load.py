"""Uneven experts: the busiest rank sets the time and holds the memory, the others wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.job import Job
from simulator.described.load import load_job
from simulator.described.model import Experts
from simulator.described.plan.plan_blocks import ExpertLoad
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.expert_tokens import rank_loads
from simulator.program.ir import Category, Kind, Owner, Stream
from simulator.program.unlike.causes import WAIT
from simulator.results.simulation import run_step
from simulator.results.traffic import rank_collectives
from simulator.results.views.plain_data import expert_load_sentence
from tests.jobs import FAST_HOST, free_latency_profile, small_job, small_model

EXPERTS = Experts(count=8, top_k=2, ffn_hidden=128)


def job(load: dict | None = None, *, ep: int = 4, experts: Experts = EXPERTS, **plan) -> Job:
    return small_job(
        small_model(layers=2, experts=experts), gpus=4 * plan.get("pp", 1), ep=ep,
        profile=free_latency_profile(), expert_load=load, **plan,
    )  # fmt: skip


def test_one_hot_expert_takes_from_all_others_evenly():
    assert ExpertLoad(hot=2.0).over_mean(5) == (2.0, 0.75, 0.75, 0.75, 0.75)


def test_zipf_and_measured_loads_are_over_their_mean():
    assert ExpertLoad(zipf=1.0).over_mean(2) == pytest.approx((4 / 3, 2 / 3))
    assert ExpertLoad(loads=(30, 10)).over_mean(2) == (1.5, 0.5)


@given(st.floats(0.01, 4.0), st.sampled_from([1, 2, 4, 8]))
@settings(deadline=None, max_examples=20)
def test_nothing_is_lost_or_made_up_over_the_ranks(hot, ep):
    for load in ({"hot": hot}, {"zipf": min(hot, 1.0)}):
        loads = [load for rank in rank_loads(job(load, ep=min(ep, 4))) for load in rank]
        assert sum(loads) == pytest.approx(EXPERTS.count)


def test_an_even_load_is_the_same_as_none():
    plain, even = (run_step(job(load), "replay") for load in (None, {"hot": 1.0}))
    assert even.step_time_s == pytest.approx(plain.step_time_s)


def test_a_hot_expert_makes_the_step_longer_and_the_hotter_the_longer():
    steps = [run_step(job({"hot": hot}), "replay").step_time_s for hot in (1.0, 2.0, 3.0, 4.0)]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


def test_the_others_wait_after_each_pass_for_what_the_busiest_computes_longer():
    """On a host that keeps up; one that does not makes all of them wait for its launches."""
    program = build_program(job({"hot": 2.0}, stack=FAST_HOST))
    busiest, others = program.classes
    assert (busiest.count, others.count) == (1, 3)
    assert "waits" in others.cause
    waits = [op for op in program.operations if WAIT in {part.name for part in op.work.parts}]
    assert {op.lanes for op in waits} == {((1, Stream.COMPUTE),)}
    assert {op.kind for op in waits} == {Kind.ALL_TO_ALL}
    passes = [
        op
        for op in program.operations
        if op.kind in (Kind.FORWARD, Kind.BACKWARD) and op.layers[0] < op.layers[1]
    ]
    assert len(waits) == len(passes) / 2
    timeline = replay(program)
    ends = [
        [timeline.operation_end_s[i] for i in program.lanes[rank_class, Stream.COMPUTE]][-1]
        for rank_class in (0, 1)
    ]
    assert ends[0] == pytest.approx(ends[1])


def test_the_exchange_takes_as_long_as_the_busiest_rank_receives():
    """Two of eight experts per rank: 2 and 6/7 over the mean, together 10/7 of a rank's."""

    def dispatched(load):
        collectives = rank_collectives(build_program(job(load)))
        return next(each.num_bytes for each in collectives if each.name == "dispatch")

    assert dispatched({"hot": 2.0}) == pytest.approx(dispatched(None) * (2 + 6 / 7) / 2)


def test_memory_peaks_on_the_rank_of_the_hot_expert():
    result = run_step(job({"hot": 2.0}), "replay")
    activations = [memory.by_owner[Owner.ACTIVATIONS] for memory in result.memory]
    even = run_step(job(), "replay").memory[0].by_owner[Owner.ACTIVATIONS]
    assert activations[0] > even > activations[1]


def test_what_the_others_wait_is_exposed_expert_communication():
    result = run_step(job({"hot": 4.0}), "replay")
    own, waiting = result.class_breakdown_s
    assert waiting[Category.EXPERT_PARALLEL] > own[Category.EXPERT_PARALLEL]
    assert sum(waiting.values()) == pytest.approx(result.step_time_s)


def test_the_report_says_who_waits_in_a_sentence():
    hot = job({"hot": 2.0}, pp=2)
    sentence = expert_load_sentence(run_step(hot), hot)
    assert "receives 2.00 times its share" in sentence
    assert "Of every 4 ranks that share the experts, 3 wait for it" in sentence
    assert "Its memory peaks at" in sentence
    assert expert_load_sentence(run_step(job()), job()) == ""


def test_ranks_that_hold_all_experts_do_not_wait():
    alone = job({"hot": 2.0}, ep=1)
    assert len(build_program(alone).classes) == 1
    assert "no rank waits" in expert_load_sentence(run_step(alone), alone)


@pytest.mark.parametrize(
    ("load", "experts", "path", "words"),
    [
        ({"hot": 2.0}, None, "plan.expert_load", "needs a model with experts"),
        ({"hot": 5.0}, EXPERTS, "plan.expert_load", "more than 4 times the mean"),
        ({"loads": [1, 2]}, EXPERTS, "plan.expert_load.loads", "has 2 loads"),
        (
            {"hot": 2.0},
            EXPERTS.model_copy(update={"capacity_factor": 1.0}),
            "plan.expert_load",
            "has no effect with a capacity",
        ),
    ],
)
def test_impossible_loads_are_refused(load, experts, path, words):
    with pytest.raises(InputError) as raised:
        job(load, experts=experts, ep=1)
    (fault,) = raised.value.faults
    assert fault.path == path
    assert words in fault.rule


def test_a_load_in_one_process_is_refused_instead_of_left_out():
    with pytest.raises(InputError, match="is not modelled with plan"):
        job({"hot": 2.0}, ep=1, data_parallel="data-parallel", zero=0)


def test_a_file_of_measured_loads_stands_beside_the_job(tmp_path):
    (tmp_path / "loads.csv").write_text("3, 1\n1 1\n")
    text = """
        model: {layers: 2, hidden: 64, heads: 8, ffn_hidden: 128, vocab: 1000,
                experts: {count: 4, top_k: 1, ffn_hidden: 128}}
        cluster: {profile: h100-sxm-80gb, gpus: 4}
        batch: {global: 8, seq_len: 64}
        plan: {ep: 4, expert_load: {file: loads.csv}}
    """
    (tmp_path / "job.yaml").write_text(text)
    loaded = load_job(tmp_path / "job.yaml")
    assert loaded.plan.expert_load == ExpertLoad(loads=(3.0, 1.0, 1.0, 1.0))
    (tmp_path / "loads.csv").write_text("three")
    with pytest.raises(InputError) as raised:
        load_job(tmp_path / "job.yaml")
    assert raised.value.faults[0].path == "plan.expert_load.file"
