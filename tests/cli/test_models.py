"""What does `clustersim models show` say of a model?"""

from __future__ import annotations

import json


def test_a_model_is_shown_with_its_parameters_by_part_and_its_source(clustersim):
    said = clustersim("models", "show", "qwen3-30b-a3b").out
    assert "30.5 B parameters, 3.35 B of them active per token" in said
    assert "experts.top_k" in said
    assert "arXiv 2505.09388" in said
    assert "sliding_window " not in said


def test_fields_left_to_their_defaults_are_shown_when_asked_for(clustersim):
    lines = clustersim("models", "show", "llama3.1-8b", "--all").out.splitlines()
    assert ["sliding_window", "0", "default"] in [line.split() for line in lines]


def test_the_parts_of_a_model_sum_to_its_parameters(clustersim):
    document = json.loads(clustersim("models", "show", "llama3.1-8b", "--json").out)
    assert sum(document["by_part"].values()) == document["parameters"] == 8_030_261_248
    assert document["dimensions"]["kv_heads"] == 8


def test_a_misspelt_model_is_answered_with_the_right_name(clustersim):
    said = clustersim("models", "show", "llama3.1-8")
    assert said.code == 2
    assert "did you mean 'llama3.1-8b'" in said.err


def test_biases_that_only_balance_experts_are_said_to_be_no_parameters(clustersim):
    """Of DeepSeek-V3, 256 in each of 58 layers; those of gpt-oss are trained."""
    said = clustersim("models", "show", "deepseek-v3").out
    assert "14,848 biases that balance experts have no gradient" in said
    document = json.loads(clustersim("models", "show", "deepseek-v3", "--json").out)
    assert document["balancing_biases"] == 58 * 256
    assert sum(document["by_part"].values()) == document["parameters"]
    assert "balance experts" not in clustersim("models", "show", "gpt-oss-20b").out
