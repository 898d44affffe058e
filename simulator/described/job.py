"""What is to be simulated: one model, on one cluster, under one plan, with one batch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, Protocol, Self

import yaml
from pydantic import Field, PrivateAttr

from simulator.described.base import Count, Ranks, Spec
from simulator.described.campaign import Campaign
from simulator.described.choices import Choices
from simulator.described.cluster.hardware import HardwareProfile, stacks_of_family
from simulator.described.cluster.network import Network
from simulator.described.model import Model
from simulator.described.plan.plan import Plan
from simulator.described.plan.shipped_stacks import DEFAULT_STACK
from simulator.described.variation import Lengths, Perturbation, Variation

_GROUPING_STACKS = frozenset({"megatron-core"})
"""Stacks that compute experts one by one unless they are told to group them
(``--moe-grouped-gemm``)."""
_REPLAYS_SHARDED_LAYERS = {"megatron-core": True, "torch": False}
"""Stacks that replay layers as CUDA graphs, and whether they do where weights are sharded.

Sources: Megatron-Core's user guide, CUDA graphs (``--cuda-graph-impl``); PyTorch, CUDA semantics,
partial-network capture and usage with DistributedDataParallel. Where weights are gathered by hooks
between layers (FSDP, DeepSpeed's ZeRO 3), no documentation of a framework has it."""


class Pool(Spec):
    """GPUs of one kind in a cluster of several."""

    profile: HardwareProfile
    gpus: Ranks
    """GPUs of this kind; they fill whole nodes, or a part of one."""

    @property
    def nodes(self) -> int:
        """Hosts that the GPUs stand in."""
        return -(-self.gpus // self.profile.network.gpus_per_node)


class Cluster(Spec):
    """A system and how many of its GPUs the job takes."""

    profile: HardwareProfile
    """That of the first pool, where there are several."""
    gpus: Ranks
    """GPUs of the job, of all pools together; they fill whole nodes, or a part of one."""
    pools: tuple[Pool, ...] = ()
    """The kinds of GPUs of a mixed cluster, in order of their ranks; empty where all are the same.
    What ranks of several pools do together takes as long as on the slowest of them."""

    @property
    def nodes(self) -> int:
        """Hosts that the GPUs stand in."""
        return -(-self.gpus // self.profile.network.gpus_per_node)

    @property
    def network(self) -> Network:
        """The links, and which of the job's GPUs they join."""
        return self.profile.network.taken_by(self.gpus)

    @property
    def kinds(self) -> tuple[Pool | Cluster, ...]:
        """The pools, or the cluster itself where all GPUs are of one kind."""
        return self.pools or (self,)

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks that run on its chips, the usual one first; empty where all may."""
        return stacks_of_family(self.profile.device.architecture)

    @property
    def usual_stack(self) -> str:
        """The stack of a plan that names none."""
        return next(iter(self.stacks), DEFAULT_STACK)

    @property
    def name(self) -> str:
        """GPUs and profiles in a few words."""
        return " + ".join(f"{kind.gpus} x {kind.profile.name}" for kind in self.kinds)

    def of_pool(self, number: int) -> Cluster:
        """As many GPUs, all of the kind of one pool."""
        if not self.pools:
            return self
        changes = {"profile": self.pools[number].profile, "pools": ()}
        return self.model_copy(update=changes)


class Batch(Spec):
    """The work of one optimizer step."""

    global_batch: Count = Field(alias="global")
    """Sequences per step over all data-parallel ranks."""
    micro_batch: Count = Field(default=1, alias="micro")
    """Sequences that one rank pushes through at a time."""
    seq_len: Count
    """Tokens per sequence; of the longest, where ``lengths`` says that others are shorter."""
    document_len: Count | None = None
    """Where documents are packed into sequences and attention stays inside each: how long they are,
    in the mean over tokens. By default a sequence is one document."""
    lengths: Lengths | None = None
    """How long sequences are, where not all are as long as ``seq_len``: a step is simulated with
    the longest, and many with lengths that are drawn; what allocators reserve follows from all. For
    example ``{values: [310, 740, 1205]}``, ``{file: lengths.txt}`` or ``{lognormal: {median: 400,
    sigma: 0.9}}``."""

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.global_batch * self.seq_len


class Job(Spec):
    """Model, cluster, batch and plan: the content of one YAML file.

    Use :func:`simulator.described.load.load_job` to read one, and :meth:`replace` for a
    what-if. Validation of single fields happens here; rules across fields live in
    :mod:`simulator.described.rules.all_rules`.
    """

    model: Model
    cluster: Cluster
    batch: Batch
    plan: Plan = Field(default_factory=Plan)
    reference: Model | Literal["same", "adapters-off"] | None = None
    """A network that is not trained and runs forward on every microbatch first: ``same`` is a
    second copy of the model, as DPO has it, ``adapters-off`` the model without its adapters, and
    any other model a teacher, whose logits stay until backward."""
    perturbations: tuple[Perturbation, ...] = ()
    """What is slower than the profile says."""
    variation: Variation = Variation()
    """What differs from step to step; only ``clustersim distribution`` reads it. For example
    ``{compute: {sigma: 0.02}, slow: {rate: 0.001, slowdown: 0.2}}``."""
    campaign: Campaign = Campaign()
    """The whole training run that the step is part of; only capacity questions read it."""

    _document: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _source: str = PrivateAttr(default="")

    @cached_property
    def choices(self) -> Choices:
        """What plan, stack and schedule decide together."""
        return Choices(self)

    def __copy__(self) -> Self:
        """The same job without what follows from it, for a copy may change."""
        copied = super().__copy__()
        copied.__dict__.pop("choices", None)
        return copied

    @property
    def dp(self) -> int:
        """Data-parallel degree: GPUs / (tp x pp x cp)."""
        return self.cluster.gpus // self.choices.ranks_of_a_copy

    @property
    def stack_name(self) -> str:
        """Name of the stack that the plan uses or starts from."""
        given = self.document.get("plan", {}).get("stack", self.cluster.usual_stack)
        named = given if isinstance(given, str) else str(given.get("base", DEFAULT_STACK))
        return named.partition("@")[0]

    @property
    def divides_its_gpus(self) -> bool:
        """Whether tensor, pipeline and context parallelism leave whole data-parallel ranks."""
        return self.cluster.gpus % self.choices.ranks_of_a_copy == 0

    @property
    def microbatches(self) -> int:
        """Microbatches per data-parallel rank and step."""
        return self.batch.global_batch // (self.batch.micro_batch * max(1, self.dp))

    @property
    def experts_one_by_one(self) -> int:
        """Experts that a rank computes one after another; 0 where their products are grouped."""
        experts = self.model.experts
        if experts is None or self.plan.groups_experts:
            return 0
        return experts.count // self.plan.ep

    @property
    def can_group_experts(self) -> bool:
        """Whether a rank computes experts one by one that its framework could group."""
        return self.experts_one_by_one > 1 and self.stack_name in _GROUPING_STACKS

    @property
    def can_replay_layers(self) -> bool:
        """Whether its framework is known to replay layers as CUDA graphs."""
        replays_sharded = _REPLAYS_SHARDED_LAYERS.get(self.stack_name)
        return replays_sharded is not None and (replays_sharded or not self.choices.shards_weights)

    @property
    def title(self) -> str:
        """One line that describes the job."""
        plan = self.plan
        tensor = "tp" if plan.tp_method == "1d" else f"{plan.tp_method}-tp"
        degrees = {tensor: plan.tp, "pp": plan.pp, "vpp": plan.vpp, "cp": plan.cp, "ep": plan.ep}
        return f"{self.model.name} on {self.cluster.name}, {degrees_text(degrees, self.dp)}"

    def __repr__(self) -> str:
        """The job as a notebook or a script prints it."""
        batch = self.batch
        return f"Job({self.title}, {batch.global_batch} sequences of {batch.seq_len} tokens)"

    __str__ = __repr__

    def __hash__(self) -> int:
        """Jobs are keys of dictionaries; some of their fields are mappings, which have no hash."""
        return hash(repr(self))

    def replace(self, changes: Mapping[str, Any] | None = None, /, **more: Any) -> Job:
        """A copy of the job with changed fields; all rules are checked again.

        Args:
            changes: New values by dotted path, for example ``{"plan.tp": 4}``; a whole block
                (``{"plan": {"tp": 4}}``) takes the place of the old one.
            more: The same as keywords: ``job.replace(**{"plan.tp": 4})``.

        Raises:
            InputError: A path or value is wrong, or the changed job breaks a rule.
        """
        from simulator.described.documents import with_changes
        from simulator.described.load import job_from_document

        document = with_changes(self._document, {**(changes or {}), **more})
        return job_from_document(document, source=self._source)

    @property
    def source(self) -> str:
        """The file that it was read from; empty for a document."""
        return self._source

    @property
    def document(self) -> Mapping[str, Any]:
        """The job as it was written, ready to be saved as YAML."""
        return self._document


def job_yaml(job: Written) -> str:
    """The job as a file holds it."""
    return yaml.safe_dump(dict(job.document), sort_keys=False, allow_unicode=True)


def degrees_text(degrees: Mapping[str, int], dp: int) -> str:
    """The degrees above 1, and always that of data parallelism: ``tp2 pp4 dp1``."""
    divided = {name: degree for name, degree in degrees.items() if degree > 1}
    return " ".join(f"{name}{degree}" for name, degree in {**divided, "dp": dp}.items())


def plan_text(job: Job) -> str:
    """A job's plan in short: degrees, and what else says something."""
    plan = job.plan
    names = ("tp", "pp", "vpp", "cp", "ep")
    words = [degrees_text({name: getattr(plan, name) for name in names}, job.dp)]
    if job.dp * plan.cp > 1:
        words.append(f"ZeRO {plan.zero}")
    words.append(f"micro {job.batch.micro_batch}")
    if plan.recompute != "none":
        words.append(f"{plan.recompute} recompute")
    return " ".join(words)


def options_text(changes: Mapping[str, Any]) -> str:
    """Changes as a shell takes them: ``--set plan.tp=2 --set batch.micro=1``."""
    words = (f"{path}={value}".replace("=True", "=true") for path, value in changes.items())
    return " ".join(f"--set {shlex.quote(word.replace('=False', '=false'))}" for word in words)


class Written(Protocol):
    """A job, of training or serving, with what its file says."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The job as it was written."""


def changed_fields(first: Written, second: Written) -> dict[str, tuple[Any, Any]]:
    """Both values by dotted path, None where a job leaves the field to its default."""
    before, after = dict(dotted_fields(first.document)), dict(dotted_fields(second.document))
    return {
        path: (before.get(path), after.get(path))
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    }


def differing_fields(first: Written, second: Written) -> dict[str, dict[str, Any]]:
    """:func:`changed_fields` as answers print them."""
    return {
        path: {"first": before, "second": after}
        for path, (before, after) in changed_fields(first, second).items()
    }


def dotted_fields(node: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a job as it was written, by dotted path below ``path``."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from dotted_fields(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node
