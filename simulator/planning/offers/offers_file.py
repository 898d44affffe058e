"""What does a file of offers and workloads say?

For example::

    offers:
      h100-cloud:
        cluster: {profile: h100-sxm-80gb}
        gpus: [64, 128]
        price: {gpu: 2.5 USD/h, source: assumed}
    workloads:
      pretrain-8b: {job: llama3-8b-8xh100, tokens: 500B, deadline: 60 d}
    failures: {gpu: {mtbf: 50000 h}, detection: 5 min, restart: 10 min}
    checkpoint: {storage: 20 GB/s}

Prices need their source; a price that nobody quoted says ``assumed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from simulator.described.base import Ranks, Seconds, Spec, UsdPerSecond
from simulator.described.campaign import Checkpoint, Failures, Power, Site, Tokens
from simulator.described.documents import (
    given_or_shipped_file,
    merged,
    read_naming_yaml,
    validated,
    with_changes,
)
from simulator.described.faults import NO_SUCH_FIELD
from simulator.described.job import Job
from simulator.described.json_schemas import DIALECT, job_schema, schema_of
from simulator.described.load import job_file, job_from_document
from simulator.described.other_kinds import refuse_shipped_of_another_kind
from simulator.errors import Fault, InputError
from simulator.files import is_there
from simulator.planning.search.space import searchable_job

_FILE = "give a YAML file of offers and workloads"
_RANGE = ("from", "to")
_MOST_COUNTS = 64


def _gpu_counts(given: Any) -> Any:
    """One number, a list of them, or a range in which each is twice the one before."""
    if type(given) is int:
        return (given,)
    if isinstance(given, Mapping):
        first: Any = given.get("from")
        last: Any = given.get("to")
        is_range = set(given) == set(_RANGE) and type(first) is int and type(last) is int
        if not is_range or first < 1:
            raise ValueError("must be a number, a list of numbers, or {from: 64, to: 512}")
        if first > last:
            raise ValueError("must start with the smaller number")
        return tuple(first << n for n in range(_MOST_COUNTS) if first << n <= last)
    if isinstance(given, list | tuple) and any(each in given[:n] for n, each in enumerate(given)):
        raise ValueError("must not contain a number twice")
    return given


GpuCounts = Annotated[
    tuple[Ranks, ...],
    BeforeValidator(_gpu_counts),
    Field(min_length=1, max_length=_MOST_COUNTS),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
                {
                    "type": "object",
                    "properties": {name: {"type": "integer", "minimum": 1} for name in _RANGE},
                    "required": list(_RANGE),
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class Price(Spec):
    """What the rental costs, paid for all GPUs whether they work or not."""

    gpu_usd_per_s: UsdPerSecond | None = None
    """Price of one GPU, such as 2.5 USD/h."""
    node_usd_per_s: UsdPerSecond | None = None
    """Price of one node, in place of that of a GPU."""
    pools: Mapping[str, UsdPerSecond] = Field(default_factory=dict)
    """Price of one GPU by the name of its hardware profile, in place of both, where the cluster has
    pools."""
    source: str
    """Where it was read: a quote, a page with its date, or ``assumed``."""

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        given = (self.gpu_usd_per_s is not None, self.node_usd_per_s is not None, bool(self.pools))
        if sum(given) != 1:
            raise ValueError("must have one price; give gpu or node, or for pools a price of each")
        return self


class Offer(Spec):
    """GPUs that somebody rents out."""

    cluster: Mapping[str, Any]
    """A hardware profile, and what is different here, as in a job's cluster without ``gpus``; or
    ``pools``, each with its profile and ``gpus``, for a mixed cluster."""
    gpus: GpuCounts = ()
    """How many can be had: one number, a list, or ``{from: 64, to: 512}``, each twice the last.
    Pools say their own."""
    price: Price | None = None
    """By default open."""
    start_s: Seconds = 0.0
    """From today until they can be used, such as 14 d."""
    term_s: Seconds = 0.0
    """Shortest rental; a shorter run pays it all the same."""
    power: Power = Power()
    """What one node draws; by default open, as are energy and CO2."""
    site: Site | None = None
    """By default that of the file."""
    failures: Failures | None = None
    """By default those of the file; spot offers add preemption here."""
    checkpoint: Checkpoint | None = None
    """By default that of the file."""

    @property
    def clusters(self) -> list[Mapping[str, Any]]:
        """The cluster block of a job on each number of GPUs."""
        if self.is_mixed:
            return [self.cluster]
        return [{**self.cluster, "gpus": gpus} for gpus in self.gpus]

    @property
    def is_mixed(self) -> bool:
        """Whether it has pools of several kinds of GPU."""
        return "pools" in self.cluster

    @model_validator(mode="after")
    def _gpus_are_said_once(self) -> Self:
        if "gpus" in self.cluster:
            raise ValueError("has gpus beside the offer's own gpus in cluster; leave those out")
        if self.is_mixed and self.gpus:
            raise ValueError("has gpus, and its pools have their own; leave out those of the offer")
        if not self.is_mixed and not self.gpus:
            raise ValueError("must say how many GPUs there are; give gpus, such as [64, 128]")
        if self.price is not None and self.price.pools and not self.is_mixed:
            raise ValueError("has a price of each pool, and no pools; give the price of a gpu")
        return self


class Workload(Spec):
    """A training run that is wanted."""

    job: str | Mapping[str, Any]
    """A job file, the name of a shipped job, or a block with model, batch and plan. Its cluster is
    replaced by each offer's; what the search does not vary stays as its plan has it."""
    tokens: Tokens
    """Tokens to train on, such as 500B."""
    deadline_s: Annotated[Seconds, Field(gt=0)] | None = None
    """From today until it must be done; by default any time will do."""


class Offers(Spec):
    """Offers to choose from, and what they are wanted for."""

    offers: Annotated[Mapping[str, Offer], Field(min_length=1)]
    """By a name of your own."""
    workloads: Annotated[Mapping[str, Workload], Field(min_length=1)]
    """By a name of your own."""
    site: Site | None = None
    """Building and grid of all offers that say nothing else."""
    failures: Failures | None = None
    """What fails on all offers that say nothing else; by default nothing, which the answer says."""
    checkpoint: Checkpoint | None = None
    """How runs are saved."""


class Case(NamedTuple):
    """One workload on one offer with one number of GPUs.

    Attributes:
        job: Ready to be planned; None where it cannot run there.
        reason: Why not; empty where it can.
    """

    workload: str
    offer: str
    gpus: int
    job: Job | None
    reason: str = ""


def load_offers(source: str | Path | Mapping[str, Any]) -> Offers:
    """Offers from a YAML file, a shipped name, or what such a file says.

    Raises:
        InputError: With every fault of the fields.
    """
    if isinstance(source, Mapping):
        return validated(Offers, source)
    path = offers_file(Path(source))
    return validated(Offers, read_naming_yaml(path, _FILE), file=str(path))


def offers_file(path: Path) -> Path:
    """The file itself where there is one, else the shipped one of that name."""
    refuse_shipped_of_another_kind("offers", path)
    return given_or_shipped_file("offers", path, "offers")


def cases(asked: Offers, file: Path | None = None) -> list[Case]:
    """Every workload on every offer with every number of GPUs.

    Args:
        asked: Offers and workloads.
        file: Where they were read; relative paths in it are relative to its folder.

    Raises:
        InputError: A cluster or a job is wrong in itself, whatever the number of GPUs.
    """
    found: list[Case] = []
    for workload in asked.workloads:
        document, source = _job_document(asked, workload, file)
        of_workload: list[Case] = []
        errors: list[InputError] = []
        for offer, terms in asked.offers.items():
            for cluster in terms.clusters:
                gpus = _gpus_of(cluster)
                try:
                    job = _job(asked, workload, offer, cluster, document, source)
                    of_workload.append(Case(workload, offer, gpus, job))
                except InputError as error:
                    fault = error.faults[0]
                    reason = f"{fault.path} {fault.rule}"
                    of_workload.append(Case(workload, offer, gpus, None, reason))
                    errors.append(_at_its_place(error, workload, offer))
        _raise_if_wrong_everywhere(errors, len(of_workload))
        found += of_workload
    return found


def _raise_if_wrong_everywhere(errors: list[InputError], rows: int) -> None:
    """Refuse what is wrong with the file; sizes that do not suit are rows that say so."""
    wrong = [fault for error in errors for fault in error.faults if _is_of_the_file(fault)]
    if len(errors) == rows and not wrong:
        wrong = list(errors[0].faults)
    if wrong:
        raise InputError(wrong)


def _is_of_the_file(fault: Fault) -> bool:
    is_cluster = fault.path.startswith("offers.") and not fault.path.endswith(".gpus")
    return is_cluster or fault.rule == NO_SUCH_FIELD


def _job_document(asked: Offers, workload: str, file: Path | None) -> tuple[Mapping[str, Any], str]:
    """A workload's job as its author wrote it, and where."""
    given = asked.workloads[workload].job
    if isinstance(given, Mapping):
        return given, str(file or "")
    folder = file.parent if file is not None else Path()
    beside = folder / given
    path = beside if is_there(beside) else job_file(Path(given))
    return read_naming_yaml(path, "give a job as YAML, or the name of a shipped one"), str(path)


def _job(
    asked: Offers,
    workload: str,
    offer: str,
    cluster: Mapping[str, Any],
    document: Mapping[str, Any],
    source: str,
) -> Job:
    terms, wanted = asked.offers[offer], asked.workloads[workload]
    own = {
        name: block.model_dump(by_alias=True, exclude_unset=True)
        for name in ("site", "failures", "checkpoint")
        if (block := getattr(terms, name) or getattr(asked, name)) is not None
    }
    given = document.get("campaign") or {}
    if not isinstance(given, Mapping):
        raise InputError.single("campaign", "must be a block of fields", given)
    campaign = merged(given, {**own, "tokens": wanted.tokens})
    here = {**document, "cluster": cluster, "campaign": campaign}
    job = searchable_job(
        lambda changes: job_from_document(with_changes(here, changes), source=source)
    )
    names = [kind.profile.name for kind in job.cluster.kinds]
    priced = terms.price.pools if terms.price is not None else {}
    if priced and set(priced) != set(names):
        rule = f"must have one price for each of {', '.join(dict.fromkeys(names))}"
        raise InputError.single("cluster.pools", rule, ", ".join(priced), "see price.pools")
    power = terms.power.model_dump(by_alias=True, exclude_unset=True)
    if not power:
        return job
    return job.replace({"campaign.systems": {name: {"power": power} for name in names}})


def _gpus_of(cluster: Mapping[str, Any]) -> int:
    """GPUs of a cluster block; 0 where its pools do not say, which loading refuses."""
    pools = cluster.get("pools", [cluster])
    counts = [
        pool.get("gpus") if isinstance(pool, Mapping) else None
        for pool in (pools if isinstance(pools, list) else ())
    ]
    return sum(count for count in counts if type(count) is int)


def _at_its_place(error: InputError, workload: str, offer: str) -> InputError:
    """The faults with the paths that the author of the offers wrote."""
    return InputError([_moved(fault, workload, offer) for fault in error.faults])


def _moved(fault: Fault, workload: str, offer: str) -> Fault:
    block, _, rest = fault.path.partition(".")
    if fault.path == "cluster.gpus":
        path = f"offers.{offer}.gpus"
    elif block == "cluster":
        path = f"offers.{offer}.cluster.{rest}".rstrip(".")
    else:
        path = f"workloads.{workload}.job.{fault.path}"
    return Fault(path, fault.rule, fault.value, fault.hint)


def offers_schema() -> dict[str, Any]:
    """JSON schema of a file of offers and workloads."""
    schema, job = schema_of(Offers), job_schema()
    blocks = schema["$defs"]
    blocks |= {name: block for name, block in job["$defs"].items() if name not in blocks}
    blocks["Job"] = {
        "type": "object",
        "description": "A job; its cluster, where it has one, is replaced by each offer's.",
        "properties": {**job["properties"], "cluster": {"type": "object"}},
        "required": [name for name in job["required"] if name != "cluster"],
        "additionalProperties": False,
    }
    cluster = blocks["Cluster"]
    del cluster["properties"]["gpus"]
    cluster["anyOf"] = [{"required": ["profile"]}, {"required": ["pools"]}]
    _describe(blocks["Offer"], "cluster", {"$ref": "#/$defs/Cluster"})
    job_text = {"type": "string"}
    _describe(blocks["Workload"], "job", {"anyOf": [job_text, {"$ref": "#/$defs/Job"}]})
    return {"$schema": DIALECT, **schema}


def _describe(block: dict[str, Any], field: str, values: dict[str, Any]) -> None:
    """Say which values a field takes, and leave its text."""
    text = block["properties"][field]["description"]
    block["properties"][field] = {**values, "description": text}
