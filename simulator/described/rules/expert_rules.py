"""Which rules hold for routed experts and the ranks that they are spread over?"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from simulator.described.job import Job
from simulator.errors import Fault


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


_RULES = (
    _experts_divide_over_expert_ranks,
    _experts_share_the_pipeline,
    _experts_need_their_own_tokens,
    _two_level_dispatch_needs_gpu_kernels,
    _experts_receive_what_is_possible,
    _experts_overlap_between_chunks,
)
