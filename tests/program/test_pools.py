"""What does a job take on a cluster of several kinds of GPUs?"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator as sim
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.errors import InputError
from simulator.planning.search.search import pareto_front, search_plans
from simulator.program.unlike.conditions import rank_conditions

SLOW, FAST = "a100-sxm-80gb", "h100-sxm-80gb"


def job_on(cluster: dict[str, Any], *, sequences: int = 16, **changes: Any) -> Job:
    """A small Llama on 16 GPUs, two of each pipeline's stages in every half."""
    document = {
        "model": {"base": "llama3.1-8b", "layers": 8},
        "cluster": cluster,
        "batch": {"global": sequences, "micro": 1, "seq_len": 2048},
        "plan": {"tp": 2, "pp": 2},
    }
    plan = {**document["plan"], **changes}
    return job_from_document({**document, "plan": plan})


def pools(*profiles: str, gpus: int = 8) -> dict[str, Any]:
    return {"pools": [{"profile": profile, "gpus": gpus} for profile in profiles]}


def one(profile: str, gpus: int = 16) -> dict[str, Any]:
    return {"profile": profile, "gpus": gpus}


def step_s(cluster: dict[str, Any], **changes: Any) -> float:
    return sim.simulate(job_on(cluster, **changes)).step_time_s


@pytest.mark.parametrize("plan", [{}, {"pp": 1, "zero": 3}, {"tp": 8, "pp": 2}])
def test_two_pools_of_one_profile_are_one_cluster(plan):
    mixed = sim.simulate(job_on(pools(SLOW, SLOW), **plan))
    alike = sim.simulate(job_on(one(SLOW), **plan))
    assert mixed.step_time_s == alike.step_time_s
    assert mixed.breakdown_s == alike.breakdown_s
    assert len(mixed.memory) == len(alike.memory)


def test_ports_of_a_slower_pool_carry_their_share_of_the_first_pools():
    """An A100 has 25 of an H100's 50 GB/s on the fabric; ports that are alike are not named."""
    conditions = rank_conditions(job_on(pools(FAST, SLOW)))
    first, second = conditions.port_shares(0, 0), conditions.port_shares(1, 0)
    assert first == {}
    assert second["fabric"] == 0.5
    assert 0.5 < second["scale_up"] < 1


@pytest.mark.parametrize("order", [(SLOW, FAST), (FAST, SLOW)])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_data_parallel_ranks_that_wait_for_each_other_take_what_the_slower_pool_takes(order, zero):
    plan = {"pp": 1, "zero": zero}
    mixed = step_s(pools(*order), **plan)
    # Both pools' links are those of InfiniBand nodes of eight; only a little of the wait is
    # for what the faster pool does alone.
    assert mixed == pytest.approx(step_s(one(SLOW), **plan), rel=0.02)
    assert mixed > 1.5 * step_s(one(FAST), **plan)


def test_a_faster_pool_adds_nothing_to_ranks_that_share_every_weight():
    """Graphs, as a faster GPU's host launches no faster."""
    plan = {"tp": 16, "pp": 1, "cuda_graphs": "full"}
    assert step_s(pools(SLOW, FAST), **plan) == pytest.approx(step_s(one(SLOW), **plan))


def test_stages_run_at_the_rate_of_their_own_pool():
    mixed = sim.simulate(job_on(pools(SLOW, FAST)), engine="replay").timeline
    slow, fast = (sim.simulate(job_on(one(p)), engine="replay").timeline for p in (SLOW, FAST))
    for index, operation in enumerate(mixed.program.operations):
        of = slow if operation.lanes[0][0] == 0 else fast
        if operation.kind in ("forward", "backward"):
            assert operation.work.seconds == of.program.operations[index].work.seconds


def test_transfers_between_pools_take_as_long_as_at_their_slower_end():
    def transfer_s(cluster: dict[str, Any]) -> float:
        program = sim.simulate(job_on(cluster), engine="replay").timeline.program
        return next(op.work.seconds for op in program.operations if op.kind == "send_recv")

    slower = max(transfer_s(one(SLOW)), transfer_s(one(FAST)))
    assert transfer_s(pools(SLOW, FAST)) == transfer_s(pools(FAST, SLOW)) == slower


def test_a_layout_that_gives_the_faster_pool_more_layers_beats_an_even_one():
    even = step_s(pools(SLOW, FAST), layout=[4, 4])
    uneven = step_s(pools(SLOW, FAST), layout=[2, 6])
    wrong_way = step_s(pools(SLOW, FAST), layout=[6, 2])
    assert uneven < even < wrong_way
    assert step_s(one(FAST)) < uneven < step_s(one(SLOW))


@given(
    st.sampled_from([(SLOW, FAST), (FAST, SLOW), (FAST, SLOW, FAST)]),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (8, 1), (1, 4)]),
    st.sampled_from([0, 1]),
)
@settings(max_examples=12, deadline=None)
def test_every_rank_by_itself_takes_what_its_class_takes(order, degrees, zero):
    tp, pp = degrees
    plan = {"tp": tp, "pp": pp, "zero": zero}
    copies = 8 * len(order) // (tp * pp)
    job = job_on(pools(*order, gpus=8), sequences=4 * copies, **plan)
    folded, unfolded = sim.simulate(job), sim.simulate(job, unfolded=True)
    assert folded.step_time_s == unfolded.step_time_s
    assert len(unfolded.timeline.program.classes) == job.cluster.gpus
    assert len(folded.timeline.program.classes) <= 4 * pp
    held = {each.first_rank: m for each, m in zip(
        unfolded.timeline.program.classes, unfolded.memory, strict=True)}  # fmt: skip
    for each, memory in zip(folded.timeline.program.classes, folded.memory, strict=True):
        assert memory.peak_device_bytes == held[each.first_rank].peak_device_bytes
        assert memory.capacity_bytes == held[each.first_rank].capacity_bytes


def test_a_job_fits_if_every_pool_has_room_for_its_own_stages():
    small = {"profile": SLOW, "gpus": 8, "device": {"memory": "5 GiB"}}
    large = {"profile": FAST, "gpus": 8}
    plan = {"tp": 8, "pp": 2, "layout": [1, 7]}
    assert sim.simulate(job_on({"pools": [small, large]}, **plan)).fits
    swapped = sim.simulate(job_on({"pools": [large, small]}, **plan))
    assert not swapped.fits
    assert SLOW in swapped.explain_misfit()
    assert [memory.capacity_bytes / 2**30 > 5 for memory in swapped.memory] == [True, False]


def test_mfu_is_a_share_of_what_all_pools_could_do():
    mixed, slow, fast = (
        sim.simulate(job_on(cluster)) for cluster in (pools(SLOW, FAST), one(SLOW), one(FAST))
    )
    peak_flop_per_s = [each.model_tflops_per_gpu / each.mfu for each in (mixed, slow, fast)]
    assert peak_flop_per_s[0] == pytest.approx((peak_flop_per_s[1] + peak_flop_per_s[2]) / 2)


def test_the_result_names_the_pools():
    result = sim.simulate(job_on(pools(SLOW, FAST)))
    assert f"8 x {SLOW} + 8 x {FAST}" in result.title
    assert {each.cause for each in result.timeline.program.classes} == {f"on {SLOW}", f"on {FAST}"}
    gpus = [each["gpu"] for each in result.to_dict()["rank_classes"]]
    assert gpus == [SLOW, FAST]


def test_a_schedule_that_is_decided_from_costs_knows_the_pools():
    plan = {"schedule": "zb-2p", "layout": [4, 4], "zero": 0}
    assert step_s(one(FAST), **plan) < step_s(pools(SLOW, FAST), **plan) <= step_s(
        one(SLOW), **plan
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "plan", "path", "says"),
    [
        ({"pools": []}, {}, "cluster.pools", "must list the pools"),
        ({"pools": [{"gpus": 8}]}, {}, "cluster.pools.0", "profile and gpus"),
        ({"pools": [{"profile": "a", "gpus": 8}]}, {}, "cluster.pools.0.profile", "no such name"),
        ({"pools": [{"profile": SLOW}]}, {}, "cluster.pools.0.gpus", "missing"),
        ({**pools(SLOW, FAST), "gpus": 16}, {}, "cluster.gpus", "conflicts with pools"),
        (pools(SLOW, FAST, gpus=12), {}, "cluster.pools.0.gpus", "one kind"),
        (pools(SLOW, "gb200-nvl72"), {}, "cluster.pools.1.network.gpus_per_node", "not modelled"),
        (pools(SLOW, FAST), {"precision": "fp8"}, "plan.precision", SLOW),
        (pools(SLOW, FAST), {"offload": {"optimizer": "cpu"}}, "plan.offload", "not modelled"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_where_it_stands(cluster, plan, path, says):
    with pytest.raises(InputError) as caught:
        sim.simulate(job_on(cluster, **plan))
    faults = {fault.path: fault.rule for fault in caught.value.faults}
    assert path in faults, faults
    assert says in faults[path]


@pytest.mark.parametrize("question", [search_plans, pareto_front])
def test_questions_about_one_kind_of_gpu_are_refused_for_several(question):
    with pytest.raises(InputError, match="one kind of GPU only"):
        question(job_on(pools(SLOW, FAST)))
