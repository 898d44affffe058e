"""What backward of a layer holds from piece to piece, in numbers that can be added up by eye.

Whole steps are held against torch's tracker in ``tests/results/test_memory_is_torchs.py``.
"""

from __future__ import annotations

import pytest

from simulator.program.ir import Owner, total_bytes
from simulator.program.layer.pieces import (
    FlashAttention,
    Gemm,
    Layer,
    MemoryBound,
    Region,
    Role,
    Saved,
)
from simulator.program.strategies.backward_memory import Backward, BackwardMemory, gradient_sizes
from simulator.program.strategies.recompute import recomputation

ROW = 10.0
"""Five elements of two bytes: one token as wide as the layer [B]."""

MLP = Layer(
    pieces=(
        MemoryBound("norm", 20.0, 30.0),
        Gemm("up", 1, 20, 5, products=2),
        MemoryBound("activation", 60.0, 100.0),
        Gemm("down", 1, 5, 10),
        MemoryBound("residual", 30.0, 30.0, role=Role.RESIDUAL),
    ),
    saved=(
        Saved("norm_input", 10.0, Region.WHOLE, reader="norm"),
        Saved("up_input", 10.0, Region.WHOLE, reader="up"),
        Saved("activation_input", 40.0, Region.WHOLE, reader="activation"),
        Saved("down_input", 20.0, Region.WHOLE, reader="down"),
    ),
    input_bytes=ROW,
)
"""Five wide, and ten inside: gate and up are 2 x 10 columns."""


def backward_of(layer: Layer, recompute="none", **fields: object) -> Backward:
    outcome = recomputation(layer, recompute, "core-attention")
    return Backward(layer, outcome, Owner.ACTIVATIONS, 2.0, **fields)


def test_gradients_are_as_large_as_what_products_read_and_make():
    assert gradient_sizes(MLP, 2.0) == [ROW, ROW, 40.0, 20.0, ROW, ROW]


def test_keys_of_latent_attention_are_wider_than_its_values():
    """DeepSeek-V3: queries and keys of 192, values and output of 128; gradients in 2 bytes."""
    attention = FlashAttention("core", batch=1, heads=4, kv_heads=2, seq_q=8, seq_kv=16,
                               head_dim=192, v_head_dim=128, causal=True)  # fmt: skip
    layer = Layer((attention,), (), ROW)
    read = 8 * 4 * 192 + 16 * 2 * 192 + 16 * 2 * 128
    assert gradient_sizes(layer, 2.0) == [2.0 * read, 2.0 * 8 * 4 * 128]


def test_the_fullest_moment_is_where_both_gradients_of_the_activation_meet():
    """Residual 10, gradients of its output 20 and input 40; the last product's input is gone."""
    memory = backward_of(MLP).memory()
    assert memory.freed == ((Owner.ACTIVATIONS, 20.0),)
    assert total_bytes(memory.holds) == 10 + 20 + 40
    assert total_bytes(memory.rest) == 10 + 10 + 40


def test_gradients_of_weights_come_as_their_products_run():
    """50 elements of ``down`` and 100 of ``up`` make up 1500 bytes; at the end all are there.

    The second kernel of ``up`` has run: the residual's, both gradients of the input and their sum.
    """
    memory = backward_of(MLP).memory(1500.0)
    assert dict(memory.holds)[Owner.GRADIENTS] == pytest.approx(1500.0)
    assert total_bytes(memory.freed) == 20 + 40


def test_a_gradient_that_is_added_to_another_is_there_for_a_moment():
    added = backward_of(MLP, weight_bytes=2.0).memory()
    assert added.more_bytes == pytest.approx(10 + 20 + 100), "down: its residual, input and weight"


def test_what_is_computed_again_is_there_from_the_start_and_goes_with_its_reader():
    memory = backward_of(MLP, "full").memory()
    again = [size for owner, size in memory.holds if owner is Owner.RECOMPUTE]
    assert sorted(again) == [10.0, 40.0], "the input is kept, the last product's input is gone"
    assert memory.rest == ((Owner.ACTIVATIONS, ROW),)


def test_a_function_that_calls_backward_holds_the_output_until_it_returns():
    plain, calling = (backward_of(MLP, "full", calls_backward=calls) for calls in (False, True))
    assert calling.memory().more_bytes - plain.memory().more_bytes == ROW


def test_nothing_goes_early_where_the_pass_may_not_free_it():
    memory = backward_of(MLP).memory(frees=False)
    assert (memory.freed, total_bytes(memory.rest)) == ((), 80.0)


def test_an_end_of_the_model_is_one_moment():
    end = Layer((Gemm("head", 1, 50, 5),), (Saved("x", 10.0, Region.WHOLE, reader="head"),), ROW)
    memory = backward_of(end, is_end=True).memory(500.0)
    assert memory.freed == ()
    assert memory == BackwardMemory(
        (), ((Owner.ACTIVATIONS, 10.0),), ((Owner.TEMPORARIES, 10.0), (Owner.GRADIENTS, 500.0))
    )
