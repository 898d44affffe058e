"""Rooflines: work and bytes by hand, times of the layer itself, nothing above its roof."""

from __future__ import annotations

import pytest

import simulator as sim
from simulator.described.load import job_from_document
from simulator.program.price.roofline import roofline

T, H, F = 2048, 4096, 14336
"""Tokens of a microbatch, width, MLP width."""


def job_of(model: str = "llama3.1-8b", **plan) -> sim.Job:
    return job_from_document(
        {
            "model": {"base": model, "layers": 4},
            "cluster": {"profile": "h100-sxm-80gb", "gpus": 8},
            "batch": {"global": 8, "micro": 1, "seq_len": T},
            "plan": plan,
        }
    )


def test_work_and_bytes_of_a_product_are_those_of_its_shape():
    points = {(p.name, p.direction): p for p in roofline(job_of())}
    down = points["mlp_down", "forward"]
    assert down.flop == 2 * T * F * H
    assert down.num_bytes == 2 * (T * F + F * H + T * H)
    assert points["mlp_down", "weight gradient"].flop == down.flop
    assert points["mlp_down", "input gradient"].num_bytes == down.num_bytes


def test_tensor_parallelism_divides_the_work():
    whole, quarter = (
        {(p.name, p.direction): p.flop for p in roofline(job_of(tp=tp))} for tp in (1, 4)
    )
    assert quarter["mlp_up", "forward"] == whole["mlp_up", "forward"] / 4
    assert quarter["attention", "backward"] == whole["attention", "backward"] / 4


def test_attention_does_five_products_backward_where_forward_has_two():
    points = {(p.name, p.direction): p for p in roofline(job_of())}
    forward, backward = (points["attention", d] for d in ("forward", "backward"))
    assert forward.flop == 4 * T * T * H / 2  # causal
    assert backward.flop == 2.5 * forward.flop


def test_forward_times_are_those_of_the_simulated_layers():
    job = job_of()
    forward_s = sum(point.seconds for point in roofline(job) if point.direction == "forward")
    program = sim.simulate(job, engine="replay").timeline.program
    passes = [o for o in program.operations if o.kind.value == "forward" and o.microbatch == 0]
    inside = {point.name for point in roofline(job)}
    parts = [part for o in passes for part in o.work.parts if part.name in inside]
    assert 4 * forward_s == pytest.approx(sum(part.seconds for part in parts))


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("llama3.1-8b", {"tp": 2}),
        ("llama3.1-8b", {"precision": "fp8"}),
        ("mixtral-8x7b", {"ep": 8}),
    ],
)
def test_no_kernel_is_above_its_roof(model, plan):
    points = roofline(job_of(model, **plan))
    assert len(points) > 10
    assert all(0 < point.share_of_roof <= 1 for point in points)


def test_layers_are_told_apart_by_their_windows_where_a_model_has_several_kinds():
    """Every second layer of Gemma 2 has one, and there alone attention does less."""
    flop = {p.layer: p.flop for p in roofline(job_of("gemma2-9b")) if p.name == "attention"}
    assert len(flop) == 2
    with_window, without = sorted(flop, key=len, reverse=True)
    assert with_window == f"{without}, window 4096"
    assert {p.layer for p in roofline(job_of())} == {"layer"}
