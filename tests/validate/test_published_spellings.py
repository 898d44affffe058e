"""Cells of other tables say the same in other words, and are the same jobs."""

from __future__ import annotations

import pytest

from simulator.validate.published.published_models import known_model
from simulator.validate.published.published_runs import predicted
from tests.validate.published_jobs import BIG, MOE, ROW, fields_of, job_of


@pytest.mark.parametrize(
    "change",
    [
        {"layers": "4.0", "gpus": "8.0", "heads": " 16", "vocab": "32,000", "seq_len": "1k"},
        {"gated_mlp": "True", "tied_embeddings": "No", "sequence_parallel": "1"},
        {"profile": "H100-SXM5-80GB"},
        {"fabric": "InfiniBand NDR"},
        {"framework": "Megatron_Core", "framework_version": "NeMo 2.0"},
        {"zero": "ZeRO-1", "schedule": "1F1B", "recompute": "no", "precision": "amp_bf16"},
        {"kv_heads": "", "micro_batch": "", "dp": "", "experts": "-", "vpp": "1"},
        {"attention": "sdpa", "ep": "1.0", "cp": ""},
    ],
    ids=str,
)
def test_another_spelling_is_the_same_job(change):
    assert fields_of({**ROW, **change}) == fields_of(ROW)


def test_a_link_inside_the_node_says_nothing_of_the_fabric():
    assert fields_of({**BIG, "fabric": "NVLink"}) == fields_of({**BIG, "fabric": ""})


def test_a_node_with_half_the_gpus_has_half_the_nics_where_none_are_stated():
    halved = {**BIG, "gpus_per_node": "4", "nics_per_node": "", "nic_gbps": ""}
    network = job_of(halved).cluster.profile.network
    assert (network.gpus_per_node, network.scale_up.gpus, network.fabric.nics_per_node) == (4, 4, 4)
    assert (
        job_of({**halved, "nics_per_node": "1"}).cluster.profile.network.fabric.nics_per_node == 1
    )


def test_a_rack_stays_one_domain_however_many_gpus_a_row_counts_per_node():
    rack = {**BIG, "profile": "GB200", "nics_per_node": "", "nic_gbps": "", "gpus": "72",
            "dp": "18", "global_batch": "72", "gpus_per_node": "72"}  # fmt: skip
    network = job_of(rack).cluster.profile.network
    assert (network.scale_up.gpus, network.fabric.nics_per_node) == (72, 72)


def test_eight_v100_of_a_node_are_joined_by_a_cube_mesh():
    row = {**ROW, "profile": "V100-SXM2-32GB", "precision": "", "attention": "unfused"}
    job = job_of(row)
    assert job.cluster.profile.network.scale_up.kind == "hybrid-cube-mesh"
    assert job.plan.precision == "fp16"


def test_a_v100_of_16_gb_has_the_memory_that_it_states():
    row = {**ROW, "profile": "V100-SXM2-16GB", "precision": "fp16", "attention": "unfused"}
    assert job_of(row).cluster.profile.device.memory_bytes == pytest.approx(15.78 * 2**30, rel=1e-3)


@pytest.mark.parametrize("dp", ["16", "64", ""])
def test_data_parallel_ranks_may_be_counted_with_those_of_the_context(dp):
    assert job_of({**BIG, "gpus": "256", "cp": "4", "dp": dp}).dp == 16


def test_a_row_that_contradicts_itself_is_skipped():
    assert "dp: 5 contradicts gpus / (tp x pp x cp) = 16" in predicted({**BIG, "dp": "5"}).skipped


@pytest.mark.parametrize("cells", [{"pp": "1", "tp": "4", "vpp": "4"}, {"pp": "1", "tp": "4"}])
def test_chunks_and_schedules_mean_nothing_without_a_pipeline(cells):
    job = job_of({**ROW, **cells, "schedule": "none"})
    assert (job.plan.vpp, job.plan.schedule) == (1, None)


def test_schedules_that_fold_the_pipeline_have_two_chunks():
    job = job_of({**ROW, "schedule": "V-Half", "sequence_parallel": "", "vpp": ""})
    assert (job.plan.schedule, job.plan.vpp) == ("v-half", 2)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("Llama-2-70b-hf", "llama2-70b"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
        ("Mixtral 8x7B", "mixtral-8x7b"),
        ("llama3-70b-12L", "llama3-70b"),
        ("grok1-proxy-4L", None),
        ("gpt-313b", None),
        ("gpt-18b", None),
        ("my-model", None),
    ],
)
def test_public_models_are_known_in_every_spelling(name, known):
    assert known_model(name) == known


def test_a_public_model_fills_what_its_row_leaves_out():
    left_out = ("gated_mlp", "tied_embeddings", "layers", "hidden", "ffn_hidden", "heads",
                "kv_heads", "vocab")  # fmt: skip
    row = {**ROW, "model": "Llama-3.1-8B", **dict.fromkeys(left_out, "")}
    model = job_of(row).model
    assert (model.vocab, model.kv_heads, model.gated_mlp, model.layers) == (128256, 8, True, 32)
    assert predicted(row).assumed == ""


def test_key_heads_of_compressed_attention_are_no_number_of_their_own():
    row = {**MOE, "model": "deepseek-v3", "layers": "8", "hidden": "7168", "heads": "128",
           "kv_heads": "1", "experts": "256", "top_k": "8"}  # fmt: skip
    assert job_of(row).model.kv_heads == 128


def test_what_a_prediction_assumes_is_said():
    result = predicted({**ROW, "vocab": "", "micro_batch": ""})
    assert result.assumed == "vocab 32000, micro_batch 1"
    assert result.predicted_step_s > 0
    assert predicted(ROW).assumed == ""


def test_a_plain_mlp_is_four_times_as_wide_where_nobody_says():
    row = {**ROW, "gated_mlp": "false", "ffn_hidden": "", "tied_embeddings": ""}
    assert job_of(row).model.ffn_hidden == 4 * 1024


def test_stages_without_a_layer_are_those_of_the_embedding_and_of_the_loss():
    row = {**BIG, "tp": "1", "pp": "8", "dp": "", "layers": "6", "schedule": "1f1b"}
    plan = job_of(row).plan
    assert (plan.account_for_embedding, plan.account_for_loss) == (True, True)
    assert not job_of({**row, "layers": "8"}).plan.account_for_loss
