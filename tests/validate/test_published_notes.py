"""What do the notes of a published run say of its job?"""

from __future__ import annotations

import pytest

from simulator.validate.published.published_models import assumptions
from simulator.validate.published.published_rows import job_document
from tests.validate.published_jobs import BIG, MOE, ROW, TORCH, fields_of, job_of


def test_phrases_on_experts_do_not_concern_a_dense_model():
    notes = "capacity factor 1.0; DeepEP; a2a overlap on"
    assert fields_of({**BIG, "notes": notes}) == fields_of(BIG)
    assert job_of({**MOE, "notes": "capacity factor 1.0"}).model.experts.capacity_factor == 1.0


def test_dense_and_shared_widths_of_an_unknown_model_are_in_its_notes():
    notes = "first 3 layers dense ffn 8192; 2 shared experts 2048; MLA q_lora 1536 kv_lora 512"
    model = job_of({**MOE, "notes": notes, "kv_heads": ""}).model
    assert (model.ffn_hidden, model.experts.first_dense_layers) == (8192, 3)
    assert model.experts.shared_ffn_hidden == 2 * 2048
    assert model.latent_attention.kv_lora_rank == 512


@pytest.mark.parametrize(
    ("notes", "window"),
    [
        ("sliding window of 1024", (1024, 1)),
        ("sliding window of 128 tokens in every second layer", (128, 2)),
        ("no window", (0, 1)),
    ],
)
def test_notes_may_state_a_sliding_window(notes: str, window: tuple[int, int]):
    model = job_of({**ROW, "notes": notes}).model
    assert (model.sliding_window, model.sliding_window_every) == window


@pytest.mark.parametrize("notes", ["bf16 moments, no masters", "without fp32 master weights"])
def test_notes_may_say_that_there_are_no_master_weights(notes: str):
    assert job_of({**ROW, "notes": notes}).plan.master_weights is False
    assert job_of({**ROW, "notes": "master weights in fp32"}).plan.master_weights is not False


def test_shard_grad_op_shards_parameters_too_and_keeps_them_from_forward_to_backward():
    """PyTorch's ShardingStrategy, which the importers read so, too."""
    plan = job_of({**ROW, "zero": "2", "notes": "FSDP SHARD_GRAD_OP (ZeRO-2)"}).plan
    assert (plan.zero, plan.reshard_after_forward) == (3, False)


def test_ligers_kernels_stand_in_layers_that_autocast_casts_in():
    degrees = {"tp": "1", "pp": "1", "dp": "8", "zero": "0", "sequence_parallel": ""}
    row = {**ROW, **degrees, "framework": "trl", "framework_version": "transformers 4.57"}
    plans = [job_of({**row, "notes": notes}).plan for notes in ("", "Liger kernels")]
    assert [plan.stack.fused_elementwise for plan in plans] == [False, True]
    assert all(plan.autocasts and plan.saves_cast_weights for plan in plans)
    compiled = job_of({**row, "notes": "torch.compile"}).plan
    assert not compiled.autocasts


@pytest.mark.parametrize(
    ("notes", "frees"),
    [("reshard_after_forward never", False), ("reshard_after_forward=True", True)],
)
def test_notes_may_say_whether_parameters_are_freed_after_forward(notes: str, frees: bool):
    assert job_of({**ROW, "zero": "3", "notes": notes}).plan.reshard_after_forward is frees
    assert job_of({**ROW, "zero": "1", "notes": notes}).plan.reshard_after_forward is None


@pytest.mark.parametrize(
    ("notes", "field", "value"),
    [
        ("Squared ReLU", "model.activation", "squared-relu"),
        ("Ulysses", "plan.cp_method", "all_to_all"),
        ("CP with all-gather", "plan.cp_method", "all_gather"),
        ("DP/TP/PP comm overlap on", "plan.overlap_tp", True),
        ("TP/PP comm overlap on", "plan.overlap_tp", True),
        ("Synchronous p2p", "plan.overlap_p2p", False),
        ("asynchronous p2p", "plan.overlap_p2p", None),
        ("gradient all-reduce not overlapped", "plan.overlap_grad_reduce", False),
        ("a2a not overlapped", "plan.overlap_grad_reduce", None),
        ("bf16 gradient all-reduce", "plan.grad_reduce_precision", "bf16"),
        ("bf16 mixed precision, fp32 gradients; DDP", "plan.grad_reduce_precision", "fp32"),
        ("gradients are kept in fp32", "plan.grad_reduce_precision", "fp32"),
        ("reduce_dtype=float32", "plan.grad_reduce_precision", "fp32"),
        ("gradients reduced in bf16", "plan.grad_reduce_precision", "bf16"),
        ("weights, gradients and AdamW states in bf16", "plan.master_weights", False),
        ("bf16 weights and optimizer states", "plan.master_weights", False),
        ("AdamW foreach, gradients clipped", "plan.optimizer_kernels", "foreach"),
        ("SwiGLU, no biases", "model.mlp_bias", False),
        ("no bias of query, key and value", "model.mlp_bias", None),
        ("fp32 grad accumulation", "plan.grad_reduce_precision", "bf16"),
        ("fp8 rowwise", "plan.stack.float8_scaling", "rows"),
        ("precision: FP8-CS", "plan.stack.float8_scaling", "tensor"),
        ("fp8 hybrid with delayed scaling", "plan.stack.float8_scaling", "delayed"),
        ("tensorwise with float8 all-gather", "plan.stack.casts_weights_each_pass", False),
        ("float8 tensorwise, no float8 all-gather", "plan.stack.casts_weights_each_pass", None),
        ("eager attention", "plan.stack.fused_elementwise", None),
        ("deterministic kernels (no grad-accum fusion)", "plan.stack.fused_accumulation", False),
        ("remat_policy custom", "plan.stack.selective_policy", "all-but-projections"),
        ("remat_policy custom", "plan.offload.activations", "cpu"),
        ("remat_policy: minimal_offloaded", "plan.offload.activations", "cpu"),
        ("remat save_dot_except_mlp", "plan.offload.activations", None),
        ("remat save_dot_except_mlp", "plan.stack.selective_policy", "all-but-projections"),
        ("remat_policy qkv_proj_offloaded", "plan.stack.named_outputs", ["query", "key", "value"]),
        (
            "remat_policy minimal, tp 4",
            "plan.stack.named_outputs",
            ["query", "key", "value", "output", "gate", "up"],
        ),
        (
            "remat_policy minimal_flash",
            "plan.stack.named_outputs",
            ["query", "key", "value", "context", "output", "gate", "up"],
        ),
        ("FP8 hybrid, FP8 parameters", "plan.stack.gathers_casted", True),
        ("gradient checkpointing offloaded", "plan.offload.activations", "cpu"),
        ("recompute mlp + core_attn", "plan.recompute_modules", ["mlp", "core_attn"]),
        ("recompute layernorm and the whole MoE", "plan.recompute_modules", ["layernorm", "moe"]),
        ("no recompute in preset", "plan.recompute_modules", None),
        ("selective AC every other layer", "plan.recompute_layers", 2),
        ("AC of every 4th layer", "plan.recompute", "full"),
        ("ZeRO-2; offload: optimizer", "plan.offload.optimizer", "cpu"),
        ("offload: optimizer, parameters", "plan.offload.parameters", "cpu"),
        ("optimizer states CPU offload", "plan.offload.optimizer", "cpu"),
        ("ZeRO-3, no offload", "plan.offload", None),
        ("ZeRO-2, overlap_comm", "plan.overlap_grad_reduce", True),
        ("overlap_comm false", "plan.overlap_grad_reduce", False),
        ("no overlap flags", "plan.overlap_param_gather", False),
        ("CUDA graph of the step", "plan.cuda_graphs", "full"),
        ("FULL_CUDA_GRAPH=1", "plan.cuda_graphs", "full"),
        ("no sequence parallelism", "plan.sequence_parallel", False),
        ("TP overlap off", "plan.overlap_tp", False),
        ("TP_COMM_OVERLAP=1", "plan.overlap_tp", True),
        ("apex FusedAdam", "plan.optimizer_kernels", "fused"),
        ("AdamW fused", "plan.optimizer_kernels", "fused"),
        ("AdamW, foreach=False", "plan.optimizer_kernels", "for-loop"),
        ("own AdamW, an operator at a time", "plan.optimizer_kernels", "for-loop"),
        ("own GPT, AdamW", "plan.optimizer_kernels", "foreach"),
        ("own code, AdamW fused", "plan.optimizer_kernels", "fused"),
        ("own code like nanoGPT", "plan.optimizer_kernels", None),
        ("own GPT; DeepSpeed", "plan.optimizer_kernels", None),
        ("own code; optimizer Muon", "plan.optimizer_kernels", None),
        ("adafactor", "plan.optimizer", "adafactor"),
        ("8-bit AdamW", "plan.optimizer", "adam-8bit"),
        ("no dropout", "plan.stack.dropout", False),
        ("torchtitan's ChunkedCELoss", "plan.cross_entropy", "chunked-head"),
        ("use_reentrant False", "plan.stack.recompute_stops_early", True),
        ("checkpointing without reentrant autograd", "plan.stack.recompute_stops_early", True),
        ("non-reentrant checkpoints", "plan.stack.recompute_stops_early", True),
        ("reentrant checkpoints", "plan.stack.recompute_stops_early", False),
        ("use_reentrant: true", "plan.stack.recompute_stops_early", False),
        ("head_dim 128", "model.head_dim", 128),
        ("16 heads of 128", "model.head_dim", 128),
        ("deterministic kernels", "plan.deterministic", True),
        ("CUDA graphs", "plan.cuda_graphs", "layer"),
        ("CUDA graphs of router and preprocessing", "plan.cuda_graphs", "router"),
        ("full-iteration CUDA graphs", "plan.cuda_graphs", "full"),
        ("full-iteration CUDA graphs", "plan.stack.grouped_experts", True),
        ("CUDA graph of the step", "plan.stack.grouped_experts", None),
        ("without CUDA graphs", "plan.cuda_graphs", None),
        ("", "plan.cuda_graphs", None),
        ("recompute_method block, recompute_num_layers 1", "plan.recompute_layers", 1),
        ("recompute_method uniform, recompute_num_layers 1", "plan.recompute_layers", None),
        ("bf16 main gradients and moments", "plan.stack.main_grad_precision", "bf16"),
        ("bf16 main gradients and moments", "plan.grad_reduce_precision", "bf16"),
        ("bf16 main gradients and moments", "plan.moment_precision", "bf16"),
        ("", "plan.moment_precision", None),
        ("gradients stay unsharded in fp32", "plan.stack.sums_unsharded", True),
        ("gradients stay unsharded in fp32", "plan.grad_reduce_precision", "fp32"),
    ],
)
def test_phrases_of_notes_are_read_in_other_words(notes, field, value):
    node = job_document({**ROW, "notes": notes})
    for name in field.split("."):
        node = node.get(name) if isinstance(node, dict) else None
    assert node == value


@pytest.mark.parametrize(
    ("notes", "tokens"),
    [
        ("short documents packed, attention inside each", 2048),
        ("packing to max_length, attention within each document (cu_seqlens)", 2048),
        ("documents of about 2-8K tokens, attention within each", 4096),
        ("documents of about 9K tokens", 8192),
        ("packed to 8192 tokens", None),
    ],
)
def test_packed_documents_that_see_themselves_alone_are_no_longer_than_a_sequence(notes, tokens):
    batch = job_document({**ROW, "seq_len": "8192", "notes": notes})["batch"]
    assert batch.get("document_len") == tokens


def test_documents_whose_length_nobody_states_are_assumed_to_be_as_long_as_answers_are():
    said = "packing of documents, attention within each"
    assert "documents of 2048 tokens" in list(assumptions({**ROW, "notes": said}))
    stated = {**ROW, "notes": f"documents of about 1K tokens; {said}"}
    assert not any("documents" in assumed for assumed in assumptions(stated))


@pytest.mark.parametrize(
    ("notes", "counts"),
    [
        ("fp8, first and last layer in bf16", (1, 1)),
        ("Llama 3.1 8B; last 4 layers in bf16", (0, 4)),
        ("first 2 layers are kept in bf16", (2, 0)),
        ("gradients of the last layer reduced in bf16", (0, 0)),
    ],
)
def test_layers_that_stay_in_bf16_are_read_where_the_others_are_narrower(notes, counts):
    plan = job_of({**ROW, "precision": "fp8", "notes": notes}).plan
    assert (plan.first_bf16_layers, plan.last_bf16_layers) == counts
    wide = job_of({**ROW, "precision": "bf16", "notes": notes}).plan
    assert (wide.first_bf16_layers, wide.last_bf16_layers) == (0, 0)


def test_a_list_of_fused_kernels_says_which_are_fused():
    notes = "fused SwiGLU, RMSNorm, rotary and cross-entropy kernels; flash attention 2"
    plan = job_of({**TORCH, "notes": notes}).plan
    stack = plan.stack
    assert (plan.loss_kernel, stack.flash_kernel) == ("fused", "flash-2")
    assert (stack.fused_rmsnorm, stack.fused_rotary, stack.fused_elementwise) == (True, True, True)
    bare = job_of(TORCH).plan
    assert (bare.loss_kernel, bare.stack.flash_kernel) == ("eager", "flash-1")
    assert not bare.stack.fused_rmsnorm


@pytest.mark.parametrize(
    "notes", ["fused RMSNorm flag as in table", "fused AdamW", "fused linear cross-entropy"]
)
def test_words_near_those_of_fused_kernels_fuse_nothing(notes):
    plan, bare = job_of({**TORCH, "notes": notes}).plan, job_of(TORCH).plan
    assert plan.loss_kernel == bare.loss_kernel
    assert plan.stack == bare.stack
