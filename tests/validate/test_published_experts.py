"""Published runs of models with experts: what their columns and notes say."""

from __future__ import annotations

import pytest

from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.validate.published.published_rows import job_document
from tests.validate.test_row_facts import known_row

ROW = {
    "id": "lab-moe-001", "grade": "A", "model": "deepseekv2-4L", "layers": "4", "hidden": "5120",
    "ffn_hidden": "1536", "heads": "128", "kv_heads": "128", "vocab": "102400",
    "gated_mlp": "true", "tied_embeddings": "false", "experts": "160", "top_k": "6",
    "profile": "b200-sxm-180gb", "gpus": "8", "gpus_per_node": "8", "nics_per_node": "",
    "nic_gbps": "", "fabric": "", "framework": "megatron", "framework_version": "Megatron-LM",
    "tp": "1", "pp": "1", "vpp": "", "cp": "1", "ep": "8", "dp": "8", "zero": "1",
    "zero_group": "", "sequence_parallel": "false", "schedule": "", "micro_batch": "1",
    "global_batch": "32", "seq_len": "4096", "recompute": "none", "precision": "bf16",
    "attention": "flash", "overlap_grad_reduce": "", "overlap_param_gather": "",
    "measured_step_s": "1", "measured_mem_gib": "", "mem_kind": "", "notes": "",
}  # fmt: skip


def job_of(**cells: str) -> Job:
    return job_from_document(job_document({**ROW, **cells}))


def test_a_cut_down_model_keeps_what_its_public_one_says_beyond_the_columns():
    model = job_of().model
    assert model.layers == 4
    assert model.latent_attention is not None
    assert model.ffn_hidden == 12288
    experts = model.experts
    assert experts is not None
    assert (experts.count, experts.top_k, experts.ffn_hidden) == (160, 6, 1536)
    assert (experts.shared_ffn_hidden, experts.first_dense_layers) == (3072, 1)


def test_columns_overrule_the_public_model():
    experts = job_of(experts="64", top_k="4", ffn_hidden="1024").model.experts
    assert experts is not None
    assert (experts.count, experts.top_k, experts.ffn_hidden) == (64, 4, 1024)


def test_a_model_that_nobody_named_has_experts_of_the_stated_width():
    model = job_of(model="lab-moe", ffn_hidden="2048").model
    assert (model.ffn_hidden, model.latent_attention) == (2048, None)
    assert model.experts is not None
    assert model.experts.ffn_hidden == 2048


@pytest.mark.parametrize(
    ("notes", "is_fused"),
    [("", False), ("DeepEP; permute fusion", True), ("no permute fusion", False)],
)
def test_notes_say_whether_tokens_are_sorted_by_fused_kernels(notes: str, is_fused: bool):
    assert job_of(notes=notes).plan.stack.fused_permutation is is_fused


@pytest.mark.parametrize(
    ("notes", "factor"),
    [
        ("", None),
        ("capacity factor 1 padded", 1.0),
        ("dropped at capacity_factor=1.25", 1.25),
        ("capacity_factor -1", None),
        ("variant (tokendrop)", 1.0),
    ],
)
def test_notes_say_whether_experts_have_a_capacity(notes: str, factor: float | None):
    experts = job_of(notes=notes).model.experts
    assert experts is not None
    assert experts.capacity_factor == factor


@pytest.mark.parametrize(("notes", "modules"), [("variant (w/o MTP)", 0), ("variant (w/ MTP)", 1)])
def test_further_tokens_are_predicted_only_where_the_notes_say_so(notes: str, modules: int):
    job = job_of(model="deepseek-v3", layers="61", notes=notes)
    assert job.model.multi_token_layers == modules


@pytest.mark.parametrize(
    ("version", "notes", "etp"),
    [
        ("NeMo 25.02 (Megatron-Core)", "", 4),
        ("Megatron-Core/NeMo 25.09", "", 1),
        ("Megatron-Core/NeMo 25.09", "TP 4, ETP 2", 2),
        ("Megatron-LM core_v0.16.1", "", 4),
        ("Megatron-LM core_v0.16.1", "ETP 1", 1),
    ],
)
def test_older_recipes_and_megatron_lm_split_experts_like_the_layer(
    version: str, notes: str, etp: int
):
    cells = {"tp": "4", "dp": "8", "gpus": "32", "sequence_parallel": "true"}
    job = job_of(framework_version=version, notes=notes, **cells)
    assert job.plan.expert_tp == etp


BRIDGE = "Megatron-Bridge performance summary, container 25.11"


@pytest.mark.parametrize(
    ("cells", "counts"),
    [
        ({"pp": "16"}, (*[4] * 15, 1)),
        ({"pp": "4", "vpp": "4"}, (*[4] * 15, 1)),
        ({"pp": "2", "vpp": "4"}, (*[8] * 7, 5)),
        ({"pp": "8", "vpp": "4"}, (1, *[2] * 30, 0)),
    ],
)
@pytest.mark.parametrize(("notes", "modules"), [("variant (w/o MTP)", 0), ("dropless", 1)])
def test_recipes_of_megatron_bridge_lay_deepseek_v3_out(
    cells: dict[str, str], counts: tuple[int, ...], notes: str, modules: int
):
    row = {
        **ROW, "source": BRIDGE, "model": "deepseek-v3", "layers": "61", "gpus": "128",
        "notes": notes, "ep": "8", "dp": str(128 // int(cells["pp"])), "global_batch": "512",
    }  # fmt: skip
    job = job_from_document(job_document(known_row({**row, **cells})))
    assert job.plan.layout == counts
    assert sum(counts) == job.model.layers
    assert job.model.multi_token_layers == modules


@pytest.mark.parametrize(
    ("notes", "dispatch"),
    [
        ("", "all_to_all"),
        ("router force-balanced; HybridEP dispatcher", "hierarchical"),
        ("DeepEP; a2a overlap on", "hierarchical"),
        ("variant (tokendrop); HybridEP dispatcher", "all_to_all"),
    ],
)
def test_notes_say_how_tokens_travel(notes: str, dispatch: str):
    assert job_of(notes=notes).plan.ep_dispatch == dispatch


@pytest.mark.parametrize(("notes", "kernels"), [("DeepEP", "deepep"), ("HybridEP", "hybridep")])
def test_notes_say_whose_kernels_pass_tokens(notes: str, kernels: str):
    assert job_of(notes=notes).plan.stack.expert_exchange == kernels


@pytest.mark.parametrize(
    ("notes", "is_beside"),
    [
        ("alltoall dispatcher, shared expert overlap", True),
        ("moe_shared_expert_overlap", True),
        ("no shared expert overlap", False),
    ],
)
def test_notes_say_whether_the_shared_expert_hides_exchanges(notes: str, is_beside: bool):
    job = job_of(notes=notes, model="deepseek-v2-lite")
    assert job.plan.overlap_shared_expert == is_beside


@pytest.mark.parametrize(
    ("notes", "is_overlapped"),
    [
        ("HybridEP", False),
        ("DeepEP; a2a overlap on", True),
        ("HybridEP; expert communication overlapped", True),
    ],
)
def test_notes_say_whether_exchanges_of_experts_are_hidden(notes: str, is_overlapped: bool):
    assert bool(job_of(notes=notes).plan.overlap_ep) == is_overlapped


@pytest.mark.parametrize(
    ("notes", "dense", "width", "shared"),
    [
        ("MLA; 1 dense layer (ffn 18432), rest MoE with shared experts (2048)", 1, 18432, 2048),
        ("first 3 layers dense ffn 18432; 1 shared expert 2048", 3, 18432, 2048),
        ("first layer dense ffn 10944", 1, 10944, 3072),
    ],
)
def test_the_row_says_which_layers_are_dense_whatever_its_public_model_has(
    notes: str, dense: int, width: int, shared: int
):
    model = job_of(notes=notes).model
    assert model.experts is not None
    assert (model.experts.first_dense_layers, model.ffn_hidden) == (dense, width)
    assert model.experts.shared_ffn_hidden == shared


def test_dense_layers_may_lie_between_those_with_experts():
    notes = "MoE every 2nd layer, dense ffn 16384, shared expert"
    model = job_of(model="lab-moe", notes=notes).model
    assert model.experts is not None
    assert (model.experts.every, model.ffn_hidden) == (2, 16384)
