"""Recipes of NeMo or Megatron-Bridge, read against the jobs that a person would write."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.importers.assembly import Given
from simulator.importers.megatron.nemo import _one_mapping, read_nemo_recipe
from tests.importers.samples import read


def test_a_nemo_recipe_with_references_is_read():
    job, report = read(read_nemo_recipe, "nemo_gpt.yaml")
    assert (job.cluster.gpus, job.plan.vpp, job.plan.zero) == (32, 2, 1)
    assert (job.model.ffn_hidden, job.model.max_positions) == (16384, 2048)
    assert (job.plan.recompute, job.plan.overlap_tp) == ("selective", True)
    assert job.plan.overlap_param_gather is False
    assert not report.unsupported


def test_a_bridge_recipe_gives_layout_experts_and_latent_attention():
    given = {"gpus": 64, "definitions": {"TP": "2"}}
    job, report = read(read_nemo_recipe, "bridge_moe.yaml", **given)
    experts = job.model.experts
    assert (job.plan.tp, job.plan.layout) == (2, "Etttt|tttt|tttt|ttttmL")
    assert (experts.count, experts.first_dense_layers, experts.router_bias) == (64, 1, True)
    assert job.model.latent_attention.kv_lora_rank == 256
    assert job.model.multi_token_layers == 1
    assert not report.unsupported


def test_a_reference_that_the_recipe_leaves_open_is_asked_for():
    with pytest.raises(InputError, match=r"tensor_model_parallel_size.*--define TP="):
        read(read_nemo_recipe, "bridge_moe.yaml", gpus=64)


def test_learned_positions_are_as_many_as_tokens_of_a_sequence(tmp_path):
    """NeMo: max_position_embeddings is ${.encoder_seq_length} where a recipe leaves it out."""
    recipe = tmp_path / "gpt.yaml"
    recipe.write_text(
        "trainer: {devices: 8, num_nodes: 1, precision: bf16}\n"
        "model: {micro_batch_size: 1, global_batch_size: 8, encoder_seq_length: 4096,"
        " num_layers: 2, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 256}\n"
    )
    job, _ = read_nemo_recipe(recipe, Given())
    assert (job.batch.seq_len, job.model.max_positions) == (4096, 4096)


def test_sections_are_laid_over_one_another_and_one_that_says_nothing_hides_nothing():
    """``model.optim`` lies behind ``optimizer``, and ``train`` behind ``model``."""
    found = _one_mapping(
        {
            "model.hidden_size": 64, "model.micro_batch_size": 1, "model.fp8": None,
            "train.micro_batch_size": 4, "train.fp8": "hybrid", "dataset.micro_batch_size": None,
            "optimizer.lr": 1.0, "model.optim.lr": 2.0, "elsewhere.lr": 3.0,
        }
    )  # fmt: skip
    assert found == {
        "hidden_size": 64, "micro_batch_size": 4, "fp8": "hybrid", "lr": 2.0, "elsewhere.lr": 3.0,
    }  # fmt: skip


def test_settings_of_a_section_within_a_section_are_not_the_outer_ones():
    found = _one_mapping({"model.name": "gpt", "model.optim.name": "adam", "model.data.name": None})
    assert found == {"name": "gpt", "optim.name": "adam"}


@pytest.mark.parametrize(
    ("mix", "formats"),
    [
        ("bf16_mixed", {"bf16": True}),
        (
            "bf16_with_fp8_current_scaling_mixed",
            {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
        ),
        ("bf16_with_mxfp8_mixed", {"bf16": True, "fp8": "hybrid", "fp8_recipe": "mxfp8"}),
        ("of_tomorrow", {"fp8": "of_tomorrow", "fp8_recipe": "of_tomorrow"}),
    ],
)
def test_a_mix_of_precisions_is_its_settings_and_one_that_nobody_knows_stays_to_be_refused(
    mix, formats
):
    assert _one_mapping({"mixed_precision": mix}) == formats
