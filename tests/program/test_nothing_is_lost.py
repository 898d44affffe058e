"""However a model is split, all ranks together hold every parameter, and how often is known."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings

from simulator.described.job import Job
from simulator.described.plan.shipped_stacks import STACKS
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import stage_slices
from simulator.program.ir import Kind, Owner
from simulator.program.layer.layer_kinds import layer_tensors
from simulator.program.layer.model_ends import embedding_tensors, head_tensors, multi_token_tensors
from simulator.program.layer.tensors import ParameterTensor, TensorSplit
from simulator.program.states.gather_units import Units
from simulator.program.states.resident import padded_vocab, state_bytes
from simulator.results.simulation import run_step
from simulator.schedule import schedule_info
from tests.jobs import jobs, network_profile, small_job, small_model

PROFILE = network_profile()


def copied_for_the_update(job: Job) -> float:
    """Bytes of gradient copies that the optimizer makes on all ranks, in one update of each."""
    program = build_program(job)
    copied = {
        operation.lanes[0][0]: sum(num_bytes for _, num_bytes in operation.holds)
        for operation in program.operations
        if operation.kind is Kind.OPTIMIZER
    }
    return sum(program.classes[index].count * num_bytes for index, num_bytes in copied.items())


def held(job: Job) -> dict[Owner, float]:
    """Bytes of states on all ranks."""
    total: dict[Owner, float] = {}
    for rank_class in build_program(job).classes:
        for owner, num_bytes in rank_class.resident:
            total[owner] = total.get(owner, 0.0) + rank_class.count * num_bytes
    return total


def tensors_of(job: Job) -> list[ParameterTensor]:
    """The unsplit model, its embedding twice where the last stage has a copy."""
    model, vocab = job.model, padded_vocab(job)
    layers = [t for index in range(model.layers) for t in layer_tensors(model, index)]
    ends = [*embedding_tensors(model, vocab), *head_tensors(model, vocab)]
    comes_back = job.plan.schedule is not None and ends_beside_embedding(job)
    has_copy = job.choices.copies_embedding and not comes_back
    copies = embedding_tensors(model, vocab)[:1] if has_copy else ()
    return [*layers, *ends, *multi_token_tensors(model), *copies]


def ends_beside_embedding(job: Job) -> bool:
    """Whether the pipeline comes back to its first rank."""
    placement = schedule_info(job.plan.schedule).placement
    return placement.rank(job.plan.pp * job.plan.vpp - 1, job.plan.pp) == 0


def copies(job: Job, tensor: ParameterTensor, *, sharded: bool) -> float:
    """How many times the ranks of a stage hold a tensor."""
    plan, ranks = job.plan, job.plan.tp * job.plan.cp * job.dp
    ways = {
        TensorSplit.REPLICATED: 1,
        TensorSplit.TENSOR: plan.tp,
        TensorSplit.KV_HEADS: min(plan.tp, job.model.kv_heads),
        TensorSplit.EXPERT: plan.ep * plan.expert_tp,
        TensorSplit.EXPERT_REPLICATED: plan.ep,
    }[tensor.split]
    if not sharded:
        return ranks / ways
    # A shard group leaves as many copies of experts as of everything else.
    replicas = job.dp * plan.cp // (plan.zero_group or job.dp * plan.cp)
    if tensor.split is TensorSplit.EXPERT:
        holders = ranks // ways
        return ranks / ways / max(1, holders // replicas)
    return ranks / ways / (plan.zero_group or job.dp * plan.cp)


@given(jobs(PROFILE))
@settings(deadline=None, max_examples=60)
def test_ranks_hold_every_parameter_gradient_and_state(job: Job):
    per, zero, tensors = state_bytes(job), job.plan.zero, tensors_of(job)

    def numel(level: int) -> float:
        return sum(t.numel * copies(job, t, sharded=zero >= level) for t in tensors)

    total = held(job)
    assert total[Owner.WEIGHTS] == pytest.approx(numel(3) * per.weights)
    stays = not job.plan.stack.frees_gradients
    assert total[Owner.GRADIENTS] == pytest.approx(stays * numel(2) * per.gradients)
    assert copied_for_the_update(job) == pytest.approx(numel(1) * per.gradient_copy)
    assert total[Owner.MASTER_WEIGHTS] == pytest.approx(numel(1) * per.master)
    assert total[Owner.OPTIMIZER_STATES] == pytest.approx(numel(1) * per.moments)


@given(jobs(PROFILE))
@settings(deadline=None, max_examples=40)
def test_every_parameter_is_in_one_bucket_and_every_piece_of_a_run_follows_the_last(job: Job):
    units = Units(job, tied_copy=False)
    for run in stage_slices(job, job.plan.pp * job.plan.vpp):
        pieces = units.pieces(run)
        layers = [layer for piece in pieces for layer in range(piece.run.first, piece.run.end)]
        assert layers == list(range(run.first, run.end))
        closed = [unit for piece in pieces for unit in piece.closes]
        whole = units.whole(run).parameters
        reduced = sum(unit.parameters.total for unit in closed)
        if job.plan.zero == 3 and job.plan.stack.pads_shards:
            assert reduced >= whole.total
        else:
            assert reduced == pytest.approx(whole.total)


@given(jobs(PROFILE))
@settings(deadline=None, max_examples=60)
def test_what_is_gathered_is_given_back_and_never_twice(job: Job):
    held: dict[int, float] = {}
    largest = 0.0
    for operation in build_program(job).operations:
        rank_class = operation.lanes[0][0]
        for memory, sign in ((operation.takes, 1), (operation.gives, -1)):
            gathered = sum(size for owner, size in memory if owner is Owner.GATHERED_WEIGHTS)
            held[rank_class] = held.get(rank_class, 0.0) + sign * gathered
            assert held[rank_class] > -1e-6
        largest = max(largest, held[rank_class])
    assert all(left == pytest.approx(0.0, abs=1e-6) for left in held.values())
    if job.plan.zero < 3:
        assert largest == 0.0


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_every_block_that_is_taken_is_given_back(stack, schedule):
    """Of the same owner and size, whatever is sharded and computed again."""
    model = small_model(hidden=512, ffn_hidden=1024)
    stages = range(STACKS[stack].most_zero + 1)
    for zero, recompute in product(stages, ["none", "full"]):
        plan = {"zero": zero, "stack": stack, "schedule": schedule, "recompute": recompute}
        operations = build_program(small_job(model, gpus=4, global_batch=16, **plan)).operations
        taken = Counter(block for one in operations for block in one.takes + one.leaves)
        assert taken == Counter(block for one in operations for block in one.gives + one.frees)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
@pytest.mark.parametrize("stack", ["torch", "torchtitan"])
def test_a_stage_that_is_reduced_at_the_end_gives_its_blocks_back(stack, microbatches):
    model = small_model(hidden=512, ffn_hidden=1024)
    plan = {"pp": 2, "zero": 3, "stack": stack, "schedule": "1f1b"}
    job = small_job(model, gpus=4, global_batch=2 * microbatches, **plan)
    operations = build_program(job).operations
    taken = Counter(block for one in operations for block in one.takes + one.leaves)
    assert taken == Counter(block for one in operations for block in one.gives + one.frees)
    assert run_step(job, "replay").peak_device_bytes > 0
