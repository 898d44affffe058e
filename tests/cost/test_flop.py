"""Floating-point operations of training, against published formulas.

Letters: a heads, h hidden, l layers, s sequence, v vocabulary.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.model import Experts, Model
from simulator.program.layer.model_totals import model_flop_per_token, parameter_count
from simulator.program.price.executed_flop import hardware_flop_per_token
from tests.jobs import gpt_model, small_job, small_model

sizes = given(
    layers=st.integers(1, 96),
    width=st.integers(1, 200),
    heads=st.integers(1, 64),
    vocab=st.integers(1, 100_000),
    seq_len=st.integers(1, 8192),
)


def gpt(layers: int, width: int, heads: int, vocab: int) -> Model:
    hidden = width * heads
    return gpt_model(
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn_hidden=4 * hidden,
        vocab=vocab,
    )  # fmt: skip


@sizes
def test_gpt_needs_72_lh2_and_its_corrections_per_token(layers, width, heads, vocab, seq_len):
    """Narayanan et al. (arXiv 2104.04473), section 5.1, without recomputation: 72 for 96."""
    model = gpt(layers, width, heads, vocab)
    h = model.hidden
    expected = 72 * layers * h**2 * (1 + seq_len / (6 * h) + vocab / (12 * layers * h))
    assert model_flop_per_token(model, seq_len) == pytest.approx(expected)


@sizes
def test_full_recompute_makes_96_of_the_72(layers, width, heads, vocab, seq_len):
    """Narayanan et al., equation 3: 96 B s l h^2 (1 + s / 6h + v / 16 l h)."""
    model = gpt(layers, width, heads, vocab)
    h = model.hidden
    expected = 96 * layers * h**2 * (1 + seq_len / (6 * h) + vocab / (16 * layers * h))
    assert hardware_flop_per_token(
        small_job(model, seq_len=seq_len, recompute="full")
    ) == pytest.approx(expected)


@sizes
def test_selective_recompute_repeats_the_forward_attention(layers, width, heads, vocab, seq_len):
    """Scores and weighted values of every layer once more: 4 l s h."""
    model = gpt(layers, width, heads, vocab)
    h = model.hidden
    needed = 72 * layers * h**2 * (1 + seq_len / (6 * h) + vocab / (12 * layers * h))
    expected = needed + 4 * layers * seq_len * h
    assert hardware_flop_per_token(
        small_job(model, seq_len=seq_len, recompute="selective")
    ) == pytest.approx(expected)


def test_without_recompute_hardware_does_what_the_model_needs():
    model = small_model()
    assert hardware_flop_per_token(small_job(model)) == model_flop_per_token(model, 64)


@pytest.mark.parametrize("embedding_dim", [0, 32])
def test_palm_counts_six_per_parameter_and_twelve_lads_of_attention(embedding_dim):
    """PaLM (arXiv 2204.02311), appendix B; the token table is looked up, not multiplied.

    A narrower one, as OPT-350M has, is projected to the hidden size and back.
    """
    model = small_model(vocab=1000, tied_embeddings=True, embedding_dim=embedding_dim)
    norms = (2 * model.layers + 1) * model.hidden
    matrices = parameter_count(model) - norms
    attention = 12 * model.layers * model.heads * model.head_dim * 64
    assert model_flop_per_token(model, 64) == 6 * matrices + attention


def test_a_layer_with_a_window_needs_attention_over_no_more_than_that():
    """Every other layer sees 16 tokens of 64, as maxtext counts Gemma 2."""
    whole = small_model(layers=4)
    windowed = small_model(layers=4, sliding_window=16, sliding_window_every=2)
    saved = 12 * 2 * whole.heads * whole.head_dim * (64 - 16)
    assert model_flop_per_token(windowed, 64) == model_flop_per_token(whole, 64) - saved
    assert model_flop_per_token(windowed, 16) == model_flop_per_token(whole, 16)


def test_an_untied_token_table_adds_no_products():
    tied, untied = (
        model_flop_per_token(small_model(tied_embeddings=flag), 64) for flag in (True, False)
    )
    assert tied == untied


def test_biases_and_norms_do_not_count():
    plain = gpt_model()
    biased = gpt_model(qkv_bias=True, mlp_bias=True, attention_output_bias=True, norm_bias=True)
    assert model_flop_per_token(biased, 64) == model_flop_per_token(plain, 64)


def test_a_token_visits_only_its_experts():
    """Two of eight, and the router: as dense with twice the width, plus 6 e h per layer."""
    experts = Experts(count=8, top_k=2, ffn_hidden=128)
    routed = model_flop_per_token(small_model(experts=experts), 64)
    dense = model_flop_per_token(small_model(ffn_hidden=256), 64)
    assert routed == dense + 6 * 4 * 8 * 64


def test_llama_3_405b_needs_6_n_per_token_and_its_attention():
    """Llama 3 (arXiv 2407.21783): 3.8e25 FLOP for 15.6e12 tokens is 6 N D within 1 %."""
    model = Model(layers=126, hidden=16384, heads=128, kv_heads=8, ffn_hidden=53248, vocab=128256)
    per_token = model_flop_per_token(model, 1)
    assert per_token * 15.6e12 == pytest.approx(3.8e25, rel=0.01)


def test_torchtitans_selective_policy_repeats_key_output_and_up():
    model = small_model()
    extra = hardware_flop_per_token(small_job(model, recompute="selective", stack="torchtitan"))
    extra -= model_flop_per_token(model, 64)
    key = model.kv_heads * model.head_dim * model.hidden
    output, up = model.heads * model.head_dim * model.hidden, model.ffn_hidden * model.hidden
    assert extra == pytest.approx(2 * model.layers * (key + output + up))


@pytest.mark.parametrize(("causal", "share"), [(True, (64 + 1) / (2 * 64)), (False, 1.0)])
def test_only_a_causal_mask_leaves_scores_out(causal, share):
    """Query i of s sees i keys, which is (s + 1) / 2s of them all; an encoder's sees every one."""
    model = small_model(causal=causal)
    needed = model_flop_per_token(model, 64, masked=False)
    whole = model_flop_per_token(model, 64)
    scores = 3 * model.layers * 4 * model.hidden * 64
    assert whole - needed == pytest.approx(scores * (1 - share))


@pytest.mark.parametrize(("window", "seen"), [(64, 65 / 2), (16, (16 * 17 / 2 + 48 * 16) / 64)])
def test_a_window_under_a_mask_leaves_the_first_queries_fewer_keys(window, seen):
    """Of 64 queries, the first w see 1 to w keys, and all further ones w."""
    model = small_model(sliding_window=window)
    without_scores = model_flop_per_token(model, 64, masked=False)
    whole = model_flop_per_token(model, 64)
    left_out = window - seen
    assert whole - without_scores == pytest.approx(3 * model.layers * 4 * model.hidden * left_out)
