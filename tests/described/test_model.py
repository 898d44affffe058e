"""Rules of a model's fields."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from simulator.described.model import Model

SMALL: dict[str, Any] = {"layers": 4, "hidden": 12, "heads": 6, "ffn_hidden": 24, "vocab": 100}
LATENT = {
    "q_lora_rank": 0,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
}


def small(**changes: Any) -> Model:
    return Model.model_validate({**SMALL, **changes})


def test_kv_heads_left_out_are_as_many_as_heads() -> None:
    assert small().kv_heads == 6


def test_head_dim_left_out_is_hidden_over_heads() -> None:
    assert small().head_dim == 2


def test_head_dim_of_latent_attention_is_its_query_size() -> None:
    assert small(latent_attention=LATENT).head_dim == 5


def test_filled_in_fields_survive_a_round_trip() -> None:
    model = small(latent_attention=LATENT)
    assert Model.model_validate(model.model_dump(by_alias=True)) == model


@pytest.mark.parametrize(
    ("changes", "path", "part_of_rule"),
    [
        ({"kv_heads": 4}, "kv_heads", "must divide heads (6)"),
        ({"hidden": 13}, "head_dim", "heads (6) do not divide hidden (13)"),
        ({"latent_attention": LATENT, "kv_heads": 3}, "kv_heads", "as many as heads (6)"),
        ({"latent_attention": LATENT, "head_dim": 4}, "head_dim", "qk_rope_head_dim = 5"),
        ({"latent_attention": LATENT, "qk_norm": "head"}, "qk_norm", "norms of its own"),
        ({"gated_mlp": False, "clamped_gate": True}, "clamped_gate", "gated_mlp: true"),
        ({"latent_attention": LATENT, "qkv_bias": True}, "qkv_bias", "without biases"),
        ({"latent_attention": LATENT, "positions": "alibi"}, "positions", "rotary positions"),
        ({"activation": "gelu-new"}, "activation", "without a gate"),
        ({"positions": "learned"}, "max_positions", "need the rows"),
        ({"max_positions": 8}, "max_positions", "rotary positions have no table"),
        ({"norms_per_layer": 1}, "norms_per_layer", "parallel_block: true"),
        ({"norms_per_layer": 5}, "norms_per_layer", "less than or equal to 4"),
        ({"norm_bias": True}, "norm_bias", "rmsnorm has no bias"),
        ({"sliding_window_every": 2}, "sliding_window_every", "no window to alternate"),
        ({"experts": {"count": 2, "top_k": 3, "ffn_hidden": 1}}, "experts.top_k", "all 2 experts"),
        (
            {"experts": {"count": 2, "top_k": 1, "ffn_hidden": 1, "shared_gate": True}},
            "experts.shared_gate",
            "no shared expert",
        ),
        (
            {"experts": {"count": 2, "top_k": 1, "ffn_hidden": 1, "first_dense_layers": 4}},
            "experts",
            "none of the 4 layers",
        ),
        ({"layers": 10**9}, "layers", "less than or equal to 10000"),
        ({"heads": "6"}, "heads", "valid integer"),
    ],
)
def test_a_broken_rule_names_its_field(
    changes: dict[str, Any], path: str, part_of_rule: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        small(**changes)
    details = {".".join(map(str, e["loc"])): e["msg"] for e in caught.value.errors()}
    assert list(details) == [path]
    assert part_of_rule in details[path]


def test_all_broken_rules_are_reported_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        small(kv_heads=4, positions="learned", norm_bias=True)
    assert [e["loc"] for e in caught.value.errors()] == [
        ("kv_heads",),
        ("max_positions",),
        ("norm_bias",),
    ]


def test_every_second_layer_has_experts_after_the_dense_ones() -> None:
    experts = {"count": 2, "top_k": 1, "ffn_hidden": 1, "every": 2, "first_dense_layers": 2}
    model = small(experts=experts)
    assert [model.has_experts(i) for i in range(4)] == [False, False, False, True]


def test_one_layer_in_n_attends_to_everything() -> None:
    model = small(sliding_window=8, sliding_window_every=2)
    assert [model.window(i) for i in range(4)] == [8, 0, 8, 0]


def test_all_layers_slide_by_default() -> None:
    model = small(sliding_window=8)
    assert [model.window(i) for i in range(4)] == [8, 8, 8, 8]
