"""Does a model that sorts sequences into classes do without a vocabulary's logits?"""

from __future__ import annotations

import pytest

from simulator.described.plan.plan import Plan
from simulator.program.ir import Owner
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.model_ends import head_layer, loss_layer
from simulator.program.layer.model_totals import model_flop_per_token, parameter_count
from simulator.program.layer.pieces import Gemm
from simulator.results.simulation import run_step
from tests.jobs import small_job, small_model

TOKENS_TOO, CLASSES = small_model(causal=False), small_model(causal=False, classes=3)
HIDDEN, VOCAB = TOKENS_TOO.hidden, TOKENS_TOO.vocab


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_matrix_has_a_row_per_class_and_is_not_the_token_embedding(tied):
    model = small_model(tied_embeddings=tied)
    sorter = small_model(tied_embeddings=tied, classes=3)
    more = 0 if tied else VOCAB * HIDDEN
    assert parameter_count(sorter) == parameter_count(model) - more + 3 * HIDDEN
    assert not sorter.tied_embeddings


def test_one_token_of_each_sequence_is_multiplied_with_the_classes():
    plan = Plan()
    head = head_layer(CLASSES, plan, microbatch_shape(plan, 4, 128), VOCAB)
    (product,) = (piece for piece in head.pieces if isinstance(piece, Gemm))
    assert (product.m, product.n, product.k) == (4, 3, HIDDEN)


def test_the_loss_reads_scores_of_classes_only():
    plan = Plan(cross_entropy="eager")
    shape = microbatch_shape(plan, 4, 128)
    of_tokens, of_classes = (
        loss_layer(model, plan, shape, VOCAB).pieces[0].forward_bytes
        for model in (TOKENS_TOO, CLASSES)
    )
    assert of_classes / (4 * 3) == of_tokens / (4 * 128 * VOCAB)


def test_a_token_needs_no_product_with_the_vocabulary():
    saved = model_flop_per_token(TOKENS_TOO, 64) - model_flop_per_token(CLASSES, 64)
    assert saved == 6 * VOCAB * HIDDEN


def test_a_step_is_shorter_and_holds_no_logits_to_speak_of():
    wide = {"vocab": 64_000, "causal": False}
    whole, classes = (
        run_step(small_job(small_model(**wide, classes=count), micro_batch=8, global_batch=64))
        for count in (0, 2)
    )
    assert classes.step_time_s < whole.step_time_s
    held = [step.fullest.by_owner.get(Owner.LOGITS, 0.0) for step in (whole, classes)]
    assert held[1] < held[0] / 1000
