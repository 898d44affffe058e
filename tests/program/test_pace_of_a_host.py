"""Do hosts launch eager PyTorch at the pace that was measured?"""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.program.build import build_program
from simulator.program.ir import Category, Kind
from simulator.program.price.host_work import mixed_host_work, python_s
from simulator.program.price.layer_time import LayerTime, PassTime
from simulator.units import parse_quantity
from tests.jobs import SIXTEEN_BIT_TORCH


def test_a_llama_7b_that_its_host_holds_up_passes_forward_as_often_as_its_authors_measured():
    """25.5 forwards a second of one token each, on an A100.

    Their layer multiplies by queries, keys and values at once, and the host launches the kernels of
    norms and of rotation one by one (PyTorch team, Accelerating Generative AI with PyTorch II).
    """
    job = job_from_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "a100-sxm-80gb", "gpus": 1},
            "batch": {"global": 1, "micro": 1, "seq_len": 1},
            "plan": {"precision": "bf16", "stack": {**SIXTEEN_BIT_TORCH, "fused_rmsnorm": False}},
        }
    )
    operations = build_program(job).operations
    forward = next(op.work for op in operations if op.kind is Kind.FORWARD)
    launches = sum(part.repeats for part in forward.parts if part.category is Category.HOST)
    launches -= 2 * job.model.layers
    per_launch_s = parse_quantity("5 us", "s") * job.plan.stack.host_work_per_launch
    assert launches * per_launch_s == pytest.approx(1 / 25.5, rel=0.05)


def test_operators_of_a_layer_of_modules_take_the_host_what_pytorchs_do():
    """7.5 bare launches each, where a module's kernel takes 14.8 and one of experts 5.6.

    Steps of 1,024 tokens of Qwen3 4B on H200 (paip-001 to -003), whose gates and rotations are
    operators, are then 1 to 7 % too long; 20 to 27 %, if every operator takes 14.8 launches.
    """
    assert mixed_host_work(1.92, 7.7, 0.0) == 1.92
    assert mixed_host_work(1.92, 7.7, 1.0) == pytest.approx(7.5 / 7.7)
    assert mixed_host_work(1.92, 2.0, 0.5) == pytest.approx((1.92 + 7.5 / 2.0) / 2)


def test_graphs_around_routed_experts_leave_half_of_a_layers_python_to_the_host():
    """What a dense layer takes is in graphs; all of it, where whole layers are."""

    def layer(kernels: int) -> LayerTime:
        return LayerTime(PassTime(kernels=kernels), PassTime(), PassTime(), PassTime())

    whole, routed, nothing = layer(46), layer(8), layer(0)
    assert sum(python_s(2.845e-3, whole, whole)) == pytest.approx(2.845e-3)
    dense_s = 2.1e-3 + 30 * 4e-6 - 30 * 5.63 * 5e-6
    assert sum(python_s(2.845e-3, whole, routed)) == pytest.approx(2.845e-3 - dense_s, rel=0.01)
    assert python_s(2.845e-3, whole, nothing) == (0.0, 0.0)
