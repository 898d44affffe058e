"""Which rules hold between frozen weights, adapters, and the rest of a job?

Names of parameters are judged where these are known
(:mod:`simulator.program.layer.layer_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.job import Job
from simulator.errors import Fault


def finetuning_faults(job: Job) -> Iterator[Fault]:
    """Every rule about what is trained that the job breaks."""
    yield from _master_weights_are_beside_others(job)
    yield from _documents_are_parts_of_sequences(job)
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
    if plan.attention_kernel != "flash":
        rule = "needs a kernel that separates documents"
        yield Fault(path, rule, length, "use plan.attention: flash")
    if plan.cp > 1:
        rule = "is not modelled if ranks share a sequence"
        yield Fault(path, rule, length, "use plan.cp: 1")


def _ways_that_train_a_part(job: Job) -> Iterator[Fault]:
    plan = job.plan
    path = "plan.lora" if plan.lora else "plan.frozen"
    for field, usual in (("data_parallel", "ddp"), ("tp_method", "1d")):
        given = getattr(plan, field)
        if given != usual:
            rule = f"is not modelled with plan.{field}: {given}"
            yield Fault(path, rule, None, f"use plan.{field}: {usual}")
