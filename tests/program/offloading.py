"""Which jobs take states or activations off a GPU, and what moves in them?"""

from __future__ import annotations

from typing import Any

from simulator.described.job import Job
from simulator.described.model import Model
from simulator.program.ir import Kind, Program
from tests.jobs import host_profile, small_job

CHECKPOINTS = {"stack": "deepspeed", "recompute": "full", "offload": {"activations": "cpu"}}
ZERO_OFFLOAD = {"stack": "deepspeed", "zero": 2, "offload": {"optimizer": "cpu"}}
IN_MEMORY = {"optimizer": "cpu", "parameters": "cpu"}
ON_DRIVES = {"optimizer": "nvme", "parameters": "nvme"}
INFINITY = {"stack": "deepspeed", "zero": 3, "offload": ON_DRIVES}
FSDP = {"stack": "torchtitan", "zero": 3, "offload": IN_MEMORY}
MEGATRON = {"zero": 1, "offload": {"optimizer": "cpu"}}


def offload_job(model: Model | None = None, **fields: Any) -> Job:
    return small_job(model, profile=fields.pop("profile", host_profile()), **fields)


def moved_bytes(program: Program, kind: Kind) -> float:
    """What one rank moves over one kind of link in a step [B]."""
    return sum(op.work.num_bytes for op in program.operations if op.kind is kind)
