"""What does each training framework do when it is left to its defaults?

A :class:`Stack` holds *facts* of one framework generation: what it overlaps, fuses, stores and
launches. It holds no factor that makes predictions fit. The known ones are in
:mod:`simulator.described.plan.shipped_stacks`.

A plan names a stack, or starts from one and changes facts in place::

    plan: {stack: {base: torchtitan, fused_rmsnorm: false}}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.described.base import Bytes, Flag, PositiveFraction, Seconds, ZeroStage
from simulator.described.cluster.kernel_parameters import AttentionKernel
from simulator.described.plan.expert_facts import ExpertFacts
from simulator.described.plan.narrow_product_facts import NarrowProductFacts
from simulator.described.plan.stack_options import (
    AdaptedModels,
    CrossEntropy,
    FusedAttention,
    GradientScaling,
    GradPrecision,
    MaskedModels,
    ModelParallelism,
    NamedOutput,
    Offloading,
    RepeatedHeads,
    SelectivePolicy,
    ShardingUnits,
    UnevenLayers,
)

_LARGE_SEGMENT_BYTES = 20 * 2.0**20
"""Segments that medium blocks are cut from; those are always cut."""


class Stack(NarrowProductFacts, ExpertFacts):
    """Defaults and kernels of one framework generation."""

    description: str
    """What it is, and the versions it stands for."""
    model_parallelism: ModelParallelism = "all"
    """What it splits of a model; a plan may ask for more, and searches do not."""
    zero: ZeroStage = 1
    """What data-parallel ranks shard where the plan does not say."""
    sequence_parallel: Flag = True
    """Default when tp > 1."""
    overlap_grad_reduce: Flag = True
    """Gradient reduction starts during the last backward."""
    overlap_shard_reduce: Flag = False
    """Under ZeRO 3 it does, even where ``overlap_grad_reduce`` says that ZeRO 1 and 2 wait."""
    overlap_param_gather: Flag = True
    """Sharded parameters are gathered during forward."""
    prefetches_weights: Flag = False
    """Under ZeRO 3 they are, even where ``overlap_param_gather`` says that ZeRO 1 and 2 wait."""
    overlap_p2p: Flag = True
    """Pipeline transfers run beside computation."""
    overlap_tp_backward: Flag = True
    """Without ``plan.overlap_tp``, the collective of an input gradient still hides behind the
    weight gradient."""
    post_validation: Flag = False
    """Schedules with a split backward update without waiting for the gradient norm of all
    stages, and check afterwards."""
    keeps_graph_for_weights: Flag = False
    """A split backward keeps all activations until the weight gradient (PyTorch's pipelines,
    which retain the autograd graph); else the input gradient leaves inputs and output
    gradients of products with weights, and frees the rest."""
    buffers_every_microbatch: Flag = False
    """Pipeline stages have receive buffers for every microbatch of a step, and keep what they
    sent until its backward (PyTorch's pipelines); else receives are posted one pass ahead and
    outputs freed once sent (Megatron's)."""
    forward_host_s: Seconds = 0.0
    """Host time before the first kernel of a forward that the device waits for, where the
    framework reads sizes of the batch back from the device there, and so cannot launch ahead
    (Megatron's ``broadcast_data``, on every stage until late 2023): batch, masks, Python."""
    step_host_s: Seconds = 0.0
    """Host time after every update that the device waits for, where the framework waits for the
    device, too: it reads losses back, writes its log and fetches the next batch."""
    fused_projections: Flag = True
    """Query, key and value are one product, and so are gate and up; without, each is a product of
    its own, backward adds their input gradients up, and without sequence parallelism each of
    those is reduced on its own."""
    copies_column_inputs: Flag = False
    """Tensor-parallel ranks keep a copy of the input for each product whose columns they divide
    (Paddle's ``_c_identity``)."""
    coalesced_norm_gradients: Flag = True
    """With sequence parallelism, gradients of norms are added up over tensor-parallel ranks
    once, after backward; else one parameter at a time, before they are reduced."""
    fp32_ring_sums: Flag = False
    """Steps of a context-parallel ring add outputs and gradients up in fp32, in which those of
    keys and values go round (PyTorch's ``convert_to_f32``); else in the format of the activations
    (Transformer Engine's ``flash_attn_fwd_out_correction``)."""
    scatter_p2p: Flag = False
    """Tensor-parallel ranks send 1/tp of a boundary activation each, gathered on arrival."""
    main_grad_precision: GradPrecision = "fp32"
    """Format gradients are accumulated in."""
    grad_reduce_precision: GradPrecision = "fp32"
    """Format gradients are reduced in."""
    reduces_in_place: Flag = True
    """Gradients are reduced in the buffers that they are accumulated in, so a plan that names
    ``grad_reduce_precision`` names the format of both (Megatron-Core's
    ``grad_reduce_in_fp32``)."""
    sums_unsharded: Flag = False
    """Under ``no_sync``, ZeRO 2 and 3 add up whole gradients, and reduce them as the last
    backward completes them (``no_sync`` of FSDP1, ``set_requires_gradient_sync`` of FSDP2)."""
    keeps_half_weights: Flag = True
    """16-bit weights live beside the fp32 ones; else each use casts (and gathers) them anew."""
    gathers_fp32_weights: Flag = False
    """With ZeRO 3, fp32 weights are gathered as they are and products cast what they read (FSDP1
    of PyTorch under autocast, without ``MixedPrecision``)."""
    keeps_master_weights: Flag = True
    """16-bit training keeps fp32 weights and optimizer states; without, all of it is 16-bit."""
    keeps_weight_remainders: Flag = False
    """Of fp32 weights beside bf16 ones only the lower 16 bits are kept (Apex's
    ``store_param_remainders``, which NeMo 1 sets unless weights are 8-bit)."""
    copies_gradients: Flag = True
    """16-bit gradients get an fp32 copy for the optimizer."""
    keeps_gradient_copies: Flag = False
    """That copy stays from one step to the next (Megatron-LM in early 2021, whose ``zero_grad`` of
    ``Float16OptimizerWithFloat16Params`` leaves it out)."""
    frees_copied_gradients: Flag = False
    """With ZeRO 2 and 3, gradients are copied into the buffer that is reduced before the next layer
    computes, and free from then on (FSDP2's ``foreach_reduce``); else they stay until they are
    reduced (FSDP1, which records them on the stream that reduces)."""
    flattens_gradients: Flag = False
    """Without sharding, all gradients are reduced in one flat copy of them once backward is over,
    on one data-parallel rank, too: copied, divided, and copied back (``allreduce_params`` of
    Megatron-LM's local ``DistributedDataParallel`` before it had contiguous buffers, 2021)."""
    always_takes_norm: Flag = False
    """The gradient norm is taken though nothing is clipped by it, but by a plain fp32 optimizer
    without ZeRO (DeepSpeed: ``step`` of ``stage_1_and_2.py``, ``stage3.py``,
    ``fused_optimizer.py`` and ``bf16_optimizer.py``)."""
    scales_gradients: GradientScaling = "past-limit"
    """When a pass multiplies the gradients by what clips them."""
    unscales_separately: Flag = True
    """Gradients of fp16 training are divided by the loss scale in a pass of their own, which
    also finds those that overflowed (``_amp_foreach_non_finite_check_and_unscale_`` of PyTorch,
    which Megatron calls, too)."""
    norm_copies: Flag = False
    """The gradient norm is taken of fp32 copies of all gradients that a rank updates with."""
    flat_states: Flag = False
    """What a rank updates is one tensor, and so are its states and gradients, which are copied
    together for that; ZeRO 3 keeps parameters separate."""
    casts_flat_gradients: Flag = False
    """With ZeRO, 16-bit gradients of what a rank updates are put into one tensor, of which an fp32
    copy is made, in ZeRO 3 of a billion elements at a time (DeepSpeed: ``step`` of
    ``stage_1_and_2.py``; ``_prepare_fp32_grad_for_sub_group`` of ``stage3.py``). Ignored: how long
    that takes."""
    update_copies: int = Field(default=0, ge=0, le=4, strict=True)
    """fp32 tensors as large as the weights it updates that an optimizer makes on the way; a
    fused one makes none, AdamW of PyTorch 2.0 and before makes 2."""
    updates_many_tensors: Flag = True
    """Kernels of an update, of the gradient norm and of what scales gradients take many tensors at
    once (``multi_tensor_apply``); else each has a kernel of its own, or a compiler makes one."""
    precision_aware: Flag = False
    """An update whose moments are 16-bit keeps remainders of fp32 weights (Transformer Engine's
    FusedAdam, as Megatron-Core's precision-aware optimizer calls it)."""
    widens_moments: Flag = False
    """An update whose moments are 16-bit makes fp32 copies of them, of all dense or all expert
    parameters at a time."""
    loads_whole_weights: Flag = False
    """A checkpoint is loaded into weights that every rank gathers, all at once (FSDP1 around
    ``load_state_dict`` with a full state: Lightning 2.1, ``fabric.load_raw``)."""
    loads_all_kernels: Flag = False
    """All kernels of PyTorch and of CUDA's libraries are loaded as training starts, not when they
    are first used, as CUDA 11.7 and PyTorch 1.13 can (``CUDA_MODULE_LOADING``)."""
    frees_gradients: Flag = False
    """Gradients are made by the first backward and freed after the step (PyTorch's
    ``zero_grad(set_to_none=True)``); else they live in buffers that stay."""
    buckets_gradients: Flag = False
    """Data-parallel ranks without sharding reduce in buckets beside the gradients (PyTorch's
    DDP without ``gradient_as_bucket_view``): copied into them, and back when they are reduced."""
    pads_vocab: Flag = True
    """The vocabulary is padded to a multiple of 128 tp."""
    gather_copy_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Memory traffic per parameter of unpacking gathered weights, ZeRO 3 [B]."""
    reduce_copy_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Memory traffic per parameter of packing, casting and dividing gradients before they
    are reduced, ZeRO 3 [B]."""
    bucket_bytes: Bytes = 160e6
    """Gradients are reduced in buckets: parameters are added in the order in which backward
    reaches them, until a bucket has at least this size. By default Megatron's 40 million fp32
    elements."""
    bucket_per_rank_bytes: Bytes = 0.0
    """With many data-parallel ranks buckets have at least this size for each of them
    (Megatron-Core: 1 million fp32 elements), lest a ring is bound by latency."""
    first_bucket_bytes: Bytes = 0.0
    """Size of the bucket that is reduced first; 0 is as large as the others."""
    all_reduces_shards: Flag = False
    """With ZeRO 1 and 2, whole gradients are all-reduced, of which each rank keeps its part
    (DeepSpeed's ``use_multi_rank_bucket_allreduce``)."""
    bucket_copy_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Memory traffic per parameter of copying gradients into buckets and dividing them before they
    are reduced, ZeRO 1 and 2 [B]."""
    holds_bucket: Flag = False
    """With ZeRO 1 and 2, gradients that are reduced are copied into a buffer as large as a bucket,
    or in turn into two where reductions overlap, which are there all through backward, however
    little is trained (DeepSpeed's ``contiguous_gradients``)."""
    holds_bucket_of_whole: Flag = True
    """``holds_bucket`` is also so with ZeRO 1, whose gradients are whole."""
    uneven_layers: UnevenLayers = "middle"
    """Layers that do not divide go to the ``middle`` of the pipeline, as Llama 3 was laid out, or
    to its ``last`` stages (``partition_uniform`` of Colossal-AI and InternEvo); ``by-cost``, each
    stage takes layers until it has passed its share of all products, the head's too (nanotron)."""
    most_zero: ZeroStage = 3
    """Highest ZeRO stage that the framework runs without a pipeline."""
    zero_in_pipeline: ZeroStage = 3
    """Highest ZeRO stage that the framework runs inside a pipeline."""
    sharding_units: ShardingUnits = "layers"
    """What ZeRO 3 gathers and reduces at a time."""
    whole_below_numel: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """With ``sharding_units: parameters``, smaller parameters are whole while the model runs and
    gathered only after the update (DeepSpeed's ``stage3_param_persistence_threshold``)."""
    reuse_numel: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """With ``sharding_units: parameters``, a weight that was gathered to compute its layer again
    is kept for the gradients if fewer elements are used between, and else gathered once more
    (DeepSpeed's ``stage3_max_reuse_distance``). None: always kept."""
    live_numel: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """With ``sharding_units: parameters``, no weight is gathered ahead of its use while one of as
    many elements is in use (DeepSpeed's ``stage3_max_live_parameters``). None: one always is."""
    keeps_tied_embedding: Flag = False
    """With ``sharding_units: parameters``, a token embedding that is the output matrix, too, is
    whole throughout (DeepSpeed's tutorial on Megatron registers it as the whole model's)."""
    products_keep_gathered: Flag = False
    """With ZeRO 3 and ``sharding_units: layers``, a product keeps the weight that was gathered for
    it until its backward, which gathers another, unless the layer is computed again (PyTorch's own
    linear under DeepSpeed: ``memory_efficient_linear`` is off, or no ``zero.Init`` is around the
    model as it is built; deepspeedai/DeepSpeed, pull request 8189)."""
    shards_experts: Flag = True
    """ZeRO shards routed experts, too; else ranks keep those that they have whole, with their
    states, and gradients are summed over all that have the same (modules that FSDP ignores)."""
    lists_of_shards: Flag = False
    """With ``sharding_units: parameters``, collectives take a list of one tensor per rank, and
    each is copied from or into their buffer by a kernel of its own
    (:mod:`simulator.program.states.data_parallel_collectives`)."""
    pads_shards: Flag = False
    """ZeRO 3 pads the rows of each parameter to a multiple of the ranks, and sends that."""
    shards_matrices: Flag = False
    """Shards are rows of each parameter that know their matrix (FSDP2's DTensor, XLA), so that
    an optimizer may look at all of it; else they are cut out of a flat buffer."""
    shards_whole_parameters: Flag = False
    """ZeRO 1 gives each rank the states of whole parameters: every rank still gets all
    gradients, and updated parameters are broadcast one by one, as PyTorch's
    ZeroRedundancyOptimizer does."""
    flat_broadcasts: Flag = False
    """With ``shards_whole_parameters``, a rank broadcasts all its parameters at once."""
    offloads: Offloading = "nothing"
    """What it can keep in host memory or on NVMe."""
    selective_policy: SelectivePolicy = "core-attention"
    """What selective recomputation repeats."""
    named_outputs: tuple[NamedOutput, ...] = ()
    """With ``selective_policy: named-outputs``, what stays of a layer beside its input; all else is
    repeated (``jax.checkpoint_policies.save_only_these_names``)."""
    repeats_cudnn_attention: Flag = False
    """cuDNN's attention is not among the operators whose outputs ``selective_policy:
    alternate-products`` keeps."""
    repeats_fp4_products: Flag = False
    """nvfp4 products are not among the operators whose outputs ``selective_policy:
    alternate-products`` keeps, so all of them are repeated."""
    recompute_stops_early: Flag = False
    """Full recomputation of a layer ends once all that backward needs is there, so the last
    product is not repeated (``torch.utils.checkpoint`` without reentrant autograd)."""
    repeats_last_product: Flag = False
    """Full recomputation goes on to the layer's end all the same, where no compiler drops what
    nothing reads (``early_stop`` of ``torch.utils.checkpoint`` is off)."""
    recomputes_parts: Flag = False
    """With full recomputation, each norm, attention and MLP of a dense layer is a checkpoint of its
    own, which keeps its own input."""
    hands_out_key_values: Flag = False
    """Layers also return keys and values (``use_cache`` of transformers, which its own checkpoints
    turn off). Those of fully recomputed layers stay until backward, and a loop that holds what its
    model returned (``keeps_returned_logits``) has those of one microbatch through the next forward.
    """
    frozen_units_keep_inputs: Flag = False
    """Where weights are sharded and layers, all of them frozen beside adapters, are recomputed with
    reentrant autograd, their inputs and the gradients of these stay until backward ends (FSDP1)."""
    attention: AttentionKernel = "flash"
    """How core attention is computed where the plan does not say."""
    flash_kernel: FusedAttention = "best"
    """The fused attention kernel of ``attention: flash``."""
    widens_unquantised: Flag = False
    """Where a model is quantised and not sharded, all other weights are kept in fp32, and layers
    pass on fp32 numbers (peft's ``prepare_model_for_kbit_training``)."""
    quantised_products_keep_inputs: Flag = False
    """Products with 4-bit weights keep their input, which no backward reads (bitsandbytes'
    ``MatMul4Bit``)."""
    casts_adapter_inputs: AdaptedModels = False
    """Adapters are fp32 beside 16-bit weights, of all models or those that are ``unquantised``, and
    each casts its input for itself, so backward keeps a copy for each (peft's
    ``autocast_adapter_dtype``); with ``master_weights: false`` they compute in fp32."""
    adapted_mlp_in_place: Flag = False
    """Where all products of an MLP have adapters and none drops anything out, one function makes
    the activation again in backward and writes gradients over what it read (Unsloth's
    ``LoRA_MLP``)."""
    fused_elementwise: Flag = True
    """Bias, activation, dropout and residual run as fused kernels."""
    fuses_by_hand: Flag = False
    """Fused kernels stand in layers that run as they are written otherwise, so that autocast casts
    in between (Liger's patch of a model of transformers); else a compiler fuses what it casts."""
    fused_biases: Flag = True
    """Products add biases in their epilogues; else a kernel of its own adds that of queries, keys
    and values (``F.linear`` on three dimensions before PyTorch 1.12), and any bias that no kernel
    after the product adds."""
    fused_bias_gradients: Flag = True
    """Products sum up the gradients of biases in their epilogues (Transformer Engine); else kernels
    of their own do, as autograd's ``sum`` in PyTorch and in Megatron-LM's
    ``LinearWithGradAccumulationAndAsyncCommunication``."""
    fused_rmsnorm: Flag = True
    """One kernel, not an expression of eager ones."""
    persistent_norms: Flag = False
    """Backward of a fused norm reads its input and gradient once and adds the weight's gradient
    up in registers, which reaches 0.92 of the rate of forward (NVIDIA/apex#1037, whose kernels
    Transformer Engine ships; torch.compile reaches apex's rate: ServiceNow/Fast-LLM#546); without,
    it runs as PyTorch's own does (the profile's ``row_reduction_efficiency``)."""
    rotates_halves: Flag = False
    """Without ``fused_rotary``, queries and keys are rotated as two halves, not as complex numbers
    (transformers)."""
    rotates_pairs: Flag = False
    """Without ``fused_rotary``, queries and keys are rotated as pairs of fp32 numbers, an operator
    at a time (torchtune)."""
    rotary_follows_stream: Flag = False
    """Tables of cosines have the format of the residual stream, and so has what they multiply:
    under autocast fp32 (with ``rotates_halves``; transformers)."""
    fused_rotary: Flag = True
    """One kernel, not an expression of eager ones."""
    fused_latent_rotary: Flag = True
    """With ``fused_rotary``, latent attention has fused kernels, too. Megatron-Core's are
    experimental, and Megatron-Bridge calls them incompatible (``utils/fusions.py``); compilers
    make their own."""
    keeps_cast_weights: Flag = False
    """8-bit copies of weights, in both layouts, stay beside 16-bit ones from the first microbatch
    (Transformer Engine's ``get_weight_workspace``), unless weights are 8-bit themselves."""
    keeps_placeholder_gradients: Flag = False
    """Where products add gradients of weights up by themselves, one 16-bit tensor of each weight's
    shape stays for autograd (Transformer Engine since 2.3)."""
    fused_accumulation: Flag = True
    """Weight gradients are added to their accumulators by the product itself."""
    accumulates_in_python: Flag = False
    """Where products do not add up weight gradients by themselves, Python does so, parameter by
    parameter; else autograd, whose launches cost the host next to nothing."""
    holds_tied_gradients: Flag = True
    """Of an embedding that is the output matrix on the same rank, too, the head's gradient is held
    until that of the lookup is there (PyTorch's autograd, which adds up all uses of a parameter
    first); false for a compiler that may order and reduce them as it likes."""
    sums_gradients_in_place: Flag = True
    """A gradient that waits takes the next in; else their sum is a third (PyTorch before 2.0)."""
    gradients_at_once: Flag = False
    """Gradients of a microbatch are added to those of earlier ones when its backward has ended, so
    that all of both are there (``torch.compile`` of a whole model, whose backward is one graph)."""
    fused_softmax: Flag = True
    """Scale, mask and softmax of unfused attention are one kernel."""
    fused_softmax_batch: Annotated[int, Field(ge=1)] = 1
    """That kernel takes 16-bit scores of sequences times heads of a rank that are a multiple of
    this; others are cast, scaled, masked and normalised by a kernel each."""
    fused_softmax_longest: Annotated[int, Field(ge=1)] | None = None
    """That kernel takes 16-bit scores of sequences of no more tokens; others as above."""
    keeps_scores: Flag = False
    """A compiler's kernel around an fp32 softmax reads 16-bit scores in backward, so they stay."""
    cross_entropy: CrossEntropy = "fused"
    """How the loss is computed, and so what it keeps."""
    loss_metrics: Annotated[int, Field(ge=0)] = 0
    """Losses that a trainer computes once more for its log, of the logits of every microbatch: each
    an ``eager`` forward without backward."""
    keeps_returned_logits: Flag = False
    """The loop that trains holds the logits that the model returned, by their name, until it has
    those of the next microbatch; else they are free once the loss is there."""
    keeps_router_results: Flag = False
    """Modules keep scores or a loss of their router by a name of their own until their next
    forward. Where full recomputation stops early (``recompute_stops_early``), all that it saved
    before stays with them."""
    parallel_loss: Flag = True
    """Tensor-parallel ranks compute the loss of their part of the vocabulary; else each
    gathers all logits."""
    splits_embedding: Flag = True
    """Tensor-parallel ranks divide the rows of the token embedding; else each holds all of them,
    but of one that is the output matrix, too."""
    keeps_gathered: Flag = False
    """With sequence parallelism, products keep the sequence that they gathered; else backward
    gathers it again (Korthikanti et al., arXiv 2205.05198, section 4.2.2)."""
    repeats_kv_heads: RepeatedHeads = False
    """Grouped key and value heads are repeated to as many as query heads before attention,
    and kept so; ``unfused``: only before attention in separate kernels."""
    adds_causal_mask: MaskedModels = False
    """Attention in separate kernels adds the mask of causal models to their scores, all of them or
    those with ``rotary`` positions, as it does that of others; else it selects by it."""
    floors_scores: MaskedModels = False
    """Attention in separate kernels takes the larger of its masked scores and the least number of
    their format, of all models or those with ``rotary`` positions, which keeps those scores for
    backward."""
    value_keeps_projection: Flag = False
    """Attention keeps the value as a part of what one product gives for queries, keys and values,
    all of which stays with it while rotated queries and keys lie beside; not where heads are
    repeated, which copies."""
    checkpointed_value_keeps_projection: Flag = False
    """The same only where core attention is recomputed: its checkpoint keeps the value as it is
    handed over, before the kernel's own contiguous copy."""
    arranges_attention: Flag = False
    """Queries, keys and values are copied from the product's layout into that of the rotary kernel,
    and the lengths of sequences are counted, in each layer, for attention over tokens of any
    number of sequences."""
    splits_gathered_products: Flag = False
    """A product whose input is gathered multiplies the rank's own part first, and then those of
    the ranks before and behind it: three kernels."""
    dropout: Flag = False
    """Models are trained with dropout (masks are stored and read)."""
    gathers_on_own_stream: Flag = False
    """Memory of gathered weights is asked for on the stream that gathers them (FSDP of PyTorch
    2.0), so nothing else can lie there when they are gone."""
    reduces_on_own_stream: Flag = False
    """Shards of gradients are asked for on the stream that reduces them, and the buffers that
    weights are copied out of on the one that gathers them (FSDP2), so their memory serves nothing
    else from one step to the next."""
    records_streams: Flag = False
    """What a collective reads serves nothing else before the device is past it (PyTorch before 2.8
    without ``TORCH_NCCL_AVOID_RECORD_STREAMS``), however far the host is ahead."""
    records_sums: Flag = False
    """The same of what all_reduces read alone: reductions that are scattered record nothing where
    their caller waits for them (PyTorch 2.2 to 2.7, ``_reduce_scatter_base``)."""
    plans_memory: Flag = False
    """A compiler gives every tensor its place before the program runs (XLA's buffer assignment), so
    no allocator keeps what is free."""
    matrix_workspaces: int = Field(default=2, ge=0, le=8, strict=True)
    """Workspaces of matrix libraries that lie in the allocator: PyTorch's two, of the thread that
    runs forward and of the one that runs backward, and those that a framework has besides."""
    expandable_segments: Flag = False
    """PyTorch's caching allocator runs with ``expandable_segments:True``."""
    max_split_bytes: Annotated[Bytes, Field(gt=_LARGE_SEGMENT_BYTES)] | None = None
    """Blocks of this size and more are never cut (``max_split_size_mb``); all are by default. Where
    segments expand they are, but serve nothing smaller."""
    garbage_collection_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Part of the device's memory above which the allocator returns what has been unused for long
    before it asks for more."""
    host_work_per_launch: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.5
    """Host time per kernel of a layer, in units of a bare launch: Python, autograd, and the
    small kernels that an eager framework launches around each one. 2.5 is an assumption."""
    dense_host_work: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """The same in a layer without experts, over that: where its few kernels stand for more Python
    each than the many small ones of experts do."""
    host_work_per_expert_layer: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Host time of a layer of experts beside its launches, forward and backward, in these units."""
    host_work_per_call: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Host time per product of an expert in a library's loop (``calls_each_expert``), likewise; by
    default as per kernel."""
    host_work_per_exchange: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Host time per collective of a layer, in the same units; by default as per kernel. Much more
    where tensors wrap others, as torch's DTensor does in Python."""
    host_work_per_gather: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Host time in which hooks gather a module's matrix (ZeRO 3), see that the weight of a norm is
    there, or reduce its gradient, in these units."""
    host_work_per_unit: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Host time of the hooks of a layer that is gathered as one (FSDP), per visit, likewise."""
    host_update_share: PositiveFraction = 1.0
    """Rate at which the ranks of a node update offloaded weights in training, over that of the
    optimizer alone, which ``optimizer_efficiency`` of a host says."""
    limits_gathers: Flag = False
    """Hooks gather units, whole layers and each matrix of an adapter, and the host waits where two
    of them are gathered ahead of the device (``limit_all_gathers`` of FSDP1); else they gather each
    matrix of a layer, however far the host is ahead (DeepSpeed)."""
    exchange_check_s: Seconds = 0.0
    """Host time per further tensor-parallel rank in which hosts compare each collective of a layer
    before they launch it (``TORCH_DISTRIBUTED_DEBUG=DETAIL``)."""
    launches_ahead: Flag = True
    """The host launches a layer while the device still computes the one before."""

    def zero_or(self, given: object) -> object:
        """The ZeRO stage that a plan gives, or the framework's where it gives none."""
        return self.zero if given is None else given
