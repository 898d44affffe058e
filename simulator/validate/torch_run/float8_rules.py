"""Which jobs can train here in 8 bits?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from simulator.described.job import Job
from simulator.errors import Fault
from simulator.program.run.order import job_schedule
from simulator.ranks.world import FP8_CAPABILITY, World

_MULTIPLE = 16
"""What ``torch._scaled_mm`` takes multiples of: it reads 16 bytes at a time."""


def float8_faults(job: Job, world: World) -> Iterator[Fault]:
    """What the device, the plan or the sizes have against 8-bit products, and the way out."""
    yield from _of_device(world)
    plan, rule = job.plan, "has no 8-bit products here"
    hint = "take plan.precision: bf16"
    if plan.tp > 1:
        yield Fault("plan.tp", rule, plan.tp, f"take plan.tp: 1, or {hint}")
    if job.model.experts is not None:
        yield Fault("model.experts", rule, hint=hint)
    if plan.pp > 1 and job_schedule(job).splits_backward:
        rule = "8-bit products give both gradients at once here"
        yield Fault("plan.schedule", rule, plan.schedule, "take plan.schedule: 1f1b")
    yield from _of_sizes(job)


def _of_device(world: World) -> Iterator[Fault]:
    if not world.is_gpu:
        return
    capability = torch.cuda.get_device_capability(world.device)
    if capability < FP8_CAPABILITY:
        name, needed = torch.cuda.get_device_name(world.device), _dotted(FP8_CAPABILITY)
        rule = f"{name} has compute capability {_dotted(capability)}, 8-bit products need {needed}"
        yield Fault("plan.precision", rule, "fp8", "take plan.precision: bf16 or fp16, or a GPU "
                    "from Ada or Hopper on")  # fmt: skip


def _of_sizes(job: Job) -> Iterator[Fault]:
    model = job.model
    sizes = {
        "model.hidden": model.hidden,
        "model.heads": model.heads * model.head_dim,
        "model.kv_heads": model.kv_heads * model.head_dim,
        "model.ffn_hidden": model.ffn_hidden,
        "batch.seq_len": job.batch.micro_batch * job.batch.seq_len // job.plan.cp,
    }
    rule = f"makes an 8-bit product of which a side is no multiple of {_MULTIPLE}"
    for path, size in sizes.items():
        if size % _MULTIPLE:
            yield Fault(path, rule, size, "change it, or take plan.precision: bf16")


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
