"""What does each way to compute the loss hold of the logits?"""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.plan.plan import Plan
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import total_bytes
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.model_ends import loss_layer
from simulator.program.price.stage_cost import StageCosts
from simulator.program.states.returned_logits import returned_logits_memory
from simulator.results.simulation import run_step
from simulator.schedule.slots import Phase
from tests.jobs import small_job, small_model

T, V, H = 64, 1000, 64
"""Tokens of a microbatch, vocabulary and width of the small model."""
HALF, FULL = 2.0 * T * V, 4.0 * T * V
LOSS = Slice(4, 4, has_loss=True)
HEAD = Slice(4, 4, has_head=True)


def costs_of(kind: str, **plan) -> StageCosts:
    return StageCosts(a_job(kind, **plan))


def a_job(kind: str, **plan) -> Job:
    return small_job(**{"cross_entropy": kind, "stack": "torch", "zero": 0, **plan})


@pytest.mark.parametrize(
    ("kind", "kept", "working"),
    [
        ("fused", HALF, HALF),
        ("compiled", FULL, FULL + HALF),
        ("whole-graph", HALF, 2 * HALF),
        ("whole-graph-scattered", HALF, FULL + 2 * HALF),
        ("eager", FULL, 2 * FULL),
        ("eager-autocast", HALF + FULL, FULL),
        ("eager-16bit", HALF, 2 * HALF),
        ("eager-32bit", FULL, 2 * FULL),
        ("shifted", FULL, FULL),
        ("overwritten", FULL, HALF),
        ("overwritten-16bit", HALF, 0),
        ("chunked", HALF, 2 * FULL / 8),
        ("sum", 0, HALF),
    ],
)
def test_a_loss_keeps_and_makes_copies_of_the_logits(kind, kept, working):
    costs = costs_of(kind)
    assert total_bytes(costs.saved(LOSS)) == kept
    assert total_bytes(costs.backward(LOSS).holds) == working


@pytest.mark.parametrize(
    ("kind", "kept"),
    [("eager-16bit", HALF), ("eager", HALF), ("eager-32bit", FULL), ("fused", 0), ("cut", 0)],
)
def test_capped_logits_keep_what_tanh_gave_unless_a_compiler_takes_it_again(kind, kept):
    plan = a_job(kind).plan
    plain, capped = (
        loss_layer(small_model(capped_logits=caps), plan, microbatch_shape(plan, 1, T), V)
        for caps in (False, True)
    )
    more = [each.num_bytes for each in capped.saved if each not in plain.saved]
    assert sum(more) == kept
    caps = [each for each in capped.pieces if each.name == "logit_cap"]
    assert [(each.forward_bytes, each.backward_bytes) for each in caps] == (
        [(6 * kept, 7 * kept)] if kept else []
    )


def test_a_kernel_that_overwrites_fp32_logits_holds_those_they_come_from_beside_them():
    costs = costs_of("overwritten")
    assert total_bytes(costs.forward(LOSS).holds) + total_bytes(costs.saved(LOSS)) == HALF + FULL


def test_a_trainer_reads_the_logits_again_for_each_loss_that_it_logs():
    """Cast to fp32 (2 + 4 bytes) and a softmax of four passes, of two losses, forward alone."""
    stacks = "torch", {"base": "torch", "loss_metrics": 2}
    plain, logged = (
        loss_layer(small_model(), plan, microbatch_shape(plan, 1, T), V)
        for plan in (a_job("fused", stack=stack).plan for stack in stacks)
    )
    more = {each.name: each for each in logged.pieces if each not in plain.pieces}
    assert set(more) == {"loss_metrics"}
    assert more["loss_metrics"].forward_bytes == 2 * (HALF + 5 * FULL)
    assert more["loss_metrics"].backward_bytes == 0
    assert logged.saved == plain.saved


def test_a_loss_without_logits_leaves_none_for_a_log():
    plan = a_job("cut", stack={"base": "torch", "loss_metrics": 2}).plan
    layer = loss_layer(small_model(), plan, microbatch_shape(plan, 1, T), V)
    assert {each.name for each in layer.pieces} == {"cross_entropy"}


def test_liger_keeps_the_gradients_of_the_head_in_place_of_logits():
    """That of the input is as large as the input, which the norm's copy stands beside."""
    costs = costs_of("linear-fused")
    assert total_bytes(costs.saved(LOSS)) == 0
    plain, fused = (total_bytes(costs_of(k).saved(HEAD)) for k in ("fused", "linear-fused"))
    assert fused - plain == 2.0 * V * H


def test_liger_keeps_no_gradient_of_a_frozen_head():
    frozen = costs_of("linear-fused", frozen=["head.*"])
    plain = costs_of("fused", frozen=["head.*"])
    assert total_bytes(frozen.saved(HEAD)) == total_bytes(plain.saved(HEAD))


def test_cut_cross_entropy_keeps_a_number_per_token_and_multiplies_once_more():
    cut, fused = costs_of("cut"), costs_of("fused")
    assert total_bytes(cut.saved(HEAD)) - total_bytes(fused.saved(HEAD)) == 4.0 * T
    more = cut.work(HEAD, Phase.BACKWARD).flop - fused.work(HEAD, Phase.BACKWARD).flop
    assert more == 2.0 * T * V * H


def test_a_head_in_chunks_holds_an_eighth_of_the_logits_and_its_inputs_gradient():
    """``ChunkedLossWrapper`` of torchtitan 0.3."""
    chunked, fused = costs_of("chunked-head"), costs_of("fused")
    assert total_bytes(chunked.saved(HEAD)) - total_bytes(fused.saved(HEAD)) == 2.0 * T * H
    more = total_bytes(chunked.forward(HEAD).holds) - total_bytes(fused.forward(HEAD).holds)
    assert more == HALF / 8 + 3 * FULL / 8 + 4.0 * T * H
    assert total_bytes(chunked.saved(LOSS)) == total_bytes(chunked.backward(LOSS).holds) == 0


@pytest.mark.parametrize(("frozen", "trained"), [((), 1), (["head.*"], 0)])
def test_a_head_in_tiles_adds_up_gradients_in_fp32_beside_a_tile(frozen, trained):
    """``ChunkedLogProbFunction`` of TRL 1.16: one tile holds all of so small a head."""
    tiled, cut = (costs_of(kind, frozen=frozen or None) for kind in ("tiled", "cut"))
    assert total_bytes(tiled.saved(HEAD)) == total_bytes(cut.saved(HEAD))
    assert tiled.work(HEAD, Phase.BACKWARD).flop == cut.work(HEAD, Phase.BACKWARD).flop
    sums = 4.0 * H * (T + trained * V)
    more = total_bytes(tiled.backward(HEAD).holds) - total_bytes(cut.backward(HEAD).holds)
    assert more == HALF + sums


def test_a_shifted_copy_is_made_beside_fp32_logits_and_those_they_come_from():
    passing = total_bytes(costs_of("eager-shifted").forward(LOSS).holds)
    assert passing == HALF + 2 * FULL


def test_a_model_that_sees_whole_sequences_shifts_no_logits():
    """``BertForMaskedLM`` of transformers' models/bert predicts the tokens that stand there."""
    model, plan = small_model(causal=False), {"stack": "torch", "zero": 0}
    shifted, plain = (
        StageCosts(small_job(model, cross_entropy=kind, **plan))
        for kind in ("eager-shifted", "eager")
    )
    assert total_bytes(shifted.forward(LOSS).holds) == total_bytes(plain.forward(LOSS).holds)
    assert total_bytes(shifted.backward(HEAD).holds) == total_bytes(plain.backward(HEAD).holds)


def test_torch_holds_three_16_bit_copies_of_logits_that_nothing_casts():
    """Those of all tokens of a sequence but the last are copied, and then the softmax is made."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        logits = torch.zeros(2, T // 2 + 1, V, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(T, dtype=torch.int64)
        with MemTracker() as tracker:
            copy = logits[:, :-1].reshape(-1, V)
            torch.nn.functional.cross_entropy(copy, labels)
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    costs = costs_of("eager-16bit")
    made = total_bytes(costs.forward(LOSS).holds) + total_bytes(costs.saved(LOSS))
    assert made == pytest.approx(peak, rel=2 / T)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("fused", 0), ("chunked", 0), ("whole-graph", 0), ("linear-fused", 0), ("sum", HALF),
     ("compiled", HALF), ("eager", HALF), ("eager-16bit", HALF), ("eager-32bit", FULL),
     ("eager-autocast", HALF), ("eager-shifted", FULL)],
)  # fmt: skip
def test_a_loop_that_names_its_logits_keeps_them_where_their_loss_does_not(kind, more):
    assert total_bytes(returned_logits_memory(named_job(kind))) == more
    assert not returned_logits_memory(named_job(kind, is_named=False))


def named_job(kind: str, *, is_named: bool = True) -> Job:
    stack = {"base": "torch", "keeps_returned_logits": is_named}
    return small_job(cross_entropy=kind, zero=0, stack=stack)


def test_logits_with_a_name_are_there_beside_the_backward_of_every_layer():
    peaks = [
        run_step(named_job("eager", is_named=is_named)).memory[0].peak_allocated_bytes
        for is_named in (False, True)
    ]
    assert peaks[1] - peaks[0] == HALF


@pytest.mark.parametrize(
    ("kind", "copy", "is_named", "copies"),
    [
        ("eager-16bit", HALF, False, 3),
        ("eager-16bit", HALF, True, 4),
        ("eager-32bit", FULL, False, 3),
        ("eager-32bit", FULL, True, 4),
    ],
)
def test_torch_holds_logits_in_backward_while_they_have_a_name(kind, copy, is_named, copies):
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        hidden = torch.zeros(T, 1, dtype=torch.bfloat16)
        head = torch.zeros(1, V, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(T, dtype=torch.int64)
        with MemTracker() as tracker:
            logits = hidden @ head
            logits = logits.float() if copy == FULL else logits
            loss = torch.nn.functional.cross_entropy(logits, labels)
            if not is_named:
                del logits
            loss.backward()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    job = named_job(kind, is_named=is_named)
    costs = StageCosts(job)
    held = total_bytes(costs.saved(LOSS) + costs.backward(LOSS).holds + returned_logits_memory(job))
    assert held == copies * copy
    assert held == pytest.approx(peak, rel=2 / T)


def test_a_divided_loss_casts_once_and_then_passes_nine_times_over_fp32_logits():
    # Cast 1, maximum 1, difference 2, exponentials 2, sum 1, difference 2.
    plan = Plan(tp=2, stack={"base": "torch", "parallel_loss": True}, cross_entropy="eager")
    layer = loss_layer(small_model(), plan, microbatch_shape(plan, 1, T), V)
    (loss,) = (piece for piece in layer.pieces if piece.name == "cross_entropy")
    assert loss.forward_bytes == HALF + 9 * FULL
