"""Tensors that stand in for gradients which products added up already."""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.program.grid.stage_layers import Slice
from simulator.program.ir import Owner
from simulator.program.states.placeholder_gradients import (
    head_placeholder,
    placeholder_gradient_bytes,
)
from simulator.results.simulation import run_step

LLAMA_405B_4L = {"base": "llama3.1-405b", "layers": 4}
GIB = 2.0**30


def a_job(model, **plan):
    return job_from_document(
        {
            "model": model,
            "cluster": {"profile": "b200-sxm-180gb", "gpus": 8},
            "batch": {"global": 32, "micro": 1, "seq_len": 4096},
            "plan": plan,
        }
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_each_shape_of_a_weight_has_one_however_many_layers_have_it(tp):
    """Queries with 8 key and value heads, their output, gate with up, and down, in bf16."""
    h, width, kv = 16384, 53248, 1024
    numel = (h + 2 * kv) * h + h * h + 2 * width * h + width * h
    job = a_job(LLAMA_405B_4L, tp=tp)
    assert placeholder_gradient_bytes(job, [Slice(0, 4)]) == 2 * numel / tp
    assert placeholder_gradient_bytes(job, [Slice(0, 1), Slice(1, 2)]) == 2 * numel / tp


def test_matrices_of_one_shape_share_one():
    """Queries, keys and values together are 3h x h; the output is as large as the gate."""
    model = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 512, "vocab": 1000,
             "gated_mlp": False}  # fmt: skip
    assert placeholder_gradient_bytes(a_job(model), [Slice(0, 2)]) == 2 * (3 + 1) * 512 * 512


def test_experts_of_a_layer_share_theirs():
    """Two latent down-projections and two up, the output, dense and shared MLP, one expert."""
    model = {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 512, "vocab": 1000,
             "gated_mlp": True}  # fmt: skip
    dense = placeholder_gradient_bytes(a_job(model), [Slice(0, 2)])
    experts = {"count": 16, "top_k": 2, "ffn_hidden": 128, "first_dense_layers": 1}
    job = a_job({**model, "experts": experts}, ep=8)
    one_expert = 2 * (2 * 128 * 512 + 128 * 512)
    assert placeholder_gradient_bytes(job, [Slice(0, 2)]) == dense + one_expert


def test_the_output_matrix_has_one_while_its_backward_runs():
    job = a_job(LLAMA_405B_4L, tp=2)
    assert head_placeholder(job) == ((Owner.PLACEHOLDER_GRADIENTS, 128256 * 16384),)
    tied = a_job({**LLAMA_405B_4L, "tied_embeddings": True}, tp=2)
    assert head_placeholder(tied) == ()


@pytest.mark.parametrize(
    "stack", [{"base": "torchtitan"}, {"base": "megatron-core", "fused_accumulation": False}]
)
def test_without_fused_accumulation_gradients_are_what_autograd_sees(stack):
    job = a_job(LLAMA_405B_4L, stack=stack)
    assert placeholder_gradient_bytes(job, [Slice(0, 4)]) == 0.0
    assert head_placeholder(job) == ()


def test_published_peaks_of_cut_models_hold_them():
    """SimuMax, B200 release 1.2: allocated on each of 8 GPUs, 4 layers of Llama 3 405B."""
    for plan, published in (({"pp": 2}, 87.08), ({"tp": 2}, 81.59), ({"tp": 4}, 52.89)):
        stack = {"base": "megatron-core", "cross_entropy": "fused"}
        step = run_step(a_job(LLAMA_405B_4L, stack=stack, **plan), "replay")
        assert step.peak_allocated_bytes / GIB == pytest.approx(published, rel=0.02)
