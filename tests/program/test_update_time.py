"""Does an update take as long as kernels over many tensors were measured to take?"""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.program.grid.stage_layers import Slice
from simulator.program.price.update_time import optimizer_work
from simulator.program.states.resident import ParameterCount
from tests.jobs import small_model


def one_device(stack: str, profile: str = "h100-sxm-80gb", **plan: object) -> Job:
    return job_from_document(
        {
            "model": small_model().model_dump(exclude_unset=True),
            "cluster": {"profile": profile, "gpus": 1},
            "batch": {"global": 1, "micro": 1, "seq_len": 128},
            "plan": {"stack": stack, **plan},
        }
    )


def update_s(job: Job, numel: float) -> float:
    return optimizer_work(job, ParameterCount(numel), [], 0.0).seconds


@pytest.mark.parametrize(
    ("plan", "numel", "measured_s"),
    [
        ({}, 1.498482688e9, 23.06e-3),
        ({}, 3.606752256e9, 54.8e-3),
        ({"master_weights": False}, 8.030261248e9, 73.0e-3),
        ({"optimizer_kernels": "foreach"}, 1.498482688e9, 50.6e-3),
    ],
)
def test_an_update_takes_as_long_as_on_an_h100(plan, numel, measured_s):
    """Kernels of llama-1b, llama-3b, llama-8b-plain-adam-16-bit and llama-1b-foreach, summed up."""
    assert update_s(one_device("torch", **plan), numel) == pytest.approx(measured_s, rel=0.05)


def test_an_update_of_one_weight_after_another_takes_as_long_as_on_an_a40():
    """20 passes over 355,919,872 fp32 weights took 53 ms (file-index id 63089861479)."""
    plan = {"optimizer_kernels": "for-loop", "clip_gradients": False}
    job = one_device("torch", "a40-48gb", **plan)
    assert update_s(job, 355_919_872) == pytest.approx(53e-3, rel=0.08)


def test_each_operator_of_an_update_in_a_loop_is_launched_for_each_weight():
    """A layer has two norms and six matrices, gate and up as one; Adam has 8 operators."""
    job = one_device("torch", optimizer_kernels="for-loop")
    layers = [Slice(0, job.model.layers)]
    none, all_ = (optimizer_work(job, ParameterCount(1.0), runs, 0.0) for runs in ([], layers))
    launches = 8 * 8 * job.model.layers
    launch_s = job.cluster.profile.kernels.launch_s
    assert all_.seconds == pytest.approx(launches * launch_s)
    assert none.seconds < launch_s


def test_each_rank_loops_over_all_weights_where_it_holds_rows_of_them():
    """Under fully_shard a rank has rows of each matrix, elsewhere a part of a flat buffer."""
    job = job_from_document({
        "model": small_model().model_dump(exclude_unset=True),
        "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
        "batch": {"global": 8, "micro": 1, "seq_len": 128},
        "plan": {"stack": "torch", "zero": 3, "optimizer_kernels": "for-loop"},
    })  # fmt: skip
    layers = [Slice(0, job.model.layers)]
    none, all_ = (optimizer_work(job, ParameterCount(1.0), runs, 0.0) for runs in ([], layers))
    launches = 8 * 8 * job.model.layers
    assert all_.seconds == pytest.approx(launches * job.cluster.profile.kernels.launch_s)
    assert none.seconds < all_.seconds / 8


def test_a_slower_memory_limits_the_same_kernel():
    """A fused AdamW of 539 million bf16 parameters: pytorch/pytorch, pull request 119842.

    It comes nearer to its memory's rate than what an H100 and an H200 took together says.
    """
    plan = {"master_weights": False, "clip_gradients": False}
    job = one_device("torch", "h100-hbm2e-96gb-500w", **plan)
    assert update_s(job, 538.9e6) == pytest.approx(3.578e-3, rel=0.14)


@pytest.mark.parametrize(
    ("stack", "profile"), [("jax", "h100-sxm-80gb"), ("torch", "gaudi2-96gb"), ("jax", "tpu-v5p")]
)
def test_a_compiler_updates_each_tensor_as_fast_as_memory_allows(stack, profile):
    job = one_device(stack, profile)
    kernels, device = job.cluster.profile.kernels, job.cluster.profile.device
    rate = kernels.memory_efficiency * device.memory_bandwidth_bytes_per_s
    more_s = update_s(job, 2e9) - update_s(job, 1e9)
    assert more_s * rate / 1e9 == pytest.approx(round(more_s * rate / 1e9))
