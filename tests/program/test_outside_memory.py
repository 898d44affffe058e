"""Device memory that no tensor takes."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.load import load_profile
from simulator.program.states.outside_memory import (
    communicator_bytes,
    communicator_memory,
    outside_memory,
)
from tests.jobs import small_job, small_model

MIB = 2.0**20


def a_job(*, gpus: int = 1, tp: int = 1, **stack: object) -> Job:
    return small_job(gpus=gpus, tp=tp, global_batch=gpus, stack={"base": "torch", **stack})


@pytest.mark.parametrize(
    ("gpus", "tp", "communicators"),
    [(1, 1, 0), (2, 1, 2 * 342e6), (8, 1, 2 * 392e6), (8, 2, 342e6 + 2 * 392e6)],
)
def test_a_rank_pays_for_every_group_it_is_in_and_for_that_of_all(gpus, tp, communicators):
    assert sum(communicator_memory(a_job(gpus=gpus, tp=tp)).values()) == communicators


def test_only_groups_of_several_ranks_have_a_communicator():
    held = communicator_memory(a_job(gpus=8))
    assert set(held) == {"communicator: data", "communicator: all ranks"}
    assert communicator_bytes(1, a_job().cluster.profile.common) == 0


def test_chips_of_a_torus_have_no_communicators():
    """XLA's reports of TPUs list reserved memory, program and arguments."""
    job = small_job(gpus=8, global_batch=8, stack="jax", profile=load_profile("tpu-v6e"))
    assert communicator_memory(job) == {}
    assert outside_memory(job) == {}


@pytest.mark.parametrize(("dispatch", "peers"), [("all_to_all", 7), ("all_gather", 0)])
def test_an_all_to_all_of_eight_ranks_takes_what_was_seen_on_eight_h100(dispatch, peers):
    """3.28 GB (NVIDIA/nccl#1685)."""
    profile = load_profile("h100-sxm-80gb")
    model = small_model(experts={"count": 8, "top_k": 2, "ffn_hidden": 32})
    job = small_job(model, profile=profile, gpus=8, ep=8, ep_dispatch=dispatch)
    held = outside_memory(job).get("connections: expert", 0.0)
    assert held == pytest.approx(peers / 7 * 3.28e9, rel=0.01)


def test_old_software_loads_1343_mib_of_kernels_used_or_not():
    job = a_job(loads_all_kernels=True)
    context_bytes = job.cluster.profile.device.context_bytes
    assert context_bytes + sum(outside_memory(job).values()) == 1343 * MIB
    assert outside_memory(a_job()) == {}


def test_a_context_that_is_larger_than_that_stays_as_it_is():
    job = a_job(loads_all_kernels=True)
    device = job.cluster.profile.device.model_copy(update={"context_bytes": 2048 * MIB})
    profile = job.cluster.profile.model_copy(update={"device": device})
    cluster = job.cluster.model_copy(update={"profile": profile})
    assert outside_memory(job.model_copy(update={"cluster": cluster})) == {}
