"""Rules between nodes, NICs and switches, and the errors that name them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from simulator.described.cluster.network import HYBRID_CUBE_MESH_LINKS, Network
from simulator.described.rules.profile_rules import link_faults, network_faults
from simulator.errors import InputError
from tests.jobs import network_profile, small_job


def fault_paths(**fabric: Any) -> list[str]:
    return [f.path for f in network_faults(network_profile(fabric=fabric).network, "network")]


@pytest.mark.parametrize("nics", [0, 1, 2, 4, 8])
def test_nics_per_node_per_pair_and_per_gpu_are_sound(nics):
    assert fault_paths(nics_per_node=nics) == []


@pytest.mark.parametrize("nics", [3, 5, 6])
def test_nics_that_do_not_divide_over_the_gpus_are_refused(nics):
    assert fault_paths(nics_per_node=nics) == ["network.fabric.nics_per_node"]


def test_an_algorithm_of_nccl_is_refused_where_gloo_carries_collectives():
    network = network_profile().network
    ring, gloo = {"algorithm": "ring"}, {"library": "gloo"}
    faults = [
        [fault.path for fault in link_faults(network.model_copy(update=given), "network")]
        for given in (ring, gloo, ring | gloo)
    ]
    assert faults == [[], [], ["network.algorithm"]]


def test_a_tier_that_narrows_must_say_what_is_below_it():
    assert fault_paths(leaf={"oversubscription": 2.0}) == ["network.fabric.leaf.gpus"]


def test_leafs_hold_whole_nodes_and_pods_whole_leafs():
    assert fault_paths(leaf={"gpus": 6}) == ["network.fabric.leaf.gpus"]
    assert fault_paths(leaf={"gpus": 8}, pod={"gpus": 12}) == ["network.fabric.pod.gpus"]
    assert fault_paths(pod={"gpus": 8}) == ["network.fabric.leaf.gpus"]
    assert fault_paths(leaf={"gpus": 8}, pod={"gpus": 16}) == []


def test_a_job_on_an_unsound_fabric_is_refused_only_if_it_uses_the_fabric():
    profile = network_profile(fabric={"nics_per_node": 3})
    assert small_job(gpus=4, profile=profile)
    with pytest.raises(InputError) as caught:
        small_job(gpus=8, profile=profile)
    assert caught.value.faults[0].path == "cluster.network.fabric.nics_per_node"


@pytest.mark.parametrize(
    "tier",
    [
        {"oversubscription": 0.5},
        {"oversubscription": "2:1"},
        {"latency": 1e-6},
        {"latency": "-1 us"},
        {"background_load": 1.0},
        {"gpus": -8},
        {"nodes": 4},
    ],
)
def test_impossible_tiers_are_refused(tier):
    document = network_profile().network.model_dump(mode="json", by_alias=True)
    document["fabric"]["leaf"] = tier
    with pytest.raises(ValidationError):
        Network.model_validate(document)


def test_every_gpu_of_a_cube_mesh_has_six_links_and_reaches_four_others():
    for gpu in range(8):
        own = [links for pair, links in HYBRID_CUBE_MESH_LINKS.items() if gpu in pair]
        assert (sum(own), len(own)) == (6, 4)
