"""Hooks that gather the weights of every module by itself."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

from simulator.described.plan.shipped_stacks import STACKS
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category
from simulator.program.layer.pieces import GroupedGemm
from simulator.program.price.hooked_weights import hooks_s, unit_hooks_s, with_hooks_s
from simulator.program.price.stage_cost import StageCosts
from simulator.schedule.slots import Phase
from tests.jobs import small_job, small_model

WORK = 64


def of_layer(*, zero: int = 3, gpus: int = 2, **model: object) -> tuple[float, StageCosts]:
    """Bare launches that hooks of a layer take per visit, and the costs of its job."""
    stack = {"base": "deepspeed", "host_work_per_gather": WORK, "fused_projections": False}
    costs = StageCosts(small_job(small_model(**model), gpus=gpus, zero=zero, stack=stack))
    unit = costs.units.layers[0]
    launch_s = costs.job.cluster.profile.kernels.launch_s
    return hooks_s(costs.job, costs.units.divided(unit), unit.kind) / launch_s, costs


@pytest.mark.parametrize(("zero", "gpus"), [(2, 2), (0, 1)])
def test_weights_that_are_not_sharded_have_no_hooks(zero, gpus):
    launches, _ = of_layer(zero=zero, gpus=gpus)
    assert launches == 0.0


def test_each_of_seven_matrices_and_two_norms_of_a_gated_layer_is_visited_by_itself():
    """Query, key, value and output; gate, up and down. Norms stay, but have hooks."""
    launches, _ = of_layer(gated_mlp=True)
    assert launches == pytest.approx((7 + 2) * WORK)


def test_norms_of_queries_and_keys_have_hooks_of_their_own():
    launches, _ = of_layer(gated_mlp=True, qk_norm="head")
    assert launches == pytest.approx((7 + 4) * WORK)


def test_a_bias_is_looked_for_with_its_module():
    launches, _ = of_layer(gated_mlp=True, qkv_bias=True, normalisation="layernorm", norm_bias=True)
    assert launches == pytest.approx((7 + 2) * WORK)


def test_each_matrix_of_each_expert_is_gathered_by_itself():
    """Four of attention, the router's, and three of every expert, beside two norms."""
    count = 4
    experts = {"count": count, "top_k": 2, "ffn_hidden": 64}
    launches, costs = of_layer(gated_mlp=True, experts=experts)
    pieces, _ = costs.layer_pieces(costs.units.layers[0].kind)
    assert any(isinstance(piece, GroupedGemm) for piece in pieces)
    assert launches == pytest.approx((4 + 1 + 3 * count + 2) * WORK)


def adapted(targets: list[str], **stack: object) -> StageCosts:
    """Costs of a layer with adapters, whose frozen units FSDP1 gathers."""
    facts = {"base": "torch-fsdp", "host_work_per_gather": WORK, "host_work_per_launch": 1, **stack}
    facts["fused_projections"] = False
    lora = {"rank": 4, "targets": targets}
    job = small_job(small_model(), gpus=2, zero=3, lora=lora, stack=facts)
    return StageCosts(job)


def hooks_in_launches(costs: StageCosts) -> float:
    unit = costs.units.layers[0]
    layer = costs.units.divided(unit)
    return hooks_s(costs.job, layer, unit.kind) / costs.job.cluster.profile.kernels.launch_s


@pytest.mark.parametrize("targets", [["query"], ["query", "value", "output"]])
def test_each_of_an_adapters_two_matrices_is_a_unit_of_fsdp(targets):
    assert hooks_in_launches(adapted(targets)) == pytest.approx(2 * len(targets) * WORK)


def test_units_of_whole_layers_are_left_out():
    facts = {"base": "torch-fsdp", "host_work_per_gather": WORK}
    assert hooks_in_launches(StageCosts(small_job(small_model(), gpus=2, zero=3, stack=facts))) == 0


def test_a_stack_that_does_not_limit_gathers_hooks_every_matrix():
    """The layer's seven and two norms, as DeepSpeed does; adapters are small enough to stay."""
    costs = adapted(["query"], limits_gathers=False)
    assert hooks_in_launches(costs) == pytest.approx((7 + 2) * WORK)


def test_what_stays_until_backward_ends_says_nothing_of_the_host():
    kept, freed = (adapted(["query"], frozen_units_keep_inputs=keeps) for keeps in (True, False))
    assert hooks_in_launches(kept) == hooks_in_launches(freed) == pytest.approx(2 * WORK)


def test_a_host_behind_gathers_takes_as_long_as_the_device_and_then_its_hooks():
    """Without the limit it runs ahead, and its time is that of its own work."""
    limited, free = (adapted(["query"], limits_gathers=limits).job for limits in (True, False))
    assert with_hooks_s(limited, host_s=2.0, device_s=5.0, all_hooks_s=1.0) == 6.0
    assert with_hooks_s(limited, host_s=5.0, device_s=2.0, all_hooks_s=1.0) == 6.0
    assert with_hooks_s(free, host_s=2.0, device_s=5.0, all_hooks_s=1.0) == 3.0
    assert with_hooks_s(limited, host_s=2.0, device_s=5.0, all_hooks_s=0.0) == 2.0


def test_a_host_that_waits_behind_gathers_hides_no_hook():
    """A forward waits as long as all hooks of its layer take, whatever the device computes."""
    waits_s = [
        sum(
            part.seconds
            for part in costs.work(Slice(0, 1), Phase.FORWARD).parts
            if part.category is Category.HOST
        )
        for costs in (adapted(["query"], host_work_per_gather=work) for work in (0, WORK))
    ]
    launch_s = adapted(["query"]).job.cluster.profile.kernels.launch_s
    assert waits_s[1] - waits_s[0] <= 2 * WORK * launch_s * (1 + 1e-9)
    assert waits_s[1] >= 2 * WORK * launch_s * (1 - 1e-9)


def sharded_layers(
    work: float, *, zero: int = 3, gpus: int = 2, recompute: str = "none", **model: object
) -> StageCosts:
    """Costs of layers that FSDP gathers one by one."""
    facts = {"base": "torch", "host_work_per_unit": work, "host_work_per_launch": 1}
    plan = {"gpus": gpus, "zero": zero, "recompute": recompute}
    return StageCosts(small_job(small_model(**model), stack=facts, **plan))


@pytest.mark.parametrize(("zero", "gpus", "launches"), [(3, 2, WORK), (3, 1, WORK), (2, 2, 0)])
def test_a_layer_that_is_gathered_whole_has_hooks_on_one_rank_too(zero, gpus, launches):
    job = sharded_layers(WORK, zero=zero, gpus=gpus).job
    assert unit_hooks_s(job) / job.cluster.profile.kernels.launch_s == pytest.approx(launches)


def host_wait_s(costs: StageCosts, phase: Phase) -> float:
    """What the device waits in a pass through one layer."""
    parts = costs.work(Slice(0, 1), phase).parts
    return sum(part.seconds for part in parts if part.category is Category.HOST)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("phase", "visits"), [(Phase.FORWARD, 1), (Phase.BACKWARD, 2)])
def test_hooks_of_a_layer_delay_a_device_that_has_little_to_do(phase, visits, recompute):
    """Forward that is repeated runs inside of the layer, and meets none."""
    few, many = (
        host_wait_s(sharded_layers(work, recompute=recompute), phase) for work in (1000, 3000)
    )
    launch_s = sharded_layers(WORK).job.cluster.profile.kernels.launch_s
    assert many - few == pytest.approx(2000 * visits * launch_s)


def test_hooks_of_a_layer_are_hidden_behind_a_device_that_has_much_to_do():
    without, with_hooks = (
        host_wait_s(
            sharded_layers(work, hidden=8192, ffn_hidden=32768, heads=64, kv_heads=64),
            Phase.FORWARD,
        )
        for work in (0, WORK)
    )
    assert with_hooks == without


MEASURED = Path(__file__).parents[2] / "reports" / "gpu" / "hooks.csv"
GROUPS = ("NCCL, 1 rank", "fake, 2 ranks")
MODELS = (("six linear layers of 64", 4, 12), ("GPT of 256, 128 tokens", 6, 24))
ADD_LAUNCHES = 1.18
"""Bare launches of an addition in place (``host_work.yaml``)."""


def visits_in_launches(wrapped: str) -> list[float]:
    """Host work of a visit to a block, beyond that of the same block on one GPU, as measured."""
    rows = list(csv.DictReader(MEASURED.read_text().splitlines()))
    took_us = {
        (row["group"], row["model"], row["blocks"], row["wrapped"]): float(row["time_us"])
        for row in rows
        if row["measured"] == "forward and backward"
    }
    found = []
    for group in GROUPS:
        adds = [
            float(row["time_us"])
            for row in rows
            if row["measured"] == "add_" and row["group"] == group
        ]
        launch_us = statistics.median(adds) / ADD_LAUNCHES
        for model, few, many in MODELS:
            apart_us = [
                took_us[group, model, str(blocks), wrapped]
                - took_us[group, model, str(blocks), "bf16"]
                for blocks in (few, many)
            ]
            found.append((apart_us[1] - apart_us[0]) / (many - few) / 3 / launch_us)
    return found


@pytest.mark.parametrize(
    ("stack", "wrapped"),
    [
        ("torch-fsdp", "FSDP1, MixedPrecision of bf16"),
        ("trl", "FSDP1, MixedPrecision of bf16, use_orig_params"),
        ("torch", "FSDP2, MixedPrecisionPolicy of bf16"),
        ("torchtitan", "FSDP2, MixedPrecisionPolicy of bf16"),
    ],
)
def test_hooks_of_fsdp_take_what_they_took_beside_an_h100(stack, wrapped):
    """The mean of two models, on one rank and among two; each alone is within two fifths."""
    measured = visits_in_launches(wrapped)
    assert STACKS[stack].host_work_per_unit == pytest.approx(statistics.fmean(measured), rel=0.03)
    assert measured == pytest.approx([statistics.fmean(measured)] * 4, rel=0.4)
