"""Which rules hold between the fields of a job?

One small function per rule; all run, so that a user sees every fault at once. Each
message says what to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from simulator.errors import Fault, InputError
from simulator.spec.data_parallel_checks import data_parallel_faults
from simulator.spec.job import Job
from simulator.spec.layout_text import Layout, layers_per_stage, parse_layout
from simulator.spec.link_checks import link_faults
from simulator.spec.network_checks import network_faults
from simulator.spec.offload_checks import contiguity_faults, offload_faults, partition_faults
from simulator.spec.optimizer_checks import optimizer_faults
from simulator.spec.pool_checks import pool_faults
from simulator.spec.recompute_checks import recompute_faults
from simulator.spec.tensor_grid_checks import tensor_grid_faults

_MOST_MICROBATCHES = 100_000
"""Real steps have a few thousand at most; each is simulated, so a mistyped batch takes hours."""


def job_faults(job: Job) -> list[Fault]:
    """Every rule across fields that the job breaks; empty if it is sound.

    In a mixed cluster all GPUs could be of any of its kinds.
    """
    if not job.cluster.pools:
        return [fault for rule in _RULES for fault in rule(job)]
    faults = list(pool_faults(job))
    for number in range(len(job.cluster.pools)):
        uniform = job.model_copy(update={"cluster": job.cluster.of_pool(number)})
        found = [fault for rule in _RULES for fault in rule(uniform)]
        faults += [fault for fault in found if fault not in faults]
    return faults


def _links_carry_data(job: Job) -> Iterator[Fault]:
    yield from link_faults(job.cluster.profile.network, "cluster.network", job.cluster.gpus)


def _gpus_divide_into_ranks(job: Job) -> Iterator[Fault]:
    plan, gpus = job.plan, job.cluster.gpus
    width = plan.tp * plan.pp * plan.cp
    if gpus % width:
        yield Fault(
            "cluster.gpus",
            f"must be a multiple of tp x pp x cp = {plan.tp} x {plan.pp} x {plan.cp} = {width}",
            gpus,
            f"take {max(1, gpus // width) * width} GPUs, or change a degree",
        )


def _batch_divides_into_microbatches(job: Job) -> Iterator[Fault]:
    if job.dp == 0:
        return
    batch, slice_ = job.batch, job.batch.micro_batch * job.dp
    if batch.global_batch % slice_:
        nearest = max(1, round(batch.global_batch / slice_)) * slice_
        yield Fault(
            "batch.global",
            f"must be a multiple of micro x dp = {batch.micro_batch} x {job.dp} = {slice_}",
            batch.global_batch,
            f"take {nearest}, or change batch.micro or a degree",
        )
    elif job.microbatches > _MOST_MICROBATCHES:
        yield Fault(
            "batch.global",
            f"makes {job.microbatches:,} microbatches per rank, of at most {_MOST_MICROBATCHES:,}",
            batch.global_batch,
            f"take at most {_MOST_MICROBATCHES * slice_}, more GPUs, or a larger batch.micro",
        )


def _sequence_divides_over_ranks(job: Job) -> Iterator[Fault]:
    plan, seq_len = job.plan, job.batch.seq_len
    # Causal balance gives each context-parallel rank two chunks of the sequence.
    chunks = 2 * plan.cp if plan.cp > 1 and job.model.causal else plan.cp
    if seq_len % chunks:
        yield Fault(
            "batch.seq_len",
            f"must be a multiple of {chunks} for cp = {plan.cp}",
            seq_len,
            f"take {max(1, round(seq_len / chunks)) * chunks}",
        )
    if plan.sequence_parallel and seq_len % (plan.cp * plan.tp):
        yield Fault(
            "batch.seq_len",
            f"must be a multiple of cp x tp = {plan.cp * plan.tp} with sequence parallelism",
            seq_len,
            "or set plan.sequence_parallel: false",
        )


def _heads_divide_over_tensor_ranks(job: Job) -> Iterator[Fault]:
    model, tp = job.model, job.plan.tp
    if job.plan.tp_method != "1d":
        return
    if model.heads % tp:
        yield Fault("plan.tp", f"must divide the model's {model.heads} heads", tp)
    if model.kv_heads % tp and tp % model.kv_heads:
        yield Fault("plan.tp", f"must divide or be a multiple of {model.kv_heads} kv heads", tp)
    if model.ffn_hidden % tp:
        yield Fault("plan.tp", f"must divide the MLP width {model.ffn_hidden}", tp)


def _heads_divide_over_traded_sequences(job: Job) -> Iterator[Fault]:
    plan, heads = job.plan, job.model.heads
    combines = plan.cp_method == "all_to_all+ring"
    if not combines and plan.cp_heads > 1:
        rule = f"has no meaning with plan.cp_method: {plan.cp_method}"
        yield Fault("plan.cp_heads", rule, plan.cp_heads, "take all_to_all+ring, or leave it out")
    if combines and plan.cp % plan.cp_heads:
        yield Fault("plan.cp_heads", f"must divide plan.cp = {plan.cp}", plan.cp_heads)
    name, traders = ("cp_heads", plan.cp_heads) if combines else ("cp", plan.cp)
    if plan.cp > 1 and plan.cp_method.startswith("all_to_all") and heads % (plan.tp * traders):
        yield Fault(
            f"plan.{name}",
            f"tp x {name} = {plan.tp * traders} must divide the {heads} heads that ranks trade",
            traders,
            f"take plan.cp_method: ring, or a smaller plan.{name}",
        )


def _experts_divide_over_expert_ranks(job: Job) -> Iterator[Fault]:
    plan, experts = job.plan, job.model.experts
    if experts is None:
        if plan.ep > 1:
            yield Fault("plan.ep", "needs a model with experts", plan.ep, "take plan.ep: 1")
        for path, given in (("plan.etp", plan.etp), ("plan.ep_dispatch", plan.ep_dispatch)):
            if given not in (None, "all_to_all"):
                yield Fault(path, "needs a model with experts", given, "leave it out")
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
            "lower plan.ep or plan.etp, or take fewer pipeline stages",
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
            f"puts the next pipeline stage {strides[0]} ranks on for dense layers and "
            f"{strides[1]} for routed experts",
            plan.rank_order,
            "put pp last, or choose etp x ep so that what comes before pp is as wide",
        )


def _experts_need_their_own_tokens(job: Job) -> Iterator[Fault]:
    plan = job.plan
    in_line = plan.tp > 1 and plan.tp_method == "1d"
    if job.model.experts and in_line and not plan.cuts_sequence:
        yield Fault(
            "plan.sequence_parallel",
            "must be on for experts with tp > 1: else every rank would route the same tokens",
            plan.sequence_parallel,
            "take plan.sequence_parallel: true, or plan.tp: 1",
        )


def _two_level_dispatch_needs_gpu_kernels(job: Job) -> Iterator[Fault]:
    if job.plan.ep_dispatch == "hierarchical" and job.cluster.profile.network.library == "gloo":
        rule = "is done by kernels on GPUs, and cluster.network.library is gloo"
        hint = "take plan.ep_dispatch: all_to_all"
        yield Fault("plan.ep_dispatch", rule, job.plan.ep_dispatch, hint)


def _experts_receive_what_is_possible(job: Job) -> Iterator[Fault]:
    load, experts = job.plan.expert_load, job.model.experts
    if load is None:
        return
    path, hint = "plan.expert_load", "leave it out"
    if experts is None:
        yield Fault(path, "needs a model with experts", load, hint)
        return
    if job.plan.data_parallel == "data-parallel":
        rule = "is not modelled with plan.data_parallel: data-parallel"
        yield Fault(path, rule, load, f"{hint}, or take ddp")
    if experts.capacity_factor is not None:
        rule = "changes nothing with a capacity, to which every expert is padded and cut"
        yield Fault(path, rule, load, f"{hint}, or leave out model.experts.capacity_factor")
    given = len(load.loads) if load.loads is not None else experts.count
    if given != experts.count:
        rule = f"has {given} loads, but a layer has {experts.count} experts"
        yield Fault(f"{path}.loads", rule, given, "give one number per expert")
        return
    most = experts.count / experts.top_k
    if max(load.over_mean(experts.count)) > most:
        rule = (
            f"gives an expert more than {most:g} times the mean, which is every token: "
            f"each visits {experts.top_k} of {experts.count} experts, and none twice"
        )
        yield Fault(path, rule, load, "spread the load wider")


def _experts_overlap_between_chunks(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.overlap_ep and job.model.experts is None:
        rule = "needs a model with experts"
        yield Fault("plan.overlap_ep", rule, plan.overlap_ep, "leave it out")
    can_pair = plan.joins_passes or (plan.vpp > 1 and plan.schedule in (None, "interleaved-1f1b"))
    if plan.overlap_ep and plan.pp > 1 and not can_pair:
        rule = "needs a schedule that runs a forward beside a backward"
        hint = "take plan.vpp: 2 or more with interleaved-1f1b, or dualpipe or dualpipev"
        yield Fault("plan.overlap_ep", rule, plan.overlap_ep, hint)


def _virtual_stages_need_a_pipeline(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.vpp > 1 and plan.pp == 1:
        yield Fault("plan.vpp", "needs a pipeline, plan.pp > 1", plan.vpp, "take plan.vpp: 1")
    units = plan_units(job)
    if plan.layout is None and units < plan.pp * plan.vpp:
        yield Fault(
            "plan.pp",
            f"pp x vpp = {plan.pp * plan.vpp} stages for only {units} layers",
            plan.pp,
            "lower plan.pp or plan.vpp",
        )


def _post_validation_needs_a_pipeline(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.post_validation and plan.pp == 1:
        rule = "needs a pipeline, plan.pp > 1: else there is no other stage to wait for"
        yield Fault("plan.post_validation", rule, plan.post_validation, "leave it out")


def plan_units(job: Job) -> int:
    """Things that are dealt out to pipeline stages: layers, and what counts as one."""
    plan = job.plan
    layers = job.model.layers + job.model.multi_token_layers
    return layers + plan.account_for_embedding + plan.account_for_loss


def _layout_holds_the_model(job: Job) -> Iterator[Fault]:
    layout, plan, layers = job.plan.layout, job.plan, job.model.layers
    if layout is None:
        return
    try:
        counts = layers_per_stage(layout)
    except InputError as error:
        yield from error.faults
        return
    given, stages = len(counts), plan.pp * plan.vpp
    if given != stages:
        rule = f"has {given} stages, but pp x vpp = {plan.pp} x {plan.vpp} = {stages}"
        divides = given and given % plan.pp == 0
        hint = f"or take plan.vpp: {given // plan.pp}" if divides else "add or remove stages"
        yield Fault("plan.layout", rule, layout, hint)
    if sum(counts) != layers:
        rule = f"has {sum(counts)} layers, but the model has {layers}"
        yield Fault("plan.layout", rule, layout, "put every layer on one stage")
    yield from _wrong_modules(layout, job.model.multi_token_layers)


def _wrong_modules(layout: Layout, modules: int) -> Iterator[Fault]:
    """Lists leave the multi-token-prediction modules to the last stage; strings name them."""
    given = parse_layout(layout)[-1].count("m") if isinstance(layout, str) else modules
    if given != modules:
        rule = f"has {given} multi-token-prediction modules (m), but the model has {modules}"
        yield Fault("plan.layout", rule, layout, "put them before L")


def _layout_is_given_once(job: Job) -> Iterator[Fault]:
    plan = job.plan
    ways = (
        "first_stage_layers", "last_stage_layers", "account_for_embedding", "account_for_loss",
    )  # fmt: skip
    others = [f"plan.{way}" for way in ways if getattr(plan, way)]
    if plan.layout is not None and others:
        rule = f"already says which layers each stage holds, as {' and '.join(others)} would"
        yield Fault("plan.layout", rule, plan.layout, "leave one of them out")


def _states_shard_over_a_divisor(job: Job) -> Iterator[Fault]:
    group, width = job.plan.zero_group, job.dp * job.plan.cp
    if group and not job.plan.zero:
        rule = "has no meaning with plan.zero: 0, which shards nothing"
        yield Fault("plan.zero_group", rule, group, "leave it out, or shard with plan.zero: 1")
    if group and width % group:
        yield Fault("plan.zero_group", f"must divide dp x cp = {width}", group)
    if job.plan.reshard_after_forward is not None and job.plan.zero < 3:
        given = job.plan.reshard_after_forward
        rule = f"has no meaning with plan.zero: {job.plan.zero}, which shards no parameters"
        yield Fault("plan.reshard_after_forward", rule, given, "leave it out, or take plan.zero: 3")


def _frameworks_shard_inside_pipelines(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.pp == 1 or plan.zero == 0:
        return
    hint = "take plan.zero: 1, or plan.pp: 1"
    if plan.zero > plan.stack.zero_in_pipeline:
        rule = (
            f"the plan's stack runs ZeRO {plan.stack.zero_in_pipeline} at most inside a pipeline "
            "(DeepSpeed's engine refuses more: its pipeline adds gradients up over microbatches)"
        )
        yield Fault("plan.zero", rule, plan.zero, hint)
    if plan.zero == 3 and job.model.tied_embeddings:
        rule = (
            "no framework runs ZeRO 3 in a pipeline with tied embeddings: stages shard their "
            "copies apart, and PyTorch's pipelines refuse weights that two stages share"
        )
        yield Fault("plan.zero", rule, plan.zero, f"{hint}, or model.tied_embeddings: false")


def _flash_attention_needs_sixteen_bits(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.attention == "flash" and plan.precision in ("fp32", "tf32"):
        yield Fault(
            "plan.attention",
            f"flash attention has no kernel for plan.precision: {plan.precision}",
            plan.attention,
            "leave it out, or take unfused",
        )


def _network_is_sound(job: Job) -> Iterator[Fault]:
    network = job.cluster.profile.network
    if job.cluster.gpus > min(network.gpus_per_node, network.scale_up.gpus):
        yield from network_faults(network, "cluster.network")


def _perturbed_ranks_exist(job: Job) -> Iterator[Fault]:
    gpus = job.cluster.gpus
    for number, perturbation in enumerate(job.perturbations):
        for name, given, count in (
            ("gpu", perturbation.gpu, gpus),
            ("node", perturbation.node, job.cluster.nodes),
        ):
            if given is not None and given[1] >= count:
                yield Fault(
                    f"perturbations.{number}.{name}",
                    f"the job has {count}, numbered 0 to {count - 1}",
                    given[1],
                    "take one of those, or more GPUs",
                )


_RULES = (
    _network_is_sound,
    _links_carry_data,
    _flash_attention_needs_sixteen_bits,
    recompute_faults,
    _gpus_divide_into_ranks,
    _batch_divides_into_microbatches,
    _sequence_divides_over_ranks,
    _heads_divide_over_tensor_ranks,
    tensor_grid_faults,
    _heads_divide_over_traded_sequences,
    _experts_divide_over_expert_ranks,
    _experts_share_the_pipeline,
    _experts_need_their_own_tokens,
    _two_level_dispatch_needs_gpu_kernels,
    _experts_receive_what_is_possible,
    _experts_overlap_between_chunks,
    _virtual_stages_need_a_pipeline,
    _post_validation_needs_a_pipeline,
    _layout_holds_the_model,
    _layout_is_given_once,
    _states_shard_over_a_divisor,
    _perturbed_ranks_exist,
    _frameworks_shard_inside_pipelines,
    data_parallel_faults,
    optimizer_faults,
    offload_faults,
    partition_faults,
    contiguity_faults,
)
