"""What does a plan say once its defaults are spelled out, and what can a framework not say?"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from simulator.described.job import Job
from simulator.described.plan.layout_text import layers_per_stage
from simulator.described.plan.plan import Plan
from simulator.described.plan.shipped_stacks import STACKS
from simulator.described.plan.stack import Stack
from simulator.errors import Fault, UnsupportedError


def spelled_out(job: Job) -> Plan:
    """The job's plan with every default that its stack decides filled in.

    Two plans that mean the same become equal: what has no effect takes one form, such as
    sequence parallelism with tp = 1, or a sharding group of all ranks.
    """
    plan, choices = job.plan, job.choices
    has_experts = job.model.experts is not None
    return plan.model_copy(
        update={
            "overlap_grad_reduce": choices.overlaps_reduction,
            "overlap_param_gather": choices.overlaps_gather,
            "overlap_tp": choices.overlaps_tensor_collectives,
            "grad_reduce_precision": choices.reduced_gradients,
            "sequence_parallel": plan.cuts_sequence,
            "attention": plan.attention_kernel,
            "overlap_ep": has_experts and choices.overlaps_experts,
            "reshard_after_forward": choices.shards_weights
            and plan.reshard_after_forward is not False,
            "schedule": plan.schedule or choices.schedule.name,
            "etp": plan.expert_tp if has_experts else None,
            "cp_method": plan.cp_method if plan.cp > 1 else "ring",
            "zero_group": plan.zero_group if plan.zero_group != job.dp * plan.cp else 0,
            "layout": layers_per_stage(plan.layout) if plan.layout is not None else None,
        }
    )


def changed_facts(stack: Stack, base: str) -> dict[str, Any]:
    """Facts in which a stack differs from the named one."""
    return {
        name: value
        for name in Stack.model_fields
        if name != "description" and (value := getattr(stack, name)) != getattr(STACKS[base], name)
    }


_ONLY_PRETRAINING: Mapping[str, object] = {
    "data_parallel": "ddp", "parameter_servers": 0, "no_sync": True,
    "lora": None, "prefix_tokens": None, "frozen": None, "master_weights": None,
    "cross_entropy": None, "cuda_graphs": "none", "deterministic": False,
    "optimizer_kernels": None, "optimizer_in_backward": False,
}  # fmt: skip
"""Fields of a plan in which all frameworks that are exported to are the same: ranks reduce by
collectives, once for all microbatches of a step, and train all parameters; and in which files of
theirs are not written otherwise: the host launches every kernel, and the fastest."""


ONE_STAGE: Mapping[str, object] = {
    "pp": 1, "vpp": 1, "ep": 1, "recompute_layers": None, "recompute_modules": (),
    "overlap_ep": False, "overlap_shared_expert": False, "overlap_tp": False,
    "first_stage_layers": 0, "last_stage_layers": 0, "layout": None,
    "first_bf16_layers": 0, "last_bf16_layers": 0,
    "expert_load": None, "tp_method": "1d",
    "rank_order": Plan().rank_order, "post_validation": None, "overlap_p2p": None,
    "account_for_embedding": False, "account_for_loss": False,
}  # fmt: skip
"""Fields of a plan that the files of wrappers of a whole model do not know: DeepSpeed's, and
accelerate's."""


class Refusals:
    """What a framework cannot express of a job, collected and raised at once."""

    def __init__(self, framework: str, plan: Plan) -> None:
        """Start with nothing refused by ``framework`` of a job with this plan."""
        self._framework, self._plan = framework, plan
        self._faults: list[Fault] = []

    def unless(self, is_expressible: bool, path: str, value: object, hint: str = "") -> None:
        """Note that ``path`` cannot be expressed, unless it can."""
        if not is_expressible:
            rule = f"cannot be expressed in {self._framework}"
            self._faults.append(Fault(path, rule, value, hint))

    def unless_plan(self, is_expressible: bool, name: str, hint: str = "") -> None:
        """Note that a field of the plan cannot be expressed, unless it can."""
        self.unless(is_expressible, f"plan.{name}", getattr(self._plan, name), hint)

    def unless_default(self, spec: object, path: str, defaults: Mapping[str, object]) -> None:
        """Note every field of ``spec`` that differs from the only value that can be expressed."""
        for name, default in defaults.items():
            value = getattr(spec, name)
            hint = f"export with --set {path}.{name}={_written(default)}"
            self.unless(value == default, f"{path}.{name}", value, hint)

    def stack(self, stack: Stack, base: str, expressible: Iterable[str] = ()) -> bool:
        """Note a stack that is not ``base`` with some facts changed; whether it is like that one.

        Of one that is more like another framework's, only that is noted, not every fact.
        """
        changed = changed_facts(stack, base)
        nearest = min(STACKS, key=lambda name: len(changed_facts(stack, name)))
        if len(changed_facts(stack, nearest)) < len(changed):
            hint = f"export with --set plan.stack={base}"
            self.unless(False, "plan.stack", nearest, hint)
            return False
        for name, value in changed.items():
            hint = f"export with --set plan.stack={base}, which leaves it as {base} has it"
            self.unless(name in set(expressible), f"plan.stack.{name}", value, hint)
        return True

    def unusual_attention(self) -> None:
        """Note kernels that are not those of the stack: they stand in the model's code."""
        plan = self._plan
        usual = Plan(stack=plan.stack, precision=plan.precision).attention_kernel
        hint = "the model's code decides it: export with --set plan.attention=null"
        self.unless_plan(plan.attention == usual, "attention", hint)

    def all_but_pretraining(self, job: Job, told: Collection[str] = ()) -> None:
        """Note what no framework that is exported to has in the files that are written.

        That are fields of the plan, and sequences that are not of one length, or of several
        documents, for which the data decides; fields of the plan that are ``told`` stand in them.
        """
        untold = {name: v for name, v in _ONLY_PRETRAINING.items() if name not in told}
        self.unless_default(self._plan, "plan", untold)
        for name in ("document_len", "lengths"):
            given = getattr(job.batch, name)
            hint = f"the data decides it: export with --set batch.{name}=null"
            self.unless(given is None, f"batch.{name}", given, hint)

    def raise_if_any(self) -> None:
        """Raise what has been noted.

        Raises:
            UnsupportedError: Something has.
        """
        if self._faults:
            raise UnsupportedError(self._faults)


def _written(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def nodes_and_ranks(job: Job) -> tuple[int, int]:
    """Over how many nodes a launcher spreads the GPUs of a job, and how many it takes of each."""
    gpus = job.cluster.gpus
    per_node = math.gcd(gpus, job.cluster.profile.network.gpus_per_node)
    return gpus // per_node, per_node


def launch_line(job: Job, script: str) -> str:
    """The torchrun line that starts ``script`` on the GPUs of a job."""
    nodes, per_node = nodes_and_ranks(job)
    return f"torchrun --nnodes {nodes} --nproc-per-node {per_node} {script}"
