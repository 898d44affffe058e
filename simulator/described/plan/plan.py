"""How is the work split, scheduled, sharded and stored?

Fields left out take the default of the plan's ``stack`` (see
:mod:`simulator.described.plan.stack`), because that is what happens when a user of that stack
leaves the option out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
)

from simulator.described.base import (
    Count,
    Flag,
    Layers,
    LayersOrZero,
    Ranks,
    RanksOrZero,
    Spec,
    ZeroStage,
)
from simulator.described.cluster.kernel_parameters import AttentionKernel, Precision
from simulator.described.plan.data_parallelism import DATA_PARALLELISM, known_data_parallelism
from simulator.described.plan.optimizers import UPDATE_RULES, known_optimizer
from simulator.described.plan.plan_blocks import (
    ExpertLoad,
    Lora,
    Offload,
    TensorGrid,
    TensorMethod,
    tensor_grid,
)
from simulator.described.plan.plan_values import (
    RANK_ORDER_WORDS,
    GivenSchedule,
    known_rank_order,
    stage_layout,
)
from simulator.described.plan.releases import Libraries
from simulator.described.plan.shipped_stacks import DEFAULT_STACK, named_stack
from simulator.described.plan.stack import Stack
from simulator.described.plan.stack_options import (
    CrossEntropy,
    GradPrecision,
    NarrowProducts,
    gradient_format,
    has_wide_kernel,
)

Recompute = Literal["none", "selective", "full"]
CudaGraphs = Literal["none", "layer", "full"]
RecomputeModule = Literal[
    "core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts"
]
CORE_ATTENTION: tuple[RecomputeModule, ...] = ("core_attn",)
"""What Megatron-Core's selective recomputation repeats where no modules are named."""

Optimizer = Annotated[
    str,
    AfterValidator(known_optimizer),
    WithJsonSchema({"enum": list(UPDATE_RULES), "type": "string"}),
]
Dispatcher = Literal["all_to_all", "all_gather", "hierarchical"]


def _stack_of_releases(given: object, info: ValidationInfo) -> object:
    """The stack of a name or block, in the releases that the plan names before it."""
    return named_stack(given, info.data.get("libraries", {}), info.data.get("compile"))


def _zero_of_stack(given: object, info: ValidationInfo) -> object:
    """The ZeRO stage as given, or that of the stack before it, if that is one."""
    stack = info.data.get("stack", named_stack(DEFAULT_STACK))
    return stack.zero if given is None else given


_WEIGHTS_SHARDED = 3
"""ZeRO stage that shards weights, too."""


class Plan(Spec):
    """Parallel degrees and the options that cost time or memory."""

    libraries: Libraries = Field(default_factory=dict)
    """Releases of what the framework is built on, where they are not the newest, such as
    ``{transformer_engine: "2.2", nccl: "2.27", torch: "2.8", transformers: "4.57"}``. One of which
    the stack has no facts changes nothing (``docs/stacks.md`` lists them)."""
    compile: Flag | None = None
    """Whether ``torch.compile`` rewrites the layers of a model of PyTorch; by default as the stack
    does it. It fuses elementwise operations, norms and rotary embeddings, and launches them with
    less work of the host. Facts that a block of ``stack`` gives go over it."""
    stack: Annotated[Stack, BeforeValidator(_stack_of_releases)] = Field(
        default=DEFAULT_STACK, validate_default=True
    )
    """Framework whose defaults and kernels apply: a name, with ``@`` and a release if not the
    newest, or a block with such a ``base``."""
    tp: Ranks = 1
    """Tensor-parallel degree."""
    tp_method: TensorMethod = "1d"
    """How tensor-parallel ranks divide a layer: 1d by columns, then rows (Megatron); 2d, 2.5d
    and 3d in a grid that divides every activation and weight (Colossal-AI)."""
    tp_depth: Ranks = 1
    """Squares of ranks behind each other in 2.5d: tp = q x q x tp_depth."""
    pp: Ranks = 1
    """Pipeline stages."""
    vpp: Layers = 1
    """Model chunks per pipeline stage (virtual stages)."""
    cp: Ranks = 1
    """Context-parallel degree."""
    cp_method: Literal["ring", "all_to_all", "all_gather", "all_to_all+ring"] = "ring"
    """How attention sees the whole sequence: keys and values travel, heads are traded, all keys
    and values are gathered, or ``cp_heads`` neighbours trade heads and rings join the others."""
    cp_heads: Ranks = 1
    """Neighbouring ranks that trade heads in all_to_all+ring, a divisor of cp."""
    ep: Ranks = 1
    """Ranks that the routed experts of a layer are spread over, inside tp x cp x dp."""
    etp: Ranks | None = None
    """Tensor-parallel degree of each routed expert, inside tp x cp x dp; by default 1 where
    ep reaches tp, as in current recipes, and else tp."""
    ep_dispatch: Dispatcher = "all_to_all"
    """How tokens get to their experts and back: all_to_all sends every copy to its rank;
    all_gather sends all tokens to all ranks, which take theirs (Megatron-Core's allgather);
    hierarchical sends a token once to each node that has one of its experts, to the GPU on the
    same rail, and on over the node's links (DeepEP)."""
    rank_order: Annotated[str, AfterValidator(known_rank_order)] = "-".join(RANK_ORDER_WORDS)
    """How ranks are numbered, the fastest word first, as Megatron-Core does; routed experts
    count etp as tp and ep as ep."""
    expert_load: ExpertLoad | None = None
    """How unevenly tokens are spread over the experts; by default evenly. For example
    ``{hot: 2}``, ``{zipf: 0.5}`` or ``{file: loads.csv}``."""
    schedule: GivenSchedule = None
    """Pipeline order; by default 1f1b, or interleaved-1f1b where vpp > 1. A job may name a
    .csv file that holds one, as torch and torchtitan write it."""
    data_parallel: Annotated[
        str,
        AfterValidator(known_data_parallelism),
        WithJsonSchema({"enum": list(DATA_PARALLELISM), "type": "string"}),
    ] = "ddp"
    """Who adds up gradients and updates weights. ``ddp``: all ranks, by collectives, whole or
    sharded (``zero``). ``data-parallel``: GPU 0 alone, in one process for all GPUs of a node, as
    PyTorch's ``nn.DataParallel``. ``parameter-server``: hosts without GPUs."""
    parameter_servers: RanksOrZero = 0
    """Hosts that hold the parameters with ``data_parallel: parameter-server``, with network cards
    like those of a node; 0 is one per node of GPUs, which is then no narrower than they are."""
    zero: Annotated[ZeroStage, BeforeValidator(_zero_of_stack)] = Field(
        default=None, validate_default=True
    )
    """What data-parallel ranks shard: 0 nothing, 1 optimizer states, 2 and gradients,
    3 and parameters; by default as the stack does it."""
    reshard_after_forward: Flag | None = None
    """Whether ZeRO 3 frees gathered weights after forward and gathers them again in backward;
    by default all but those that the stack keeps because backward needs them first
    (``sharding_units``). True is torchtitan's ``always`` (a root stays all the
    same), false its ``never``."""
    no_sync: Flag = True
    """Whether gradients are added up on their rank and reduced after the last microbatch of a
    step, as under DDP's ``no_sync``. Without, every backward reduces them and waits until all of
    them are back; ZeRO 3 reduces after every microbatch anyway, and so does ZeRO 2 with
    one virtual stage per rank; with several it reduces when the rank turns to another one."""
    zero_group: RanksOrZero = 0
    """Ranks the states are sharded over; 0 is all data-parallel ranks."""
    sequence_parallel: Flag | None = None
    """Shard norms and dropout along the sequence; by default whenever tp > 1."""
    recompute: Recompute = "none"
    """Forward work repeated in backward: none, core attention, or whole layers."""
    recompute_layers: LayersOrZero | None = None
    """With ``recompute: full``, how many layers of each virtual stage are computed again, its
    first ones (Megatron's ``block`` method); by default all."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """With ``recompute: selective``, which parts of a layer are computed again, by the names of
    Megatron-Core's ``--recompute-modules``; by default what the stack means by selective. Norms
    that Transformer Engine joins with the product behind them are none of ``layernorm``."""
    partition_activations: Flag = False
    """Whether each tensor-parallel rank keeps its part of what full recomputation starts from,
    to be gathered before it (ZeRO-R, arXiv 1910.02054, section 6.1)."""
    contiguous_checkpoints: Flag = False
    """Whether what full recomputation starts from lies in one buffer that is there before the
    step, so that it leaves no holes between what comes and goes (ZeRO-R, arXiv 1910.02054,
    section 6.3; DeepSpeed's ``contiguous_memory_optimization``)."""
    precision: Precision = "bf16"
    """Number format of the matrix products."""
    first_bf16_layers: LayersOrZero = 0
    """With 8- or 4-bit products, layers at the start of the model whose products stay in bf16
    (Megatron-Core's ``--first-last-layers-bf16 --num-layers-at-start-in-bf16``)."""
    last_bf16_layers: LayersOrZero = 0
    """The same at its end (``--num-layers-at-end-in-bf16``)."""
    master_weights: Flag | None = None
    """Whether 16-bit training keeps fp32 weights and optimizer states; by default as the stack
    does. False is pure 16-bit training: weights, gradients and states."""
    lora: Lora | None = None
    """Adapters that are trained beside frozen weights, for example ``{rank: 16}``."""
    prefix_tokens: Count | None = None
    """Keys and values that are learned in front of those of every sequence, in every layer, beside
    frozen weights (prefix tuning, arXiv 2101.00190). Counted in memory; the time in which attention
    reads them is not."""
    frozen: tuple[str, ...] | None = None
    """Parameters that are not trained, by name, where * stands for any text:
    ``embedding.tokens``, ``layers.0.attention.query``, ``layers.*.mlp.*``, ``head.*``. By default
    none, and with ``lora`` or ``prefix_tokens`` all that these do not add."""
    attention: AttentionKernel | None = None
    """How core attention is computed; by default as the stack does it."""
    cross_entropy: CrossEntropy | None = None
    """How the loss is computed; by default as the stack does it."""
    cuda_graphs: CudaGraphs = "none"
    """What the host replays as CUDA graphs instead of launching every kernel: nothing; each pass of
    a ``layer`` (Megatron-Core's ``--cuda-graph-impl`` ``local`` and ``transformer_engine``), but
    for routed experts without a capacity, whose shapes change from step to step; or ``full``, whole
    passes (its ``full_iteration``). Memory that graphs hold is not modelled."""
    deterministic: Flag = False
    """Whether kernels give the same bits in every run (Megatron's ``--deterministic-mode``):
    backward of attention is FlashAttention 2's, as Transformer Engine takes it where the best
    kernel adds up in no order, and tensor exchanges are not pipelined with products."""
    optimizer: Optimizer = "adam"
    """What updates the weights: its states take memory, its passes over them time."""
    optimizer_rank: Count = 128
    """Rows that are left of a gradient whose states are those of a projection (galore; 128 as in
    transformers)."""
    moment_precision: Literal["fp32", "bf16"] | None = None
    """Format in which Adam and others keep their moments; by default fp32, or that of everything in
    pure 16-bit training. bf16 is that of Megatron-Core's precision-aware optimizer."""
    optimizer_kernels: Literal["fused", "foreach", "for-loop"] | None = None
    """Whether one kernel updates, or one for each operator: over all weights at once, with a tensor
    as large as these on the way, or over one weight after another (PyTorch's ``fused``,
    ``foreach``, and neither, which is modelled for Adam alone); by default as the stack. What the
    CPU updates has kernels of its own."""
    optimizer_in_backward: Flag = False
    """Whether every weight is updated as soon as its gradient is there, which is then freed
    (torchtune's ``optimizer_in_bwd``)."""
    clip_gradients: Flag = True
    """Whether gradients are clipped by their global norm, which all ranks add up before any of
    them updates."""
    offload: Offload = Offload()
    """What lives in host memory or on NVMe instead of on the GPU."""
    overlap_grad_reduce: Flag | None = None
    """Whether gradients are reduced beside the last backward; by default as the stack does it."""
    overlap_param_gather: Flag | None = None
    """Whether sharded parameters are gathered beside forward; by default as the stack does it."""
    overlap_p2p: Flag | None = None
    """Whether pipeline sends run beside computation; by default as the stack does it."""
    overlap_tp: Flag | None = None
    """Whether tensor-parallel collectives are pipelined with their matrix products; by default
    only in 2d and 2.5d, where a step's operands travel while the one before is multiplied."""
    overlap_ep: Flag | None = None
    """Whether tokens travel to their experts while another microbatch computes, where a
    forward and a backward run side by side; by default where the schedule is made for that:
    dualpipe, dualpipev, and files that join passes."""
    overlap_shared_expert: Flag = False
    """Whether tokens travel to their experts, and back, while the expert that every token visits
    computes (Megatron-Core's ``moe_shared_expert_overlap``)."""
    post_validation: Flag | None = None
    """Whether every pipeline stage updates its weights without waiting for the gradient norm
    of all stages, and checks afterwards (arXiv 2401.10241, section 4)."""
    grad_reduce_precision: GradPrecision | None = None
    """Number format that gradients are reduced in; by default as the stack does it."""
    first_stage_layers: LayersOrZero = 0
    """Layers of the first pipeline stage; 0 splits evenly."""
    last_stage_layers: LayersOrZero = 0
    """Layers of the last pipeline stage; 0 splits evenly."""
    account_for_embedding: Flag = False
    """Whether the embedding counts as one layer when layers are dealt to stages."""
    account_for_loss: Flag = False
    """Whether head and loss count as one layer when layers are dealt to stages."""
    layout: Annotated[tuple[LayersOrZero, ...] | str | None, BeforeValidator(stage_layout)] = None
    """Layers of each of the pp x vpp virtual stages in order of the model, or the string that
    Megatron-Core takes as ``--pipeline-model-parallel-layout``; by default they are dealt
    out evenly."""

    @property
    def attention_kernel(self) -> AttentionKernel:
        """How core attention is computed: fused only by kernels that read the plan's numbers."""
        if self.attention is None and not self.fuses_its_precision:
            return "unfused"
        return self.attention or self.stack.attention

    @property
    def fuses_its_precision(self) -> bool:
        """Whether fused attention of the framework reads the plan's numbers."""
        return self.precision not in ("fp32", "tf32") or has_wide_kernel(self.stack.flash_kernel)

    @property
    def repeats_kv_heads(self) -> bool:
        """Whether keys and values are copied for each head of queries that looks at them."""
        asked = self.stack.repeats_kv_heads
        return self.attention_kernel == "unfused" if asked == "unfused" else asked

    @property
    def groups_experts(self) -> bool:
        """Whether the products of all experts on a rank are one kernel."""
        return self.stack.grouped_experts

    @property
    def has_wide_experts(self) -> bool:
        """Whether products of routed experts are fp32 where autocast makes all others narrow.

        So are grouped ones that it leaves as their weights are, if nothing else casts these, as
        FSDP's policy of mixed precision and DeepSpeed do.
        """
        is_as_loaded = not self.zero or self.stack.gathers_fp32_weights
        grouped = self.groups_experts and self.stack.experts_as_weights
        return grouped and is_as_loaded and self._is_under_autocast

    @property
    def reduced_gradients(self) -> GradPrecision:
        """Format that gradients are reduced in."""
        usual = gradient_format(self.precision, self.stack.grad_reduce_precision)
        return self.grad_reduce_precision or usual

    @property
    def is_widened(self) -> bool:
        """Whether all that is not quantised is fp32, and so is what layers pass on."""
        is_dequantised = self.lora is not None and self.lora.is_dequantised
        return is_dequantised and self.zero < _WEIGHTS_SHARDED and self.stack.widens_unquantised

    @property
    def autocasts(self) -> bool:
        """Whether products cast what they read, and layers pass on fp32 numbers.

        So does ``torch.autocast`` of fp32 weights that no sharding casts before their use; adapters
        stand beside weights that are 16-bit already, unless the plan says otherwise.
        """
        is_written_out = self.stack.fuses_by_hand or not self.stack.fused_elementwise
        return self._is_under_autocast and is_written_out

    @property
    def keeps_wide_norms(self) -> bool:
        """Whether norms keep fp32 numbers: under autocast, and what a compiler makes of it.

        XLA compiles models that say themselves which numbers are how wide. Source: the graphs that
        AOTAutograd and its min-cut partitioner make of GPT-2 under autocast (PyTorch 2.13).
        """
        return self._is_under_autocast and not self.stack.plans_memory

    @property
    def casts_in_kernels(self) -> bool:
        """Whether fused kernels cast what products read, and layers pass on fp32 numbers.

        Under autocast, a compiler's kernels do so. Copies of weights are kernels of their own all
        the same, as products are none of the compiler's. Source: on an H100,
        ``triton_poi_fused__to_copy`` of each weight and of its gradient (``reports/gpu``).
        """
        return self.keeps_wide_norms and not self.autocasts

    @property
    def streams_wide(self) -> bool:
        """Whether layers pass on fp32 numbers under autocast, whoever casts them."""
        return self.autocasts or self.casts_in_kernels

    @property
    def _is_under_autocast(self) -> bool:
        if self.lora is not None and self.lora.base_precision != "fp32":
            return False
        stack = self.stack
        keeps = stack.keeps_master_weights if self.master_weights is None else self.master_weights
        is_cast = keeps and not stack.keeps_half_weights
        is_half = self.precision not in ("fp32", "tf32")  # 8-bit products quantise the copies
        is_gathered_cast = self.zero >= _WEIGHTS_SHARDED and not stack.gathers_fp32_weights
        return is_half and is_cast and not is_gathered_cast

    @property
    def casts_by_zero(self) -> bool:
        """Whether the ZeRO stage may decide which numbers are cast: by autocast, or as gathered."""
        return not self.stack.keeps_half_weights

    @property
    def saves_cast_weights(self) -> bool:
        """Whether copies that products cast stay for backward and are nobody else's."""
        return self.streams_wide and (not self.zero or self.stack.gathers_fp32_weights)

    @property
    def caches_cast_weights(self) -> bool:
        """Whether autocast caches these copies: of trained leaves, no views as FSDP1 gathers."""
        return self.autocasts and not self.zero and self.lora is None

    @property
    def keeps_cast_weights(self) -> bool:
        """Whether 8-bit copies of weights stay beside 16-bit ones."""
        return self.stack.keeps_cast_weights and self.precision in ("fp8", "mxfp8")

    @property
    def narrow_products(self) -> NarrowProducts:
        """Which products with weights have the format of ``precision`` where that is narrow."""
        return self.stack.narrow_products

    @property
    def loss_kernel(self) -> CrossEntropy:
        """How the loss is computed."""
        return self.cross_entropy or self.stack.cross_entropy

    @property
    def makes_logits_again(self) -> bool:
        """Whether backward multiplies with the head once more, instead of keeping logits."""
        return self.loss_kernel in ("cut", "tiled")

    @property
    def frozen_patterns(self) -> tuple[str, ...]:
        """Names of parameters that are not trained; empty where all are."""
        if self.frozen is not None:
            return self.frozen
        return ("*",) if self.lora or self.prefix_tokens else ()

    @property
    def takes_gradient_norm(self) -> bool:
        """Whether the global norm of the gradients is taken, to clip by or for its own sake."""
        return self.clip_gradients or (self.stack.always_takes_norm and not self._updates_plainly)

    @property
    def gradient_scalings(self) -> int:
        """How often a step reads and writes all gradients to multiply them before the update."""
        is_fp16, scales = self.precision == "fp16", self.stack.scales_gradients
        unscales = is_fp16 and self.stack.unscales_separately
        if scales == "always" and not self._updates_plainly:
            return unscales + (is_fp16 or self.zero > 0)
        return unscales + (self.clip_gradients and scales in ("always", "clipping"))

    @property
    def updates_many_tensors(self) -> bool:
        """Whether a kernel of an update takes many tensors at once."""
        return self.stack.updates_many_tensors and not self.updates_in_a_loop

    @property
    def updates_in_a_loop(self) -> bool:
        """Whether each operator of an update has a kernel for each weight."""
        return self.optimizer_kernels == "for-loop"

    @property
    def _updates_plainly(self) -> bool:
        """Whether a whole optimizer updates fp32 weights."""
        return self.zero == 0 and self.precision in ("fp32", "tf32")

    @property
    def tensor_grid(self) -> TensorGrid | None:
        """The grid of the tensor-parallel ranks; None where they are in a line."""
        return tensor_grid(self.tp_method, self.tp, self.tp_depth)

    @property
    def cuts_sequence(self) -> bool:
        """Whether tensor-parallel ranks in a line divide norms along the sequence."""
        if self.tp == 1 or self.tensor_grid is not None:
            return False
        given = self.sequence_parallel
        return self.stack.sequence_parallel if given is None else given

    @property
    def cuts_boundary(self) -> bool:
        """Whether each tensor-parallel rank holds a part of its own of a layer's input."""
        return self.cuts_sequence or self.tensor_grid is not None

    @property
    def divides_loss(self) -> bool:
        """Whether tensor-parallel ranks compute the loss of their part of the vocabulary."""
        return self.tp > 1 and self.stack.parallel_loss

    @property
    def holds_returned_logits(self) -> bool:
        """Whether the loop holds what the model returned; schedules of pipelines take it."""
        return self.stack.keeps_returned_logits and self.pp == 1

    @property
    def makes_sums_of_gradients(self) -> bool:
        """Whether the sum of two gradients of one parameter is a tensor of its own."""
        return not self.stack.sums_gradients_in_place

    @property
    def products_keep_gathered(self) -> bool:
        """Whether products hold the weights that were gathered for them until their backward."""
        return self.zero == 3 and self.stack.products_keep_gathered

    @property
    def holds_returned_key_values(self) -> bool:
        """Whether what the loop holds has keys and values of all layers in it."""
        return self.holds_returned_logits and self.stack.hands_out_key_values

    @property
    def shards_experts(self) -> bool:
        """Whether ZeRO shards routed experts with all else."""
        return self.stack.shards_experts

    @property
    def holds_router_graphs(self) -> bool:
        """Whether graphs of recomputation live on with what routers gave; not in a pipeline."""
        stack, in_one = self.stack, self.pp == 1 and self.recompute == "full"
        return in_one and stack.keeps_router_results and stack.recompute_stops_early

    @property
    def gathers_logits(self) -> bool:
        """Whether each of several tensor-parallel ranks computes the loss of all logits."""
        return self.tp > 1 and not self.stack.parallel_loss

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel degree of each routed expert: ``etp``, or its default."""
        if self.etp is not None:
            return self.etp
        return 1 if self.ep >= self.tp else self.tp
