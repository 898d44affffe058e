"""Which torchtitan configuration trains a job?

Models are named by torchtitan's flavours, and what a TOML cannot say is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from simulator.described.job import Job
from simulator.described.load import load_model
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_blocks import FSDP_OFFLOAD, Offload
from simulator.described.plan.shipped_stacks import facts_of_compiler
from simulator.exporters.plans import Refusals, changed_facts, spelled_out
from simulator.importers.torchtitan import (
    COMPILED_LOSS,
    EAGER_LOSS,
    MODELS,
    ONE_CHUNK,
    SCHEDULES,
    WITHOUT_EXTRAS,
)
from simulator.program.run.order import StepOrder
from simulator.schedule import ScheduleInfo
from simulator.schedule.slots import Placement
from simulator.schedule.written import write_order

_STACK = "torchtitan"
_ONLY = {
    "first_stage_layers": 0, "last_stage_layers": 0, "layout": None,
    "first_bf16_layers": 0, "last_bf16_layers": 0,
    "recompute_layers": None, "recompute_modules": (), "expert_load": None,
    "rank_order": Plan().rank_order, "post_validation": None,
    "overlap_grad_reduce": True, "overlap_param_gather": True, "overlap_p2p": None,
    "optimizer": "adam", "tp_method": "1d", "clip_gradients": True,
    "partition_activations": False, "contiguous_checkpoints": False,
    "ep_dispatch": "all_to_all", "overlap_shared_expert": False,
}  # fmt: skip
"""Fields of a plan that torchtitan decides."""

_STOPS = "repeats_last_product"
_WRITTEN_FACTS = ("cross_entropy", _STOPS)
"""Facts of the stack, but for what the compiler changes, that a TOML says."""
_ROTATION = {"ring": "alltoall", "all_gather": "allgather"}
_CONVERTERS = {"fp8": ["quantize.linear.float8"], "mxfp8": ["quantize.linear.mx"]}

_NAMES = {ours: theirs for theirs, ours in SCHEDULES.items()}
"""Torch's name of each of our schedules that it has."""

Table = Mapping[str, Mapping[str, object]]
"""Sections of a TOML."""


def schedule_csv(job: Job) -> str | None:
    """The job's pipeline order as torch reads it; None where torchtitan knows it by name."""
    plan = spelled_out(job)
    if plan.pp == 1 or plan.schedule in _NAMES:
        return None
    return write_order(StepOrder(job).slots(job.microbatches))


def torchtitan_config(job: Job, csv_file: str = "schedule.csv") -> str:
    """A torchtitan TOML for a job; data and learning rate are not the job's to say.

    Raises:
        UnsupportedError: With everything that torchtitan's TOML cannot say.
    """
    plan = spelled_out(job)
    name, flavor = _flavor(job.model) or ("", "")
    _refuse(job, plan, flavor)
    pipelined = plan.pp > 1
    per_rank = job.batch.global_batch // job.dp
    converters = _CONVERTERS.get(plan.precision, [])
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor, "converters": converters},
        "training": {
            "local_batch_size": per_rank if pipelined else job.batch.micro_batch,
            "global_batch_size": job.batch.global_batch,
            "seq_len": job.batch.seq_len,
            "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
            **({"enable_cpu_offload": True} if plan.offload == FSDP_OFFLOAD else {}),
            "mixed_precision_reduce": "bfloat16" if plan.grad_reduce_precision == "bf16"
            else "float32",
        },
        "parallelism": _parallelism(job, plan, csv_file),
        "activation_checkpoint": {
            "mode": plan.recompute,
            "selective_ac_option": "op",
            **({"early_stop": True} if _STOPS in changed_facts(plan.stack, _STACK) else {}),
        },
        "compile": _compilation(plan),
        **({"optimizer": {"implementation": plan.optimizer_kernels}} if plan.optimizer_kernels
           else {}),
    }  # fmt: skip
    return _toml(sections)


def _compilation(plan: Plan) -> dict[str, Any]:
    eager = {"model": bool(_not_compiled(plan)), "loss": plan.loss_kernel == EAGER_LOSS}
    parts = [name for name, is_eager in eager.items() if not is_eager]
    return {"enable": bool(parts)} | ({"components": parts} if len(parts) == 1 else {})


def _not_compiled(plan: Plan) -> set[str]:
    """What torch.compile would change of the stack."""
    eager = facts_of_compiler(is_compiled=False)
    return {name for name, value in eager.items() if getattr(plan.stack, name) == value}


def _flavor(model: Model) -> tuple[str, str] | None:
    """Name and flavour of a model; None where torchtitan has none like it."""
    for key, name in MODELS.items():
        if model == load_model(name):
            return key
    for key, name in WITHOUT_EXTRAS.items():
        if model == load_model(name).model_copy(update={"multi_token_layers": 0}):
            return key
    return None


def _refuse(job: Job, plan: Plan, flavor: str) -> None:
    refusals = Refusals("torchtitan's TOML", plan)
    known = ", ".join(MODELS.values())
    refusals.unless(bool(flavor), "model", job.model.name, f"its code knows {known}")
    refusals.unless_default(plan, "plan", _ONLY)
    refusals.all_but_pretraining(job, told=("optimizer_kernels",))
    refusals.unusual_attention()
    _refuse_stack(plan, refusals)
    _refuse_formats(plan, refusals)
    _refuse_inner_degrees(plan, refusals)
    _refuse_sharding(job, plan, refusals)
    _refuse_pipeline(job, plan, refusals)
    refusals.raise_if_any()


def _refuse_stack(plan: Plan, refusals: Refusals) -> None:
    eager, by_compiler = _not_compiled(plan), facts_of_compiler(is_compiled=False)
    if not refusals.stack(plan.stack, _STACK, (*by_compiler, *_WRITTEN_FACTS)):
        return
    loss = plan.loss_kernel
    refusals.unless(loss in (COMPILED_LOSS, EAGER_LOSS), "plan.stack.cross_entropy", loss)
    is_whole = len(eager) in (0, len(by_compiler))
    hint = "the compiler changes all of these or none: export with --set plan.compile=false"
    refusals.unless(is_whole, "plan.stack", sorted(eager), hint)


def _refuse_formats(plan: Plan, refusals: Refusals) -> None:
    refusals.unless_plan(plan.precision in ("bf16", "fp32", *_CONVERTERS), "precision")
    refusals.unless_plan(plan.grad_reduce_precision in ("fp32", "bf16"), "grad_reduce_precision")


def _refuse_inner_degrees(plan: Plan, refusals: Refusals) -> None:
    refusals.unless_plan(plan.tp == 1 or plan.sequence_parallel is True, "sequence_parallel")
    refusals.unless_plan(plan.cp_method in _ROTATION, "cp_method", f"use {' or '.join(_ROTATION)}")
    refusals.unless_plan(
        plan.ep > 1 or plan.etp in (None, plan.tp),
        "etp",
        "without expert parallelism, torchtitan divides experts like other weights",
    )
    refusals.unless_plan(not plan.overlap_ep or plan.schedule == "dualpipev", "overlap_ep")


def _refuse_sharding(job: Job, plan: Plan, refusals: Refusals) -> None:
    refusals.unless(
        plan.offload in (Offload(), FSDP_OFFLOAD),
        "plan.offload",
        plan.offload.model_dump(exclude_defaults=True),
        "torchtitan offloads either {optimizer: cpu, parameters: cpu} or nothing",
    )
    refusals.unless_plan(
        plan.zero in (0, 3),
        "zero",
        "fully_shard is plan.zero: 3, with or without plan.reshard_after_forward",
    )
    is_replicated = plan.cp == 1 and job.dp > 1
    refusals.unless_plan(
        plan.zero != 0 or is_replicated,
        "zero",
        "torchtitan replicates weights over data-parallel ranks only",
    )
    group = plan.zero_group
    refusals.unless_plan(not group or (group > 1 and group % plan.cp == 0), "zero_group")


def _refuse_pipeline(job: Job, plan: Plan, refusals: Refusals) -> None:
    if plan.pp == 1:
        return
    refusals.unless(
        _runs_in_torch(job.choices.schedule),
        "plan.schedule",
        str(plan.schedule),
        "torch runs synchronous schedules with one copy of the model, without waiting for every "
        "transfer",
    )
    refusals.unless_plan(
        _layers_per_stage(job, plan) is not None or _is_usual(plan),
        "vpp",
        "no number of layers per stage gives this number of stages",
    )


def _runs_in_torch(schedule: ScheduleInfo) -> bool:
    return (
        schedule.synchronous
        and schedule.placement is not Placement.BIDIRECTIONAL
        and (bool(schedule.torch_name) or not schedule.waits)
    )


def _is_usual(plan: Plan) -> bool:
    """Whether torchtitan takes as many chunks by default."""
    one = plan.schedule in ONE_CHUNK if plan.schedule in _NAMES else plan.vpp == 1
    return plan.vpp == (1 if one else 2)


def _layers_per_stage(job: Job, plan: Plan) -> int | None:
    """Layers per stage from which torchtitan makes pp x vpp stages; None if there are none."""
    units = job.model.layers + plan.account_for_embedding + plan.account_for_loss
    stages = plan.pp * plan.vpp
    per_stage = -(-units // stages)
    return per_stage if -(-units // per_stage) == stages else None


def _parallelism(job: Job, plan: Plan, csv_file: str) -> dict[str, Any]:
    shard = (plan.zero_group or job.dp * plan.cp) // plan.cp
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": job.dp // shard if plan.zero else job.dp,
        "data_parallel_shard_degree": shard if plan.zero else 1,
        "fsdp_reshard_after_forward": "always" if plan.reshard_after_forward else "never",
        "tensor_parallel_degree": plan.tp,
        "enable_async_tensor_parallel": plan.overlap_tp,
        "context_parallel_degree": plan.cp,
        "context_parallel_rotate_method": _ROTATION.get(plan.cp_method),
        "expert_parallel_degree": plan.ep,
        "expert_tensor_parallel_degree": plan.etp or 1,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.pp > 1:
        found |= _schedule(job, plan, csv_file)
        found |= {
            "pipeline_parallel_microbatch_size": job.batch.micro_batch,
            "pipeline_parallel_first_stage_less_layers": int(plan.account_for_embedding),
            "pipeline_parallel_last_stage_less_layers": int(plan.account_for_loss),
        }
        if plan.schedule == "dualpipev" and job.model.experts:
            found["pipeline_parallel_expert_parallel_overlap"] = plan.overlap_ep
        if not _is_usual(plan):
            found["pipeline_parallel_layers_per_stage"] = _layers_per_stage(job, plan)
    return found


def _schedule(job: Job, plan: Plan, csv_file: str) -> dict[str, str]:
    """The schedule's name, or a name that puts stages as it does and the file with its order."""
    if plan.schedule in _NAMES:
        return {"pipeline_parallel_schedule": _NAMES[str(plan.schedule)]}
    many = "PipelineScheduleMulti" if plan.vpp > 1 else "PipelineScheduleSingle"
    is_v = job.choices.schedule.placement is Placement.V
    return {
        "pipeline_parallel_schedule": "ZBVZeroBubble" if is_v else many,
        "pipeline_parallel_schedule_csv": csv_file,
    }


def _toml(sections: Table) -> str:
    """Sections as TOML; JSON writes plain values as TOML does."""
    blocks = []
    for section, values in sections.items():
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        blocks.append("\n".join([f"[{section}]", *lines, ""]))
    return "\n".join(blocks)
