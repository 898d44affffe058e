"""What a part of a layer must say before a plan may run it."""

from __future__ import annotations

import dataclasses

import pytest

from simulator.described.plan.plan import Plan
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import total_bytes
from simulator.program.layer import layer_kinds
from simulator.program.layer.attention_parts import ATTENTION, LATENT_ATTENTION
from simulator.program.layer.experts import EXPERTS
from simulator.program.layer.layer_kinds import MIXERS
from simulator.program.layer.layer_part import ALL_RECOMPUTE, TOKEN_WISE, LayerPart
from simulator.program.layer.mlp import DENSE_MLP, NO_MLP
from simulator.program.layer.model_totals import model_flop_per_token, parameter_count
from simulator.program.layer.pieces import Region, Split
from simulator.program.layer.tensors import ParameterTensor, TensorSplit
from simulator.program.price.executed_flop import hardware_flop_per_token
from simulator.program.price.stage_cost import StageCosts
from simulator.results.simulation import run_step
from tests.jobs import small_job, small_model

SILENT = LayerPart("silent", lambda *_: True, lambda _: (), lambda *_: None)
"""A part that says nothing about any strategy."""

STRATEGIES = [
    {"tp": 2},
    {"tp": 4, "tp_method": "2d"},
    {"cp": 2},
    {"cp": 2, "cp_method": "all_to_all"},
    {"recompute": "full"},
    {"recompute": "selective"},
]


def test_a_part_without_rules_runs_on_one_rank_without_recomputation():
    assert not list(SILENT.unruled(small_model(), Plan()))


@pytest.mark.parametrize("plan", STRATEGIES, ids=str)
def test_a_part_without_a_rule_for_a_strategy_is_refused(plan):
    fault, *_ = SILENT.unruled(small_model(), Plan(**plan))
    assert fault.rule == "has no rule for silent layers"


@pytest.mark.parametrize(
    "part",
    [ATTENTION, LATENT_ATTENTION, EXPERTS, DENSE_MLP, NO_MLP],
    ids=lambda part: part.title,
)
@pytest.mark.parametrize("plan", [plan for plan in STRATEGIES if "tp_method" not in plan], ids=str)
def test_parts_of_a_transformer_have_a_rule_for_every_strategy(part, plan):
    assert not list(part.unruled(small_model(), Plan(**plan)))


@pytest.mark.parametrize("part", [ATTENTION, DENSE_MLP, NO_MLP], ids=lambda part: part.title)
def test_layers_without_experts_have_a_rule_for_a_grid_of_tensor_ranks(part):
    assert not list(part.unruled(small_model(), Plan(tp=4, tp_method="2d")))


def test_ranks_that_do_not_divide_what_a_part_splits_are_refused():
    of_six = dataclasses.replace(SILENT, tensor_sizes=lambda _: {"channels": 6})
    assert not list(of_six.unruled(small_model(), Plan(tp=3)))
    [fault] = of_six.unruled(small_model(), Plan(tp=4))
    assert fault.rule == "must divide the 6 channels of silent layers"


def _mix_tensors(model):
    for name in ("mix.in", "mix.out"):
        yield ParameterTensor(name, (model.hidden, model.hidden), split=TensorSplit.TENSOR)


def _add_mix(block, _window):
    tokens, hidden = block.shape.tokens, block.model.hidden
    row = tokens * hidden * block.shape.element_bytes
    block.save("mix_input", row, Region.GATHERED)
    block.linear("mix_in", hidden, hidden, Split.COLUMN)
    block.memory_bound("mix", 2 * row, 3 * row, Region.TENSOR)
    block.save("mixed", row, Region.TENSOR)
    block.linear("mix_out", hidden, hidden, Split.ROW)


MIX = LayerPart(
    title="mixing",
    is_in=lambda *_: True,
    tensors=_mix_tensors,
    add=_add_mix,
    tensor_sizes=lambda model: {"hidden": model.hidden},
    context=TOKEN_WISE,
    recompute=ALL_RECOMPUTE,
)


@pytest.fixture
def mixing(monkeypatch):
    """Layers in which two square products stand for attention; nothing is known of any before."""
    known = (layer_kinds.layer_kind, layer_kinds.layer_kinds, layer_kinds.layer_tensors)
    for each in known:
        each.cache_clear()
    monkeypatch.setattr(layer_kinds, "MIXERS", {"mixing": MIX, **MIXERS})
    yield
    for each in known:
        each.cache_clear()


@pytest.mark.usefixtures("mixing")
def test_parameters_and_flop_of_a_new_part_follow_from_its_tensors():
    model = small_model(norms_per_layer=2)
    h, f = model.hidden, model.ffn_hidden
    a_layer = 2 * h * h + 3 * h * f
    norms = (2 * model.layers + 1) * h
    assert parameter_count(model) == model.layers * a_layer + 2 * model.vocab * h + norms
    assert model_flop_per_token(model, 64) == 6 * (model.layers * a_layer + model.vocab * h)


@pytest.mark.usefixtures("mixing")
@pytest.mark.parametrize("tp", [1, 2])
def test_a_new_part_is_kept_divided_and_recomputed_as_it_says(tp):
    plain, full = (
        small_job(small_model(), gpus=tp, tp=tp, recompute=recompute, sequence_parallel=False)
        for recompute in ("none", "full")
    )
    layer, row = Slice(1, 2), 64 * plain.model.hidden * 2.0
    assert total_bytes(StageCosts(full).saved(layer)) == row
    with_part = total_bytes(StageCosts(plain).saved(layer))
    silent = dataclasses.replace(MIX, add=lambda *_: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_kinds, "MIXERS", {"mixing": silent})
        without = total_bytes(StageCosts(plain).saved(layer))
    assert with_part - without == row + row / tp
    again = hardware_flop_per_token(full) - model_flop_per_token(full.model, 64)
    h, f = full.model.hidden, full.model.ffn_hidden
    assert again == 2 * full.model.layers * (2 * h * h + 3 * h * f)
    assert run_step(full).step_time_s > run_step(plain).step_time_s


def test_the_output_of_latent_attention_is_divided_by_heads_of_values():
    """Rows of a head of values, not of queries, go in; the hidden state comes out."""
    latent = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
              "qk_rope_head_dim": 4, "v_head_dim": 10}  # fmt: skip
    model = small_model(kv_heads=8, latent_attention=latent)
    shapes = {tensor.name: tensor for tensor in layer_kinds.layer_tensors(model, 0)}
    output, value = shapes["attention.output"], shapes["attention.value"]
    assert output.shape == (model.heads, 10, model.hidden)
    assert value.shape == (model.heads, 10, 16)
    assert shapes["attention.key"].shape == (model.heads, 12, 16)
    assert shapes["attention.query"].shape == (model.heads, 12 + 4, 24)
    assert shapes["attention.key_value_down"].shape == (model.hidden, 16 + 4)
    assert {tensor.split for tensor in (output, value)} == {TensorSplit.TENSOR}
