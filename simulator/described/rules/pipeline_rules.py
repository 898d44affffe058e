"""Which rules hold for the stages of a pipeline and the layers that they are dealt?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.described.layer_counts import layer_counts
from simulator.described.plan.layout_text import Layout, layers_per_stage, parse_layout
from simulator.errors import Fault, InputError


def pipeline_faults(job: Job) -> Iterator[Fault]:
    """Every rule of pipelines and layouts that the job breaks."""
    for rule in _RULES:
        yield from rule(job)


def plan_units(job: Job) -> int:
    """Things that are dealt out to pipeline stages: layers, and what counts as one."""
    plan = job.plan
    layers = job.model.layers + job.model.multi_token_layers
    return layers + plan.account_for_embedding + plan.account_for_loss


def _virtual_stages_need_a_pipeline(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.vpp > 1 and plan.pp == 1:
        yield Fault("plan.vpp", "needs a pipeline, plan.pp > 1", plan.vpp, "use plan.vpp: 1")
    units = plan_units(job)
    if plan.layout is None and units < plan.pp * plan.vpp:
        yield Fault(
            "plan.pp",
            f"pp x vpp = {plan.pp * plan.vpp} stages for only {units} layers",
            plan.pp,
            "lower plan.pp or plan.vpp",
        )


def _layers_are_dealt_out(job: Job) -> Iterator[Fault]:
    """The stages that the plan says nothing of can take what others leave."""
    stages = job.plan.pp * job.plan.vpp
    if job.plan.layout is not None or plan_units(job) < stages:
        return
    try:
        layer_counts(job, stages)
    except InputError as error:
        yield from error.faults


def _schedule_has_an_order(job: Job) -> Iterator[Fault]:
    """A batch that does not divide, of which another rule speaks, is taken as it should be."""
    plan, schedule = job.plan, job.choices.schedule
    if (plan.pp == 1 and plan.vpp > 1) or not job.divides_its_gpus:
        return  # another rule speaks of it
    passed = job.batch.global_batch / max(1, job.batch.micro_batch * job.dp)
    yield from schedule.size_faults(plan.pp, plan.vpp, max(1, round(passed)))


def _stages_update_together(job: Job) -> Iterator[Fault]:
    """Ranks that update alone wait for nobody, so they share nothing."""
    plan, schedule = job.plan, job.choices.schedule
    if schedule.synchronous:
        return
    if job.choices.shards_states and job.dp * plan.cp > 1:
        rule = (
            f"must be 0 with {schedule.name}: no sharded form of its stashed weights is published"
        )
        yield Fault("plan.zero", rule, plan.zero, "use plan.zero: 0, or plan.schedule: 1f1b")
    if job.choices.copies_embedding:
        rule = (
            "updates every stage on its own, but the first and the last stage share the embedding"
        )
        hint = "use model.tied_embeddings: false (and no multi-token prediction), or 1f1b"
        yield Fault("plan.schedule", rule, schedule.name, hint)
    if plan.post_validation:
        rule = f"does not apply with {schedule.name}, whose stages never wait for each other's norm"
        yield Fault("plan.post_validation", rule, plan.post_validation, "remove it")


def _post_validation_needs_a_pipeline(job: Job) -> Iterator[Fault]:
    plan = job.plan
    if plan.post_validation and plan.pp == 1:
        rule = "needs a pipeline, plan.pp > 1: with a single stage there is nothing to wait for"
        yield Fault("plan.post_validation", rule, plan.post_validation, "remove it")


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
        hint = f"or use plan.vpp: {given // plan.pp}" if divides else "add or remove stages"
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
        way = f"put them before L, or set model.multi_token_layers: {given}"
        yield Fault("plan.layout", rule, layout, way)


_LAYERS_OF_ENDS = ("first_stage_layers", "last_stage_layers")
_ENDS_AS_LAYERS = ("account_for_embedding", "account_for_loss")


def _ends_count_where_layers_are_dealt_evenly(job: Job) -> Iterator[Fault]:
    """Megatron-Core refuses the first, too (``TransformerConfig``)."""
    plan = job.plan
    counted = [way for way in _ENDS_AS_LAYERS if getattr(plan, way)]
    given = [f"plan.{way}" for way in _LAYERS_OF_ENDS if getattr(plan, way)]
    if counted and given:
        rule = f"conflicts with {' and '.join(given)}: the other stages take equal numbers"
        yield Fault(f"plan.{counted[0]}", rule, True, "remove one of them")
    elif counted and plan.pp > 1 and job.choices.uneven_layers == "by-cost":
        rule = "does not apply where the plan's stack deals layers out by what they cost"
        yield Fault(f"plan.{counted[0]}", rule, True, "remove it, or use plan.layout")


def _layout_is_given_once(job: Job) -> Iterator[Fault]:
    plan = job.plan
    others = [f"plan.{way}" for way in (*_LAYERS_OF_ENDS, *_ENDS_AS_LAYERS) if getattr(plan, way)]
    if plan.layout is not None and others:
        rule = (
            f"conflicts with {' and '.join(others)}: each of them gives the layers of every stage"
        )
        yield Fault("plan.layout", rule, plan.layout, "remove one of them")


_RULES = (
    _virtual_stages_need_a_pipeline,
    _layers_are_dealt_out,
    _schedule_has_an_order,
    _stages_update_together,
    _post_validation_needs_a_pipeline,
    _layout_holds_the_model,
    _layout_is_given_once,
    _ends_count_where_layers_are_dealt_evenly,
)
