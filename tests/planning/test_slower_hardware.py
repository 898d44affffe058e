"""What physics rules out, whatever the error of a prediction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import simulator as sim
from simulator.described.base import Spec
from simulator.described.cluster.network import Network
from simulator.described.job import Job
from simulator.planning.changes.slower_hardware import (
    SLOWER_WITH_LESS,
    SLOWER_WITH_MORE,
    is_on_slower_hardware,
)

SLOW_GPU = {"gpu": 7, "slowdown": 0.05}


def a_job() -> Job:
    return sim.load_job(
        {
            "model": {"base": "llama3.1-8b", "layers": 2},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 16},
            "batch": {"global": 32, "seq_len": 1024},
            "plan": {"zero": 3},
        }
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster.network.fabric.nics_per_node": 4},
        {"cluster.network.fabric.nic": "200 Gbit/s"},
        {"cluster.network.fabric.latency": "50 us"},
        {"cluster.network.fabric.leaf": {"gpus": 8, "oversubscription": 2}},
        {"perturbations": [SLOW_GPU]},
        {"perturbations": [SLOW_GPU], "cluster.network.scale_up.bandwidth": "100 GB/s"},
    ],
)
def test_what_only_takes_away_is_slower_hardware(changes: dict[str, object]):
    job = a_job()
    less = job.replace({"cluster.network.fabric.leaf.gpus": 8}).replace(changes)
    assert is_on_slower_hardware(less, job.replace({"cluster.network.fabric.leaf.gpus": 8}))
    assert not is_on_slower_hardware(job, less)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"plan.zero": 2},
        {"cluster.network.fabric.nics_per_node": 4, "cluster.network.fabric.nic": "800 Gbit/s"},
        {"cluster.network.fabric.nics_per_node": 4, "plan.zero": 2},
        {"cluster.gpus": 8},
        {"cluster.profile": "a100-sxm-80gb"},
    ],
)
def test_anything_else_may_be_either(changes: dict[str, object]):
    job, other = a_job(), a_job().replace(changes)
    assert not is_on_slower_hardware(other, job)
    assert not is_on_slower_hardware(job, other)


def test_a_slow_gpu_in_place_of_another_may_be_either():
    one, other = ({**SLOW_GPU, "gpu": gpu} for gpu in (3, 7))
    jobs = [a_job().replace({"perturbations": [each]}) for each in (one, other)]
    assert not is_on_slower_hardware(*jobs)
    both = a_job().replace({"perturbations": [other, one]})
    assert is_on_slower_hardware(both, jobs[0])


def test_half_of_the_network_cards_are_never_said_to_be_faster():
    job = a_job()
    half = job.replace({"cluster.network.fabric.nics_per_node": 4})
    answer = sim.compare({"all": job, "half": half}, engine="replay")
    (gain,) = answer.gains
    assert gain is not None
    assert (gain.interval[1], gain.faster_probability) == (0.0, 0.0)
    assert "cannot be faster" in str(answer)
    (back,) = sim.compare({"half": half, "all": job}, engine="replay").gains
    assert back is not None
    assert (back.interval[0], back.faster_probability) == (0.0, 1.0)


UNDECIDED = frozenset(
    [
        "algorithm",
        "fabric.bulk_latency_s",
        "fabric.in_network_reduction",
        "fabric.kind",
        "fabric.late_node_hop",
        "fabric.leaf.gpus",
        "fabric.low_latency_share",
        "fabric.nccl_chooses",
        "fabric.pat",
        "fabric.pipeline_fill",
        "fabric.pod.gpus",
        "fabric.ring_piece_bytes",
        "fabric.sm_count",
        "fabric.tree_channel_bytes_per_s",
        "fabric.tree_piece_bytes",
        "fabric.wiring",
        "gpus_per_node",
        "library",
        "scale_up.bulk_latency_s",
        "scale_up.chunk_latency_s",
        "scale_up.crowding",
        "scale_up.gpus",
        "scale_up.host_ring_share",
        "scale_up.in_switch_efficiency",
        "scale_up.in_switch_latency_s",
        "scale_up.in_switch_reduction",
        "scale_up.kind",
        "scale_up.launch_s",
        "scale_up.line_latency_s",
        "scale_up.loaded_latency_s",
        "scale_up.local_copy_bytes_per_s",
        "scale_up.low_latency_share",
        "scale_up.pipeline_fill",
        "scale_up.sm_count",
        "scale_up.socket_link_bytes_per_s",
        "scale_up.torus",
        "scale_up.wide_launch_s",
        "tuning",
    ]
)
"""Fields of a network of which more may be either: choices and numbers of the collective library,
and sizes, which change the groups."""


def fields(spec: type[Spec], path: str = "") -> Iterator[str]:
    """Every number and word of a specification, by dotted path."""
    for name, field in spec.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Spec):
            yield from fields(inner, f"{path}{name}.")
        elif name != "provenance":
            yield path + name


def test_every_field_of_a_network_is_decided_on():
    prefix = "cluster.profile.network."
    paths = [path for path in (*SLOWER_WITH_LESS, *SLOWER_WITH_MORE) if path.startswith(prefix)]
    decided = {path.removeprefix(prefix) for path in paths}
    assert set(fields(Network)) - decided == UNDECIDED
    assert decided <= set(fields(Network))
