"""FLOP that a token of training executes, by closed forms."""

from __future__ import annotations

import pytest

from simulator.program.layer.model_totals import model_flop_per_token
from simulator.program.price.executed_flop import hardware_flop_per_token
from tests.jobs import small_job, small_model

LAYERS, HIDDEN, FFN, VOCAB, LENGTH, RANK = 4, 64, 256, 1000, 64, 4
MODEL = small_model(layers=LAYERS, hidden=HIDDEN, ffn_hidden=FFN)
ATTENTION = 2 * 2 * LENGTH * HIDDEN
"""Scores and weighted values of one token in a layer, forward."""


def executed(**plan: object) -> float:
    return hardware_flop_per_token(small_job(MODEL, stack="torch", seq_len=LENGTH, zero=0, **plan))


def matrices() -> float:
    """Elements that a token is multiplied with in all layers."""
    needed = model_flop_per_token(MODEL, LENGTH)
    return needed / 6 - VOCAB * HIDDEN - LAYERS * ATTENTION / 2


def test_without_recomputation_a_full_training_executes_what_it_needs() -> None:
    assert executed() == model_flop_per_token(MODEL, LENGTH)


def test_adapters_take_six_operations_per_parameter_and_frozen_weights_four() -> None:
    low_rank = LAYERS * RANK * (HIDDEN + HIDDEN)  # query: hidden to hidden
    closed = 4 * (matrices() + VOCAB * HIDDEN) + 6 * low_rank + 3 * LAYERS * ATTENTION
    assert executed(lora={"rank": RANK, "targets": ["query"]}) == pytest.approx(closed)


def test_layers_before_the_first_trained_weight_run_forward_only() -> None:
    first = executed(frozen=["embedding.*", "layers.0.*", "head.*"])
    layer = 2 * matrices() / LAYERS + ATTENTION
    saved = 2 * layer + 2 * VOCAB * HIDDEN
    assert first == pytest.approx(model_flop_per_token(MODEL, LENGTH) - saved)


def test_recomputation_repeats_frozen_products_too_but_the_last_of_a_layer() -> None:
    lora = {"rank": RANK, "targets": ["query"]}
    again = executed(lora=lora, recompute="full") - executed(lora=lora)
    repeated = matrices() - LAYERS * FFN * HIDDEN
    assert again == pytest.approx(2 * repeated + LAYERS * ATTENTION)
