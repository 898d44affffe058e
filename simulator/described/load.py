"""How does a file become a specification, and how are all its faults reported at once?

YAML is read safely, names are looked up in the data folders, and every fault of a
document is collected with its path, value, rule and a way out before one
:class:`InputError` is raised. A fault names the file and the path that its author wrote:
a wrong number in a profile is reported in the profile, an override in the job.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from simulator.described.cluster.common import common_document
from simulator.described.cluster.hardware import (
    HardwareProfile,
    Provenance,
    architecture_document,
    peak_name,
    stacks_of_family,
)
from simulator.described.cluster.kernel_table import with_kernel_table
from simulator.described.cluster.network import FabricKind, library_document
from simulator.described.documents import (
    data_folder,
    given_or_shipped_file,
    is_number_with_source,
    merged,
    name_in_errors,
    named_file,
    names_in,
    read_naming_yaml,
    validated,
    with_changes,
    yaml_mapping,
)
from simulator.described.faults import NO_SUCH_FIELD, without_consequences
from simulator.described.job import Job, Pool
from simulator.described.model import Model
from simulator.described.other_kinds import (
    A_JOB,
    refuse_another_kind,
    refuse_shipped_of_another_kind,
)
from simulator.described.plan.plan_blocks import WrittenSchedule
from simulator.described.rules.all_rules import job_faults
from simulator.errors import Fault, InputError
from simulator.files import is_there, read_text

Document = dict[str, Any]

_OVERRIDE = Provenance(kind="assumed", reference="set in the job")
_OWN_FIELDS = ("profile", "gpus")
"""Fields of a job's cluster block, or of a pool of it; all others override the profile."""
_SHAPE_OF_FABRIC = ("nics_per_node", "nic", "wiring", "leaf", "pod")
"""Fields of a fabric that say how it is built, not how it behaves."""
_REFERENCES = (None, "same", "adapters-off")
_REPORTED = object()
"""Stands for a field whose faults are known already."""
_A_MODEL = "give a model as YAML or a config.json, or a name that clustersim models list shows"
_A_PROFILE = "give a profile as YAML, or a name that clustersim profile list shows"
_MAX_TABLE_BYTES = 32 * 1024**2
"""A pipeline order of a million slots takes less."""


def profile_names() -> list[str]:
    """Names of the shipped hardware profiles."""
    return names_in(data_folder("hardware_profiles"))


def model_names() -> list[str]:
    """Names of the shipped models."""
    return names_in(data_folder("workloads") / "models")


def job_names() -> list[str]:
    """Names of the shipped jobs."""
    return names_in(data_folder("workloads"))


def load_job(
    source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> Job:
    """Load a job from a YAML file, a shipped name or a dictionary, and change fields of it.

    Args:
        source: The job file, a shipped name, or the content of a file as a dictionary. Relative
            paths inside a file are relative to its folder.
        changes: New values by dotted path, for example ``{"plan.tp": 4}``. A file that one names is
            looked for in the current folder before that of the job.

    Raises:
        InputError: The job is wrong; the error lists every fault.
    """
    changes = {field: _from_here(value) for field, value in (changes or {}).items()}
    if isinstance(source, Mapping):
        return job_from_document(with_changes(source, changes))
    path = job_file(Path(source))
    document = read_naming_yaml(path, A_JOB, changes)
    return job_from_document(with_changes(document, changes), source=str(path))


_ENDINGS_OF_FILES = (".yaml", ".yml", ".json", ".csv", ".parquet", ".txt")
"""Of values that may name a file."""


def _from_here(value: object) -> object:
    """The whole path of a file in the current folder that a value names; else the value."""
    if not isinstance(value, str) or not value.endswith(_ENDINGS_OF_FILES):
        return value
    return str(Path(value).absolute()) if is_there(Path(value)) else value


def job_file(path: Path) -> Path:
    """The file itself where there is one, else the shipped one of that name."""
    refuse_shipped_of_another_kind("job", path)
    return given_or_shipped_file("job", path)


def job_from_document(document: Mapping[str, Any], source: str = "") -> Job:
    """The job of an already parsed document; ``source`` names it in error messages.

    Raises:
        InputError: With every fault of the document.
    """
    refuse_another_kind(document, source)
    faults: list[Fault] = []
    resolved = _with_blocks_read(document, Path(source).parent, faults)
    with _collecting(faults):
        job = validated(Job, resolved)
        job._document = copy.deepcopy(dict(document))
        job._source = source
        faults += job_faults(job)
    faults = without_consequences(each for each in faults if each.value is not _REPORTED)
    if faults:
        file = name_in_errors(source)
        raise InputError([replace(fault, file=fault.file or file) for fault in faults])
    return job


def _with_blocks_read(document: Mapping[str, Any], folder: Path, faults: list[Fault]) -> Document:
    """A job's document with what its blocks name read from its files; adds their faults."""
    resolved = dict(document)
    cluster = document.get("cluster")
    if "model" in document:
        with _collecting(faults, resolved, "model"):
            resolved["model"] = model_of(document["model"], folder)
    if document.get("reference") not in _REFERENCES:
        with _collecting(faults, resolved, "reference"):
            resolved["reference"] = model_of(document["reference"], folder, "reference")
    if isinstance(cluster, Mapping) and "pools" in cluster:
        with _collecting(faults, resolved, "cluster"):
            resolved["cluster"] = _pooled(cluster, folder)
    elif isinstance(cluster, Mapping):
        own = resolved["cluster"] = {key: cluster[key] for key in _OWN_FIELDS if key in cluster}
        if "profile" not in cluster:  # what would override it cannot be checked
            own |= {key: cluster[key] for key in cluster if key not in _names_of_profile()}
        else:
            with _collecting(faults, own, "profile"):
                own["profile"] = _profile(cluster, folder)
    plan = document.get("plan", {})
    if isinstance(plan, Mapping):
        with _collecting(faults, resolved, "plan"):
            resolved["plan"] = _usual_stack(resolved.get("cluster")) | _with_files_read(
                plan, folder
            )
    batch = document.get("batch")
    if isinstance(batch, Mapping) and isinstance(batch.get("lengths"), Mapping):
        with _collecting(faults, resolved, "batch"):
            resolved["batch"] = {**batch, "lengths": _lengths(batch["lengths"], folder)}
    return resolved


def _names_of_profile() -> set[str]:
    return {field.alias or name for name, field in HardwareProfile.model_fields.items()}


def load_model(name_or_path: str | Path) -> Model:
    """A shipped model by name, or one from a YAML or Hugging Face ``config.json`` file."""
    return _named_model(str(name_or_path), "model", Path())


def model_file(name_or_path: str | Path) -> Path:
    """The file of a model: the one of that path, else the shipped one of that name."""
    name = str(name_or_path)
    if name.endswith(".json"):
        return Path(name)
    return named_file("model", name, data_folder("workloads") / "models", Path(), _A_MODEL)


def load_profile(name_or_path: str | Path) -> HardwareProfile:
    """A shipped hardware profile by name, or one from a YAML file."""
    return _named_profile(str(name_or_path), "profile", Path())


def model_of(given: object, folder: Path, field: str = "model") -> Model:
    """A model as a file names it, or writes it in place.

    Args:
        given: A name, a path, or a block of fields, which may change those of a ``base``.
        folder: Folder that relative paths start from.
        field: Path of the field that holds it, for error messages.

    Raises:
        InputError: There is no such model, or its fields are wrong.
    """
    if isinstance(given, str):
        return _named_model(given, field, folder)
    if not isinstance(given, Mapping):
        rule = "must be a name, a path to a .yaml or config.json file, or a block of fields"
        raise InputError.single(field, rule, given)
    if "base" not in given:
        return validated(Model, given, field, siblings=["base"])
    if not isinstance(given["base"], str):
        raise InputError.single(f"{field}.base", "must be a name or a path", given["base"])
    base = _named_model(given["base"], f"{field}.base", folder)
    changes = {key: value for key, value in given.items() if key != "base"}
    # Fields that the base leaves to their defaults must follow the changed ones.
    fields = base.model_dump(by_alias=True, exclude_unset=True)
    return validated(Model, merged(fields, changes), field, siblings=["base"])


def _usual_stack(cluster: object) -> dict[str, str]:
    """The stack of a plan that names none, where chips do not run the default one."""
    profile = cluster.get("profile") if isinstance(cluster, Mapping) else None
    if not isinstance(profile, HardwareProfile):
        return {}
    stacks = stacks_of_family(profile.device.architecture)
    return {"stack": stacks[0]} if stacks else {}


def _with_files_read(plan: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    read = dict(plan)
    if isinstance(plan.get("expert_load"), Mapping):
        read["expert_load"] = _expert_load(plan["expert_load"], folder)
    schedule = plan.get("schedule")
    if isinstance(schedule, str) and schedule.endswith(".csv"):
        read["schedule"] = read_schedule_file(folder / schedule, "plan.schedule")
    return read


def read_schedule_file(path: Path, field: str) -> WrittenSchedule:
    """The pipeline order that a file holds, not checked yet; blank lines at its end are dropped.

    Args:
        path: The file.
        field: What names it, for messages.

    Raises:
        InputError: The file cannot be read.
    """
    wanted = "give a file with one row per rank"
    text = read_text(path, wanted, field=field, max_bytes=_MAX_TABLE_BYTES).rstrip()
    return WrittenSchedule(file=str(path), rows=tuple(text.splitlines()))


def _lengths(given: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Lengths of sequences as they are written, or those of the file that they name."""
    if "file" not in given:
        return given
    field, wanted = "batch.lengths.file", "give a file with one length per line"
    text = read_text(folder / str(given["file"]), wanted, field=field, max_bytes=_MAX_TABLE_BYTES)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not all(line.isdecimal() for line in lines):  # not shown: the file may be anybody's
        raise InputError.single(field, "must hold one whole number per line", given["file"], wanted)
    rest = {key: value for key, value in given.items() if key != "file"}
    return {**rest, "values": [int(line) for line in lines]}


def _expert_load(given: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    if "file" not in given:
        return given
    path, field = folder / str(given["file"]), "plan.expert_load.file"
    wanted = "give a file with one number per expert"
    text = read_text(path, wanted, field=field, max_bytes=_MAX_TABLE_BYTES)
    try:
        numbers = [float(word) for word in text.replace(",", " ").split()]
    except ValueError:  # its text is not shown: the file may be anybody's
        raise InputError.single(
            field, f"{path} contains something other than numbers", hint=wanted
        ) from None
    return {**{key: value for key, value in given.items() if key != "file"}, "loads": numbers}


def _named_model(name: str, field: str, folder: Path) -> Model:
    if name.endswith(".json"):
        # Importers sit beside the specs; only this one line knows that they exist.
        from simulator.described.huggingface.config_file import read_huggingface_config

        model, _ = read_huggingface_config(folder / name)
        return model
    _refuse_hub_name(name, field)
    file = named_file(field, name, data_folder("workloads") / "models", folder, _A_MODEL)
    return _written_model(read_text(file, _A_MODEL), str(file))


def _refuse_hub_name(name: str, field: str) -> None:
    """Refuse a name of the Hugging Face hub with the shipped model that has its dimensions."""
    if name in model_names() or name.endswith((".yaml", ".yml")):
        return
    from simulator.described.huggingface.hub_names import shipped_as

    same = shipped_as(name, model_names())
    if same is not None:
        hint = f"use {_inline(same)}, a shipped model with its dimensions"
        rule = "there is no such name, and no such .yaml file"
        raise InputError.single(field, rule, name, hint)


def _inline(document: Mapping[str, Any] | str) -> str:
    """A document as a job writes it in one line."""
    if isinstance(document, str):
        return repr(document)
    return f"{{{', '.join(f'{key}: {value}' for key, value in document.items())}}}"


@lru_cache
def _written_model(text: str, file: str) -> Model:
    document = yaml_mapping(text, file)
    if "model" in document:
        raise InputError.single("", "is a job, not a model", hint=_A_MODEL, file=file)
    return validated(Model, document, file=file)


def _pooled(cluster: Mapping[str, Any], folder: Path) -> Document:
    """A cluster block of several pools: all GPUs, the first profile, and each pool's own."""
    given = cluster["pools"]
    if not isinstance(given, list) or not given:
        rule = "must list the pools, each with its profile and gpus"
        raise InputError.single("cluster.pools", rule, given)
    rule, hint = "conflicts with pools", "give each pool its own fields"
    beside = [key for key in cluster if key != "pools"]
    faults = [Fault(f"cluster.{key}", rule, cluster[key], hint) for key in beside]
    pools = []
    for number, pool in enumerate(given):
        with _collecting(faults):
            pools.append(_pool(pool, f"cluster.pools.{number}", folder))
    if faults:
        raise InputError(faults)
    gpus = sum(pool.gpus for pool in pools)
    return {"profile": pools[0].profile, "gpus": gpus, "pools": tuple(pools)}


def _pool(given: object, path: str, folder: Path) -> Pool:
    if not isinstance(given, Mapping) or "profile" not in given:
        raise InputError.single(path, "must be a block with profile and gpus", given)
    own = {key: given[key] for key in _OWN_FIELDS if key in given}
    return validated(Pool, {**own, "profile": _profile(given, folder, path)}, path)


def _profile(cluster: Mapping[str, Any], folder: Path, path: str = "cluster") -> HardwareProfile:
    """The profile of a job's cluster block, or a pool's, with the overrides laid over it."""
    name = cluster["profile"]
    if not isinstance(name, str):
        raise InputError.single(f"{path}.profile", "must be a name or a path", name)
    profile = _named_profile(name, f"{path}.profile", folder)
    overrides = {key: value for key, value in cluster.items() if key not in _OWN_FIELDS}
    if not overrides:
        return profile
    changes, sources = _split_sources(overrides, path, _OVERRIDE)
    base = profile.model_dump(by_alias=True, exclude_unset=True)
    base, of_library = _on_another_fabric(base, changes)
    document = {
        **merged(base, changes),
        "provenance": {**profile.provenance, **of_library, **sources},
    }
    changed = validated(HardwareProfile, document, path, siblings=_OWN_FIELDS)
    return with_kernel_table(changed, folder, f"{path}.kernels.table")


def _on_another_fabric(
    base: Document, changes: Mapping[str, Any]
) -> tuple[Document, dict[str, Provenance]]:
    """A profile's document on the kind of fabric that the changes name, and its new sources.

    NICs, their rate and the switches stay those of the profile; how they behave is what the
    library says of the other kind.
    """
    network = changes.get("network")
    fabric = network.get("fabric") if isinstance(network, Mapping) else None
    named = fabric.get("kind") if isinstance(fabric, Mapping) else None
    own = base["network"]["fabric"]
    kind = next((each for each in get_args(FabricKind) if each == named != own["kind"]), None)
    if kind is None:
        return base, {}
    plain, sources = _split_sources(library_document(kind))
    kept = {key: own[key] for key in _SHAPE_OF_FABRIC if key in own}
    path = "network.fabric"
    return (
        {**base, "network": {**base["network"], "fabric": {**plain, **kept, "kind": kind}}},
        {f"{path}.{key}": source for key, source in sources.items()},
    )


def _named_profile(name: str, field: str, folder: Path) -> HardwareProfile:
    file = named_file(field, name, data_folder("hardware_profiles"), folder, _A_PROFILE)
    written = _written_profile(read_text(file, _A_PROFILE), str(file))
    return with_kernel_table(written, file.parent)


@lru_cache
def _written_profile(text: str, file: str) -> HardwareProfile:
    """The profile that a text describes; most jobs of a sweep or a table share a few."""
    return profile_from_document(yaml_mapping(text, file), file)


def profile_from_document(document: Mapping[str, Any], file: str = "") -> HardwareProfile:
    """The profile of an already parsed document; ``file`` names it in error messages.

    Raises:
        InputError: With every fault of the document.
    """
    try:
        family = {"common": common_document(), "kernels": _kernels_of_family(document)}
        shared, evidence = _split_sources(family)
        plain, provenance = _split_sources(document)
    except InputError as error:
        raise InputError([replace(fault, file=file) for fault in error.faults]) from error
    plain = merged(shared, plain)
    return validated(HardwareProfile, {**plain, "provenance": evidence | provenance}, file=file)


def _kernels_of_family(document: Mapping[str, Any]) -> Document:
    """What the device's architecture says of kernels, in the formats that the device multiplies."""
    device = document.get("device")
    if not isinstance(device, Mapping) or not isinstance(device.get("architecture"), str):
        return {}
    kernels: Document = architecture_document(device["architecture"])["kernels"]
    peaks = device.get("peak")
    if not isinstance(peaks, Mapping):
        return kernels
    formats = {p: model for p, model in kernels["gemm"].items() if peak_name(p) in peaks}
    return {**kernels, "gemm": formats}


def profile_file(name_or_path: str) -> Path:
    """The file of a hardware profile, shipped or not."""
    return named_file("profile", name_or_path, data_folder("hardware_profiles"), Path(), _A_PROFILE)


def _split_sources(
    document: Mapping[str, Any], prefix: str = "", inherited: Provenance | None = None
) -> tuple[Document, dict[str, Provenance]]:
    """The document without its ``source`` entries, and these by the path of their value."""
    faults: list[Fault] = []
    provenance: dict[str, Provenance] = {}

    def plain(node: object, path: str, inherited: Provenance | None) -> object:
        if not isinstance(node, Mapping):
            if inherited is not None:
                provenance[path] = inherited
            return node
        if "source" in node:
            with _collecting(faults):
                inherited = validated(Provenance, node["source"], _joined(prefix, path, "source"))
        if is_number_with_source(node):
            return plain(node["value"], path, inherited)
        return {k: plain(v, _joined(path, k), inherited) for k, v in node.items() if k != "source"}

    if is_number_with_source(document):
        rule = "is not a field: it marks a number with its source"
        hint = "set the field that it belongs to, such as cluster.device.memory"
        raise InputError.single(_joined(prefix, "value"), rule, document["value"], hint)
    stripped = plain(document, "", inherited)
    if "provenance" in document:
        path, hint = _joined(prefix, "provenance"), "put source beside a value"
        faults.append(Fault(path, NO_SUCH_FIELD, hint=hint))
    if faults:
        raise InputError(faults)
    return dict(stripped), provenance  # type: ignore[call-overload]


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


@contextlib.contextmanager
def _collecting(
    faults: list[Fault], block: Document | None = None, key: str = ""
) -> Iterator[None]:
    """Keep the faults of the body; mark the field it should have filled as reported."""
    try:
        yield
    except InputError as error:
        faults += error.faults
        if block is not None:
            block[key] = _REPORTED
