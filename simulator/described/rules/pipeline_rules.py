"""Which rules hold for the stages of a pipeline and the layers that they are dealt?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
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


_RULES = (
    _virtual_stages_need_a_pipeline,
    _post_validation_needs_a_pipeline,
    _layout_holds_the_model,
    _layout_is_given_once,
)
