"""Hugging Face configurations, read against the named models and against nonsense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.huggingface.config_file import MAX_FILE_BYTES, read_huggingface_config
from simulator.described.huggingface.families import family_names
from simulator.described.huggingface.parameter_counts import default_keys, network_count
from simulator.described.model import Model
from simulator.errors import InputError, UnsupportedError
from simulator.program.layer.model_totals import parameter_count, parameter_count_by_part
from tests.csv_files import read_rows

COUNTS = Path(__file__).parents[1] / "described" / "parameter_counts.csv"
CONFIGS = Path(__file__).parent / "configs"
MODELS = Path(__file__).parents[2] / "workloads" / "models"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


@pytest.mark.parametrize("name", NAMES)
def test_config_gives_the_named_model(name: str) -> None:
    model, _ = read_huggingface_config(CONFIGS / f"{name}.json")
    assert model == Model.model_validate(yaml.safe_load((MODELS / f"{name}.yaml").read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_no_key_of_a_published_config_is_unknown_or_lost(name: str) -> None:
    _, report = read_huggingface_config(CONFIGS / f"{name}.json")
    assert not [sentence for sentence in report.assumed if "not known" in sentence]
    told = {*report.understood, *report.ignored}
    told |= {sentence.split()[0] for sentence in report.unsupported}
    assert told == set(config(name))


def recorded() -> Iterator[tuple[dict[str, Any], int]]:
    """Configurations of families that are simulated, and their parameters by transformers."""
    for row in read_rows(COUNTS):
        family = row["model_type"]
        if family in family_names():
            keys = {**default_keys(family), **json.loads(row["keys"])}
            yield {"model_type": family, **keys}, int(row["parameters"])


def test_what_is_simulated_has_the_parameters_of_transformers_or_is_refused() -> None:
    wrong = set()
    for values, parameters in recorded():
        try:
            model, _ = read_huggingface_config(values)
        except InputError:
            continue
        if parameter_count_by_part(model).parameters != parameters:
            wrong.add(values["model_type"])
    # BERT is read with its pooler and without a head, gemma3 without its vision tower.
    assert wrong == {"bert", "gemma3"}


@pytest.mark.parametrize("name", sorted({*NAMES} - {"bert-base"}))
def test_a_shipped_model_has_the_parameters_of_its_config(name: str) -> None:
    model, _ = read_huggingface_config(CONFIGS / f"{name}.json")
    assert parameter_count_by_part(model).parameters == network_count(config(name)).parameters


def test_every_family_but_aliases_has_a_config_or_is_recorded() -> None:
    tested = {config(name)["model_type"] for name in NAMES}
    tested |= {values["model_type"] for values, _ in recorded()}
    assert set(family_names()) - tested == {"kimi_k2", *VISION}


VISION = {
    "qwen2_vl": "qwen2.5-7b", "qwen2_vl_text": "qwen2.5-7b", "qwen2_5_vl": "qwen2.5-7b",
    "qwen2_5_vl_text": "qwen2.5-7b", "qwen3_vl_text": "qwen3-8b",
    "qwen3_vl_moe_text": "qwen3-30b-a3b",
}  # fmt: skip
"""The model with the same layers for each family that sees pictures.

Source: modeling code of transformers 4.57: Qwen2_5_VLAttention and Qwen2VLAttention have biases of
queries, keys and values; Qwen3VLTextAttention and its MoE twin are Qwen3's.
"""


@pytest.mark.parametrize(("family", "name"), VISION.items())
def test_the_language_model_of_one_that_sees_has_the_layers_of_its_sister(family, name):
    inner = {key: value for key, value in config(name).items() if key != "tie_word_embeddings"}
    whole = {"text_config": {**inner, "model_type": family}, "tie_word_embeddings": True}
    seen, report = read_huggingface_config({**whole, "vision_config": {"depth": 32}}, "same")
    plain, _ = read_huggingface_config({**inner, "tie_word_embeddings": True}, "same")
    assert seen == plain
    assert "only text_config is read; vision_config ignored" in report.assumed


@pytest.mark.parametrize("family", ["jamba", "qwen3_next", "gemma3n_text", "diffllama"])
def test_a_network_with_other_layers_is_refused_and_can_be_counted(family: str) -> None:
    with pytest.raises(UnsupportedError, match="models count"):
        read_huggingface_config({"model_type": family})
    assert network_count({"model_type": family}).parameters > 0


@pytest.mark.parametrize(
    "key",
    ["linear_num_heads", "lru_width", "block_types", "conv1d_width", "hidden_size_per_layer_input"],
)
def test_a_key_of_other_layers_is_never_read_as_llama(key: str) -> None:
    for family in ("new", "llama"):
        values = config("llama3.1-8b", model_type=family, **{key: 4})
        if family == "new":
            with pytest.raises(UnsupportedError, match=key):
                read_huggingface_config(values)
        else:
            _, report = read_huggingface_config(values)
            assert f"{key} is unknown and assumed to have no cost" in report.assumed


def test_a_key_that_makes_another_network_of_a_known_family_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="qk_layernorm"):
        read_huggingface_config(config("phi-2", qk_layernorm=True))


def test_experts_are_read_by_their_names_of_transformers_5() -> None:
    values = config("qwen3-30b-a3b")
    renamed = {**without(values, "num_experts"), "num_local_experts": values["num_experts"]}
    assert read_huggingface_config(renamed, "x")[0] == read_huggingface_config(values, "x")[0]


@pytest.mark.parametrize(
    ("name", "keys", "is_capped"),
    [
        ("gemma2-9b", {}, True),
        ("gemma2-9b", {"final_logit_softcapping": None}, False),
        ("gemma3-1b", {}, False),
        ("gemma3-1b", {"final_logit_softcapping": 30.0}, True),
    ],
)
def test_logits_are_capped_where_a_config_names_a_cap(
    name: str, keys: dict[str, Any], is_capped: bool
) -> None:
    model, _ = read_huggingface_config(config(name, **keys))
    assert model.capped_logits is is_capped


@pytest.mark.parametrize(
    ("name", "keys", "path"),
    [
        ("gemma2-9b", {"layer_types": ["lru"] * 42}, "layer_types"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [5]}, "mlp_only_layers"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek-v3", {"mlp_layer_types": ["sparse"] * 60 + ["dense"]}, "mlp_layer_types"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias"),
    ],
)
def test_layers_in_an_order_that_is_not_modelled_are_refused(
    name: str, keys: dict[str, Any], path: str
) -> None:
    with pytest.raises(InputError, match=path):
        read_huggingface_config(config(name, **keys))


def test_dropout_that_is_switched_on_is_not_modelled() -> None:
    _, report = read_huggingface_config(config("gpt2"))
    assert "attn_pdrop is set and not modelled" in report.unsupported
    assert report.unsupported


@pytest.mark.parametrize("key", ["sliding_window", "vision_config", "audio_config"])
def test_what_a_family_does_not_read_but_costs_is_not_modelled(key: str) -> None:
    _, report = read_huggingface_config(config("llama3.1-8b", **{key: {"depth": 32}}))
    assert f"{key} is set and not modelled" in report.unsupported


def test_dropout_that_is_switched_off_is_ignored() -> None:
    _, report = read_huggingface_config(config("llama3.1-8b"))
    assert "attention_dropout" in report.ignored
    assert not report.unsupported


def test_unknown_key_is_reported() -> None:
    _, report = read_huggingface_config(config("llama3.1-8b", wings=2))
    assert "wings is unknown and assumed to have no cost" in report.assumed


def test_unknown_family_is_read_like_llama_and_says_so() -> None:
    model, report = read_huggingface_config(config("llama3.1-8b", model_type="lama9"))
    assert parameter_count(model) == 8_030_261_248
    assert "model_type 'lama9' is unknown; read like llama" in report.assumed[0]


@pytest.mark.parametrize(
    "key",
    [
        "num_experts", "kv_lora_rank", "mamba_d_state", "layer_norm_eps", "norm_epsilon",
        "use_bias", "use_parallel_residual", "parallel_attn", "multi_query",
    ],
)  # fmt: skip
def test_unknown_family_unlike_llama_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        read_huggingface_config(config("llama3.1-8b", model_type="new", **{key: 8}))


def test_an_unknown_family_that_lacks_keys_of_llama_can_be_captured() -> None:
    with pytest.raises(UnsupportedError, match=r"unknown and not like llama.*clustersim capture"):
        read_huggingface_config({"model_type": "foonet", "hidden_size": 1024})


def test_encoder_decoder_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="encoder"):
        read_huggingface_config({"model_type": "t5", "is_encoder_decoder": True})


def test_text_part_of_a_vision_model_is_read() -> None:
    values = {
        "model_type": "gemma3",
        "text_config": config("gemma3-1b"),
        "vision_config": {"hidden_size": 1152},
    }
    model, report = read_huggingface_config(values)
    assert parameter_count(model) == 999_885_952
    assert report.assumed[0] == "only text_config is read; vision_config ignored"


def test_layer_types_and_pattern_give_the_same_alternation() -> None:
    types = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(26)]
    by_types, _ = read_huggingface_config(
        without(config("gemma3-1b", layer_types=types), "sliding_window_pattern"), name="x"
    )
    by_pattern, _ = read_huggingface_config(config("gemma3-1b"), name="x")
    assert by_types == by_pattern


def test_irregular_layer_types_are_not_modelled() -> None:
    types = ["full_attention", *["sliding_attention"] * 23]
    _, report = read_huggingface_config(config("gpt-oss-20b", layer_types=types))
    assert any("layer_types" in sentence for sentence in report.unsupported)


def test_unknown_activation_is_not_modelled() -> None:
    model, report = read_huggingface_config(config("llama3.1-8b", hidden_act="mish"))
    assert model.activation == "gelu"
    assert "hidden_act 'mish' is unknown; read as gelu" in report.unsupported


def test_all_missing_keys_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        read_huggingface_config({"model_type": "mixtral", "hidden_size": 8})
    assert {fault.path for fault in caught.value.faults} == {
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "num_local_experts",
        "num_experts_per_tok",
    }


@pytest.mark.parametrize("value", ["4096", 4096.0, True, [4096], {"a": 1}])
def test_a_width_of_the_wrong_type_is_refused_under_its_key(value: object) -> None:
    with pytest.raises(InputError) as caught:
        read_huggingface_config(config("llama3.1-8b", hidden_size=value))
    assert [(f.path, f.rule) for f in caught.value.faults] == [
        ("hidden_size", "must be a whole number")
    ]


def test_a_broken_rule_is_reported_under_the_key_of_the_file() -> None:
    with pytest.raises(InputError) as caught:
        read_huggingface_config(config("llama3.1-8b", num_key_value_heads=5, vocab_size=-1))
    assert {fault.path for fault in caught.value.faults} == {"num_key_value_heads", "vocab_size"}


def test_a_broken_rule_of_experts_is_reported_under_the_key_of_the_file() -> None:
    with pytest.raises(InputError) as caught:
        read_huggingface_config(config("mixtral-8x7b", num_experts_per_tok=9))
    assert [fault.path for fault in caught.value.faults] == ["num_experts_per_tok"]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}"]
)
def test_corrupt_files_are_input_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_huggingface_config(path)


def test_binary_file_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="cannot be read"):
        read_huggingface_config(path)


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match="more than"):
        read_huggingface_config(path)


@pytest.mark.parametrize("name", ["missing.json", "", "x" * 5000])
def test_missing_file_is_an_input_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        read_huggingface_config(tmp_path / name)


def test_a_folder_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config("gpt2")))
    model, report = read_huggingface_config(folder)
    assert model.name == "my-model"
    assert report.source == str(folder / "config.json")


def test_report_reads_as_text_without_empty_sections() -> None:
    _, report = read_huggingface_config(config("llama3.2-1b"))
    text = str(report)
    assert "understood:\n  model_type, num_hidden_layers" in text
    assert "not modelled" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values),
    max_leaves=4,
)


def test_an_unhashable_width_is_an_input_error() -> None:
    with pytest.raises(InputError, match="hidden_size"):
        read_huggingface_config(config("opt-350m", hidden_size={}))


def test_a_dropout_that_is_no_number_is_an_input_error_and_a_whole_number_is_one() -> None:
    with pytest.raises(InputError, match=r"attention_dropout.*must be a number"):
        read_huggingface_config(config("opt-1.3b", attention_dropout=[]))
    model, _ = read_huggingface_config(config("opt-1.3b", attention_dropout=0))
    assert not model.attention_dropout


@given(data=st.data(), name=st.sampled_from(NAMES))
def test_any_value_under_any_key_gives_a_model_or_an_input_error(
    data: st.DataObject, name: str
) -> None:
    values = config(name)
    key = data.draw(st.sampled_from(sorted(values)))
    try:
        model, _ = read_huggingface_config({**values, key: data.draw(JSON)})
    except InputError:
        return
    assert parameter_count(model) > 0
