"""How do a foreign file and what the user adds to it become a job and a report?

A file seldom says everything: a ``ds_config.json`` knows no model, a TOML no number of
GPUs. :class:`Given` holds what the user says beside the file; what neither says is asked
for. The document that results leaves defaults out, as a person would.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.described.documents import parse_yaml, with_changes
from simulator.described.foreign_config import ImportReport
from simulator.described.job import Job
from simulator.described.load import job_from_document
from simulator.described.plan.plan import Plan
from simulator.described.plan.shipped_stacks import named_stack
from simulator.described.plan.stack import Stack
from simulator.described.plan.stack_options import gradient_format
from simulator.errors import Fault, InputError
from simulator.files import read_text, strict_json
from simulator.importers.settings import Rules, Settings, plain_names, sort_out

_MAX_DEPTH = 50
_MAX_KEY_LETTERS = 500


def parse_mapping(text: str, origin: str, wanted: str = "") -> dict[str, Any]:
    """The mapping that a JSON, TOML or YAML text stands for.

    The ending of ``origin`` decides; without a known one, JSON is tried first, as its
    first letter gives it away, and YAML else.

    Raises:
        InputError: It is malformed, nested too deeply, or no mapping.
    """
    suffix = Path(origin).suffix.lower()
    if suffix == ".toml":
        values = _parsed(text, origin, wanted, "TOML", tomllib.loads)
    elif suffix == ".json" or text.lstrip()[:1] == "{":
        values = _parsed(text, origin, wanted, "JSON", strict_json)
    else:
        values = parse_yaml(text, origin)
    if not isinstance(values, dict):
        rule = "must be a mapping of settings"
        raise InputError.single("", rule, file=origin, hint=wanted)
    return values


def read_flat(path: str | Path, wanted: str = "") -> dict[str, Any]:
    """The settings of a JSON, TOML or YAML file in one mapping, nested keys joined by dots.

    Raises:
        InputError: It cannot be read, or is no mapping; ``wanted`` says what to give.
    """
    origin = str(path)
    return flat(parse_mapping(read_text(Path(path), wanted), origin, wanted), origin)


def _parsed(
    text: str, origin: str, wanted: str, language: str, parse: Callable[[str], Any]
) -> object:
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        rule = f"is not a {language} ({error})"
        raise InputError.single("", rule, file=origin, hint=wanted) from error


def flat(values: Mapping[str, Any], origin: str = "") -> dict[str, Any]:
    """The same settings in one mapping, nested keys joined by dots.

    Empty mappings stay, so that no section of a file gets lost.

    Raises:
        InputError: It is nested deeper, or has longer keys, than a configuration ever is.
    """
    result: dict[str, Any] = {}
    pending = [("", values, 0)]
    while pending:
        prefix, block, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise InputError.single(prefix.rstrip("."), "is nested too deeply", file=origin)
        for key, value in block.items():
            if len(str(key)) > _MAX_KEY_LETTERS:
                rule = f"has a key of {len(str(key)):,} letters"
                raise InputError.single(str(key)[:60], rule, file=origin)
            if isinstance(value, Mapping) and value:
                pending.append((f"{prefix}{key}.", value, depth + 1))
            else:
                result[f"{prefix}{key}"] = value
    return result


_MOST_FAULTS = 100
"""More of them say no more."""
_MEGATRON = "megatron-core"
"""Stack of a plan that names none."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says beside the file.

    Attributes:
        profile: Hardware profile: a shipped name or a path.
        gpus: GPUs of the job; None where the file says it.
        model: As a job writes it; None where the file says it.
        global_batch: Sequences per step; None where the file says it.
        micro_batch: Sequences at a time; None where the file says it.
        seq_len: Tokens per sequence; None where the file says it.
        definitions: Values of variables that the file leaves open.
        ignore: Settings that may be left out although they cost something.
        changes: Fields of the job to set, by dotted path.
    """

    profile: str = "h100-sxm-80gb"
    gpus: int | None = None
    model: dict[str, Any] | str | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    definitions: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Draft:
    """What a file says of a job, before anything else is known.

    Attributes:
        model: Fields in place, a name, or None where the file does not set it.
        plan: Fields of the plan; None means the stack's default.
        stack: Name of the framework's stack.
        facts: Facts of the stack that the file changes.
        gpus: GPUs of the job, if the file says it.
        global_batch: Sequences per step, if the file says it.
        micro_batch: Sequences at a time, if the file says it.
        seq_len: Tokens per sequence, if the file says it.
        reference: The job's ``reference``, if the file trains beside one.
    """

    model: dict[str, Any] | str | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    stack: str = _MEGATRON
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    reference: str | None = None

    def compare_pairs(self, given: Given) -> None:
        """What the file counts are pairs of a chosen and a rejected sequence."""
        if not given.micro_batch and self.micro_batch:
            self.micro_batch *= 2
            self.global_batch = self.global_batch and self.global_batch * 2

    def set_batch(self, given: Given, micro: int | None, steps: int | None) -> None:
        """Sequences at a time, and per step of so many microbatches where the ranks are known."""
        self.micro_batch = given.micro_batch or micro
        copies = math.prod(self.plan.get(degree, 1) for degree in ("tp", "pp", "cp"))
        ranks = (given.gpus or self.gpus or 0) // copies
        if self.micro_batch and ranks:
            self.global_batch = self.micro_batch * ranks * (steps or 1)


def finished(
    draft: Draft,
    settings: Settings,
    rules: Rules,
    given: Given,
    origin: str,
    further_keys: Iterable[str] = (),
) -> tuple[Job, ImportReport]:
    """The job of a draft, and what became of every setting of its file.

    Args:
        draft: What the file says.
        settings: The settings that the draft was read from.
        rules: What becomes of the others.
        given: What the user says.
        origin: The file, for messages.
        further_keys: Settings of a file inside the file, which are accounted for already.

    Raises:
        InputError: With every fault of the file, everything that is missing, or every rule
            that the job breaks.
    """
    # Also those at fault for what the framework does where the file does not state them.
    known = settings.keys.union(further_keys, (fault.path for fault in settings.faults))
    rest = sort_out(settings, rules, given.ignore)
    for name in sorted(plain_names(given.ignore) - known):
        settings.fault(f"--ignore {name}", "is not a setting of the file")
    document = _document(draft, given)
    missing = _missing(document, knows_share=bool(draft.micro_batch))
    if any(fault.hint == ASK_FOR_MODEL for fault in settings.faults):
        missing = [fault for fault in missing if fault.path != "model"]
    faults = [*settings.faults, *missing]
    if faults:
        shown = [replace(fault, file=fault.file or origin) for fault in faults[:_MOST_FAULTS]]
        if len(faults) > _MOST_FAULTS:
            rule = f"has {len(faults) - _MOST_FAULTS:,} more faults; check that it is such a file"
            shown.append(Fault("", rule, file=origin))
        raise InputError(shown)
    try:
        job = job_from_document(document)
    except InputError as error:
        raise _with_options(error) from error
    report = ImportReport(
        source=origin,
        understood=settings.read_keys,
        ignored=rest.ignored,
        assumed=(*dict.fromkeys(settings.assumed), *rest.assumed),
        unsupported=(*dict.fromkeys(settings.unsupported), *rest.unsupported),
    )
    return job, report


def _document(draft: Draft, given: Given) -> dict[str, Any]:
    """The job as a file would set it; the user's word counts before the foreign file's."""
    micro = given.micro_batch or draft.micro_batch or 1
    batch = {
        "global": given.global_batch or draft.global_batch,
        **({"micro": micro} if micro != 1 else {}),
        "seq_len": given.seq_len or draft.seq_len,
    }
    document = {
        "model": given.model or draft.model,
        "cluster": {"profile": given.profile, "gpus": given.gpus or draft.gpus},
        "batch": batch,
        "plan": _plan_document(draft.plan, draft.stack, draft.facts),
        **({"reference": draft.reference} if draft.reference else {}),
    }
    return with_changes(document, given.changes)


def _with_options(error: InputError) -> InputError:
    """The same error whose ways out are options of ``clustersim import``, where they are fields."""
    return type(error)([replace(fault, hint=_way_out(fault)) for fault in error.faults])


def _way_out(fault: Fault) -> str:
    """The hint of a fault of a job, and before it the option that says it."""
    number = re.search(r"use (\d+)", fault.hint)
    field = re.search(r"(plan\.\w+): ([\w-]+)", fault.hint)
    block = re.search(r"\{.*\}", fault.hint)
    if fault.path in _OPTIONS and number:
        option = f"{_OPTIONS[fault.path]} {number[1]}"
    elif field:
        option = f"--set {field[1]}={field[2]}"
    elif fault.path.startswith("cluster.") and block:
        option = f"--set '{fault.path}={block[0]}'"
    elif fault.path.startswith("plan.") and "dp" in fault.rule.split():
        option = "more --gpus"
    else:
        return fault.hint
    return f"give {option}, or {fault.hint.removeprefix('or ')}"


_OPTIONS = {
    "cluster.gpus": "--gpus",
    "batch.global": "--global-batch",
    "batch.micro": "--micro-batch",
    "batch.seq_len": "--seq-len",
}
ASK_FOR_MODEL = "give --model NAME, or a path to its config.json"
"""The way out of a model that the file names and nobody knows."""

_ASKED_FOR = (
    ("model", "--model NAME, or a path to a config.json"),
    ("cluster.gpus", "--gpus N"),
    ("batch.global", "--global-batch N"),
    ("batch.seq_len", "--seq-len N"),
)


def _missing(document: Mapping[str, Any], *, knows_share: bool) -> list[Fault]:
    """What nobody has said; a batch that is known for each GPU follows from their number."""
    faults = []
    for path, option in _ASKED_FOR:
        value: Any = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        follows = path == "batch.global" and knows_share and not document["cluster"].get("gpus")
        if value is None and not follows:
            faults.append(Fault(path, "is not stated in the file", hint=f"give {option}"))
    return faults


def _plan_document(plan: Mapping[str, Any], stack: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A plan as a job file writes it, without what its defaults say already.

    Args:
        plan: Fields of the plan; None leaves one to the stack.
        stack: Name of the stack.
        facts: What differs from the stack.
    """
    base = named_stack(stack, is_compiled=plan.get("compile"))
    assert isinstance(base, Stack)
    changed = {key: value for key, value in facts.items() if getattr(base, key, None) != value}
    kept = {
        name: value
        for name, value in plan.items()
        if value is not None and value != _default(name, plan, base, changed)
    }
    if changed:
        kept["stack"] = {"base": stack, **changed}
    elif stack != _MEGATRON:
        kept["stack"] = stack
    return kept


_UNDER_ZERO_3 = {
    "overlap_grad_reduce": "overlap_shard_reduce",
    "overlap_param_gather": "prefetches_weights",
}
"""Facts by which a stack overlaps under ZeRO 3 what it otherwise may not."""


def _default(name: str, plan: Mapping[str, Any], base: Stack, changed: Mapping[str, Any]) -> Any:
    """What a field of a plan is where it is left out."""
    default: Any = Plan.model_fields[name].default
    if default is None:
        default = changed.get(name, getattr(base, name, None))
    if name == "grad_reduce_precision" and plan.get("master_weights") is False:
        return None  # gradients are then 16-bit, and are reduced so where nothing is said
    if name == "grad_reduce_precision" and default is not None:
        return gradient_format(plan.get("precision", "bf16"), default)
    if name in _UNDER_ZERO_3 and plan.get("zero", base.zero) == 3:
        return default or getattr(base, _UNDER_ZERO_3[name])
    return default


def definitions_of(assignments: Iterable[str]) -> dict[str, str]:
    """Values by variable of ``NAME=VALUE`` texts.

    Raises:
        InputError: A text is something else.
    """
    found = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (equals and name):
            hint = "for example --define TP=8"
            raise InputError.single("--define", "must be NAME=VALUE", assignment, hint)
        found[name] = value
    return found
