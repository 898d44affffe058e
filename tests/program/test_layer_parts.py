"""What a part of a layer must say before a plan may run it."""

from __future__ import annotations

import dataclasses

import pytest

from simulator.described.plan.plan import Plan
from simulator.errors import InputError
from simulator.program.layer.attention_parts import ATTENTION, LATENT_ATTENTION
from simulator.program.layer.experts import EXPERTS
from simulator.program.layer.layer_part import LayerPart
from simulator.program.layer.mlp import DENSE_MLP, NO_MLP
from tests.jobs import small_model

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
    SILENT.refuse_unruled(small_model(), Plan())


@pytest.mark.parametrize("plan", STRATEGIES, ids=str)
def test_a_part_without_a_rule_for_a_strategy_is_refused(plan):
    with pytest.raises(InputError, match="has no rule for silent layers"):
        SILENT.refuse_unruled(small_model(), Plan(**plan))


@pytest.mark.parametrize(
    "part",
    [ATTENTION, LATENT_ATTENTION, EXPERTS, DENSE_MLP, NO_MLP],
    ids=lambda part: part.title,
)
@pytest.mark.parametrize("plan", [plan for plan in STRATEGIES if "tp_method" not in plan], ids=str)
def test_parts_of_a_transformer_have_a_rule_for_every_strategy(part, plan):
    part.refuse_unruled(small_model(), Plan(**plan))


def test_ranks_that_do_not_divide_what_a_part_splits_are_refused():
    of_six = dataclasses.replace(SILENT, tensor_sizes=lambda _: {"channels": 6})
    of_six.refuse_unruled(small_model(), Plan(tp=3))
    with pytest.raises(InputError, match="must divide the 6 channels of silent layers"):
        of_six.refuse_unruled(small_model(), Plan(tp=4))
