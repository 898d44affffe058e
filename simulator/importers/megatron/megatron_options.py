"""Which option of Megatron-LM is which field of a job, and which options cost what?

One table serves importing and exporting: the first spelling is that of Megatron-LM's
command line, with underscores for dashes, and the others are those of Megatron-Core's
configuration, of NeMo and of older releases.

Source: the command line of Megatron-LM (core_r0.12 to 0.16) and its user guide,
Megatron-Bridge 0.3, NeMo 1.23, Megatron-DeepSpeed; as facts on what each option means.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simulator.importers.settings import Cost, Rules

COUNTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model.layers": ("num_layers",),
        "model.hidden": ("hidden_size",),
        "model.heads": ("num_attention_heads",),
        "model.kv_heads": ("num_query_groups", "num_key_value_heads"),
        "model.head_dim": ("kv_channels",),
        "model.ffn_hidden": ("ffn_hidden_size",),
        "model.vocab": ("vocab_size", "padded_vocab_size"),
        "model.max_positions": ("max_position_embeddings",),
        "model.multi_token_layers": ("mtp_num_layers",),
        "model.latent_attention.q_lora_rank": ("q_lora_rank",),
        "model.latent_attention.kv_lora_rank": ("kv_lora_rank",),
        "model.latent_attention.qk_nope_head_dim": ("qk_head_dim",),
        "model.latent_attention.qk_rope_head_dim": ("qk_pos_emb_head_dim",),
        "model.latent_attention.v_head_dim": ("v_head_dim",),
        "model.experts.count": ("num_experts", "num_moe_experts"),
        "model.experts.top_k": ("moe_router_topk",),
        "model.experts.ffn_hidden": ("moe_ffn_hidden_size",),
        "model.experts.groups": ("moe_router_num_groups",),
        "model.experts.top_groups": ("moe_router_group_topk",),
        "model.experts.shared_ffn_hidden": ("moe_shared_expert_intermediate_size",),
        "plan.tp": ("tensor_model_parallel_size", "model_parallel_size"),
        "plan.pp": ("pipeline_model_parallel_size",),
        "plan.cp": ("context_parallel_size",),
        "plan.ep": ("expert_model_parallel_size",),
        "plan.etp": ("expert_tensor_parallel_size",),
        "plan.first_stage_layers": (
            "decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage",
        ),
        "plan.last_stage_layers": (
            "decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage",
        ),
        "batch.micro": ("micro_batch_size",),
        "batch.global": ("global_batch_size",),
        "batch.seq_len": ("seq_length", "encoder_seq_length", "sequence_length"),
    }
)  # fmt: skip
"""Fields that are one whole number, and the options that say it."""

SWITCHES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "plan.sequence_parallel": ("sequence_parallel",),
        "plan.overlap_grad_reduce": ("overlap_grad_reduce", "overlap_grad_sync"),
        "plan.overlap_param_gather": ("overlap_param_gather", "overlap_param_sync"),
        "plan.overlap_tp": ("tp_comm_overlap", "ub_tp_comm_overlap"),
        "plan.overlap_ep": ("overlap_moe_expert_parallel_comm",),
        "plan.account_for_embedding": ("account_for_embedding_in_pipeline_split",),
        "plan.account_for_loss": ("account_for_loss_in_pipeline_split",),
        "model.experts.router_bias": ("moe_router_enable_expert_bias",),
        "model.experts.shared_gate": ("moe_shared_expert_gate",),
    }
)
"""Fields that are true where an option is given, and false where it is not."""

SHARDING: Mapping[str, int] = MappingProxyType(
    {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
)
"""ZeRO stage of each sharding strategy of Megatron-FSDP."""

DISPATCHERS: Mapping[str, str] = MappingProxyType(
    {
        "alltoall": "all_to_all",
        "alltoall_seq": "all_to_all",
        "allgather": "all_gather",
        "flex": "hierarchical",
    }
)
"""Way of tokens to their experts for each ``--moe-token-dispatcher-type``; flex is DeepEP."""

CP_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "p2p": "ring",
        "a2a": "all_to_all",
        "all_gather": "all_gather",
        "a2a+p2p": "all_to_all+ring",
    }
)
"""Way of context parallelism for each ``--cp-comm-type``."""

PIPELINE_BEFORE_DATA = "tp-cp-ep-pp-dp"
"""Rank order of ``--use-tp-pp-dp-mapping``."""

GPT2_VOCABULARY = 50257
"""Entries of GPT-2's byte-pair encoding, which Megatron-LM takes where no other is named."""

TOKENIZER_VOCABULARY: Mapping[str, int] = MappingProxyType(
    {"GPT2BPETokenizer": GPT2_VOCABULARY, "Llama2Tokenizer": 32000}
)
"""Entries of the tokenizers that come in one size."""

RULES = Rules(
    costs=(
        Cost(r"cpu_offloading_weights", "moves weights to the host"),
        Cost(r"cpu_offloading_double_buffering", "keeps two buffers for what comes back"),
        Cost(r"cpu_optimizer|cpu_torch_adam", "moves optimizer states to the host"),
        Cost(
            r"checkpoint_in_cpu|partition_activations|contigious_checkpointing",
            "is an option of DeepSpeed, but the launch line has no --deepspeed",
        ),
        Cost(r"optimizer_offload_.*|offload_optimizer.*", "moves optimizer states to the host"),
        Cost(
            r"fine_grained_activation_offloading|offload_modules|moe_offload.*",
            "moves activations to the host",
        ),
        Cost(
            r"megatron_fsdp_(main_grads|grad_comm)_dtype",
            "changes the format of the optimizer's states",
            ("fp32", "float32", "torch.float32"),
        ),
        Cost(
            r"fp8_param_gather|fp8_param|fp4_param(_gather)?|reuse_grad_buf_for_mxfp8_param_ag",
            "gathers and keeps weights in 8 bits",
        ),
        Cost(r"first_last_layers_bf16", "runs some layers in another format"),
        Cost(r"fp8_dot_product_attention|fp8_multi_head_attention", "runs attention in 8 bits"),
        Cost(r"empty_unused_memory_level", "gives cached memory back, which costs time"),
        Cost(
            r"enable_cuda_graph|external_cuda_graph|cuda_graph_impl|use_cuda_graph|cuda_graphs",
            "takes the host's launches out of the step",
        ),
        Cost(
            r"fsdp|fsdp_double_buffer|(keep_fp8|disable_parameter)_transpose_cache|sharp"
            r"|activation_func_fp8_input_store|symmetric_ar_type",
            "changes what is kept, or how ranks exchange",
        ),
        Cost(r"fp32_residual_connection", "keeps residuals in 32 bits"),
        Cost(r"synchronize_each_layer|profile_backward", "makes every layer wait for the device"),
        Cost(r"delay_wgrad_compute|defer_embedding_wgrad_compute", "moves weight gradients"),
        Cost(
            r"overlap_param_gather_with_optimizer_step|overlap_p2p_comm(unication)?_warmup_flush",
            "hides communication in a way of its own",
        ),
        Cost(r"moe_shared_expert_overlap", "hides communication behind the shared expert"),
        Cost(r"mhc|moe_latent_size", "changes the expert layer"),
        Cost(r"moe_apply_probs_on_input|moe_upcycling.*", "changes the expert layer"),
        Cost(r"fp16_lm_cross_entropy", "computes the loss in 16 bits"),
        Cost(
            r"use_ring_exchange_p2p|hybrid_context_parallel|dynamic_context_parallel",
            "changes how ranks exchange",
        ),
        Cost(r"use_sharp", "changes where ranks lie"),
        Cost(
            r"enable_experimental_attention.*|experimental_attention_variant|linear_attention_freq"
            r"|mla_down_proj_fusion|attention_output_gate|is_hybrid_model|mamba_num_heads",
            "is another network",
        ),
        Cost(r"hybrid_(layer_pattern|override_pattern|attention_ratio|mlp_ratio)", "is a hybrid"),
        Cost(r"mtp_use_repeated_layer", "shares the multi-token layers"),
        Cost(r"(retro|biencoder|vision)_(?!.*dir).*", "is another network"),
        Cost(r"curriculum.*|data_efficiency.*|random_ltd.*|mos|kd", "changes the step over time"),
        Cost(r"deterministic_mode|batch_invariant_mode", "takes slower kernels"),
        Cost(
            r"pipeline_model_parallel_split_rank|encoder_num_layers|decoder_num_layers"
            r"|decoder_seq_length|encoder_.*_parallel_size|standalone_embedding_stage",
            "is for models with an encoder and a decoder",
        ),
        Cost(
            r"transformer_block_type|headscale|parallel_(attn|output_ln)",
            "is another layer",
            ("pre_ln",),
        ),
        Cost(r"apply_residual_connection_post_layernorm|use_post_ln", "is another layer"),
        Cost(r"use_parallel_residual|gpt_j_residual", "is another layer"),
        Cost(r"peft.*|lora.*", "trains adapters instead of the weights"),
        Cost(r"deepspeed_config", "is a file of its own that the script does not write"),
        Cost(
            r"use_tutel|topk_linear.*|mlp_type",
            "is another expert layer",
            ("standard",),
        ),
    ),
    free=(
        # Logs, traces, checkpoints, restarts
        r"(?!.*offload).*(log|tensorboard|wandb|profil|timing|timer|save|load|ckpt|resume).*",
        r"(?!.*offload).*(checkpoint_|straggler|rerun|nsys).*|no_(load|save)_.*|one_logger.*",
        r"app_tag.*|ft_.*|enable_(msc|ft).*|exit_.*|finetune|iter_per_epoch|phase\d?|keep_last",
        r"(no_)?check_for_.*|check_.*|no_check_for_nan.*|generation_config|.*straggler.*",
        # Data, tokenizers, evaluation
        r".*(tokenizer|vocab_file|merge_file|vocab_extra|data_|dataset|dataloader|blend).*",
        r"data|split(s_string)?|mock_data|num_workers|shuffle|eod_mask_loss|skip_.*|drop_last.*",
        r"reset_(position|attention).*|no_mmap_bin_files|no_create_attention_mask.*",
        r"special_tokens.*|legacy_tokenizer|tiktoken.*|(eval|valid|test|task)_?.*|no_weight.*",
        r".*_type_vocab_size|share_.*|label_smooth.*|calculate_per_token_loss",
        # Duration, learning rate, optimizer's numbers
        r"(train|start|sched|warmup|wd|lr|min_lr|decoupled|override|use_checkpoint)_?.*",
        r"weight_decay.*|adam.*|optim_.*|optimizer_.*|sgd_momentum|beta[12]|betas|eps",
        r"muon_.*|(no_)?pin_cpu_(grads|params)",
        r".*loss_scale.*|hysteresis|.*_coeff|.*aux_loss.*|.*z_loss.*|seed.*|random_seed",
        # Numbers of the network without cost
        r".*init.*|.*epsilon|.*eps|rotary.*|rope.*|use_rope_scaling|mscale.*|softmax_scale",
        r"no_rope_freq|beta_(fast|slow)|original_max_position_embeddings|.*_1p|mup_.*|qk_clip_.*",
        r"layernorm_zero_centered.*|.*softmax_in_fp32|attention_type|activation_func_clamp.*",
        r"(no|apply)_query_key_layer_scaling|normalize_attention.*|glu_linear_offset|openai_gelu",
        r"scale_positional_embedding|use_fast",
        r"multi_latent_attention|hidden_act|(model_)?(type|name)|model|hf_model_id|scatter_emb.*",
        # Routers
        r"moe_router_(score|topk_|pre_softmax|bias_update|load_bal|fusion).*",
        r"moe_router_(padding|force).*|moe_(permute_fusion|per_layer_logging|input_jitter_eps)",
        r"moe_(flex_dispatcher_backend|enable_deepep|deepep_num_sms|hybridep_num_sms)",
        r"moe_(token_drop_policy|token_dropping|pad_expert_input_to_capacity|extended_tp)",
        r"moe_(use_legacy_grouped_gemm|router_topk_limited.*)|mtp_(loss|enabled|hybrid|stand).*",
        # Formats' small print
        r"fp[48]_(margin|interval|amax.*|wgrad|hybrid|e4m3|e5m2|quantizer.*|recipe)|no_fp8_.*",
        r"num_layers_at_(start|end)_in_bf16|tp_only_amax_red|quant.*|.*_amp_.*|use_emha",
        r"(params|pipeline|autocast|activation)_dtype.*|enable_autocast|autocast_enabled",
        # Where and how ranks meet
        r"master_(addr|port)|node_rank|rdzv.*|local_rank|.*nccl.*|backend|sync_.*|lazy_mpu_init",
        r"distrib.*|dist_.*|(use_|no_|enable_)?gloo.*|ddp_(impl|backend|average_in_collective)",
        r"average_in_collective|gradient_(as_bucket_view|reduce_div_fusion)|align_(grad|param).*",
        r".*contiguous_((grad|param)_)?buffers?.*|pad_.*|outer_dp_.*|suggested_comm.*|disable_symmetric.*",
        r"fsdp_(sharded|sharding|grad_red|manual|all_gather_in).*|external_gpu.*|high_priority.*",
        r"use_distributed_sampler|use_ring.*|variable_seq_lengths|tensor_parallel_.*",
        # Kernels that the stack decides, and switches that only matter beside others
        r"use_mcore_models|mcore_gpt|megatron_core|transformer_(engine|impl)|use_legacy_models",
        r"(no_)?(masked_softmax_fusion|persist_layer_norm|batch_p2p.*|grad_div_ar_fusion)",
        r"(no_)?(bias_dropout_(add_)?fusion|barrier.*)|apply_rope_fusion|no_contiguous.*",
        r"no_async_tensor_model_parallel_allreduce|cross_entropy_fusion_impl|manual_gc.*",
        r"use_flash_attn.*|use_flash_attention|flash_.*|memory_efficient_layer_norm|use_te.*",
        r"recompute_(num_layers|method)|activations_checkpoint_.*|checkpoint_num_layers|apex.*",
        r"num_micro_?batches_with_partial_activation_checkpoints|tp_comm_.*|ub_.*|cuda_graph_.*",
        r"wgrad_deferral.*|deallocate_pipeline.*|ep_overlap_early.*|delay_.*|gc_interval",
        r"(mamba|linear|dsa|kitchen|inference)_.*|cp_balance.*|min_offloaded_tensor_size",
        r"use_(kitchen|arbitrary|cpu_init).*|kitchen.*|mlp_chunks.*|fallback_to_eager.*|onnx_safe",
        r"enable_megatron_core_experimental|disable_(jit|bf16).*|no_initialization",
        # Objects of Python that a resolved configuration names
        r"_target_|.*\._(target|call|args|partial)_|.*\._name_|.*_func|(pre|post)_process",
        r"finalize_.*|clone_scatter_output.*|parallel_output|config_logger_dir|text_gen.*",
        # Megatron-DeepSpeed
        r"moe_(eval_capacity_factor|min_capacity|loss_coeff)|create_moe_param_group",
        r"deepspeed|no_pipeline_parallel|ds_inference|deepspeed_mpi|memory_centric.*|tile_factor",
    ),
    simplified=MappingProxyType(
        {
            r"rampup_batch_size": "the step simulated is one after the ramp-up",
            r"moe_router_dtype": "the router's format is not modelled",
            r"ddp_(bucket_size|num_buckets)|bucket_(size|cap_mb)|grad_allreduce_chunk_size_mb": (
                "gradients are reduced in the stack's buckets"
            ),
            r"use_torch_optimizer_for_cpu_offload": "CPUs update at the rate of their memory",
            r"fused_residual_rmsnorm|use_transformer_engine_op_fuser": "norms and sums as usual",
        }
    ),
)
"""What becomes of every other option."""
