"""Parameters of networks, against those that transformers itself builds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.described.huggingface.formulas import names_in_formula, value_of_formula
from simulator.described.huggingface.parameter_counts import (
    default_keys,
    definition,
    network_count,
    network_names,
)
from simulator.errors import InputError, UnsupportedError
from tests.csv_files import read_rows

COUNTS = Path(__file__).parent / "parameter_counts.csv"


def recorded() -> Iterator[tuple[str, dict[str, Any], int]]:
    for row in read_rows(COUNTS):
        yield row["model_type"], json.loads(row["keys"]), int(row["parameters"])


def counted(name: str, keys: dict[str, Any]) -> int | str:
    try:
        return network_count({"model_type": name, **keys}).parameters
    except InputError:
        return "refused"


def test_every_network_has_the_parameters_that_transformers_gives_it_or_is_refused() -> None:
    others = [
        (name, keys, found)
        for name, keys, parameters in recorded()
        if (found := counted(name, keys)) != parameters
    ]
    # Its hybrid layers share one block only where the embeddings are tied.
    untied = {"num_hidden_layers": 8, "tie_word_embeddings": False}
    assert others == [("zamba", untied, "refused")]


def test_every_network_was_recorded() -> None:
    assert {name for name, _, _ in recorded()} == set(network_names())


@pytest.mark.parametrize("name", network_names())
def test_the_parts_of_a_network_are_all_defined(name: str) -> None:
    parts = [*definition(name, "once"), *definition(name, "each")]
    assert [part for part in parts if definition(name, part) is None] == []


def test_one_token_passes_through_its_own_experts_only() -> None:
    config = {"model_type": "mixtral", "num_hidden_layers": 2, "num_experts_per_tok": 3}
    count = network_count(config)
    expert = 3 * 4096 * 14336
    assert count.by_part["experts"] == 2 * 8 * expert
    assert count.active_by_part["experts"] == 2 * 3 * expert
    assert count.parameters - count.active_parameters == 2 * 5 * expert


def test_a_key_has_the_same_meaning_under_its_other_name() -> None:
    named = [{"num_local_experts": 4}, {"num_experts": 4}]
    counts = [network_count({"model_type": "mixtral", **keys}).parameters for keys in named]
    assert counts[0] == counts[1] < network_count({"model_type": "mixtral"}).parameters


def test_a_key_that_is_null_has_no_default() -> None:
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 1, "first_k_dense_replace": 1}
    ranked, plain = (network_count({**config, **keys}) for keys in ({}, {"q_lora_rank": None}))
    heads, size, hidden, rank = 128, 192, 7168, 1536
    low_rank = rank * (hidden + heads * size) + rank
    difference = plain.by_part["attention"] - ranked.by_part["attention"]
    assert difference == hidden * heads * size - low_rank


def test_the_language_model_of_a_model_that_sees_is_counted() -> None:
    text = {"num_hidden_layers": 4}
    outer = network_count({"model_type": "qwen3_5", "text_config": text, "vision_config": {}})
    assert outer.by_part == network_count({"model_type": "qwen3_5_text", **text}).by_part


@pytest.mark.parametrize("family", [None, 3, "lama9", "decoder"])
def test_a_network_that_is_not_known_is_refused(family: object) -> None:
    with pytest.raises(UnsupportedError, match="--with-transformers"):
        network_count({"model_type": family, "hidden_size": 8})


@pytest.mark.parametrize("kind", ["lru", "full", 3])
def test_a_kind_of_layer_that_is_not_known_is_refused(kind: object) -> None:
    for name in ("qwen3", "qwen3_next"):
        with pytest.raises(UnsupportedError, match="layer_types"):
            network_count({"model_type": name, "num_hidden_layers": 1, "layer_types": [kind]})


def test_a_kind_of_layer_that_the_network_has_not_is_refused() -> None:
    keys = {"num_hidden_layers": 1, "layer_types": ["conv"]}
    with pytest.raises(InputError, match="'conv' is none of"):
        network_count({"model_type": "qwen3_next", **keys})


@pytest.mark.parametrize("layers", [0, -1, "4", 10**9, True])
def test_a_number_of_layers_that_no_network_has_is_refused(layers: object) -> None:
    with pytest.raises(InputError, match="num_hidden_layers"):
        network_count({"model_type": "llama", "num_hidden_layers": layers})


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "wide"), ("hidden_size", -8), ("vocab_size", [1]), ("head_dim", {"a": 1})],
)
def test_a_size_that_is_none_is_refused(key: str, value: object) -> None:
    with pytest.raises(InputError):
        network_count({"model_type": "llama", key: value})


def test_formulas_follow_the_arithmetic_of_python() -> None:
    text = "a * 2 + (b or 3) - (1 if 'x' in words and not c else 0) + words[1] % 4 + deep.key"
    names = {"a": 5, "b": 0, "c": None, "words": ["x", 7], "deep": {"key": 100}}
    assert value_of_formula(text, names.__getitem__) == 10 + 3 - 1 + 3 + 100
    assert names_in_formula(text) == {"a", "b", "c", "words", "deep"}


@pytest.mark.parametrize(
    "text", ["a ** 9", "(lambda: 1)()", "a.real.real()", "a < b < c", "open(a)"]
)
def test_nothing_but_arithmetic_is_evaluated(text: str) -> None:
    with pytest.raises((SyntaxError, LookupError, ValueError)):
        value_of_formula(text, lambda _: 1)


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
JSON |= st.lists(JSON, max_size=3) | st.dictionaries(st.text(max_size=3), JSON, max_size=3)


@given(data=st.data(), name=st.sampled_from(network_names()))
@settings(max_examples=100, deadline=None)
def test_any_value_under_any_key_gives_a_count_or_an_input_error(
    data: st.DataObject, name: str
) -> None:
    key = data.draw(st.sampled_from(sorted({*default_keys(name), "layer_types", "text_config"})))
    config = {"model_type": name, "num_hidden_layers": 2, key: data.draw(JSON)}
    try:
        count = network_count(config)
    except InputError:
        return
    assert count.active_parameters > 0
