"""Every rank listed: coordinates, groups and what they cross."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.collectives import Group
from simulator.described.job import Job
from simulator.described.load import load_profile
from simulator.described.model import Experts
from simulator.described.plan.plan import Plan
from simulator.errors import InputError
from simulator.program.grid.placement import (
    Level,
    groups_along,
    level_between,
    placement,
    rank_coordinates,
)
from simulator.program.grid.rank_groups import group_along, pipeline_pair, rank_axes
from tests.jobs import jobs, network_profile, small_job, small_model

ORDERS = ["-".join(words) for words in permutations(("tp", "cp", "ep", "dp", "pp"))]
MEGATRON = "tp-cp-ep-dp-pp"


def eight_nodes_of_four(**plan: object) -> Job:
    """The 3D-parallel job that DeepSpeed's overview draws: 32 workers, tp 4, pp 4, dp 2."""
    return small_job(gpus=32, tp=4, pp=4, **plan)


def in_order(job: Job, order: str) -> Job:
    """The same job with its ranks numbered in another order, if that is sound."""
    plan = job.plan.model_copy(update={"rank_order": order, "ep": 1, "etp": None})
    model = job.model.model_copy(update={"experts": None})
    return job.model_copy(update={"plan": plan, "model": model})


def test_deepspeeds_mapping_keeps_tensor_ranks_in_a_node_and_copies_beside_each_other():
    job = eight_nodes_of_four()
    assert groups_along(job, "tp").tolist()[0] == [0, 1, 2, 3]
    assert groups_along(job, "dp").tolist()[0] == [0, 4]
    assert groups_along(job, "pp").tolist()[0] == [0, 8, 16, 24]
    coordinates = rank_coordinates(job)
    assert {word: int(coordinates[word][13]) for word in ("tp", "dp", "pp")} == {
        "tp": 1, "dp": 1, "pp": 1,
    }  # fmt: skip


def test_experts_send_to_all_others_alike_not_to_their_neighbours_alone():
    """Of 8 ranks on two nodes of four, each sends to 3 of the 7 others inside its node."""
    model = small_model(experts=Experts(count=8, top_k=2, ffn_hidden=128))
    job = small_job(model, gpus=8, ep=8)
    groups = {groups.name: groups for groups in placement(job).groups}
    assert groups["dp"].hop_share == pytest.approx({Level.SCALE_UP: 6 / 7, Level.LEAF: 1 / 7})
    assert groups["ep"].hop_share == pytest.approx({Level.SCALE_UP: 3 / 7, Level.LEAF: 4 / 7})


def test_deepspeeds_mapping_crosses_nodes_only_for_copies_and_stages():
    groups = {groups.name: groups for groups in placement(eight_nodes_of_four()).groups}
    assert set(groups) == {"tp", "dp", "pp"}
    assert groups["tp"].hop_share == {Level.SCALE_UP: 1.0}
    assert groups["dp"].widest is Level.LEAF
    assert groups["pp"].widest is Level.LEAF
    assert {name: group.members.shape for name, group in groups.items()} == {
        "tp": (8, 4), "dp": (16, 2), "pp": (8, 4),
    }  # fmt: skip


@given(jobs(), st.sampled_from(ORDERS))
@settings(deadline=None, max_examples=60)
def test_in_any_order_every_rank_is_in_exactly_one_group_of_each_axis(job, order):
    ordered = in_order(job, order)
    for words in (("tp",), ("cp",), ("dp",), ("pp",), ("cp", "dp"), ("tp", "pp")):
        members = groups_along(ordered, *words)
        assert sorted(members.ravel().tolist()) == list(range(job.cluster.gpus))
        axes = rank_axes(ordered)
        assert members.shape[1] == np.prod([axes[word].ranks for word in words])


@given(jobs())
@settings(deadline=None, max_examples=60)
def test_expert_groups_are_a_partition_too(job):
    for word in ("tp", "ep", "dp"):
        members = groups_along(job, word, experts=True)
        assert sorted(members.ravel().tolist()) == list(range(job.cluster.gpus))


@given(jobs(), st.sampled_from(ORDERS))
@settings(deadline=None, max_examples=60)
def test_two_groups_of_different_axes_meet_in_at_most_one_rank(job, order):
    ordered = in_order(job, order)
    tensor, copies = groups_along(ordered, "tp"), groups_along(ordered, "dp")
    assert all(len(set(a) & set(b)) <= 1 for a in tensor.tolist() for b in copies.tolist())


@given(jobs())
@settings(deadline=None, max_examples=60)
def test_the_default_order_strides_tensor_context_data_and_pipeline_ranks(job):
    """The strides that were fixed before the order could be chosen."""
    plan = job.plan
    assert plan.rank_order == MEGATRON
    strides = {word: axis.stride for word, axis in rank_axes(job).items()}
    tp, cp, dp = plan.tp, plan.cp, job.dp
    assert (strides["tp"], strides["cp"], strides["dp"]) == (1, tp, tp * cp)
    assert strides["pp"] == tp * cp * dp
    routed = {word: axis.stride for word, axis in rank_axes(job, experts=True).items()}
    assert (routed["tp"], routed["ep"]) == (1, plan.expert_tp)
    assert routed["dp"] == plan.expert_tp * plan.ep


@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]), st.sampled_from(ORDERS), st.sampled_from([0, 8, 16]),
)  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_the_arithmetic_of_a_group_is_what_counting_its_ranks_gives(tp, cp, dp, pp, order, leaf):
    profile = network_profile(fabric={"leaf": {"gpus": leaf}, "pod": {"gpus": 2 * leaf}})
    job = small_job(
        gpus=tp * cp * dp * pp, profile=profile, global_batch=16,
        tp=tp, cp=cp, pp=pp, rank_order=order,
    )  # fmt: skip
    for words in (("tp",), ("cp",), ("cp", "dp")):
        group, first = group_along(job, *words), groups_along(job, *words)[0]
        nodes = first // 4
        below = len(set(nodes[first < leaf])) if leaf and first.max() >= leaf else 0
        counted = Group(len(first), int((first < 4).sum()), below, group.nodes_per_pod)
        assert group == counted


def test_a_pipeline_hop_is_as_wide_as_what_lies_between_its_first_ranks():
    profile = network_profile(fabric={"leaf": {"gpus": 8}, "pod": {"gpus": 16}})
    job = small_job(gpus=32, pp=4, tp=2, profile=profile)
    pairs = [pipeline_pair(job, stage, stage + 1) for stage in range(3)]
    assert pairs == [Group(2, 1, 1, 0), Group(2, 1, 1, 1), Group(2, 1, 1, 0)]


def test_two_gpus_of_a_full_mesh_have_one_of_its_links():
    """Each of eight GPUs has a link of its own to each of the seven others (AMD's MI300X)."""
    job = small_job(gpus=8, tp=2, profile=load_profile("mi300x"))
    (pairs,) = (each for each in placement(job).groups if each.name == "tp")
    assert pairs.bytes_per_s == pytest.approx(job.cluster.network.scale_up_bytes_per_s / 7)


def test_levels_widen_with_distance():
    network = network_profile(fabric={"leaf": {"gpus": 8}, "pod": {"gpus": 16}}).network
    levels = level_between(network, np.zeros(4, int), np.array([3, 4, 8, 16]))
    assert levels.tolist() == [Level.SCALE_UP, Level.LEAF, Level.SPINE, Level.CORE]


def test_pipeline_stages_before_copies_sit_in_one_node():
    job = eight_nodes_of_four(rank_order="tp-cp-ep-pp-dp")
    assert groups_along(job, "pp").tolist()[0] == [0, 4, 8, 12]
    assert groups_along(job, "dp").tolist()[0] == [0, 16]


@pytest.mark.parametrize(
    "order", ["tp-cp-dp-pp", "tp-cp-ep-dp-pp-vp", "tp-tp-ep-dp-pp", "tpcp", ""]
)
def test_an_order_without_each_word_once_is_refused(order):
    with pytest.raises(ValueError, match="tp, cp, ep, dp, pp in any order"):
        Plan.model_validate({"rank_order": order})


def test_an_order_in_which_experts_have_other_pipelines_is_refused():
    from simulator.described.model import Experts
    from tests.jobs import small_model

    model = small_model(experts=Experts(count=4, top_k=2, ffn_hidden=128))
    fields = {"gpus": 16, "pp": 2, "rank_order": "tp-ep-cp-pp-dp"}
    assert small_job(model, ep=1, **fields)
    with pytest.raises(InputError) as caught:
        small_job(model, ep=4, **fields)
    assert caught.value.faults[0].path == "plan.rank_order"
