"""Which plans are there for a job on its GPUs?

Every combination of the values of some fields that breaks no rule. Fields that are not
varied stay as the job has them. What the values are where the user does not say:

- tp up to a node, pp up to a layer per stage, each a divisor of the GPUs;
- vpp such that all virtual stages hold equally many layers;
- cp as long as a rank keeps sequences worth dividing; ep any divisor of the experts;
- ZeRO stages that the stack runs, every recomputation, microbatches of powers of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.described.documents import validated
from simulator.described.job import Batch, Job
from simulator.described.plan.plan import Plan
from simulator.described.rules.all_rules import plan_faults
from simulator.described.rules.pipeline_rules import plan_units
from simulator.errors import Fault, InputError
from simulator.program.layer.layer_kinds import model_parts
from simulator.program.layer.layer_part import LayerPart

MIN_TOKENS_PER_CONTEXT_RANK = 2048
"""Shorter pieces of a sequence are not worth dividing. Assumption."""

_SHARDING_UNDER_A_PIPELINE = frozenset({"torchtitan", "jax"})
"""Stacks that run ZeRO 2 and 3 with a pipeline. Megatron-Core's distributed optimizer is
ZeRO 1, and DeepSpeed's pipeline engine refuses gradient sharding."""


def is_data_parallel_only(job: Job) -> bool:
    """Whether the stack has no model parallelism."""
    return job.plan.stack.model_parallelism == "none"


def has_pipeline(job: Job) -> bool:
    """Whether the stack splits the layers over pipeline stages."""
    return job.plan.stack.model_parallelism == "all"


def _can_shard(job: Job) -> bool:
    """Whether the stack runs the plan's ZeRO stage with its pipeline."""
    plan = job.plan
    return plan.pp == 1 or plan.zero <= 1 or job.stack_name in _SHARDING_UNDER_A_PIPELINE


def still_shards(changed: Job, job: Job) -> bool:
    """Whether a changed job shards as its stack does, or no more than the job itself does."""
    asks_no_more = not _can_shard(job) and changed.plan.zero <= job.plan.zero
    return _can_shard(changed) or asks_no_more


Axes = Mapping[str, Sequence[Any]]
"""Values to try by field: ``batch.micro``, or any field of the plan, as ``plan.tp``."""

_MICRO = "batch.micro"
_SIMPLE_DEGREES = (1, 2, 4, 8)
_SIMPLE_START: Mapping[str, Any] = {
    "plan.cp": 1,
    "plan.vpp": 1,
    "plan.ep": 1,
    "plan.zero": 0,
    _MICRO: 1,
}
"""Where a search may start from, whatever it finds."""
_MOST_MICRO = 64
"""Sequences of a microbatch that are tried at most. Assumption."""


@dataclass(frozen=True)
class PlanSpace:
    """All valid plans of a job, columnar.

    Attributes:
        job: Has the fields that are not varied.
        axes: Values that were tried, by field.
        codes: Which value of each axis a plan takes, shape (plans, axes).
        refused: Combinations that break a rule, by the field that the rule names.
    """

    job: Job
    axes: Axes
    codes: NDArray[np.int64]
    refused: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.codes)

    def changes(self, number: int) -> dict[str, Any]:
        """What gives the job that plan, ready for :meth:`Job.replace`."""
        codes = self.codes[number].tolist()
        return {
            path: values[code]
            for (path, values), code in zip(self.axes.items(), codes, strict=True)
        }

    def number(self, changes: Mapping[str, Any]) -> int:
        """The plan that changes of the same fields give.

        Raises:
            ValueError: It is not in the space.
        """
        codes = [list(values).index(changes[path]) for path, values in self.axes.items()]
        return int(np.flatnonzero((self.codes == codes).all(axis=1)).tolist().pop())

    def plan_job(self, number: int) -> Job:
        """The job with that plan, as :meth:`Job.replace` makes it, without reading files."""
        changes = self.changes(number)
        micro = changes.pop(_MICRO, self.job.batch.micro_batch)
        if micro not in self._batches:
            self._batches[micro] = self.job.batch.model_copy(update={"micro_batch": micro})
        fields = {path.removeprefix("plan."): value for path, value in changes.items()}
        plan = self.job.plan.model_copy(update=fields)
        return self.job.model_copy(update={"plan": plan, "batch": self._batches[micro]})

    @cached_property
    def _batches(self) -> dict[int, Batch]:
        """By their microbatch; most plans share theirs with others."""
        return {}

    def column(self, path: str) -> NDArray[np.int64]:
        """An integer field of every plan, shape (plans,)."""
        names = list(self.axes)
        if path in names:
            return np.asarray(self.axes[path])[self.codes[:, names.index(path)]]
        block, field = path.split(".")
        owner = self.job.batch if block == "batch" else self.job.plan
        value = getattr(owner, "micro_batch" if path == _MICRO else field)
        return np.full(len(self), value)

    @cached_property
    def copy_ranks(self) -> NDArray[np.int64]:
        """Ranks that hold one copy of the model in every plan."""
        ranks: NDArray[np.int64] = (
            self.column("plan.tp") * self.column("plan.pp") * self.column("plan.cp")
        )
        return ranks

    @cached_property
    def dp(self) -> NDArray[np.int64]:
        """Data-parallel degree of every plan."""
        degree: NDArray[np.int64] = self.job.cluster.gpus // self.copy_ranks
        return degree

    @cached_property
    def microbatches(self) -> NDArray[np.int64]:
        """Microbatches per data-parallel rank and step of every plan."""
        sequences = np.maximum(1, self.column(_MICRO) * self.dp)
        count: NDArray[np.int64] = self.job.batch.global_batch // sequences
        return count

    @cached_property
    def passes(self) -> NDArray[np.int64]:
        """Forwards of virtual stages in a step of every plan, on one copy of the model."""
        stages: NDArray[np.int64] = self.column("plan.pp") * self.column("plan.vpp")
        return self.microbatches * stages


def plan_space(job: Job, vary: Axes | None = None, *, part: Axes | None = None) -> PlanSpace:
    """The valid plans of a job.

    Args:
        job: Model, cluster, batch, and the fields of the plan that stay.
        vary: Values by field in place of the default ones, or of fields that have none.
        part: Values of some of these fields that alone are looked at; None is all.

    Raises:
        InputError: A field cannot be varied, or a value of it is wrong.
    """
    axes = plan_axes(job, vary)
    sizes = [len(values) for values in axes.values()]
    codes = np.indices(sizes, dtype=np.int64).reshape(len(sizes), -1).T
    kept, refused = _of_part(axes, codes, part or {}), Counter[str]()
    for path, is_sound in _cheap_rules(PlanSpace(job, axes, codes, {})):
        refused[path] += int(np.count_nonzero(kept & ~is_sound))
        kept &= is_sound
    codes, parts = codes[kept], model_parts(job.model)
    plans = PlanSpace(job, axes, codes, {})
    faults = [_first_fault(plans.plan_job(number), parts) for number in range(len(plans))]
    refused.update(fault.path for fault in faults if fault)
    sound = np.asarray([fault is None for fault in faults], dtype=np.bool_)
    return PlanSpace(job, axes, codes[sound], dict((+refused).most_common()))


def _of_part(axes: Axes, codes: NDArray[np.int64], part: Axes) -> NDArray[np.bool_]:
    """Which combinations have such values, shape (combinations,)."""
    kept = np.ones(len(codes), dtype=np.bool_)
    for (path, values), column in zip(axes.items(), codes.T, strict=True):
        if path in part:
            kept &= np.isin(column, [n for n, value in enumerate(values) if value in part[path]])
    return kept


def plan_axes(job: Job, vary: Axes | None) -> Axes:
    """Values that are tried of every field that is varied.

    Arguments and errors are those of :func:`plan_space`.
    """
    given = {path: _checked(job, path, values) for path, values in (vary or {}).items()}
    return {**default_axes(job), **given}


def searchable_job(load: Callable[[Mapping[str, Any]], Job]) -> Job:
    """A job to search from, even if its own plan breaks a rule that other plans keep.

    Only fields that every search varies are set to something else, so that what a search finds
    does not depend on them.

    ``load`` loads it with some fields changed.

    Raises:
        InputError: Another fault, or no simple plan is valid either; those of the job itself.
    """
    try:
        return load({})
    except InputError as error:
        blocks = {fault.path.partition(".")[0] for fault in error.faults}
        if not blocks <= {"plan", "batch", "cluster"}:
            raise
        for tp, pp in product(_SIMPLE_DEGREES, repeat=2):
            start = {**_SIMPLE_START, "plan.tp": tp, "plan.pp": pp}
            with suppress(InputError):
                axes = default_axes(load(start))
                return load({path: value for path, value in start.items() if path in axes})
        raise


def default_axes(job: Job) -> dict[str, list[Any]]:
    """Values of each field that are tried where the user does not say."""
    gpus, model, network = job.cluster.gpus, job.model, job.cluster.profile.network
    micro = powers_of_two(min(job.batch.global_batch, _MOST_MICRO))
    options: dict[str, list[Any]] = {
        "plan.zero": [0, 1, 2, 3],
        "plan.recompute": ["none", "selective", "full"],
        _MICRO: micro,
    }
    if is_data_parallel_only(job):
        return options
    units = plan_units(job) if has_pipeline(job) else 1
    contexts = max(1, job.batch.seq_len // MIN_TOKENS_PER_CONTEXT_RANK)
    return {
        "plan.tp": [tp for tp in divisors(gpus) if tp <= network.scale_up.gpus],
        "plan.pp": [pp for pp in divisors(gpus) if pp <= units],
        "plan.vpp": [vpp for vpp in divisors(units) if vpp == 1 or vpp <= units // 2],
        "plan.cp": [cp for cp in powers_of_two(contexts) if gpus % cp == 0],
        **({"plan.ep": divisors(model.experts.count)} if model.experts else {}),
        **options,
    }


def _checked(job: Job, path: str, values: Sequence[Any]) -> list[Any]:
    block, _, field = path.partition(".")
    is_plan = block == "plan" and field in Plan.model_fields
    if not (is_plan or path == _MICRO):
        rule = "cannot be varied: only cluster.gpus, batch.micro and the fields of plan can"
        raise InputError.single(path, rule, hint="for example plan.schedule")
    checked_values(path, values)
    if is_plan:
        return [getattr(validated(Plan, {field: value}, "plan"), field) for value in values]
    batch = job.batch.model_dump(by_alias=True)
    return [validated(Batch, {**batch, "micro": value}, "batch").micro_batch for value in values]


def checked_values(path: str, values: Any) -> list[Any]:
    """The values of a field that is varied.

    Raises:
        InputError: They are no list, or there are none.
    """
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise InputError.single(
            path, "must be a list of values to try", values, f"write [{values}]"
        )
    if len(values) == 0:
        raise InputError.single(path, "needs at least one value to try")
    return list(values)


def _first_fault(job: Job, parts: Sequence[LayerPart]) -> Fault | None:
    """The first rule that a job breaks, if any, of those that are not cheap."""
    faults = plan_faults(job)
    if faults:
        return faults[0]
    if job.choices.shards_states and job.dp * job.plan.cp == 1:
        return Fault("plan.zero", "has no ranks to shard over")
    unruled = (fault for part in parts for fault in part.unruled(job.model, job.plan))
    return next(unruled, None)


def _cheap_rules(plans: PlanSpace) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Divisions without remainder, equal virtual stages and ZeRO, before any job is made.

    Yields:
        A field, and in which plans it is sound; shape (plans,).
    """
    job, stages, chunks = plans.job, plans.column("plan.pp"), plans.column("plan.vpp")
    yield "cluster.gpus", plans.dp * plans.copy_ranks == job.cluster.gpus
    passed = plans.microbatches * plans.column(_MICRO) * plans.dp
    yield "batch.global", passed == job.batch.global_batch
    if "plan.vpp" in plans.axes:
        divides = plan_units(job) % (stages * chunks) == 0
        yield "plan.vpp", (chunks == 1) | (stages > 1) & divides
    if job.stack_name not in _SHARDING_UNDER_A_PIPELINE:
        yield "plan.zero", (stages == 1) | (plans.column("plan.zero") <= 1)


def powers_of_two(most: int) -> list[int]:
    """From 1 up to a largest value."""
    return [2**power for power in range(most.bit_length())]


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
