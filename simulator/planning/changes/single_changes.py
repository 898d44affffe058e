"""Which decisions of a job can be taken otherwise, one at a time?

One ordered list serves every question that is answered by trying changes: what would be faster,
what would fit, what would save memory, which field a search leaves alone, and which number of
the hardware profile matters. Each entry yields the changes that make sense for a job, with the
fields they set, in words, and the questions they are candidates for. Whether a change can run is
for the rules of a job to say, and what it is worth for the simulation
(:mod:`simulator.planning.changes.trials`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, NamedTuple

from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.job import Job
from simulator.described.plan.plan_fields import Recompute
from simulator.described.plan.shipped_stacks import can_compile, facts_of_compiler
from simulator.planning.changes.balance import better_layout
from simulator.planning.search.space import (
    MIN_TOKENS_PER_CONTEXT_RANK,
    divisors,
    has_pipeline,
    is_data_parallel_only,
    powers_of_two,
)
from simulator.program.grid.rank_groups import shard_group
from simulator.units import format_quantity

Fields = Mapping[str, Any]
"""New values by dotted path, as :meth:`Job.replace` takes them."""

_RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
_ORDERS = ("interleaved-1f1b", "zb-h1", "zb-v")
"""Pipeline orders that may be faster."""
_VALUES_PER_FIELD = 4
"""New values of one field that are tried to save memory, the nearest ones."""
_OFFLOADED = {
    "optimizer": ("optimizer",), "infinity": ("optimizer",), "shards": ("optimizer", "parameters"),
}  # fmt: skip
"""What leaves the GPU first, by what the stack can move."""
_FASTER_LINK = 2.0
"""By what a link is made faster to see whether it limits."""


class Question(Flag):
    """What a change may be an answer to."""

    FASTER = auto()
    """What makes the step shorter on the GPUs there are?"""
    SMALLER = auto()
    """What holds less memory, on the GPUs there are and with the same results of training?"""
    UNSEARCHED = auto()
    """What would help that the search for plans leaves alone?"""
    LINKS = auto()
    """What would help if money bought faster links?"""


_FASTER, _SMALLER, _UNSEARCHED = Question.FASTER, Question.SMALLER, Question.UNSEARCHED
_NEITHER = Question(0)


@dataclass(frozen=True)
class Change:
    """One decision of a job, taken otherwise.

    Attributes:
        words: The change in words, such as ``raising tp from 2 to 4``.
        fields: New values by dotted path, ready for :meth:`Job.replace`.
        answers: Questions that it is a candidate for.
    """

    words: str
    fields: Fields
    answers: Question = _NEITHER

    @property
    def keeps_learning(self) -> bool:
        """Whether training gives the same model: as many sequences in every update."""
        return "batch.global" not in self.fields


class Decision(NamedTuple):
    """An entry of the list: the questions it is for, and its changes of a job."""

    answers: Question
    changes: Callable[[Job], Iterator[Change]]


def single_changes(job: Job, question: Question) -> Iterator[Change]:
    """Candidates for a question, in the order of the list."""
    for decision in DECISIONS:
        if question in decision.answers:
            yield from (each for each in decision.changes(job) if question in each.answers)


def merged(changes: Iterable[Change]) -> Change:
    """Several changes at once."""
    parts = list(changes)
    fields = {path: value for part in parts for path, value in part.fields.items()}
    return Change(" and ".join(part.words for part in parts), fields)


def changes_with_more_gpus(job: Job, factor: int) -> Iterator[Change]:
    """So many times the GPUs, spent on data parallelism, on a degree, or with a change that saves.

    Changes of the plan alone come last, those that ask least of the user at the very end.
    """
    gpus = Change(
        _moved("gpus", job.cluster.gpus, factor * job.cluster.gpus),
        {"cluster.gpus": factor * job.cluster.gpus},
    )
    yield gpus
    grown = [] if is_data_parallel_only(job) else list(_grown_degrees(job, [factor]))
    kept = [each for entry in _WITHIN_DEGREES for each in entry(job) if _SMALLER in each.answers]
    yield from (merged([gpus, each]) for each in (*grown, *reversed(kept)))


def _global_batch(job: Job) -> Iterator[Change]:
    """More microbatches: it decides what is learned, and says what a bubble costs."""
    count = job.microbatches
    fields = {"batch.global": 2 * job.batch.global_batch}
    yield Change(_moved("microbatches", count, 2 * count), fields, _FASTER)


def _attention(job: Job) -> Iterator[Change]:
    """One kernel for all of attention: the same numbers, and no scores that are kept."""
    now = job.plan.attention_kernel
    if now != "flash" and job.plan.precision not in ("fp32", "tf32"):
        words = f"changing attention from {now} to flash"
        answers = _FASTER | _SMALLER | _UNSEARCHED
        yield Change(words, {"plan.attention": "flash"}, answers)


def _compiler(job: Job) -> Iterator[Change]:
    """Layers rewritten by ``torch.compile``: the same numbers to rounding, in fewer kernels."""
    compiled = facts_of_compiler(is_compiled=True)
    now = {name: getattr(job.plan.stack, name) for name in compiled}
    if can_compile(job.stack_name) and job.plan.compile is None and now != compiled:
        fields = {"plan.compile": True}
        yield Change("compiling the layers (torch.compile)", fields, _FASTER | _UNSEARCHED)


def _recompute(job: Job) -> Iterator[Change]:
    plan = job.plan
    # Modules and numbers of layers that only the old kind has go with it.
    left: dict[str, object] = {"plan.recompute_modules": []} if plan.recompute_modules else {}
    if plan.recompute_layers is not None:
        left["plan.recompute_layers"] = None
    now = _RECOMPUTE.index(plan.recompute)
    for rank, other in enumerate(_RECOMPUTE):
        if rank != now:
            words = f"changing recompute from {plan.recompute} to {other}"
            answers = _FASTER | _SMALLER if rank > now else _FASTER
            yield Change(words, {"plan.recompute": other, **left}, answers)


def _microbatch(job: Job) -> Iterator[Change]:
    micro, global_batch = job.batch.micro_batch, job.batch.global_batch
    faster = [n for n in (2 * micro, micro // 2) if n and global_batch % (n * job.dp) == 0]
    smaller = divisors(micro)[-2::-1][:_VALUES_PER_FIELD]
    for other in dict.fromkeys([*faster, *smaller]):
        answers = _answers(is_faster=other in faster, is_smaller=other in smaller)
        yield Change(_moved("the microbatch", micro, other), {"batch.micro": other}, answers)


def _pipeline_order(job: Job) -> Iterator[Change]:
    plan = job.plan
    has_stages = plan.pp > 1 and has_pipeline(job)
    is_plain = plan.schedule in (None, "1f1b")
    if has_stages and plan.layout is None and (is_plain or plan.schedule == "interleaved-1f1b"):
        fields = {"plan.vpp": 2 * plan.vpp, "plan.schedule": "interleaved-1f1b"}
        yield Change(_moved("vpp", plan.vpp, 2 * plan.vpp), fields, _FASTER)
    for other in [each for each in _ORDERS if each != plan.schedule]:
        answers = _UNSEARCHED
        if other == "zb-h1" and has_stages and plan.vpp == 1 and is_plain:
            answers |= _FASTER
        words = f"changing the schedule from {plan.schedule or '1f1b'} to {other}"
        yield Change(words, {"plan.schedule": other}, answers)


def _layout(job: Job) -> Iterator[Change]:
    found = better_layout(job) if has_pipeline(job) else None
    if found is not None:
        yield Change(*found, _FASTER | _UNSEARCHED)


def _zero(job: Job) -> Iterator[Change]:
    plan = job.plan
    is_faster = job.dp * plan.cp > 1 and not plan.offload.is_used
    for other in (1, 2, 3):
        answers = _answers(is_faster=is_faster, is_smaller=other > plan.zero)
        if answers and other != plan.zero:
            yield Change(_moved("zero", plan.zero, other), {"plan.zero": other}, answers)


def _shard_group(job: Job) -> Iterator[Change]:
    """Shards of weights inside a scale-up domain, or over all ranks."""
    plan, ranks = job.plan, job.dp * job.plan.cp
    if ranks == 1 or plan.offload.is_used or plan.zero != 3:
        return
    now = plan.zero_group or ranks
    other = ranks if plan.zero_group else shard_group(job).local_ranks
    if other != now:
        words = f"sharding over {other} ranks instead of {now}"
        yield Change(words, {"plan.zero_group": 0 if other == ranks else other}, _FASTER)


def _offload(job: Job) -> Iterator[Change]:
    if job.plan.offload.is_used:
        yield Change("offloading nothing", {"plan.offload": {}}, _FASTER)
    elif job.choices.offloads != "nothing":
        moved = _OFFLOADED[job.choices.offloads]
        fields = {f"plan.offload.{what}": "cpu" for what in moved}
        yield Change(f"offloading {' and '.join(moved)}", fields, _SMALLER)


def _degrees(job: Job) -> Iterator[Change]:
    """Half or twice a degree, and larger ones that take ranks from data parallelism."""
    if is_data_parallel_only(job):
        return
    grown = {tuple(each.fields.items()): each for each in _grown_degrees(job, divisors(job.dp)[1:])}
    for name in ("tp", "pp", "cp", "ep"):
        now = getattr(job.plan, name)
        near = _near_expert_degrees(job) if name == "ep" else [now // 2, 2 * now]
        if now == 1 and (name == "cp" or (name == "pp" and not has_pipeline(job))):
            near = []
        for value in filter(None, near):
            is_smaller = grown.pop(((f"plan.{name}", value),), None) is not None
            answers = _answers(is_faster=True, is_smaller=is_smaller)
            yield Change(_moved(name, now, value), {f"plan.{name}": value}, answers)
        yield from [each for each in grown.values() if f"plan.{name}" in each.fields]


def _grown_degrees(job: Job, factors: list[int]) -> Iterator[Change]:
    """Degrees multiplied by one of the factors, all but ep taken from data parallelism."""
    plan, model = job.plan, job.model
    most = {
        "tp": job.cluster.profile.network.scale_up.gpus,
        "pp": model.layers // plan.vpp if has_pipeline(job) else 0,
        "cp": job.batch.seq_len // MIN_TOKENS_PER_CONTEXT_RANK,
        "ep": model.experts.count if model.experts else 0,
    }
    for name, limit in most.items():
        now = getattr(plan, name)
        values = [now * factor for factor in factors if now * factor <= limit]
        for value in values[:_VALUES_PER_FIELD]:
            yield Change(_moved(name, now, value), {f"plan.{name}": value}, _SMALLER)


def _near_expert_degrees(job: Job) -> list[int]:
    """Half, twice, and as many ranks as the scale-up links join."""
    if job.model.experts is None:
        return []
    now, domain = job.plan.ep, job.cluster.profile.network.scale_up.gpus
    inside = max(n for n in powers_of_two(domain) if job.model.experts.count % n == 0)
    return sorted({now // 2, 2 * now, inside} - {0, now})


def _dispatch(job: Job) -> Iterator[Change]:
    now = job.plan.ep_dispatch
    if job.model.experts is not None and job.plan.ep > 1 and now != "hierarchical":
        words = f"changing ep_dispatch from {now} to hierarchical"
        yield Change(words, {"plan.ep_dispatch": "hierarchical"}, _FASTER | _UNSEARCHED)


def _grouped_experts(job: Job) -> Iterator[Change]:
    """One kernel for the products of all experts of a rank, where it has several."""
    if job.can_group_experts:
        fields = {"plan.stack.grouped_experts": True}
        yield Change("computing the experts of a rank in groups", fields, _FASTER | _UNSEARCHED)


def _narrow_experts(job: Job) -> Iterator[Change]:
    """A loop over experts whose products autocast casts, where grouped ones stay in fp32."""
    if job.model.experts is not None and job.plan.has_wide_experts:
        fields = {"plan.stack.grouped_experts": False, "plan.stack.expert_waits": "expert"}
        words = f"computing experts in {job.plan.precision}, one after another"
        yield Change(words, fields, _FASTER | _UNSEARCHED)


def _overlaps(job: Job) -> Iterator[Change]:
    """Communication behind computation, where there is any and neither job nor stack hides it."""
    plan, choices, ranks = job.plan, job.choices, job.dp * job.plan.cp
    for name, is_on, has_any in (
        ("tp", choices.overlaps_tensor_collectives, plan.tp > 1),
        ("p2p", choices.overlaps_transfers, plan.pp > 1),
        ("grad_reduce", choices.overlaps_reduction, ranks > 1),
        ("param_gather", choices.overlaps_gather, ranks > 1 and choices.shards_states),
        ("ep", choices.overlaps_experts, plan.ep > 1),
    ):
        if has_any and not is_on:
            answers = _UNSEARCHED if name == "ep" else _UNSEARCHED | _FASTER
            yield Change(f"turning overlap_{name} on", {f"plan.overlap_{name}": True}, answers)


def _other_fields(job: Job) -> Iterator[Change]:
    """Fields with one value that may be faster; the last one changes what is learned."""
    half = "fp16" if job.plan.precision == "fp16" else "bf16"
    usual = {"grad_reduce_precision": job.choices.reduced_gradients}
    for name, value in (
        ("sequence_parallel", True),
        ("cp_method", "all_to_all"),
        ("reshard_after_forward", False),
        ("rank_order", "tp-cp-ep-pp-dp"),
        ("grad_reduce_precision", half),
        ("precision", "fp8"),
    ):
        if value not in (getattr(job.plan, name), usual.get(name)):
            yield Change(f"changing {name} to {value}", {f"plan.{name}": value}, _UNSEARCHED)


def _links(job: Job) -> Iterator[Change]:
    network = job.cluster.profile.network
    for name, rate in (
        ("fabric.nic", network.fabric.nic_bytes_per_s),
        ("scale_up.bandwidth", network.scale_up.bandwidth_bytes_per_s),
    ):
        value = format_quantity(_FASTER_LINK * rate, "bytes_per_s")
        fields = {f"cluster.network.{name}": value}
        yield Change(f"doubling network.{name}", fields, Question.LINKS)


_WITHIN_DEGREES = (_attention, _recompute, _microbatch, _zero, _offload)
"""What saves memory and leaves every parallel degree as it is."""

DECISIONS: tuple[Decision, ...] = (
    Decision(_FASTER, _global_batch),
    Decision(_FASTER | _SMALLER | _UNSEARCHED, _attention),
    Decision(_FASTER | _UNSEARCHED, _compiler),
    Decision(_FASTER | _SMALLER, _recompute),
    Decision(_FASTER | _SMALLER, _microbatch),
    Decision(_FASTER | _UNSEARCHED, _pipeline_order),
    Decision(_FASTER | _UNSEARCHED, _layout),
    Decision(_FASTER | _SMALLER, _zero),
    Decision(_FASTER, _shard_group),
    Decision(_FASTER | _SMALLER, _offload),
    Decision(_FASTER | _SMALLER, _degrees),
    Decision(_FASTER | _UNSEARCHED, _dispatch),
    Decision(_FASTER | _UNSEARCHED, _grouped_experts),
    Decision(_FASTER | _UNSEARCHED, _narrow_experts),
    Decision(_FASTER | _UNSEARCHED, _overlaps),
    Decision(_UNSEARCHED, _other_fields),
    Decision(Question.LINKS, _links),
)
"""Every decision that is taken otherwise, those that ask least of the user first."""


def _answers(*, is_faster: bool, is_smaller: bool) -> Question:
    return (_FASTER if is_faster else _NEITHER) | (_SMALLER if is_smaller else _NEITHER)


def _moved(name: str, now: int, then: int) -> str:
    verb = "raising" if then > now else "lowering"
    return f"{verb} {name} from {now} to {then}"


_QUANTITY = re.compile(r"([0-9.eE+-]+) (\S+)")


def profile_numbers(profile: HardwareProfile) -> dict[str, str | float]:
    """Every number of a profile with a unit or a fraction, but 0, by its path in the file.

    Whole numbers (GPUs per node, multiprocessors) are facts and are left out, and so is what only
    own runs say: by which factor everything of a kind is slower.
    """
    document = profile.model_dump(by_alias=True, exclude_none=True, exclude={"own_runs"})
    numbers = _numbers(document)
    return {path: value for path, value in numbers if not path.endswith(".slowness")}


def number_change(field: str, value: str | float, factor: float) -> Change:
    """A number of the profile, multiplied."""
    if isinstance(value, float):
        scaled: str | float = value * factor
    else:
        number, unit = value.split(" ")
        scaled = f"{float(number) * factor!r} {unit}"
    return Change(f"{field} times {factor:g}", {f"cluster.{field}": scaled})


def _numbers(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | float]]:
    for key, value in block.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from _numbers(value, path)
        elif isinstance(value, float) and value:
            yield path, value
        elif isinstance(value, str):
            match = _QUANTITY.fullmatch(value)
            if match and float(match[1]):
                yield path, value
