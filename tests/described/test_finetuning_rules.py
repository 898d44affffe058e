"""Which plans that train a part of a model are refused, and with which way out?"""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.program.build import build_program
from tests.jobs import small_job


def fault_of(**plan):
    with pytest.raises(InputError) as caught:
        build_program(small_job(**plan))
    (fault,) = caught.value.faults
    return fault


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        ({"master_weights": False, "precision": "fp32", "stack": "torch"}, "plan.master_weights"),
        ({"lora": {"rank": 8, "targets": ["q_proj"]}}, "plan.lora.targets"),
        ({"lora": {"rank": 8, "base_precision": "nf4"}, "frozen": ["head.*"]},
         "plan.lora.base_precision"),
        ({"lora": {"targets": ["query"]}}, "plan.lora.rank"),
        ({"lora": {"kind": "ia3", "rank": 8}}, "plan.lora.rank"),
        ({"lora": {"kind": "ia3", "dropout": 0.1}}, "plan.lora.dropout"),
        ({"frozen": ["layers.9.*"]}, "plan.frozen"),
        ({"frozen": ["*"]}, "plan.frozen"),
    ],
)  # fmt: skip
def test_a_plan_that_no_framework_runs_names_its_field(plan, path):
    fault = fault_of(**plan)
    assert fault.path == path


def test_an_unknown_target_is_answered_with_those_that_there_are():
    fault = fault_of(lora={"rank": 8, "targets": ["q_proj"]})
    assert "down, gate, key, output, query, up, value" in fault.hint


def test_adapters_are_those_of_data_parallel_processes():
    fault = fault_of(lora={"rank": 8}, data_parallel="data-parallel", zero=0, stack="torch")
    assert fault.path == "plan.lora"
