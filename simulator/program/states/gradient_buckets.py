"""What do buffers take that gradients pass through on their way, however many are trained?

DeepSpeed's ZeRO 1 and 2 copy every gradient into a buffer as large as a bucket as soon as it is
there, and into another one in turn where reductions overlap. The gradient itself is then a view of
that buffer, so its own tensor is free. With the optimizer on the host, gradients of earlier
microbatches come back one parameter at a time, into a buffer as large as the largest one.

Source: DeepSpeed 0.3.16 to 0.14, ``stage_1_and_2.py`` (``stage2.py`` before 0.5.8):
``reduce_independent_p_g_buckets_and_remove_grads`` (``param.grad.data = new_grad_tensor``, a part
of ``ipg_buffer``), ``temp_grad_buffer_for_gpu_offload`` of ``largest_param_numel`` and
``async_accumulate_grad_in_cpu_via_gpu``.
"""

from __future__ import annotations

from simulator.described.job import Job
from simulator.program.ir import Memory, Owner
from simulator.program.states.resident import ParameterCount, holds_bucket, state_bytes


def bucket_memory(job: Job, parameters: ParameterCount) -> Memory:
    """Buffers that are there all the time.

    Args:
        job: The job.
        parameters: What the rank holds of the model.
    """
    choices = job.choices
    if not holds_bucket(job):
        return ()
    sizes = [choices.bucket_bytes] * (2 if choices.overlaps_reduction else 1)
    if adds_by_parameter(job):
        sizes.append(parameters.largest * state_bytes(job).gathered)
    return tuple((Owner.COMMUNICATION, num_bytes) for num_bytes in sizes if num_bytes)


def copies_into_bucket(job: Job) -> bool:
    """Whether gradients of ZeRO 2 are free once they are in such a buffer."""
    return holds_bucket(job) and job.choices.shards_gradients


def adds_by_parameter(job: Job) -> bool:
    """Whether gradients on the host come back for a sum one parameter at a time."""
    return (
        job.plan.offload.optimizer is not None
        and job.choices.offloads == "infinity"
        and copies_into_bucket(job)
    )
