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
    TensorMethod,
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
)

Recompute = Literal["none", "selective", "full"]
CudaGraphs = Literal["none", "router", "layer", "full"]
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
    return stack.zero_or(given)


class PlanFields(Spec):
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
    a ``router`` of experts (Megatron-Core's ``--cuda-graph-scope`` ``moe_router moe_preprocess``)
    or of a ``layer`` (its ``--cuda-graph-impl`` ``local`` and ``transformer_engine``), but for
    routed experts without a capacity, whose shapes change from step to step; or ``full``, whole
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
