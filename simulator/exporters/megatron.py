"""Which options of Megatron-LM train a job?

The tables that the importer reads by are written from here, so that what is exported and
imported again is the same job. What the options cannot say is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from simulator.described.job import Job
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.shipped_stacks import DEFAULT_STACK
from simulator.exporters.plans import (
    Refusals,
    changed_facts,
    launch_line,
    spelled_out,
)
from simulator.importers.megatron.megatron_core import CP_METHODS, PIPELINE_BEFORE_DATA, SHARDING
from simulator.importers.megatron.megatron_model import COUNTS, SWITCHES
from simulator.schedule import ScheduleInfo

_STACK = "megatron-core"
_RANK_ORDER = Plan().rank_order
_FACTS = {
    "dropout", "cross_entropy", "fused_accumulation", "fused_rotary", "fused_elementwise",
    "grouped_experts", "copies_gradients", "expert_exchange",
}  # fmt: skip
"""Facts of a stack that options decide."""

_ONLY_MODEL = {
    "embedding_dim": 0, "parallel_block": False, "norms_per_layer": 2, "embedding_norm": False,
    "final_norm": True, "head_bias": False, "capped_logits": False, "causal": True,
    "extra_parameters": 0, "classes": 0,
}  # fmt: skip
_FORMATS = {
    "bf16": ("--bf16",),
    "fp16": ("--fp16",),
    "fp32": (),
    "fp8": ("--bf16", "--fp8-format hybrid"),
    "mxfp8": ("--bf16", "--fp8-format hybrid", "--fp8-recipe mxfp8"),
    "nvfp4": ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}
_ATTENTION = {
    "flash": ("--attention-backend flash",),
    "fused-softmax": ("--attention-backend unfused",),
    "unfused": ("--transformer-impl local", "--no-masked-softmax-fusion"),
}
_DISPATCHERS = {
    "all_to_all": "alltoall",
    "all_gather": "allgather",
    "hierarchical": "flex --moe-enable-deepep",
}
_RECOMPUTE = {
    "none": (),
    "selective": ("--recompute-granularity selective",),
    "full": (
        "--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1",
    ),
}  # fmt: skip
_OPTIMIZERS = {
    "adam": ("--optimizer adam",),
    "sgd": ("--optimizer sgd", "--sgd-momentum 0"),
    "sgd-momentum": ("--optimizer sgd", "--sgd-momentum 0.9"),
    "muon": ("--optimizer muon",),
}


def megatron_script(job: Job) -> str:
    """A launch line of Megatron-LM for a job, one option per line.

    Data, tokenizer, learning rate and rendezvous are not the job's to say.

    Raises:
        UnsupportedError: With everything that Megatron-LM's options cannot say.
    """
    plan = spelled_out(job)
    _refuse(job, plan)
    options = [
        *_counts(job, plan),
        *_switches(job, plan),
        *_model(job.model),
        *_plan(job, plan),
        *_facts(plan),
    ]
    line = launch_line(job, "pretrain_gpt.py")
    return " \\\n    ".join([line, *options]) + "\n"


def _refuse(job: Job, plan: Plan) -> None:
    refusals = Refusals("Megatron-LM", plan)
    refusals.all_but_pretraining(job)
    refusals.stack(plan.stack, _STACK, _FACTS)
    _refuse_model(job.model, refusals)
    _refuse_pipeline(plan, job.choices.schedule, refusals)
    _refuse_formats(plan, refusals)
    _refuse_sharding_and_update(plan, refusals)
    _refuse_the_rest(plan, refusals)
    refusals.raise_if_any()


def _refuse_model(model: Model, refusals: Refusals) -> None:
    refusals.unless_default(model, "model", _ONLY_MODEL)
    refusals.unless(model.ssm is None, "model.ssm", "Mamba-2 layers")
    refusals.unless(model.qk_norm != "full", "model.qk_norm", model.qk_norm)
    refusals.unless(model.positions != "alibi", "model.positions", model.positions)
    gates = ("silu",) if model.gated_mlp else ("gelu", "gelu-new", "squared-relu")
    refusals.unless(model.activation in gates, "model.activation", model.activation)
    refusals.unless(
        model.norm_bias == (model.normalisation == "layernorm"), "model.norm_bias", model.norm_bias
    )
    refusals.unless(
        model.attention_output_bias == model.mlp_bias and model.qkv_bias >= model.mlp_bias,
        "model.attention_output_bias",
        model.attention_output_bias,
        "Megatron-LM has biases in all matrices, in query, key and value only, or in none",
    )


def _refuse_pipeline(plan: Plan, schedule: ScheduleInfo, refusals: Refusals) -> None:
    refusals.unless_plan(
        plan.pp == 1 or schedule.in_megatron,
        "schedule",
        "Megatron-LM runs 1f1b, and interleaved-1f1b with chunks",
    )
    is_interleaved = plan.schedule == "interleaved-1f1b"
    refusals.unless_plan(plan.pp == 1 or is_interleaved == (plan.vpp > 1), "vpp")
    refusals.unless_plan(not plan.post_validation, "post_validation")
    refusals.unless_plan(plan.overlap_p2p is not True, "overlap_p2p")


def _refuse_formats(plan: Plan, refusals: Refusals) -> None:
    refusals.unless_plan(plan.precision in _FORMATS, "precision")
    reduced = {"bf16": ("fp32", "bf16"), "fp16": ("fp32", "fp16"), "fp32": ("fp32",)}
    formats = reduced.get(plan.precision, ("fp32", "bf16"))
    refusals.unless_plan(
        plan.grad_reduce_precision in formats,
        "grad_reduce_precision",
        f"with plan.precision: {plan.precision} Megatron-LM reduces in {' or '.join(formats)}",
    )
    refusals.unless(
        plan.stack.copies_gradients or (plan.grad_reduce_precision == "bf16" and plan.zero > 0),
        "plan.stack.copies_gradients", plan.stack.copies_gradients,
        "only Megatron's precision-aware distributed optimizer uses bf16 gradients directly",
    )  # fmt: skip


def _refuse_sharding_and_update(plan: Plan, refusals: Refusals) -> None:
    refusals.unless_plan(not (plan.zero_group and plan.zero == 0), "zero_group")
    refusals.unless_plan(
        bool(plan.reshard_after_forward) == (plan.zero == 3), "reshard_after_forward"
    )
    refusals.unless_plan(plan.optimizer in _OPTIMIZERS, "optimizer")
    refusals.unless_plan(
        plan.optimizer != "muon" or plan.zero == 0,
        "optimizer",
        "Megatron-LM runs Muon without its distributed optimizer: plan.zero: 0",
    )


def _refuse_the_rest(plan: Plan, refusals: Refusals) -> None:
    refusals.unless(
        "moe_act" not in plan.recompute_modules or plan.stack.grouped_experts,
        "plan.recompute_modules", "moe_act",
        "it needs --moe-grouped-gemm: export with --set plan.stack.grouped_experts=true",
    )  # fmt: skip
    orders = (_RANK_ORDER, PIPELINE_BEFORE_DATA)
    refusals.unless_plan(plan.rank_order in orders, "rank_order")
    refusals.unless_plan(not plan.contiguous_checkpoints, "contiguous_checkpoints")
    refusals.unless_plan(plan.tp_method == "1d", "tp_method")
    refusals.unless_plan(plan.expert_load is None, "expert_load")


def _counts(job: Job, plan: Plan) -> Iterator[str]:
    blocks = {"model": job.model, "plan": plan, "batch": job.batch}
    renamed = {"batch.global": "global_batch", "batch.micro": "micro_batch"}
    for field, (option, *_) in COUNTS.items():
        block, *names = field.split(".")
        value: Any = blocks[block]
        for name in [renamed.get(field, names[-1])] if block == "batch" else names:
            value = getattr(value, name, None)
        if value and not _is_implied(field, job.model):
            yield f"--{option.replace('_', '-')} {value}"


def _is_implied(field: str, model: Model) -> bool:
    """Whether a number follows from others, or may not stand beside them."""
    if field in ("model.head_dim", "model.kv_heads") and model.latent_attention:
        return True
    if field in ("model.experts.groups", "model.experts.top_groups"):
        return not (model.experts and model.experts.top_groups)
    return field == "model.kv_heads" and model.kv_heads == model.heads


def _switches(job: Job, plan: Plan) -> Iterator[str]:
    blocks = {"model": job.model, "plan": plan}
    for field, (option, *_) in SWITCHES.items():
        block, *names = field.split(".")
        value: Any = blocks[block]
        for name in names:
            value = getattr(value, name, None)
        if value:
            yield f"--{option.replace('_', '-')}"


def _model(model: Model) -> Iterator[str]:
    yield "--tokenizer-type NullTokenizer"
    if model.kv_heads != model.heads:
        yield "--group-query-attention"
    if model.gated_mlp:
        yield "--swiglu"
    elif model.activation == "squared-relu":
        yield "--squared-relu"
    if model.clamped_gate:
        yield "--activation-func-clamp-value 7.0"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    kinds = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
    yield f"--position-embedding-type {kinds[model.positions]}"
    yield f"--normalization {'RMSNorm' if model.normalisation == 'rmsnorm' else 'LayerNorm'}"
    if not model.mlp_bias:
        yield "--disable-bias-linear"
        if model.qkv_bias:
            yield "--add-qkv-bias"
    if model.qk_norm == "head":
        yield "--qk-layernorm"
    yield from _attention_and_experts(model)


def _attention_and_experts(model: Model) -> Iterator[str]:
    if model.attention_sinks:
        yield "--softmax-type learnable"
    if model.sliding_window:
        yield f"--window-size {model.sliding_window - 1},0"
        if model.sliding_window_every > 1:
            yield f"--window-attn-skip-freq {model.sliding_window_every}"
    if model.latent_attention:
        yield "--multi-latent-attention"
    if model.experts:
        yield f'--moe-layer-freq "{_expert_layers(model)}"'
        if model.experts.capacity_factor is not None:
            yield f"--moe-expert-capacity-factor {model.experts.capacity_factor}"


def _expert_layers(model: Model) -> str:
    pattern = (int(model.has_experts(index)) for index in range(model.layers))
    return "+".join(f"[{kind}]*{len(list(run))}" for kind, run in groupby(pattern))


def sharded_by_megatron_fsdp(job: Job) -> str:
    """What an option of Megatron-Core wraps the model for a job's ZeRO stage; empty if none does.

    Its distributed optimizer is ZeRO 1 (``--use-distributed-optimizer``); ZeRO 2 and 3 are
    Megatron-FSDP.
    """
    if job.stack_name != DEFAULT_STACK or job.plan.zero < 2:
        return ""
    return f"ZeRO {job.plan.zero} of {DEFAULT_STACK} is Megatron-FSDP (--use-megatron-fsdp)."


def _formats(plan: Plan) -> Iterator[str]:
    yield from _FORMATS[plan.precision]
    if plan.first_bf16_layers or plan.last_bf16_layers:
        yield f"--first-last-layers-bf16 --num-layers-at-start-in-bf16 {plan.first_bf16_layers}"
        yield f"--num-layers-at-end-in-bf16 {plan.last_bf16_layers}"


def _plan(job: Job, plan: Plan) -> Iterator[str]:
    if plan.layout is not None:
        yield f'--pipeline-model-parallel-layout "{_layout(plan, job.model)}"'
    elif plan.vpp > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {plan.vpp}"
    yield from _exchanges(job, plan)
    if plan.zero == 1:
        yield "--use-distributed-optimizer"
    elif plan.zero:
        strategies = {stage: name for name, stage in SHARDING.items()}
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {strategies[plan.zero]}"
    if plan.zero_group:
        replicas = job.dp * plan.cp // plan.zero_group
        yield f"--num-distributed-optimizer-instances {replicas}"
    yield from _formats(plan)
    narrow = plan.moment_precision == "bf16"
    if narrow or not plan.stack.copies_gradients:
        yield "--use-precision-aware-optimizer"
    if narrow:
        yield "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    if not plan.stack.copies_gradients:
        yield "--main-grads-dtype bf16"
    elif plan.grad_reduce_precision == "bf16":
        yield "--grad-reduce-in-bf16"
    if plan.precision == "fp16" and plan.grad_reduce_precision == "fp32":
        yield "--accumulate-allreduce-grads-in-fp32"
    yield from _ATTENTION[plan.attention_kernel]
    yield from _recomputation(plan)
    yield from _optimizer(plan)
    yield from _offload(plan, job.model)
    if plan.rank_order == PIPELINE_BEFORE_DATA:
        yield "--use-tp-pp-dp-mapping"
    if plan.overlap_p2p is False:
        yield "--no-overlap-p2p-communication"


def _recomputation(plan: Plan) -> Iterator[str]:
    if plan.recompute_layers is not None:
        yield "--recompute-granularity full"
        yield f"--recompute-method block --recompute-num-layers {plan.recompute_layers}"
        return
    yield from _RECOMPUTE[plan.recompute]
    if plan.recompute_modules:
        yield f"--recompute-modules {' '.join(plan.recompute_modules)}"


def _optimizer(plan: Plan) -> Iterator[str]:
    yield from _OPTIMIZERS[plan.optimizer]
    if not plan.clip_gradients:
        yield "--clip-grad 0"


def _offload(plan: Plan, model: Model) -> Iterator[str]:
    if plan.offload.optimizer:
        yield "--optimizer-cpu-offload --use-precision-aware-optimizer"
        if plan.offload.overlap:
            yield "--overlap-cpu-optimizer-d2h-h2d"
        yield f"--optimizer-offload-fraction {plan.offload.share}"
    if plan.offload.activations:
        count = plan.offload.activation_layers or model.layers - 1
        yield f"--cpu-offloading --cpu-offloading-num-layers {count}"
    if plan.partition_activations:
        yield "--distribute-saved-activations"


def _exchanges(job: Job, plan: Plan) -> Iterator[str]:
    methods = {ours: theirs for theirs, ours in CP_METHODS.items()}
    if plan.cp > 1:
        yield f"--cp-comm-type {methods[plan.cp_method]}"
    if plan.cp > 1 and plan.cp_method == "all_to_all+ring":
        rings = plan.cp // plan.cp_heads
        yield f"--hierarchical-context-parallel-sizes {plan.cp_heads} {rings}"
    if job.model.experts is not None:
        yield f"--moe-token-dispatcher-type {_DISPATCHERS[plan.ep_dispatch]}"
    if job.model.experts is not None and plan.ep_dispatch == "hierarchical":
        yield f"--moe-flex-dispatcher-backend {plan.stack.expert_exchange}"


def _layout(plan: Plan, model: Model) -> str:
    """The layout string; modules beyond the last layer stand beside the loss."""
    counts = plan.layout or ()
    stages = ["t" * layers for layers in counts] if not isinstance(counts, str) else [counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * model.multi_token_layers + "L"
    return "|".join(stages)


def _facts(plan: Plan) -> Iterator[str]:
    """What the stack does otherwise than Megatron-LM by default."""
    stack = plan.stack
    if not stack.dropout:
        yield "--attention-dropout 0.0"
        yield "--hidden-dropout 0.0"
    if plan.loss_kernel == "fused":
        yield "--cross-entropy-loss-fusion"
    changed = changed_facts(stack, _STACK)
    if changed.get("fused_accumulation") is False:
        yield "--no-gradient-accumulation-fusion"
    if changed.get("fused_rotary") is False:
        yield "--no-rope-fusion"
    if changed.get("fused_elementwise") is False:
        yield "--no-bias-swiglu-fusion"
    if stack.grouped_experts:
        yield "--moe-grouped-gemm"
