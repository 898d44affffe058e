"""Parameter counts against published models, and shards against the whole."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simulator.described.model import Model
from simulator.program.layer.layer_kinds import layer_kinds, layer_tensors
from simulator.program.layer.layer_part import LayerKind
from simulator.program.layer.model_ends import embedding_tensors, head_tensors, multi_token_tensors
from simulator.program.layer.model_totals import (
    parameter_count,
    parameter_count_by_part,
)
from simulator.program.layer.tensors import (
    ParameterGroup,
    ParameterTensor,
    TensorSplit,
    tensor_shard_numel,
)

MODELS = Path(__file__).parents[2] / "workloads" / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.yaml"))

# Totals of the published checkpoints (model cards, safetensors metadata).
PUBLISHED = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "bloom-176b": 176_247_271_424,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "command-r-35b": 34_980_831_232,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-27b": 27_227_128_320,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma3-1b": 999_885_952,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama2-7b": 6_738_415_616,
    "llama3.1-405b": 405_853_388_800,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "mpt-7b": 6_649_286_656,
    "olmo2-7b": 7_298_617_344,
    "opt-1.3b": 1_315_758_080,
    "opt-125m": 125_239_296,
    "opt-13b": 12_853_473_280,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "phi3-medium-14b": 13_960_238_080,
    "phi3-mini-3.8b": 3_821_079_552,
    "phi4-14b": 14_659_507_200,
    "pythia-12b": 11_846_072_320,
    "pythia-1b": 1_011_781_632,
    "mamba2-2.7b": 2_702_599_680,
    "pythia-410m": 405_334_016,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "starcoder2-3b": 3_030_371_328,
    "tinyllama-1.1b": 1_100_048_384,
}

# Active parameters in units of 1e9, as the papers and model cards give them.
PUBLISHED_ACTIVE_BILLIONS = {
    "deepseek-v2": 21,
    "deepseek-v3": 37,
    "kimi-k2": 32,
    "mixtral-8x22b": 39,
    "mixtral-8x7b": 13,
    "qwen1.5-moe-a2.7b": 2.7,
    "qwen3-235b-a22b": 22,
    "qwen3-30b-a3b": 3.3,
}

# Names that end in a size, with the size; the rest after a dash is the active size.
SIZE_IN_NAME = {
    name: float(match[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[match[2]]
    for name in NAMES
    if (match := re.search(r"-(\d+(?:\.\d+)?)([mbt])(?:-a.*)?$", name))
}


def named(name: str) -> Model:
    return Model.model_validate(yaml.safe_load((MODELS / f"{name}.yaml").read_text()))


def active_parameter_count(model: Model) -> int:
    """With the terms that balance a router's load, which are buffers."""
    count = parameter_count_by_part(model)
    return count.active_parameters + parameter_count(model) - count.parameters


def commented_count(name: str, label: str) -> int | None:
    match = re.search(rf"^# {label}: ([\d,]+)$", (MODELS / f"{name}.yaml").read_text(), re.M)
    return int(match[1].replace(",", "")) if match else None


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_count_is_that_of_the_published_checkpoint(name: str, count: int) -> None:
    assert parameter_count(named(name)) == count


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_ACTIVE_BILLIONS.items())
def test_active_count_rounds_to_the_published_one(name: str, billions: float) -> None:
    # Half a unit for rounding, half because authors differ on what embeddings count.
    unit = 1 if isinstance(billions, int) else 0.1
    assert active_parameter_count(named(name)) / 1e9 == pytest.approx(billions, abs=unit)


def test_active_count_of_gpt_oss_without_embedding_is_the_published_5_13_billion() -> None:
    model = named("gpt-oss-120b")
    assert active_parameter_count(model) - model.vocab * model.hidden == pytest.approx(
        5.13e9, abs=0.005e9
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_named_model_has_a_source_and_the_count_it_claims(name: str) -> None:
    model = named(name)
    assert (MODELS / f"{name}.yaml").read_text().startswith("# Source: ")
    assert model.name == name
    assert parameter_count(model) == commented_count(name, "parameters")
    if model.experts:
        assert active_parameter_count(model) == commented_count(name, "active parameters")


@pytest.mark.parametrize(("name", "size"), SIZE_IN_NAME.items())
def test_count_is_of_the_size_in_the_name(name: str, size: float) -> None:
    # Names are rounded for the market: Gemma 2 2B has 2.6e9, MPT-1b 1.3e9 parameters.
    assert parameter_count(named(name)) == pytest.approx(size, rel=1 / 3)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-1.7b", 1.7),
        ("gpt-3.6b", 3.6),
        ("gpt-7.5b", 7.5),
        ("gpt-18.4b", 18.4),
        ("gpt-39.1b", 39.1),
        ("gpt-76.1b", 76.1),
        ("gpt-145.6b", 145.6),
        ("gpt-310.1b", 310.1),
        ("gpt-529.6b", 529.6),
        ("gpt-1008b", 1008.0),
    ],
)
def test_gpt_count_is_the_formula_of_megatron(name: str, billions: float) -> None:
    # arXiv 2104.04473, equation 2, which leaves out the final norm of 2h.
    model = named(name)
    h, layers, v, s = model.hidden, model.layers, model.vocab, model.max_positions
    # 12 l h^2 (1 + 13 / (12 h) + (v + s) / (12 l h)), multiplied out to stay in whole numbers
    assert parameter_count(model) == 12 * layers * h**2 + 13 * layers * h + (v + s) * h + 2 * h
    assert round(parameter_count(model) / 1e9, 1) == pytest.approx(billions, abs=0.051)


@pytest.mark.parametrize("name", ["llama2-70b", "llama3.1-405b", "mistral-7b", "llama3-8b"])
def test_llama_count_is_the_closed_form(name: str) -> None:
    m = named(name)
    kv = m.kv_heads * m.hidden // m.heads
    layer = 2 * m.hidden**2 + 2 * m.hidden * kv + 3 * m.hidden * m.ffn_hidden + 2 * m.hidden
    assert parameter_count(m) == 2 * m.vocab * m.hidden + m.layers * layer + m.hidden


def test_multi_token_prediction_adds_one_layer_a_join_and_three_norms() -> None:
    model = named("deepseek-v3")
    h = model.hidden
    layer = sum(t.numel for t in layer_tensors(model, model.layers - 1))
    added = sum(t.numel for t in multi_token_tensors(model))
    assert added == layer + 2 * h * h + 3 * h
    assert parameter_count(model, with_multi_token=True) == parameter_count(model) + added


def test_a_multi_token_module_has_the_last_layer_as_it_is_stored() -> None:
    model = named("deepseek-v3")
    layer = layer_tensors(model, model.layers - 1)
    module = {t.name: t for t in multi_token_tensors(model)}
    assert any(t.inputs_first for t in layer)
    assert [replace(module[f"multi_token.0.{t.name}"], name=t.name) for t in layer] == list(layer)


def test_a_tied_head_has_only_the_final_norm() -> None:
    assert [t.name for t in head_tensors(named("llama3.2-1b"))] == ["head.norm"]


def test_padding_the_vocabulary_widens_embedding_and_head() -> None:
    model = named("llama2-7b")
    for tensors in (embedding_tensors(model, 32_768), head_tensors(model, 32_768)):
        assert (32_768, 4096) in [t.shape for t in tensors]


def test_only_routed_experts_are_in_the_expert_group() -> None:
    tensors = layer_tensors(named("deepseek-v3"), 60)
    experts = {t.name for t in tensors if t.group is ParameterGroup.EXPERT}
    assert experts == {"experts.gate", "experts.up", "experts.down"}


@pytest.mark.parametrize("name", NAMES)
def test_tensor_names_are_unique_inside_a_layer(name: str) -> None:
    model = named(name)
    for index in {0, model.layers - 1}:
        tensor_names = [t.name for t in layer_tensors(model, index)]
        assert len(set(tensor_names)) == len(tensor_names)


def test_deepseek_has_three_dense_layers_and_then_only_expert_layers() -> None:
    kinds = layer_kinds(named("deepseek-v3"))
    mlps = ["dense"] * 3 + ["experts"] * 58
    assert kinds == tuple(LayerKind("latent_attention", mlp) for mlp in mlps)


def test_gemma2_alternates_windowed_and_full_layers() -> None:
    kinds = layer_kinds(named("gemma2-9b"))
    assert kinds[:2] == (LayerKind(window=4096), LayerKind())
    assert len(set(kinds)) == 2


@pytest.mark.parametrize(("tp", "heads_held"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_ranks_beyond_the_kv_heads_hold_copies(tp: int, heads_held: int) -> None:
    key = next(t for t in layer_tensors(named("llama3.1-8b"), 0) if t.name == "attention.key")
    assert tensor_shard_numel(key, tp=tp) == heads_held * 128 * 4096


def test_experts_are_split_over_ep_and_then_over_tp() -> None:
    tensor = ParameterTensor("x", (8, 6, 5), ParameterGroup.EXPERT, TensorSplit.EXPERT)
    assert tensor_shard_numel(tensor, tp=2, ep=4) == 2 * 3 * 5


def test_a_down_bias_of_experts_is_whole_on_every_tensor_rank() -> None:
    tensor = ParameterTensor("x", (8, 6), ParameterGroup.EXPERT, TensorSplit.EXPERT_REPLICATED)
    assert tensor_shard_numel(tensor, tp=2, ep=4) == 2 * 6


def test_an_uneven_vocabulary_leaves_the_largest_share() -> None:
    tensor = ParameterTensor("x", (50257, 10), ParameterGroup.EMBEDDING, TensorSplit.TENSOR)
    assert tensor_shard_numel(tensor, tp=4) == 12565 * 10


@given(
    shape=st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 8)),
    split=st.sampled_from(TensorSplit),
    tp=st.integers(1, 16),
    ep=st.integers(1, 16),
)
def test_shards_cover_the_tensor_and_none_is_larger_than_it(
    shape: tuple[int, int, int], split: TensorSplit, tp: int, ep: int
) -> None:
    tensor = ParameterTensor("x", shape, split=split)
    shard = tensor_shard_numel(tensor, tp, ep)
    assert math.ceil(tensor.numel / (tp * ep)) <= shard <= tensor.numel
    assert tensor_shard_numel(tensor) == tensor.numel


@pytest.mark.parametrize("name", NAMES)
def test_parts_hold_every_parameter_but_the_biases_that_no_gradient_reaches(name: str) -> None:
    """Balancing terms (arXiv 2408.15664): one per expert, in each layer that has experts."""
    model = named(name)
    count = parameter_count_by_part(model)
    experts = model.experts
    balanced = experts is not None and experts.router_bias and not model.mlp_bias
    layers = sum(kind.mlp == "experts" for kind in layer_kinds(model))
    biases = layers * experts.count if experts and balanced else 0
    assert parameter_count(model) - count.parameters == biases
    assert set(count.active_by_part) == set(count.by_part)
    only_some = {
        part for part, numel in count.by_part.items() if count.active_by_part[part] < numel
    }
    assert only_some == ({"experts"} if experts else set())
