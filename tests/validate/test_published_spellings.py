"""Rows of other tables say the same in other words, and are the same jobs."""

from __future__ import annotations

import pytest

from simulator.described.load import job_from_document
from simulator.validate.published.published_models import assumptions, known_model
from simulator.validate.published.published_rows import job_document
from simulator.validate.published.published_runs import predicted
from tests.validate.test_published import ROW

BIG = {**ROW, "gpus": "64", "dp": "16", "global_batch": "64"}
MOE = {**BIG, "experts": "8", "top_k": "2", "ffn_hidden": "2048", "ep": "4"}


def job_of(row):
    return job_from_document(job_document(row))


def fields_of(row):
    return job_of(row).model_dump()


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


def test_a_run_of_maxtext_that_does_not_say_has_the_defaults_of_its_base_yml():
    row = {**BIG, "framework": "MaxText", "global_batch": "256", "micro_batch": "", "tp": "2",
           "dp": "32", "recompute": "", "schedule": "", "pp": "1", "vpp": ""}  # fmt: skip
    job = job_of(row)
    assert (job.plan.recompute, job.batch.micro_batch) == ("full", 8)
    assert predicted(row).assumed == ""
    stated = job_of({**row, "micro_batch": "4", "recompute": "none"})
    assert (stated.plan.recompute, stated.batch.micro_batch) == ("none", 4)


def test_products_of_8_bit_integers_are_those_of_a_tpu_and_of_no_gpu():
    row = {**ROW, "framework": "MaxText", "precision": "int8"}
    on_tpu = {**row, "profile": "tpu-v5p", "gpus_per_node": ""}
    half = {**on_tpu, "precision": "bf16"}
    assert predicted(on_tpu).predicted_step_s < predicted(half).predicted_step_s
    assert "has no int8 matrix unit" in predicted(row).skipped


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


def test_experts_with_tensor_parallelism_cut_the_sequence_where_a_row_does_not_say():
    job = job_of({**MOE, "framework": "FSDP2", "sequence_parallel": ""})
    assert job.plan.cuts_sequence


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


@pytest.mark.parametrize("notes", ["head_dim 128", "16 heads of 128"])
def test_a_head_size_in_the_notes_is_not_hidden_over_heads(notes: str):
    assert job_of({**ROW, "notes": notes}).model.head_dim == 128


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
    ("framework", "sharding"),
    [("torch fsdp", (3, False)), ("torch FSDP2", (3, False)), ("Megatron FSDP", (2, None)),
     ("DeepSpeed", (2, None))],
)  # fmt: skip
def test_stage_2_of_fsdp_shards_parameters_too_and_gathers_them_once(framework, sharding):
    row = {**ROW, "framework": framework, "zero": "2", "pp": "1", "dp": "4", "schedule": ""}
    plan = job_of(row).plan
    assert (plan.zero, plan.reshard_after_forward) == sharding
    assert job_of({**row, "zero": "3"}).plan.reshard_after_forward is None


def test_notes_may_say_that_whole_gradients_are_summed_and_in_what():
    plan = job_of({**ROW, "notes": "gradients stay unsharded in fp32"}).plan
    assert plan.stack.sums_unsharded
    assert plan.grad_reduce_precision == "fp32"


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


@pytest.mark.parametrize(
    ("framework", "version", "zero"),
    [("FSDP", "PyTorch 2.1", 3), ("torchtitan", "", 3), ("PyTorch DDP", "", 0),
     ("Megatron-LM", "v2.5", 0), ("NeMo", "24.05", 1)],
)  # fmt: skip
def test_what_is_sharded_by_default_is_a_matter_of_the_framework(framework, version, zero):
    row = {**ROW, "framework": framework, "framework_version": version, "zero": "", "pp": "1",
           "dp": "4", "schedule": ""}  # fmt: skip
    assert job_of(row).plan.zero == zero


def test_parameters_are_not_taken_as_sharded_inside_a_pipeline():
    row = {**ROW, "framework": "Alpa", "framework_version": "", "zero": ""}
    assert job_of(row).plan.zero == 1


def test_bf16_gradients_of_old_megatron_are_added_up_in_fp32():
    old = {**ROW, "framework_version": "Megatron-LM 2021"}
    assert job_of({**old, "precision": "bf16"}).plan.stack.main_grad_precision == "fp32"
    assert job_of({**old, "precision": "fp16"}).plan.stack.main_grad_precision == "fp16"


def test_ulysses_is_how_deepspeed_divides_a_context():
    row = {**ROW, "framework": "DeepSpeed", "framework_version": "0.14", "cp": "2", "pp": "1",
           "schedule": "", "attention": "", "dp": ""}  # fmt: skip
    plan = job_of(row).plan
    assert (plan.cp_method, plan.attention) == ("all_to_all", "flash")


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
        ("adafactor", "plan.optimizer", "adafactor"),
        ("8-bit AdamW", "plan.optimizer", "adam-8bit"),
        ("no dropout", "plan.stack.dropout", False),
        ("torchtitan's ChunkedCELoss", "plan.cross_entropy", "chunked-head"),
        ("use_reentrant False", "plan.stack.recompute_stops_early", True),
        ("checkpointing without reentrant autograd", "plan.stack.recompute_stops_early", True),
        ("non-reentrant checkpoints", "plan.stack.recompute_stops_early", True),
        ("reentrant checkpoints", "plan.stack.recompute_stops_early", False),
        ("use_reentrant: true", "plan.stack.recompute_stops_early", False),
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


def test_stages_without_a_layer_are_those_of_the_embedding_and_of_the_loss():
    row = {**BIG, "tp": "1", "pp": "8", "dp": "", "layers": "6", "schedule": "1f1b"}
    plan = job_of(row).plan
    assert (plan.account_for_embedding, plan.account_for_loss) == (True, True)
    assert not job_of({**row, "layers": "8"}).plan.account_for_loss


def test_deterministic_kernels_are_read_from_the_notes():
    assert fields_of({**ROW, "notes": "deterministic kernels"})["plan"]["deterministic"] is True


@pytest.mark.parametrize(
    ("notes", "graphs"),
    [
        ("CUDA graphs", "layer"),
        ("full-iteration CUDA graphs", "full"),
        ("without CUDA graphs", "none"),
        ("", "none"),
    ],
)
def test_cuda_graphs_are_read_from_the_notes(notes, graphs):
    assert fields_of({**ROW, "notes": notes})["plan"]["cuda_graphs"] == graphs


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


TORCH = {**ROW, "framework": "torch ddp", "framework_version": "PyTorch 2.1", "tp": "1", "pp": "1",
         "dp": "8", "zero": "0", "schedule": "", "sequence_parallel": "false"}  # fmt: skip


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


def test_block_recomputation_repeats_as_many_layers_as_megatron_is_told():
    method = "recompute_method {}, recompute_num_layers 1"
    block = {**ROW, "recompute": "full", "notes": method.format("block")}
    assert job_of(block).plan.recompute_layers == 1
    assert job_of({**block, "notes": method.format("uniform")}).plan.recompute_layers is None


def test_main_gradients_in_bf16_are_reduced_in_bf16():
    plan = job_of({**ROW, "notes": "bf16 main gradients and moments"}).plan
    assert plan.stack.main_grad_precision == plan.grad_reduce_precision == "bf16"
    assert (plan.moment_precision, job_of(ROW).plan.moment_precision) == ("bf16", None)


def test_no_fused_attention_reads_32_bit_numbers_so_a_framework_takes_another():
    asked = {**TORCH, "precision": "fp32", "attention": "flash attention 2"}
    assert job_of(asked).plan.attention_kernel == "unfused"
    assert job_of({**asked, "precision": "bf16"}).plan.attention_kernel == "flash"


def test_pytorch_takes_memory_efficient_attention_for_32_bit_numbers():
    asked = {**TORCH, "precision": "fp32", "attention": "flash", "framework_version": "PyTorch 2.3"}
    assert job_of(asked).choices.flash_kernel == "efficient"


@pytest.mark.parametrize(
    ("cells", "precision"),
    [
        ({}, "tf32"),
        ({"profile": "V100-SXM3-32GB", "attention": "unfused"}, "fp32"),
        ({"profile": "MI300X"}, "fp32"),
        ({"framework": "torch ddp", "framework_version": "PyTorch 2.1"}, "fp32"),
    ],
    ids=str,
)
def test_megatron_in_nvidias_container_multiplies_32_bit_numbers_in_tf32(cells, precision):
    row = {**ROW, "precision": "fp32", "attention": "unfused", **cells}
    assert job_document(row)["plan"]["precision"] == precision


@pytest.mark.parametrize(("zero", "overlaps"), [("1", False), ("2", False), ("3", True)])
def test_deepspeed_reduces_after_backward_below_zero_3_unless_a_row_says_otherwise(zero, overlaps):
    row = {**TORCH, "framework": "DeepSpeed", "zero": zero, "micro_batch": "1"}
    assert job_of(row).choices.overlaps_reduction is overlaps
    assert job_of({**row, "overlap_grad_reduce": "yes"}).choices.overlaps_reduction
    assert not job_of({**row, "overlap_grad_reduce": "no"}).choices.overlaps_reduction


def test_a_run_that_ran_recomputed_what_would_not_have_fitted():
    large = {**TORCH, "layers": "32", "hidden": "4096", "ffn_hidden": "16384", "heads": "32",
             "kv_heads": "32", "zero": "3", "framework": "FSDP", "micro_batch": "4",
             "global_batch": "32", "seq_len": "4096", "recompute": ""}  # fmt: skip
    unsaid, stated = predicted(large), predicted({**large, "recompute": "full"})
    assert unsaid.predicted_step_s == stated.predicted_step_s
    assert (unsaid.assumed, stated.assumed) == ("recompute full", "")
    kept = predicted({**large, "recompute": "none"})
    assert kept.predicted_step_s < unsaid.predicted_step_s
    assert not kept.fits
    small = predicted({**large, "seq_len": "128"})
    assert (small.assumed, small.fits) == ("", True)


@pytest.mark.parametrize(
    ("said", "repeats"), [("", True), ("sdpa", True), ("flash", "unfused"), ("eager", True)]
)
def test_the_package_flash_attn_takes_grouped_heads_which_pytorchs_attention_did_not(said, repeats):
    version = "transformers 4.48, PyTorch 2.5"
    row = {**TORCH, "framework": "hf trainer", "framework_version": version, "attention": said}
    assert job_of(row).plan.stack.repeats_kv_heads == repeats
