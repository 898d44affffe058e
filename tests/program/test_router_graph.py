"""Modules that keep what their router gave, and the graph of recomputation behind it."""

from __future__ import annotations

import weakref

import pytest

from simulator.described.job import Job
from simulator.described.model import Experts
from simulator.program.ir import Kind, Owner, total_bytes
from simulator.results.simulation import run_step
from tests.jobs import small_job, small_model

LAYERS, TOKENS, HIDDEN, HEADS, EXPERTS = 4, 64, 64, 8, 4
ROW = 2.0 * TOKENS * HIDDEN


def a_job(*, keeps: bool, recompute: str = "full", early: bool = True) -> Job:
    stack = {"base": "torch", "keeps_router_results": keeps, "recompute_stops_early": early}
    model = small_model(experts=Experts(count=EXPERTS, top_k=2, ffn_hidden=32))
    return small_job(
        model, zero=0, global_batch=2, recompute=recompute, stack=stack, master_weights=False
    )


def left_bytes(job: Job, microbatch: int) -> float:
    """What the microbatch's backward takes and does not give back."""
    operations = run_step(job).timeline.program.operations
    passes = [each for each in operations if each.microbatch == microbatch]
    taken = (each.takes + each.leaves for each in passes)
    given = (each.gives + each.frees for each in passes)
    is_kept = (Owner.RECOMPUTE, Owner.ACTIVATIONS)
    return sum(
        sign * total_bytes(tuple(block for block in blocks if block[0] in is_kept))
        for sign, some in ((1, taken), (-1, given))
        for blocks in some
    )


def test_a_layer_keeps_what_was_saved_until_its_tokens_had_scores():
    # Input, and that normed; queries, keys and values half as wide; attention's output; the sum
    # with the input, and that normed; in fp32 the sums of two norms, of each head, and scores and
    # their softmax.
    small = 4.0 * TOKENS * (2 + HEADS + 2 * EXPERTS)
    kept = left_bytes(a_job(keeps=True), 0) - left_bytes(a_job(keeps=False), 0)
    assert kept == LAYERS * (7 * ROW + small)


def test_the_next_microbatch_gives_the_graph_back_and_the_step_the_last_one():
    job = a_job(keeps=True)
    assert left_bytes(job, 1) == 0
    operations = run_step(job).timeline.program.operations
    update = next(each for each in operations if each.kind is Kind.OPTIMIZER)
    given = tuple(block for block in update.gives if block[0] is not Owner.GRADIENTS)
    assert total_bytes(given) == left_bytes(job, 0)


@pytest.mark.parametrize("other", [{"recompute": "none"}, {"early": False}])
def test_nothing_stays_without_a_second_graph(other):
    assert left_bytes(a_job(keeps=True, **other), 0) == 0


@pytest.mark.parametrize(("keeps", "alive"), [(True, 1), (False, 0)])
def test_torch_keeps_what_recomputation_saved_with_a_score_that_a_module_keeps(keeps, alive):
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    made: list[weakref.ref] = []

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Linear(8, 2)
            self.scores = None

        def forward(self, x):
            squared = x.square()
            made.append(weakref.ref(squared.untyped_storage()))
            scores = self.gate(squared).softmax(-1)
            if keeps:
                self.scores = scores
            return squared * scores.sum(-1, keepdim=True)

    layer = Layer()
    tokens = torch.ones(4, 8, requires_grad=True)
    checkpoint(layer, tokens, use_reentrant=False).sum().backward()
    forward, again = (int(each() is not None) for each in made)
    assert (forward, again) == (0, alive)
