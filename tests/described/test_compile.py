"""``plan.compile``: layers of PyTorch as torch.compile rewrites them, or as they are written."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.api import simulate
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.described.plan.shipped_stacks import STACKS, compiled_facts, facts_of_compiler
from simulator.errors import InputError

_COMPILED = facts_of_compiler(is_compiled=True)


def _job(**plan: Any) -> Job:
    return job_from_document(
        {
            "model": "llama3.2-1b",
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 1},
            "batch": {"global": 1, "seq_len": 1024},
            "plan": plan,
        }
    )


def _facts(job: Job) -> dict[str, Any]:
    return {name: getattr(job.plan.stack, name) for name in _COMPILED}


@pytest.mark.parametrize("name", ["torch", "torch-fsdp", "trl", "torchtune"])
def test_a_compiled_plan_takes_what_the_compiler_fuses(name: str) -> None:
    assert _facts(_job(stack=name, compile=True)) == _COMPILED


def test_what_the_compiler_does_not_touch_stays_as_the_stack_has_it() -> None:
    changed = _job(stack="torch", compile=True).plan.stack
    rewritten = {**_facts(_job(stack="torch")), "float8_scaling": "eager"}
    assert changed.model_copy(update=rewritten) == STACKS["torch"]


def test_the_compiler_fuses_how_8_bit_operands_are_scaled_but_not_what_shares_a_scale() -> None:
    """pytorch/ao#685."""
    rows = STACKS["torch"].model_copy(update={"float8_scaling": "rows"})
    assert _job(stack="torch").plan.stack.float8_scaling == "eager"
    assert _job(stack="torch", compile=True).plan.stack.float8_scaling == "tensor"
    assert "float8_scaling" not in compiled_facts(rows)


def test_a_stack_that_compiles_by_default_can_be_told_not_to() -> None:
    assert not _job(stack="torchtitan", compile=False).plan.stack.fused_elementwise
    assert _job(stack="torchtitan").plan.stack == STACKS["torchtitan"]


def test_facts_of_a_block_go_over_the_compiler() -> None:
    block = {"base": "torch", "fused_rotary": False}
    assert not _job(stack=block, compile=True).plan.stack.fused_rotary


def test_layers_that_the_compiler_does_not_rewrite_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        _job(stack="megatron-core", compile=True)
    assert [fault.path for fault in refused.value.faults] == ["plan.compile"]


def test_a_compiled_step_is_shorter_than_the_same_step_launched_one_by_one() -> None:
    compiled, eager = (simulate(_job(stack="torch", compile=each)) for each in (True, False))
    assert compiled.step_time_s < eager.step_time_s


def test_layers_that_nobody_compiles_take_the_host_that_plain_pytorch_takes() -> None:
    eager = facts_of_compiler(is_compiled=False)
    assert eager["host_work_per_launch"] == STACKS["torch"].host_work_per_launch
    assert eager.keys() == _COMPILED.keys()


def test_torchtitan_compiles_its_loss_with_its_layers_or_neither():
    losses = {
        each: _job(stack="torchtitan", compile=each).plan.loss_kernel for each in (None, False)
    }
    assert losses == {None: "fused", False: "eager"}
    block = {"base": "torchtitan", "cross_entropy": "chunked"}
    assert _job(stack=block, compile=False).plan.loss_kernel == "chunked"
