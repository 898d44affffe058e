"""One process for all GPUs of a node: GPU 0 holds, moves and computes more than the others."""

from __future__ import annotations

import pytest
import torch
from torch._utils import _take_tensors

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Job
from simulator.described.variation import Perturbation
from simulator.engine.replay import replay
from simulator.errors import InputError
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Category, Kind, Operation, Owner, Program, Stream
from simulator.program.price.stage_cost import StageCosts
from simulator.program.run.single_process import coalesced
from simulator.program.states.resident import slice_parameters
from simulator.results.simulation import run_step
from simulator.results.traffic import class_traffic
from simulator.schedule import Phase
from tests.jobs import free_latency_profile, network_profile, small_job
from tests.unfolded import check_unfolds

WEIGHT, GRADIENT, MOMENTS = 4.0, 4.0, 8.0
"""Bytes per parameter of the stack ``torch``: fp32, whatever autocast makes of it in products."""

TOKENS, VOCAB, TOKEN_ID = 64, 1000, 8.0
BODY = Slice(0, 4, has_embedding=True, has_head=True)


def job_of(ranks: int, *, microbatches: int = 1, **fields) -> Job:
    plan = {"zero": 0, "stack": "torch", "data_parallel": "data-parallel", **fields}
    plan.setdefault("profile", free_latency_profile())
    return small_job(gpus=ranks, global_batch=ranks * microbatches, seq_len=TOKENS, **plan)


def parameters(job: Job) -> float:
    return slice_parameters(job, BODY).total


def on(program: Program, rank_class: int) -> list[Operation]:
    return [program.operations[i] for i in program.lanes[rank_class, Stream.COMPUTE]]


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_gpu_0_passes_its_model_once_each_way_and_the_outputs_of_all_others(n, m):
    """NCCL passes a buffer once through each port; ids, logits and their gradients are copied."""
    job = job_of(n, microbatches=m)
    model = parameters(job) * (WEIGHT + GRADIENT)
    copied = TOKENS * TOKEN_ID + 2 * TOKENS * VOCAB * 2
    master, replicas = (
        traffic.port_bytes["scale_up"] for traffic in class_traffic(build_program(job))
    )
    assert master == pytest.approx(m * (model + (n - 1) * copied))
    assert replicas == pytest.approx(m * (model + copied))


@pytest.mark.parametrize(
    "numel", [[3, 3, 3, 1, 12, 1, 1], [20], [4, 4, 4, 4], [9, 2, 10, 11, 1], [10, 10, 1]]
)
def test_buffers_are_filled_as_torch_fills_them(numel):
    tensors = [torch.zeros(n, dtype=torch.uint8) for n in numel]
    assert coalesced([float(n) for n in numel], 10) == [
        sum(tensor.numel() for tensor in chunk) for chunk in _take_tensors(tensors, 10)
    ]


@pytest.mark.parametrize("m", [1, 3])
def test_gpu_0_holds_all_states_and_twice_the_gradients_while_they_are_reduced(m):
    """Its own and the sums; from the second microbatch on also those that it adds up."""
    job = job_of(4, microbatches=m)
    result, held = run_step(job), parameters(job)
    master, replicas = result.memory
    reduces = [op for op in on(result.timeline.program, 0) if op.kind is Kind.REDUCE]
    reduced_s = [
        float(result.timeline.operation_start_s[i])
        for i in result.timeline.program.lanes[0, Stream.COMPUTE]
        if result.timeline.program.operations[i].kind is Kind.REDUCE
    ]
    last = (master.time_s >= reduced_s[-1]).argmax()
    gradients = max(master.owner_bytes[Owner.GRADIENTS][last:])
    assert len(reduces) == m
    assert gradients == pytest.approx(held * GRADIENT * (2 if m == 1 else 3))
    for owner, size in {
        Owner.MASTER_WEIGHTS: WEIGHT, Owner.OPTIMIZER_STATES: MOMENTS
    }.items():  # fmt: skip
        assert max(master.owner_bytes[owner]) == pytest.approx(held * size)
    assert max(replicas.owner_bytes[Owner.WEIGHTS]) == pytest.approx(held * WEIGHT)
    assert max(replicas.owner_bytes[Owner.GRADIENTS]) == pytest.approx(held * GRADIENT)
    assert Owner.OPTIMIZER_STATES not in replicas.owner_bytes
    assert Owner.MASTER_WEIGHTS not in replicas.owner_bytes


def test_replicas_hold_nothing_between_two_microbatches():
    replicas = run_step(job_of(4, microbatches=2)).memory[1]
    total = sum(replicas.owner_bytes.values())
    assert total[0] == 0
    assert total[-1] == pytest.approx(0, abs=1)


def test_gpu_0_holds_the_logits_of_all():
    """fp32 log-probabilities are saved, of the tokens of four GPUs."""
    job = job_of(4, profile=network_profile())
    saved = dict(StageCosts(job).saved(Slice(4, 4, has_loss=True)))[Owner.LOGITS]
    master = run_step(job).memory[0]
    assert saved == TOKENS * VOCAB * 4
    assert max(master.owner_bytes[Owner.LOGITS]) >= 4 * saved


def slow_host() -> HardwareProfile:
    profile = network_profile()
    kernels = profile.kernels.model_copy(update={"launch_s": 1.0})
    return profile.model_copy(update={"kernels": kernels})


@pytest.mark.parametrize("n", [2, 4])
def test_forward_launches_take_turns_and_backward_launches_do_not(n):
    job = job_of(n, profile=slow_host())
    alone = job_of(n, profile=slow_host(), data_parallel="ddp")
    shared, own = StageCosts(job), StageCosts(alone)
    for phase, turns in ((Phase.FORWARD, n), (Phase.BACKWARD, 1)):
        seconds = own.work(BODY, phase).seconds
        assert shared.work(BODY, phase).seconds == pytest.approx(turns * seconds)


def test_what_is_recomputed_is_launched_in_turns_too():
    """Forward alone launches f kernels; backward b of its own and r again."""
    times = {}
    for recompute in ("none", "full"):
        for kind in ("ddp", "data-parallel"):
            job = job_of(4, profile=slow_host(), data_parallel=kind, recompute=recompute)
            times[recompute, kind] = StageCosts(job).work(BODY, Phase.BACKWARD).seconds
    again = times["full", "ddp"] - times["none", "ddp"]
    assert times["full", "data-parallel"] == pytest.approx(times["none", "ddp"] + 4 * again)


def test_all_wait_while_gpu_0_computes_the_loss_and_updates():
    program = build_program(job_of(4))
    kinds = {index: [op.kind for op in on(program, index)] for index in (0, 1)}
    assert kinds[0].count(Kind.OPTIMIZER) == 1
    assert Kind.OPTIMIZER not in kinds[1]
    assert len(kinds[0]) == len(kinds[1]) + 3, "loss forward, loss backward, update"
    timeline = replay(program)
    gathered, scattered = (
        next(i for i, op in enumerate(program.operations) if op.work.collectives[:1]
             and op.work.collectives[0].name == name and op.lanes[0][0] == 1)
        for name in ("logits", "logit_gradients")
    )  # fmt: skip
    loss = [i for i, op in enumerate(program.operations) if op.layers == (4, 4)]
    loss_s = sum(program.operations[i].work.seconds for i in loss if is_loss(program, i))
    gap = timeline.operation_start_s[scattered] - timeline.operation_end_s[gathered]
    assert gap == pytest.approx(loss_s)


def is_loss(program: Program, index: int) -> bool:
    names = {part.name for part in program.operations[index].work.parts}
    return "cross_entropy" in names


def test_no_byte_is_hidden():
    result = run_step(job_of(4, microbatches=2))
    moved_s = sum(
        op.work.seconds
        for op in on(result.timeline.program, 0)
        if op.category is Category.DATA_PARALLEL
    )
    exposed_s = result.class_breakdown_s[0][Category.DATA_PARALLEL]
    assert exposed_s == pytest.approx(moved_s)


@pytest.mark.parametrize(
    "perturbations",
    [
        [],
        [{"gpu": 0, "slowdown": 0.5}],
        [{"gpu": 2, "slowdown": 1.0}, {"gpu": 1, "scale_up_share": 0.5}],
        [{"jitter": 0.3}],
    ],
)
def test_folded_and_unfolded_runs_give_every_gpu_the_same_timeline(perturbations):
    job = job_of(4, microbatches=2, profile=network_profile()).model_copy(
        update={"perturbations": tuple(Perturbation(**each) for each in perturbations)}
    )
    check_unfolds(job)


def test_two_classes_stand_for_a_node():
    classes = build_program(job_of(4)).classes
    assert [(each.role, each.count) for each in classes] == [("GPU 0", 1), ("replicas", 3)]


def test_a_single_gpu_copies_nothing():
    assert all(op.category is not Category.DATA_PARALLEL or not op.work.seconds
               for op in build_program(job_of(1)).operations)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"tp": 2}, "plan.tp"), ({"zero": 1}, "plan.zero"), ({"pp": 2}, "plan.pp")],
)
def test_whatever_divides_the_model_is_refused(changes, field):
    with pytest.raises(InputError, match=field):
        job_of(4, **changes)


def test_two_nodes_are_refused():
    with pytest.raises(InputError, match="one node only: 8 GPUs are 2 nodes"):
        job_of(8)


def test_a_class_is_called_after_its_first_rank_and_knows_all_of_them():
    classes = build_program(job_of(4)).classes
    found = [(each.first_rank, each.ranks, each.count) for each in classes]
    assert found == [(0, (0,), 1), (1, (1, 2, 3), 3)]


def test_a_class_says_what_it_does_and_what_slows_it_down():
    job = job_of(4)
    replicas = "receives the weights for every microbatch"
    assert build_program(job).classes[1].cause == replicas
    slow = job.model_copy(update={"perturbations": (Perturbation(gpu=(2, 2), slowdown=0.5),)})
    causes = {each.first_rank: each.cause for each in build_program(slow).classes}
    assert causes[1] == replicas
    assert causes[2].startswith(f"{replicas}; ")
    assert "50" in causes[2]


def test_classes_are_called_after_their_first_rank_where_one_is_slower_than_the_rest():
    job = job_of(4)
    slow = job.model_copy(update={"perturbations": (Perturbation(gpu=(2, 2), slowdown=0.5),)})
    assert [each.name for each in build_program(job).classes] == ["GPU 0", "replicas"]
    names = [each.name for each in build_program(slow).classes]
    assert names == ["rank 0", "rank 1", "rank 2"]
