"""How long does the gradient of a tied head wait for that of the embedding?"""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.engine.replay import replay
from simulator.program.build import build_program
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Kind, Memory, Operation, Owner, total_bytes
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.gathered_memory import TiedGradient
from simulator.results.memory import class_memory
from tests.jobs import small_job, small_model

VOCAB = 64_000
"""So many rows that activations are small beside the table."""

TABLE = VOCAB * 64 * 2.0
"""16-bit gradient of the whole table [B]."""

PLAIN = {"base": "torch", "keeps_master_weights": False}
"""All of it in 16 bits."""

APART = {**PLAIN, "sums_gradients_in_place": False}

RESIDENT = {"stack": "deepspeed", "overlap_grad_reduce": False}
"""Gradients in buffers that stay, reduced when backward is over."""


def tied_job(*, tied: bool = True, **plan) -> Job:
    model = small_model(vocab=VOCAB, tied_embeddings=tied)
    return small_job(model, **{"global_batch": 2, "seq_len": 2, **plan})


def gradients(memory: Memory) -> float:
    return sum(size for owner, size in memory if owner is Owner.GRADIENTS)


def backwards(job: Job) -> list[Operation]:
    return [op for op in build_program(job).operations if op.kind is Kind.BACKWARD]


def beside_residents(job: Job) -> float:
    """The most that a step takes beyond what stays from step to step, in tables."""
    program = build_program(job)
    memory = class_memory(replay(program), job.cluster.profile.device)[0]
    return (memory.peak_allocated_bytes - total_bytes(program.classes[0].resident)) / TABLE


def test_the_heads_gradient_lies_in_autograd_from_its_backward_to_that_of_the_embedding():
    passes = backwards(tied_job(stack=PLAIN))
    loss, head, *layers = [op for op in passes if op.microbatch == 0]
    assert gradients(loss.takes) == 0
    assert gradients(head.takes) >= TABLE
    assert [gradients(op.gives) for op in layers] == [0, 0, 0, TABLE]


@pytest.mark.parametrize(("stack", "tables"), [(PLAIN, 2), (APART, 3)])
def test_at_the_end_there_are_both_parts_and_before_torch_2_their_sum(stack, tables):
    job = tied_job(global_batch=1, stack=stack)
    assert beside_residents(job) == pytest.approx(tables, abs=0.3)


def test_two_tables_have_a_gradient_each():
    job = tied_job(tied=False, global_batch=1, stack=PLAIN)
    assert beside_residents(job) == pytest.approx(2, abs=0.3)


def test_a_gradient_that_is_there_already_is_one_more():
    assert beside_residents(tied_job(stack=PLAIN)) == pytest.approx(3, abs=0.3)
    assert beside_residents(tied_job(stack=APART)) == pytest.approx(4, abs=0.3)
    resident = {"base": "deepspeed", "casts_flat_gradients": False}
    job = tied_job(**{**RESIDENT, "stack": resident})
    assert beside_residents(job) == pytest.approx(2, abs=0.3)


def test_torch_before_2_makes_a_tensor_of_the_sum():
    for release, makes in (("1.13", True), ("2.0", False)):
        job = tied_job(libraries={"torch": release}, stack="torch")
        assert job.plan.makes_sums_of_gradients == makes


def test_a_product_that_adds_to_the_gradient_itself_leaves_zeros_that_take_the_lookups():
    fused = {"base": "deepspeed", "fused_accumulation": True, "casts_flat_gradients": False}
    assert beside_residents(tied_job(**{**RESIDENT, "stack": fused})) == pytest.approx(2, abs=0.3)


def test_it_has_the_format_of_the_parameter_that_autograd_knows():
    plain, whole, sharded = (
        StageCosts(tied_job(gpus=2, zero=zero, stack=stack)).waiting_gradient
        for zero, stack in ((0, PLAIN), (0, "torch"), (3, "torch"))
    )
    assert [total_bytes(part) / TABLE for part in (plain, whole, sharded)] == [1, 2, 1]


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_every_pass_gives_back_what_waited(zero, microbatches):
    job = tied_job(gpus=2, zero=zero, global_batch=2 * microbatches, stack="deepspeed")
    waits = StageCosts(job).waiting_gradient
    passes = backwards(job)
    taken = [op for op in passes if set(waits) & set(op.takes)]
    given = [op for op in passes if set(waits) & set(op.gives)]
    assert [op.microbatch for op in taken] == [op.microbatch for op in given]


@pytest.mark.parametrize(
    "plan",
    [{"tied": False}, {"gpus": 2, "pp": 2}, {"stack": "jax"}],
    ids=["untied", "ends on two ranks", "compiled"],
)
def test_nothing_waits_without_two_uses_on_one_rank_under_autograd(plan):
    assert StageCosts(tied_job(**plan)).waiting_gradient == ()


def test_tensor_parallel_ranks_hold_their_part_of_it():
    whole, half = (tied_job(gpus=tp, tp=tp, stack="deepspeed") for tp in (1, 2))
    held = [total_bytes(StageCosts(job).waiting_gradient) for job in (whole, half)]
    assert held[0] == pytest.approx(2 * held[1], rel=0.01)


def test_a_pass_in_one_piece_holds_no_more_where_its_activations_outweigh_the_table():
    small = small_model(vocab=1000, tied_embeddings=True)
    costs = StageCosts(small_job(small, stack="deepspeed", seq_len=512))
    (slot,) = {op.layers for op in backwards(costs.job)}
    assert slot == (0, 4)
    assert {gradients(op.holds) for op in backwards(costs.job)} == {0.0}


class LayersOfTables:
    """Costs of a made-up model, in bytes of its table: working memory of layers above all."""

    def saved(self, run: Slice) -> Memory:
        layers = run.end - run.first
        kept = 0.1 * run.has_embedding + layers + 0.01 * run.has_head + 0.2 * run.has_loss
        return ((Owner.ACTIVATIONS, kept * TABLE),)

    def plain_working_bytes(self, run: Slice) -> float:
        return (5.0 * (run.end - run.first) + 0.3 * run.has_embedding) * TABLE


def test_the_heads_part_lies_beside_layers_that_run_when_head_and_loss_are_over():
    """It, what embedding and two layers saved, and what two layers work with: 1 + 2.1 + 10."""
    tied = TiedGradient(tied_job(stack=PLAIN), LayersOfTables())
    run = Slice(2, 4, has_embedding=True, has_head=True, has_loss=True)
    ((owner, more_bytes),) = tied.working(run, 10 * TABLE, 0.0, is_new=True)
    booked = 0.1 + 2 + 0.01 + 0.2 + 10
    assert owner is Owner.GRADIENTS
    assert more_bytes / TABLE == pytest.approx(1 + 2.1 + 10 - booked)
