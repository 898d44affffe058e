"""Shards in host memory: what is run, what is refused, and what is predicted of it.

On a CPU nothing leaves the device, but torch runs all the same code.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.utils._python_dispatch import TorchDispatchMode

from simulator.described.job import Job
from simulator.engine.des import simulate_program
from simulator.errors import UnsupportedError
from simulator.program.build import build_program
from simulator.program.ir import Category, Stream
from simulator.ranks.world import World, joined
from simulator.results.simulation import run_step
from simulator.validate.torch_run import parallelise as parallel
from simulator.validate.torch_run.measure import kept_bytes, measure
from simulator.validate.torch_run.predict import alone_on_its_node, predict, silence
from simulator.validate.torch_run.supported_plan import as_torch_runs_it, check_strategies
from simulator.validate.torch_run.train import build_trainer
from tests.validate.test_torch_strategies import EXPERTS, job

pytestmark = pytest.mark.filterwarnings("ignore")

AWAY = {"optimizer": "cpu", "parameters": "cpu"}
SHARDS = job(8, zero=3, offload=AWAY)
CPU = World(0, 8, "fake", torch.device("cpu"))
GPU = World(0, 8, "fake", torch.device("cuda", 0))


def refusals(refused: Job, world: World = GPU) -> dict[str, str]:
    with pytest.raises(UnsupportedError) as raised:
        check_strategies(refused, world)
    assert all(fault.hint for fault in raised.value.faults)
    return {fault.path: fault.rule for fault in raised.value.faults}


@pytest.mark.parametrize("stack", ["torch", "torch-fsdp", "torchtitan", "deepspeed"])
def test_shards_in_host_memory_are_what_torch_runs(stack):
    given = job(8, zero=3, offload=AWAY, stack=stack)
    check_strategies(given, GPU)
    assert as_torch_runs_it(given, GPU).job.plan.stack.offloads == "shards"


@pytest.mark.usefixtures("one_thread")
def test_how_many_threads_update_is_said():
    notes = as_torch_runs_it(SHARDS, GPU).notes
    assert any("updates with 1 of its host's threads" in note for note in notes)
    assert not any("threads" in note for note in as_torch_runs_it(job(8, zero=3), GPU).notes)


@pytest.mark.parametrize(
    ("names", "stack", "offload"),
    [
        ({"optimizer"}, "deepspeed", {"optimizer": "nvme", "parameters": "cpu"}),
        ({"parameters"}, "deepspeed", {"optimizer": "cpu"}),
        ({"parameters", "share"}, "deepspeed", {"optimizer": "cpu", "share": 0.5}),
        ({"parameters", "delayed_update"}, "deepspeed",
         {"optimizer": "cpu", "delayed_update": True}),
        ({"activations"}, "torch", {**AWAY, "activations": "cpu"}),
        ({"optimizer", "parameters", "activations"}, "torch", {"activations": "cpu"}),
    ],
)  # fmt: skip
def test_any_other_offload_is_refused_by_name(names, stack, offload):
    host = {"nvme": {"size": "15 TB", "read": "25 GB/s", "write": "20 GB/s"}}
    given = job(8, zero=3, recompute="full").replace(
        {"cluster.host": host, "plan.stack": stack, "plan.offload": offload}
    )
    found = refusals(given)
    assert set(found) == {f"plan.offload.{name}" for name in names}
    assert all("together on the CPU" in rule for rule in found.values())


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("there is one data-parallel rank", job(1, zero=3, offload=AWAY)),
        ("not part of FSDP2", job(4, {"experts": EXPERTS}, ep=4, zero=3, offload=AWAY)),
    ],
)
def test_what_fsdp_would_not_offload_is_refused(words, refused):
    assert words in refusals(refused)["plan.offload"]


def test_a_machine_without_a_gpu_has_no_device_to_offload_from():
    assert "there is nothing to offload" in refusals(SHARDS, CPU)["plan.offload"]


@pytest.mark.parametrize("is_gpu", [False, True])
def test_torch_gets_the_policy_for_every_module_that_it_shards(is_gpu, monkeypatch):
    policies: list[OffloadPolicy] = []
    monkeypatch.setattr(
        parallel, "fully_shard", lambda *_, offload_policy, **__: policies.append(offload_policy)
    )
    net, grid = stand_ins()
    for given in (SHARDS, job(8, zero=3)):
        parallel._fully_sharded(net, given, grid, GPU if is_gpu else CPU)
    with_it, without = policies[: len(policies) // 2], policies[len(policies) // 2 :]
    assert len(with_it) == SHARDS.model.layers + 1
    assert with_it == [CPUOffloadPolicy(pin_memory=is_gpu)] * len(with_it)
    assert not any(isinstance(policy, CPUOffloadPolicy) for policy in without)


def stand_ins() -> tuple[Any, Any]:
    """A model of bare layers, and groups of ranks that are nowhere."""

    class Groups:
        data = expert = None

    class Net:
        layers = [object()] * SHARDS.model.layers

    return Net(), Groups()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_with_shards_in_host_memory_runs(precision):
    given = job(8, zero=3, precision=precision, offload=AWAY)
    measured = measure(given, CPU, steps=1)
    assert measured is not None
    assert measured.median_s > 0
    assert {"forward", "backward", "optimizer"} <= set(measured.ranks[0].phases_s)


@pytest.mark.parametrize("given", [SHARDS, job(8, zero=3), job(1)], ids=["host", "fsdp", "one"])
def test_gradients_are_scaled_down_to_a_norm_of_one(given):
    """No other rank adds to the norm where none is there."""
    world = replace(CPU, ranks=given.cluster.gpus)
    with joined(world):
        trainer = build_trainer(given, world)
        for parameter in trainer.parameters:
            parameter.grad = torch.full_like(parameter, 3.0)
        trainer._clip()
        squares = sum(float(local(each.grad).square().sum()) for each in trainer.parameters)
    assert squares == pytest.approx(1.0, rel=1e-4)


def local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def test_torch_adds_a_layers_gradients_before_it_launches_the_backward_of_the_next():
    """The CPU does it in the thread that launches kernels, so these wait for it."""
    calls: list[str] = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with joined(CPU):
        trainer = build_trainer(SHARDS, CPU)
        with Calls():
            trainer._accumulate()
    assert SHARDS.microbatches == 2
    reductions = [i for i, name in enumerate(calls) if "reduce_scatter" in name]
    later = reductions[len(reductions) // 2 :]
    for here, there in pairwise(later[:-1]):  # what is reduced last is the root's
        between = calls[here:there]
        assert "add_" in between
        assert "mm" in between[between.index("add_") :]


def test_what_is_in_host_memory_is_not_on_the_gpu():
    with joined(CPU):
        trainer = build_trainer(SHARDS, CPU)
        trainer.step()
        here, elsewhere = kept_bytes(trainer), kept_bytes(replace(trainer, world=GPU))
    assert here["weights"] > 0
    assert here["optimizer_states"] == pytest.approx(2 * here["weights"])
    assert set(elsewhere.values()) == {0.0}
    predicted = predict(SHARDS, alone=0).memory_bytes[0]
    assert predicted["weights"] == predicted["optimizer_states"] == 0.0


def test_the_update_on_the_cpus_is_the_optimizers_phase():
    predicted = predict(SHARDS)
    timeline = predicted.result.timeline
    updated_s = sum(
        operation.work.seconds
        for operation in build_program(SHARDS).operations
        if any(part.name == "host_update" for part in operation.work.parts)
    )
    assert updated_s > 0
    assert predicted.phases_s[0]["optimizer"] >= updated_s
    assert sum(predicted.phases_s[0].values()) == pytest.approx(timeline.step_time_s)
    assert sum(predicted.phases_s[0].values()) == pytest.approx(predicted.step_s)


def test_adding_gradients_up_on_the_cpus_is_not():
    once = SHARDS.replace({"batch.global": 8})
    assert SHARDS.microbatches == 2
    phases, more = predict(once).phases_s[0], predict(SHARDS).phases_s[0]
    assert more["optimizer"] == pytest.approx(phases["optimizer"])


def test_exchanges_of_a_rank_alone_are_silent_and_copies_are_not():
    program = build_program(SHARDS)
    silence(program)
    booked = {
        category: sum(
            part.seconds
            for operation in program.operations
            for part in operation.work.parts
            if part.category is category
        )
        for category in (Category.DATA_PARALLEL, Category.OFFLOAD, Category.FORWARD)
    }
    assert booked[Category.DATA_PARALLEL] == 0.0
    assert booked[Category.OFFLOAD] > 0
    assert booked[Category.FORWARD] > 0
    exchanged = [op for op in program.operations if op.category is Category.DATA_PARALLEL]
    assert exchanged
    assert all(op.work.seconds == 0 and op.work.traffic is None for op in exchanged)
    assert simulate_program(program).step_time_s < run_step(SHARDS).step_time_s


def test_a_rank_alone_has_all_of_its_host():
    """Eight ranks of a node share its memory: an update takes one of them eight times as long."""

    def update_s(given: Job) -> float:
        operations = build_program(given).operations
        return sum(op.work.seconds for op in operations if op.lanes == ((0, Stream.HOST),))

    assert update_s(SHARDS) == pytest.approx(8 * update_s(alone_on_its_node(SHARDS)))
    assert predict(SHARDS, alone=0).step_s < predict(SHARDS).step_s
