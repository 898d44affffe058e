"""Buffers that gradients pass through, as DeepSpeed has them."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Kind, Owner, total_bytes
from simulator.program.states.gradient_buckets import bucket_memory
from simulator.program.states.resident import ParameterCount, slice_parameters
from simulator.results.simulation import run_step
from tests.jobs import host_profile, small_job, small_model

STACK = {"base": "deepspeed", "bucket": "100 MB"}


def a_job(**plan) -> Job:
    return small_job(profile=host_profile(), **{"gpus": 4, "stack": STACK, **plan})


@pytest.mark.parametrize(
    ("zero", "overlaps", "buffers"), [(1, True, 2), (2, True, 2), (2, False, 1), (3, True, 0)]
)
def test_deepspeed_holds_whole_buckets_however_little_is_trained(zero, overlaps, buffers):
    lora = {"rank": 8, "targets": ["query"]}
    job = a_job(zero=zero, lora=lora, overlap_grad_reduce=overlaps)
    assert total_bytes(bucket_memory(job, ParameterCount())) == buffers * 100e6


def test_releases_before_0_13_hold_a_bucket_for_sharded_gradients_alone():
    """pangu-004, ZeRO 1, holds 0.6 GiB less than pangu-005, ZeRO 2, which has a buffer of 1 GB."""
    stack = {**STACK, "holds_bucket_of_whole": False}
    jobs = [a_job(zero=zero, stack=stack) for zero in (1, 2)]
    held = [total_bytes(bucket_memory(job, ParameterCount())) for job in jobs]
    assert held == [0, 100e6]


def test_gradients_that_come_back_from_the_host_pass_a_buffer_of_the_largest_parameter():
    """``temp_grad_buffer_for_gpu_offload`` has ``largest_param_numel`` elements of 16 bits."""
    job = a_job(zero=2, offload={"optimizer": "cpu"}, overlap_grad_reduce=False)
    numel = small_model().vocab * small_model().hidden
    (run,) = stage_slices(job, 1)[0:1]
    assert slice_parameters(job, run).largest == numel
    held = bucket_memory(job, slice_parameters(job, run))
    assert held == ((Owner.COMMUNICATION, 100e6), (Owner.COMMUNICATION, 2.0 * numel))


def test_sums_with_gradients_of_the_host_take_no_further_memory():
    job = a_job(zero=2, offload={"optimizer": "cpu"}, global_batch=8)
    copies = [
        operation
        for operation in run_step(job).timeline.program.operations
        if operation.kind is Kind.COPY_TO_DEVICE
    ]
    assert copies
    assert not any(operation.takes for operation in copies)


def test_gradients_are_free_once_they_are_in_the_bucket():
    """Of all that a backward made no more than the largest one is ever there."""
    job = a_job(zero=2, offload={"optimizer": "cpu"}, global_batch=4)
    (run,) = stage_slices(job, 1)[0:1]
    parameters = slice_parameters(job, run)
    (memory,) = run_step(job).memory
    most = memory.owner_bytes[Owner.GRADIENTS].max()
    shards = 2.0 * parameters.trained / 4
    assert most <= 2 * 2.0 * parameters.largest + shards
    assert most < 2.0 * parameters.trained
