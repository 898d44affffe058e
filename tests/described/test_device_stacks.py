"""A device runs the stacks that are compiled for it, and a job that names none gets one of them."""

from __future__ import annotations

import pytest

from simulator.described.cluster.hardware import stacks_of_family
from simulator.described.load import job_from_document, load_profile, profile_names
from simulator.described.plan.shipped_stacks import STACKS
from simulator.errors import InputError


def _document(profile: str, **plan: object) -> dict[str, object]:
    return {
        "model": "llama3.1-8b",
        "cluster": {"profile": profile, "gpus": 8},
        "batch": {"global": 8, "seq_len": 2048},
        "plan": plan,
    }


@pytest.mark.parametrize(
    ("profile", "stack"), [("tpu-v5p", "jax"), ("h100-sxm-80gb", "megatron-core")]
)
def test_a_plan_without_a_stack_gets_the_usual_one_of_its_device(profile: str, stack: str) -> None:
    job = job_from_document(_document(profile))
    assert job.stack_name == stack
    assert job.plan.stack == STACKS[stack]


def test_a_stack_that_does_not_run_on_the_device_is_refused_with_those_that_do() -> None:
    with pytest.raises(InputError) as refused:
        job_from_document(_document("tpu-v5p", stack="megatron-core"))
    (fault,) = refused.value.faults
    assert fault.path == "plan.stack"
    assert "jax, torch" in fault.rule
    assert fault.hint == "use plan.stack: jax"


def test_families_name_shipped_stacks_only() -> None:
    families = {load_profile(name).device.architecture for name in profile_names()}
    named = [stacks_of_family(family) for family in families]
    assert any(named)
    assert {stack for stacks in named for stack in stacks} <= set(STACKS)
