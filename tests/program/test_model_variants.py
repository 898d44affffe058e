"""Does every field of a model that adds parameters or work also add time?"""

from __future__ import annotations

import pytest

from simulator.described.plan.plan import Plan
from simulator.program.layer.block import microbatch_shape
from simulator.program.layer.layer_kinds import layer_kinds, model_layer
from simulator.program.layer.model_ends import embedding_layer, head_layer
from simulator.program.layer.pieces import MemoryBound
from tests.jobs import small_model


def names(layer):
    return [piece.name for piece in layer.pieces]


def layers_of(plan=None, **fields):
    model, plan = small_model(**fields), plan or Plan()
    shape = microbatch_shape(plan, 1, 16)
    layer = model_layer(model, layer_kinds(model)[0], plan, shape)
    ends = (
        embedding_layer(model, plan, shape, model.vocab),
        head_layer(model, plan, shape, model.vocab),
    )
    return layer, *ends


@pytest.mark.parametrize("norms", [1, 2, 3, 4])
def test_a_layer_runs_as_many_norms_as_it_has_parameters_for(norms):
    layer, _, _ = layers_of(norms_per_layer=norms, parallel_block=norms == 1)
    assert sum(name.endswith("norm") for name in names(layer)) == norms


def test_a_parallel_block_adds_both_branches_in_one_residual():
    serial, _, _ = layers_of()
    parallel, _, _ = layers_of(parallel_block=True)
    moved = [
        sum(
            p.forward_bytes
            for p in layer.pieces
            if isinstance(p, MemoryBound) and "resid" in p.name
        )
        for layer in (serial, parallel)
    ]
    assert names(parallel).count("attention_residual") == 0
    assert moved[1] == pytest.approx(moved[0] * 4 / 6)


@pytest.mark.parametrize("kind", ["head", "full"])
def test_norms_on_queries_and_keys_run_between_their_product_and_attention(kind):
    layer, _, _ = layers_of(qk_norm=kind)
    order = names(layer)
    assert order.index("qkv") < order.index("query_key_norm") < order.index("attention")


def test_an_embedding_of_another_width_is_projected_in_and_out():
    _, embedding, head = layers_of(embedding_dim=8)
    assert "embedding_projection" in names(embedding)
    product = next(piece for piece in head.pieces if piece.name == "head")
    assert "head_projection" in names(head)
    assert product.k == 8


def test_a_norm_behind_the_embedding_runs():
    _, embedding, _ = layers_of(embedding_norm=True)
    assert "embedding_norm" in names(embedding)


def test_an_activation_may_keep_its_input_in_8_bits_which_two_casts_move():
    """Megatron-Core's ``activation_func_fp8_input_store``: reads 16 bits, writes 8, and back."""
    plans = (Plan(stack={"narrows_activation_inputs": narrows}) for narrows in (False, True))
    plain, narrow = (layers_of(plan)[0] for plan in plans)
    (kept,) = (saved.num_bytes for saved in plain.saved if saved.name == "activation_input")
    (narrowed,) = (saved.num_bytes for saved in narrow.saved if saved.name == "activation_input")
    assert narrowed == kept / 2
    (cast,) = (piece for piece in narrow.pieces if piece.name == "activation_input_cast")
    assert cast.forward_bytes == cast.backward_bytes == kept + narrowed
