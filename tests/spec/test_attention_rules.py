"""Which attention kernel does a plan mean?"""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.spec.plan import Plan
from tests.jobs import small_job


def plan(**fields) -> Plan:
    return Plan.model_validate(fields)


def test_the_stack_decides_where_the_plan_is_silent():
    assert plan().attention_kernel == "flash"
    assert plan(stack="megatron-lm-2021").attention_kernel == "fused-softmax"
    assert plan(stack="megatron-lm-2021", attention="flash").attention_kernel == "flash"


def test_full_precision_has_no_fused_kernel():
    assert plan(precision="fp32").attention_kernel == "unfused"


def test_flash_attention_in_full_precision_is_refused():
    with pytest.raises(InputError, match="flash attention has no kernel"):
        small_job(precision="fp32", attention="flash")
