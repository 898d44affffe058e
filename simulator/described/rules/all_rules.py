"""Which rules hold between the fields of a job?

One small function per rule; all run, so that a user sees every fault at once. Each
message says what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from simulator.described.cluster.kernel_parameters import NARROW
from simulator.described.job import Job
from simulator.described.model import Model
from simulator.described.plan.shipped_stacks import can_compile
from simulator.described.rules.data_parallel_rules import data_parallel_faults, optimizer_faults
from simulator.described.rules.layer_split_rules import (
    context_faults,
    determinism_faults,
    expert_faults,
    has_one_attention_kernel,
    tensor_grid_faults,
)
from simulator.described.rules.memory_rules import (
    contiguity_faults,
    offload_faults,
    partition_faults,
    recompute_faults,
)
from simulator.described.rules.pipeline_rules import pipeline_faults
from simulator.described.rules.pool_rules import pool_faults
from simulator.described.rules.profile_rules import (
    link_faults,
    network_faults,
    power_faults,
    precision_faults,
)
from simulator.errors import Fault, InputError
from simulator.schedule.info import MOST_PASSES

_MOST_MICROBATCHES = 100_000
"""Real steps have a few thousand at most; each is simulated, so a mistyped batch takes hours."""


def job_faults(job: Job) -> list[Fault]:
    """Every rule across fields that the job breaks; empty if it is sound.

    In a mixed cluster all GPUs could be of any of its kinds.
    """
    if not job.cluster.pools:
        return _faults_of(job, (*_OF_THE_CLUSTER, *_OF_THE_PLAN))
    faults = list(pool_faults(job))
    for number in range(len(job.cluster.pools)):
        uniform = job.model_copy(update={"cluster": job.cluster.of_pool(number)})
        faults += _faults_of(uniform, (*_OF_THE_CLUSTER, *_OF_THE_PLAN))
    return faults


def plan_faults(job: Job) -> list[Fault]:
    """Every rule that the plan breaks on one kind of GPU, in a cluster that is sound itself."""
    return _faults_of(job, _OF_THE_PLAN)


def _faults_of(job: Job, rules: Iterable[Callable[[Job], Iterator[Fault]]]) -> list[Fault]:
    """Where a rule asks for a schedule that cannot be read, the reasons why not."""
    faults: list[Fault] = []
    for rule in rules:
        try:
            faults += rule(job)
        except InputError as error:
            faults += error.faults
    return faults


def _links_carry_data(job: Job) -> Iterator[Fault]:
    yield from link_faults(job.cluster.profile.network, "cluster.network", job.cluster.gpus)


def _power_is_limited(job: Job) -> Iterator[Fault]:
    yield from power_faults(job.cluster.profile, "cluster.device")


def _gpus_divide_into_ranks(job: Job) -> Iterator[Fault]:
    plan, gpus = job.plan, job.cluster.gpus
    width = plan.tp * plan.pp * plan.cp
    if gpus % width:
        yield Fault(
            "cluster.gpus",
            f"must be a multiple of tp x pp x cp = {plan.tp} x {plan.pp} x {plan.cp} = {width}",
            gpus,
            f"use {max(1, gpus // width) * width} GPUs, or change tp, pp or cp",
        )


def _batch_divides_into_microbatches(job: Job) -> Iterator[Fault]:
    if job.dp == 0 or not job.divides_its_gpus:
        return  # without whole ranks there is no count of them to divide by
    batch, slice_ = job.batch, job.batch.micro_batch * job.dp
    if batch.global_batch % slice_:
        nearest = max(1, round(batch.global_batch / slice_)) * slice_
        yield Fault(
            "batch.global",
            f"must be a multiple of micro x dp = {batch.micro_batch} x {job.dp} = {slice_}",
            batch.global_batch,
            f"use {nearest}, or change batch.micro, tp, pp or cp",
        )
    elif job.microbatches > _MOST_MICROBATCHES:
        yield Fault(
            "batch.global",
            f"makes {job.microbatches:,} microbatches per rank, of at most {_MOST_MICROBATCHES:,}",
            batch.global_batch,
            f"use at most {_MOST_MICROBATCHES * slice_}, more GPUs, or a larger batch.micro",
        )
    elif job.microbatches * job.plan.pp * job.plan.vpp > MOST_PASSES:
        passes = job.microbatches * job.plan.pp * job.plan.vpp
        yield Fault(
            "batch.global",
            f"makes {passes:,} passes (microbatches x pp x vpp), of at most {MOST_PASSES:,}: "
            "each is simulated",
            batch.global_batch,
            "use a smaller batch, fewer stages, or a larger batch.micro",
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
            f"use {max(1, round(seq_len / chunks)) * chunks}",
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
    if model.has_any_attention and model.heads % tp:
        most = min(job.cluster.gpus, model.heads)
        ways = ", ".join(str(n) for n in range(1, most + 1) if model.heads % n == 0)
        yield Fault("plan.tp", f"must divide the model's {model.heads} heads", tp, f"use {ways}")
    if model.has_any_attention and model.kv_heads % tp and tp % model.kv_heads:
        yield Fault("plan.tp", f"must divide, or be a multiple of, {model.kv_heads} kv heads", tp)
    if model.ffn_hidden % tp:
        yield Fault("plan.tp", f"must divide the MLP width {model.ffn_hidden}", tp)


def _states_shard_over_a_divisor(job: Job) -> Iterator[Fault]:
    group, width = job.plan.zero_group, job.dp * job.plan.cp
    if group and not job.plan.zero:
        rule = "does not apply with plan.zero: 0, which shards nothing"
        yield Fault("plan.zero_group", rule, group, "remove it, or shard with plan.zero: 1")
    if group and width % group:
        yield Fault("plan.zero_group", f"must divide dp x cp = {width}", group)
    if job.plan.reshard_after_forward is not None and job.plan.zero < 3:
        given = job.plan.reshard_after_forward
        rule = f"does not apply with plan.zero: {job.plan.zero}, which shards no parameters"
        yield Fault("plan.reshard_after_forward", rule, given, "remove it, or use plan.zero: 3")


def _frameworks_have_the_zero_stage(job: Job) -> Iterator[Fault]:
    plan, most = job.plan, job.choices.most_zero
    if plan.zero <= most:
        return
    rule = f"must be at most {most}: the plan's stack has no higher stage"
    way_out = f"use plan.zero: {most}, or another plan.stack"
    if plan.pp > 1 and most > 0:
        rule += " inside a pipeline (gradients add up over microbatches there, whole)"
        way_out += ", or plan.pp: 1"
    yield Fault("plan.zero", rule, plan.zero, way_out)


def _frameworks_shard_inside_pipelines(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.pp == 1 or plan.zero == 0:
        return
    hint = "use plan.zero: 1, or plan.pp: 1"
    if plan.zero == 3 and job.model.tied_embeddings:
        rule = (
            "no framework runs ZeRO 3 in a pipeline with tied embeddings: stages shard their "
            "copies separately, and PyTorch's pipelines refuse weights that two stages share"
        )
        yield Fault("plan.zero", rule, plan.zero, f"{hint}, or model.tied_embeddings: false")
    schedule = job.choices.schedule
    if job.choices.shards_gradients and schedule.placement.copies > 1:
        rule = (
            f"no framework runs ZeRO {plan.zero} under {schedule.name}: its two copies of the "
            "model add their whole gradients up at the end of the step"
        )
        way_out = "use plan.zero: 1, or a schedule with one copy of the model, as dualpipev"
        yield Fault("plan.zero", rule, plan.zero, way_out)


def _device_has_the_format(job: Job) -> Iterator[Fault]:
    yield from precision_faults(job.cluster.profile, job.plan.precision)


def _layers_in_bf16_are_some_of_narrow_ones(job: Job) -> Iterator[Fault]:
    plan = job.plan
    for name, count in (("first", plan.first_bf16_layers), ("last", plan.last_bf16_layers)):
        path = f"plan.{name}_bf16_layers"
        if count and plan.precision not in NARROW:
            rule = f"does not apply with plan.precision: {plan.precision}, of 16 bits or more"
            yield Fault(path, rule, count, "remove it, or use plan.precision: fp8")
        elif count > job.model.layers:
            rule = f"must be at most the {job.model.layers} layers of the model"
            yield Fault(path, rule, count, f"use {job.model.layers}")


def _framework_runs_on_the_device(job: Job) -> Iterator[Fault]:
    known = job.cluster.stacks
    if known and job.stack_name not in known:
        rule = f"does not run on {job.cluster.profile.name}; its chips run {', '.join(known)}"
        yield Fault("plan.stack", rule, job.stack_name, f"use plan.stack: {known[0]}")


def _layers_are_ones_that_compile(job: Job) -> Iterator[Fault]:
    if job.plan.compile is not None and not can_compile(job.stack_name):
        rule = f"does not apply to {job.stack_name}, whose layers torch.compile does not rewrite"
        way_out = "remove it, or use a stack with layers of PyTorch, such as plan.stack: torch"
        yield Fault("plan.compile", rule, job.plan.compile, way_out)


def _flash_attention_needs_sixteen_bits(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.attention == "flash" and not plan.fuses_its_precision:
        yield Fault(
            "plan.attention",
            f"flash attention has no kernel for plan.precision: {plan.precision}",
            plan.attention,
            "remove it, or use unfused",
        )
    elif plan.attention == "flash" and not has_one_attention_kernel(job):
        rule = f"no kernel of PyTorch's reads grouped heads in plan.precision: {plan.precision}"
        yield Fault("plan.attention", rule, plan.attention, "remove it, or use unfused")


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
                    "use one of those, or more GPUs",
                )


def _finetuning_faults(job: Job) -> Iterator[Fault]:
    """Between frozen weights, adapters, and the rest of a job.

    Names of parameters are judged where these are known
    (:mod:`simulator.program.layer.layer_kinds`).
    """
    yield from _master_weights_are_beside_others(job)
    yield from _documents_are_parts_of_sequences(job)
    if job.reference is not None:
        yield from _references_run_as_the_model_does(job)
    if job.plan.frozen_patterns:
        yield from _ways_that_train_a_part(job)


def _master_weights_are_beside_others(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.master_weights is not None and plan.precision in ("fp32", "tf32"):
        rule = f"does not apply with plan.precision: {plan.precision}, whose weights are fp32"
        yield Fault("plan.master_weights", rule, plan.master_weights, "remove it")


def _documents_are_parts_of_sequences(job: Job) -> Iterator[Fault]:
    length, plan = job.batch.document_len, job.plan
    if length is None:
        return
    path = "batch.document_len"
    if length > job.batch.seq_len:
        rule = f"must be at most batch.seq_len = {job.batch.seq_len}"
        yield Fault(path, rule, length, f"use {job.batch.seq_len}, or remove it")
    if not has_one_attention_kernel(job):
        rule = "needs a kernel that separates documents"
        yield Fault(path, rule, length, "use plan.attention: flash")
    if plan.cp > 1:
        rule = "is not modelled if ranks share a sequence"
        yield Fault(path, rule, length, "use plan.cp: 1")


def _references_run_as_the_model_does(job: Job) -> Iterator[Fault]:
    plan, path = job.plan, "reference"
    if job.reference == "adapters-off" and plan.lora is None:
        yield Fault(path, "needs adapters to turn off", job.reference, "set plan.lora, or same")
    usual = {"pp": 1, "data_parallel": "ddp", "tp_method": "1d", "expert_load": None}
    for field, value in usual.items():
        if getattr(plan, field) != value:
            rule = f"is not modelled with plan.{field}"
            yield Fault(path, rule, None, f"leave plan.{field} at its default")
    if plan.offload.parameters is not None:
        rule = "is not modelled with parameters on the host"
        yield Fault(path, rule, None, "remove plan.offload.parameters")
    if not isinstance(job.reference, Model):
        return
    if job.reference.heads % plan.tp:
        rule = f"has {job.reference.heads} heads, which plan.tp = {plan.tp} does not divide"
        yield Fault(path, rule, job.reference.name, "use a divisor")


def _ways_that_train_a_part(job: Job) -> Iterator[Fault]:
    plan = job.plan
    path = "plan.lora" if plan.lora else "plan.frozen"
    if plan.prefix_tokens and (job.model.latent_attention or plan.cp > 1):
        rule = "is modelled neither with latent attention nor with context parallelism"
        yield Fault("plan.prefix_tokens", rule, plan.prefix_tokens, "remove it")
    for field, usual in (("data_parallel", "ddp"), ("tp_method", "1d")):
        given = getattr(plan, field)
        if given != usual:
            rule = f"is not modelled with plan.{field}: {given}"
            yield Fault(path, rule, None, f"use plan.{field}: {usual}")


_OF_THE_CLUSTER = _network_is_sound, _links_carry_data, _power_is_limited
_OF_THE_PLAN = (
    _device_has_the_format,
    _layers_in_bf16_are_some_of_narrow_ones,
    _flash_attention_needs_sixteen_bits,
    recompute_faults,
    _heads_divide_over_tensor_ranks,
    _gpus_divide_into_ranks,
    _batch_divides_into_microbatches,
    _sequence_divides_over_ranks,
    tensor_grid_faults,
    determinism_faults,
    context_faults,
    expert_faults,
    pipeline_faults,
    _states_shard_over_a_divisor,
    _perturbed_ranks_exist,
    _frameworks_have_the_zero_stage,
    _frameworks_shard_inside_pipelines,
    _framework_runs_on_the_device,
    _layers_are_ones_that_compile,
    data_parallel_faults,
    optimizer_faults,
    _finetuning_faults,
    offload_faults,
    partition_faults,
    contiguity_faults,
)
