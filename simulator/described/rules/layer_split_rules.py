"""Which rules hold where ranks share a layer: in a grid (2D to 3D), a sequence, or by experts?

What Colossal-AI's layers run is simulated; other grids are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from simulator.described.cluster.kernel_parameters import NARROW
from simulator.described.job import Job
from simulator.described.plan.fused_attention import fuses_heads
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import TensorGrid
from simulator.errors import Fault

_ELEMENT_WISE = frozenset({"adam", "sgd", "sgd-momentum"})
_WHAT_FILLS = {"2d": "a square q x q", "2.5d": "q x q x tp_depth", "3d": "a cube q x q x q"}


def tensor_grid_faults(job: Job) -> Iterator[Fault]:
    """Every rule about the grid that the job breaks."""
    plan = job.plan
    yield from _depth_has_a_meaning(plan)
    if plan.tp_method == "1d" or plan.tp == 1:
        return
    grid = plan.tensor_grid
    if grid is None:
        yield Fault(
            "plan.tp",
            f"must be {_WHAT_FILLS[plan.tp_method]} for plan.tp_method: {plan.tp_method}",
            plan.tp,
            f"use one of {', '.join(map(str, _grid_sizes(plan)))}",
        )
        return
    yield from _sizes_divide(job, grid)
    yield from _layers_without_a_grid(job)
    yield from _options_without_a_grid(job)


def determinism_faults(job: Job) -> Iterator[Fault]:
    """Megatron's deterministic mode refuses to pipeline tensor exchanges with products."""
    if job.plan.deterministic and job.plan.overlap_tp:
        yield Fault(
            "plan.overlap_tp",
            "must be false with plan.deterministic, which has no kernels for it",
            job.plan.overlap_tp,
            "leave plan.overlap_tp or plan.deterministic out",
        )


def _depth_has_a_meaning(plan: Plan) -> Iterator[Fault]:
    if plan.tp_depth > 1 and plan.tp_method != "2.5d":
        rule = f"does not apply with plan.tp_method: {plan.tp_method}"
        yield Fault("plan.tp_depth", rule, plan.tp_depth, "remove it, or use 2.5d")


def _grid_sizes(plan: Plan) -> list[int]:
    if plan.tp_method == "3d":
        return [side**3 for side in range(2, 6)]
    return [side**2 * plan.tp_depth for side in range(2, 6)]


def _sizes_divide(job: Job, grid: TensorGrid) -> Iterator[Fault]:
    model, q = job.model, grid.side
    if job.batch.micro_batch % grid.token_ways:
        yield Fault(
            "batch.micro",
            f"must be a multiple of {grid.token_ways}: {grid.method} ranks divide the sequences "
            "of a microbatch among them, because attention needs whole ones",
            job.batch.micro_batch,
            f"use {grid.token_ways}, or a smaller plan.tp",
        )
    for name, heads in (("heads", model.heads), ("kv heads", model.kv_heads)):
        if heads % q:
            rule = f"puts {q} ranks along a side, which must divide the {heads} {name}"
            yield Fault("plan.tp", rule, job.plan.tp, "use a smaller grid")
    pieces = q if grid.method == "2.5d" else q * q
    widths = {
        "hidden size": model.hidden,
        "MLP width": model.ffn_hidden,
        "width of all heads": model.heads * model.head_dim,
    }
    for name, width in widths.items():
        if width % pieces:
            rule = f"cuts vectors and matrices into {pieces}, which must divide the {name} {width}"
            yield Fault("plan.tp", rule, job.plan.tp, "use a smaller grid")


def _layers_without_a_grid(job: Job) -> Iterator[Fault]:
    model, method = job.model, job.plan.tp_method
    for exists, what in (
        (model.experts is not None, "mixtures of experts"),
        (model.latent_attention is not None, "latent attention"),
        (model.ssm is not None, "Mamba-2"),
        (model.multi_token_layers > 0, "multi-token prediction"),
        (model.embedding_dim > 0, "a projection of the embedding"),
        (model.qk_norm == "full", "a norm over all queries"),
        (model.attention_sinks, "attention sinks"),
    ):
        if exists:
            rule = f"does not support {what}: Colossal-AI has no such layers"
            yield Fault("plan.tp_method", rule, method, "use plan.tp_method: 1d")


def _options_without_a_grid(job: Job) -> Iterator[Fault]:
    plan, method = job.plan, job.plan.tp_method
    if plan.sequence_parallel:
        rule = f"divides what plan.tp_method: {method} already divides"
        yield Fault("plan.sequence_parallel", rule, True, "remove it")
    if plan.cp > 1:
        rule = f"cannot be combined with plan.tp_method: {method}, which keeps sequences whole"
        yield Fault("plan.cp", rule, plan.cp, "use plan.cp: 1, or plan.tp_method: 1d")
    if job.choices.shards_weights:
        rule = f"runs in no framework together with plan.tp_method: {method}"
        yield Fault("plan.zero", rule, 3, "use plan.zero: 2 or less")
    if plan.optimizer not in _ELEMENT_WISE:
        rule = f"is not modelled if plan.tp_method: {method} divides matrices along both axes"
        yield Fault("plan.optimizer", rule, plan.optimizer, "use adam, sgd or sgd-momentum")
    if plan.precision in NARROW:
        rule = f"is not supported by plan.tp_method: {method}, which sends 16-bit numbers"
        yield Fault("plan.precision", rule, plan.precision, "use bf16 or fp16")
    if plan.overlap_tp and method == "3d":
        rule = "needs steps to overlap, and 3d gathers whole operands before its one product"
        yield Fault("plan.overlap_tp", rule, True, "remove it")
    if plan.gathers_logits:
        rule = f"must be on with plan.tp_method: {method}, which divides the vocabulary"
        yield Fault("plan.stack.parallel_loss", rule, False, "remove it")


def context_faults(job: Job) -> Iterator[Fault]:
    """Every rule of context parallelism that the job breaks."""
    for rule in (_heads_divide_over_ranks, _scores_stay_in_a_kernel, _windows_need_all_keys):
        yield from rule(job)


def _heads_divide_over_ranks(job: Job) -> Iterator[Fault]:
    plan, heads = job.plan, job.model.heads
    combines = plan.cp_method == "all_to_all+ring"
    if not combines and plan.cp_heads > 1:
        rule = f"does not apply with plan.cp_method: {plan.cp_method}"
        yield Fault("plan.cp_heads", rule, plan.cp_heads, "use all_to_all+ring, or remove it")
    if combines and plan.cp % plan.cp_heads:
        yield Fault("plan.cp_heads", f"must divide plan.cp = {plan.cp}", plan.cp_heads)
    name, traders = ("cp_heads", plan.cp_heads) if combines else ("cp", plan.cp)
    if plan.cp > 1 and plan.cp_method.startswith("all_to_all") and heads % (plan.tp * traders):
        yield Fault(
            f"plan.{name}",
            f"tp x {name} = {plan.tp * traders} must divide the {heads} heads that ranks exchange",
            traders,
            f"use plan.cp_method: ring, or a smaller plan.{name}",
        )


def _scores_stay_in_a_kernel(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.cp > 1 and not has_one_attention_kernel(job):
        yield Fault(
            "plan.cp",
            f"context parallelism needs one fused attention kernel, and {_attention_of(job)}",
            plan.cp,
            "use plan.attention: flash, or plan.cp: 1",
        )


def has_one_attention_kernel(job: Job) -> bool:
    """Whether core attention is one kernel, with the heads that the stack gives it."""
    model, plan = job.model, job.plan
    is_grouped = model.latent_attention is None and not plan.repeats_kv_heads
    return fuses_heads(plan, model.heads, model.kv_heads if is_grouped else model.heads)


def _attention_of(job: Job) -> str:
    plan = job.plan
    if plan.attention_kernel == "flash":
        return f"none of PyTorch's reads grouped heads in plan.precision: {plan.precision}"
    return f"plan.attention is {plan.attention_kernel}"


def _windows_need_all_keys(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.cp == 1 or "ring" not in plan.cp_method or not job.model.sliding_window:
        return
    window = max(map(job.model.window, range(job.model.layers)))
    if 0 < window < job.batch.seq_len:
        yield Fault(
            "plan.cp",
            f"no kernel passes keys round a ring under an attention window ({window} tokens), and "
            f"plan.cp_method is {plan.cp_method}",
            plan.cp,
            "use plan.cp_method: all_to_all or all_gather, or plan.cp: 1",
        )


def expert_faults(job: Job) -> Iterator[Fault]:
    """Every rule of experts that the job breaks."""
    for rule in _RULES:
        yield from rule(job)


def _experts_divide_over_expert_ranks(job: Job) -> Iterator[Fault]:
    plan, experts = job.plan, job.model.experts
    if experts is None:
        if plan.ep > 1:
            yield Fault("plan.ep", "needs a model with experts", plan.ep, "use plan.ep: 1")
        for path, given in (("plan.etp", plan.etp), ("plan.ep_dispatch", plan.ep_dispatch)):
            if given not in (None, "all_to_all"):
                yield Fault(path, "needs a model with experts", given, "remove it")
        return
    if experts.count % plan.ep:
        yield Fault("plan.ep", f"must divide the model's {experts.count} experts", plan.ep)
    if experts.ffn_hidden % plan.expert_tp:
        rule = f"must divide the width {experts.ffn_hidden} of an expert"
        yield Fault("plan.etp", rule, plan.expert_tp)
    ranks = job.dp * plan.cp * plan.tp
    if ranks % (plan.ep * plan.expert_tp):
        yield Fault(
            "plan.ep",
            f"ep x etp = {plan.ep} x {plan.expert_tp} must divide dp x cp x tp = {ranks}",
            plan.ep,
            "lower plan.ep or plan.etp, or use fewer pipeline stages",
        )


def _experts_share_the_pipeline(job: Job) -> Iterator[Fault]:
    """The ranks of a pipeline must be the same for the experts as for the rest of a layer."""
    plan = job.plan
    words = plan.rank_order.split("-")
    inner = words[: words.index("pp")]
    ranks, holders = job.dp * plan.cp * plan.tp, plan.ep * plan.expert_tp
    if job.model.experts is None or plan.pp == 1 or ranks % holders:
        return
    dense = {"tp": plan.tp, "cp": plan.cp, "dp": job.dp}
    routed = {"tp": plan.expert_tp, "ep": plan.ep, "dp": ranks // holders}
    strides = [prod(sizes.get(word, 1) for word in inner) for sizes in (dense, routed)]
    if strides[0] != strides[1]:
        yield Fault(
            "plan.rank_order",
            f"puts the next pipeline stage {strides[0]} ranks further for dense layers but "
            f"{strides[1]} for routed experts",
            plan.rank_order,
            "put pp last, or choose etp x ep so that the axes before pp have the same product",
        )


def _experts_need_their_own_tokens(job: Job) -> Iterator[Fault]:
    plan = job.plan
    in_line = plan.tp > 1 and plan.tp_method == "1d"
    if job.model.experts and in_line and not plan.cuts_sequence:
        yield Fault(
            "plan.sequence_parallel",
            "must be on for experts with tp > 1: else every rank would route the same tokens",
            plan.sequence_parallel,
            "use plan.sequence_parallel: true, or plan.tp: 1",
        )


def _two_level_dispatch_needs_gpu_kernels(job: Job) -> Iterator[Fault]:
    if job.plan.ep_dispatch == "hierarchical" and job.cluster.profile.network.library == "gloo":
        rule = "needs kernels on GPUs, but cluster.network.library is gloo"
        hint = "use plan.ep_dispatch: all_to_all"
        yield Fault("plan.ep_dispatch", rule, job.plan.ep_dispatch, hint)


def _experts_receive_what_is_possible(job: Job) -> Iterator[Fault]:
    load, experts = job.plan.expert_load, job.model.experts
    if load is None:
        return
    path, hint = "plan.expert_load", "remove it"
    if experts is None:
        yield Fault(path, "needs a model with experts", load, hint)
        return
    if job.choices.data_parallelism.is_one_process:
        rule = "is not modelled with plan.data_parallel: data-parallel"
        yield Fault(path, rule, load, f"{hint}, or use ddp")
    if experts.capacity_factor is not None:
        rule = "has no effect with a capacity, because every expert is padded or cut to it"
        yield Fault(path, rule, load, f"{hint}, or leave out model.experts.capacity_factor")
    given = len(load.loads) if load.loads is not None else experts.count
    if given != experts.count:
        rule = f"has {given} loads, but a layer has {experts.count} experts"
        yield Fault(f"{path}.loads", rule, given, "give one number per expert")
        return
    most = experts.count / experts.top_k
    if max(load.over_mean(experts.count)) > most:
        rule = (
            f"gives an expert more than {most:g} times the mean, which is every token: each uses "
            f"{experts.top_k} of {experts.count} experts, none of them twice"
        )
        yield Fault(path, rule, load, "spread the load over more experts")


def _experts_overlap_between_chunks(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.overlap_ep and job.model.experts is None:
        rule = "needs a model with experts"
        yield Fault("plan.overlap_ep", rule, plan.overlap_ep, "remove it")
    if not plan.overlap_ep or plan.pp == 1:
        return
    schedule = job.choices.schedule
    can_pair = schedule.joins_passes or (plan.vpp > 1 and schedule.paired_order is not None)
    if not can_pair:
        rule = "needs a schedule that runs a forward and a backward at the same time"
        hint = "use plan.vpp: 2 or more with interleaved-1f1b, or dualpipe or dualpipev"
        yield Fault("plan.overlap_ep", rule, plan.overlap_ep, hint)


def _shared_expert_hides_one_exchange_each_way(job: Job) -> Iterator[Fault]:
    plan, experts = job.plan, job.model.experts
    if not plan.overlap_shared_expert:
        return
    path = "plan.overlap_shared_expert"
    if experts is None or not experts.shared_ffn_hidden:
        yield Fault(path, "needs a model with a shared expert", True, "remove it")
    if plan.ep_dispatch != "all_to_all":
        rule = f"needs tokens that go all_to_all, as in Megatron-Core, not {plan.ep_dispatch}"
        yield Fault(path, rule, True, "remove it, or plan.ep_dispatch")
    if plan.overlap_ep:
        rule = "hides the exchanges that plan.overlap_ep hides behind another microbatch"
        yield Fault(path, rule, True, "choose one of them, as Megatron-Core asks")


_RULES = (
    _experts_divide_over_expert_ranks,
    _experts_share_the_pipeline,
    _experts_need_their_own_tokens,
    _two_level_dispatch_needs_gpu_kernels,
    _experts_receive_what_is_possible,
    _experts_overlap_between_chunks,
    _shared_expert_hides_one_exchange_each_way,
)
