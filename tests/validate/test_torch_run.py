"""Real steps: ranks on this machine train what a job says, and every number is there.

How long they take says something about the machine; what they hold does not.
"""

from __future__ import annotations

import json

import pytest
import torch

from simulator.ranks.world import joined, own_world
from simulator.validate.torch_run.train import Trainer, build_trainer, put_to_sleep
from simulator.validate.torch_run.train_and_compare import validate_torch
from tests.validate.test_torch_strategies import EXPERTS, WHOLE, job

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

FAKE = {
    "ddp": job(8),
    "fsdp": job(8, zero=3),
    "fsdp kept": job(8, zero=3, reshard_after_forward=False),
    "hybrid": job(8, zero=3, zero_group=4),
    "tensor": job(8, tp=4, zero=3, sequence_parallel=True),
    "experts": job(4, {"experts": EXPERTS}, ep=4),
    "experts sharded": job(4, {"experts": EXPERTS}, ep=4, zero=3),
    "pipeline": job(4, pp=4),
    "recompute": job(2, recompute="full"),
    "core attention": job(2, recompute="selective"),
}
REAL = {
    "ddp": job(2),
    "zero 1": job(2, zero=1, stack=WHOLE),
    "tensor": job(2, tp=2),
    "interleaved": job(2, pp=2, vpp=2),
    "zero bubble": job(2, pp=2, schedule="zb-1p"),
    "experts": job(2, {"experts": EXPERTS}, ep=2, zero=3),
}


@pytest.mark.parametrize(
    "half",
    [
        job(1, precision="bf16"),
        job(1, {"experts": EXPERTS}, precision="bf16"),
        job(4, {"experts": EXPERTS}, ep=4, precision="bf16"),
        job(4, {"experts": EXPERTS}, ep=4, zero=3, precision="bf16"),
        job(8, tp=4, zero=3, sequence_parallel=True, precision="bf16"),
    ],
    ids=["dense", "experts", "spread experts", "spread experts, sharded", "tensor"],
)
def test_a_step_in_half_precision_runs(half):
    report = validate_torch(half.replace({"batch.global": 8}), backend="fake", steps=1)
    assert report is not None
    assert report.step.measured > 0


@pytest.mark.parametrize("name", FAKE)
def test_one_rank_of_many_runs_alone_and_holds_what_is_predicted(name):
    report = validate_torch(FAKE[name], backend="fake", steps=1)
    assert report is not None
    assert [rank.rank for rank in report.measured.ranks] == [0]
    owners = {pair.name: pair for pair in report.memory}
    for owner in ("weights", "optimizer_states"):
        assert owners[owner].measured == pytest.approx(owners[owner].predicted, rel=0.01)
    assert owners["peak_allocated"].measured > owners["weights"].measured


def test_the_last_rank_of_a_pipeline_runs_alone_too():
    report = validate_torch(FAKE["pipeline"], backend="fake", steps=1, rank=3)
    assert report is not None
    assert [rank.stage for rank in report.measured.ranks] == [3]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_two_ranks_train_together(name):
    report = validate_torch(REAL[name], backend="gloo", steps=2)
    assert report is not None
    assert [rank.rank for rank in report.measured.ranks] == [0, 1]
    assert report.measured.median_s > 0
    owners = {pair.name: pair for pair in report.memory}
    assert owners["weights"].measured == pytest.approx(owners["weights"].predicted, rel=0.01)
    assert bool(report.measured.expert_loads) == (name == "experts")
    document = json.loads(json.dumps(report.to_dict()))
    assert {row["name"] for row in document["phases_s"]} >= {"forward", "backward", "optimizer"}


@pytest.mark.parametrize(("precision", "word"), [("tf32", "high"), ("fp32", "highest")])
def test_products_run_in_the_plans_format_and_no_longer(precision, word, monkeypatch):
    before, seen = torch.get_float32_matmul_precision(), []
    monkeypatch.setattr(
        Trainer, "_accumulate", lambda _: seen.append(torch.get_float32_matmul_precision())
    )
    world = own_world("fake", 1, 0)
    with joined(world):
        build_trainer(job(1, precision=precision), world).step()
    assert seen == [word]
    assert torch.get_float32_matmul_precision() == before


def test_a_step_of_sleeping_layers_takes_their_sleep():
    report = validate_torch(job(1), backend="fake", steps=1, layer_sleep_s=0.002)
    assert report is not None
    phases = {pair.name: pair for pair in report.phases}
    for name, sleep_s in (("forward", 0.002), ("backward", 0.004)):
        asleep_s = 16 * 4 * sleep_s
        assert phases[name].predicted == pytest.approx(asleep_s, rel=1e-9)
        assert phases[name].measured >= asleep_s
    assert report.to_dict()["layer_sleep_s"] == 0.002
    assert [pair.name for pair in report.memory] == ["weights", "optimizer_states"]


def test_a_sleeping_layer_hands_on_what_it_gets_and_has_gradients_of_zero():
    layer = torch.nn.Linear(3, 5)
    put_to_sleep([layer], 0.0)
    hidden = torch.randn(2, 3, requires_grad=True)
    upstream = torch.randn(2, 3)
    output = layer(hidden)
    output.backward(upstream)
    assert torch.equal(output, hidden)
    assert torch.equal(hidden.grad, upstream)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in layer.parameters())


def test_a_layer_that_exchanges_activations_sleeps_and_computes():
    layer = torch.nn.Linear(3, 5)
    hidden = torch.randn(2, 3, requires_grad=True)
    upstream = torch.randn(2, 5)
    expected = torch.autograd.grad(layer(hidden), [hidden, layer.weight], upstream)
    compute = layer.forward
    put_to_sleep([layer], 0.0, computes=True)
    output = layer(hidden)
    output.backward(upstream)
    assert torch.equal(output, compute(hidden))
    assert torch.equal(hidden.grad, expected[0])
    assert torch.equal(layer.weight.grad, expected[1])
