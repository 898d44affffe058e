"""What does the page let a person choose, and how does its state become a job?

The state is one flat mapping from dotted path to value, as ``--set`` takes them, and so is the
query of a link to the page. It may come from anyone who can reach the page, so what would
read files of this machine is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from simulator.described.documents import with_changes
from simulator.described.huggingface.config_file import read_huggingface_config
from simulator.described.job import Job
from simulator.described.load import job_from_document, model_names, profile_names
from simulator.described.plan.optimizers import UPDATE_RULES
from simulator.described.plan.plan import Plan
from simulator.described.plan.plan_fields import Recompute
from simulator.described.plan.shipped_stacks import DEFAULT_STACK, STACKS
from simulator.errors import Fault, InputError
from simulator.schedule import SCHEDULES

State = Mapping[str, Any]
"""Values of a job's fields by dotted path."""

START: State = {
    "model": "llama3.1-70b",
    "cluster.profile": "h100-sxm-80gb",
    "cluster.gpus": 64,
    "batch.global": 128,
    "batch.micro": 1,
    "batch.seq_len": 8192,
    "plan.tp": 4,
    "plan.pp": 4,
    "plan.vpp": 5,
    "plan.cp": 2,
    "plan.overlap_tp": True,
    "campaign.tokens": "1T",
}
"""What the page shows first: the shipped job llama3-70b-64xh100."""

_FLATTENED = ("cluster", "batch", "plan", "campaign")
"""Blocks of a job whose fields are values of the state; all others are one value each."""

_MOST_BYTES = 200_000
"""Characters of a state or a configuration; real ones have a few thousand."""


def _powers(most: int, least: int = 1) -> list[int]:
    return [1 << k for k in range(least.bit_length() - 1, most.bit_length())]


def controls() -> list[dict[str, Any]]:
    """The controls of the page, group by group, each with the field that it sets."""
    plan = Plan()
    return [
        _group("Model and cluster"),
        _choice("model", "Model", model_names()),
        _choice("cluster.profile", "Cluster", profile_names()),
        _slider("cluster.gpus", "GPUs", _powers(65536), 1),
        _group("Batch"),
        _slider("batch.global", "Global batch", _powers(16384), 1, unit="sequences"),
        _slider("batch.micro", "Microbatch", _powers(64), 1, unit="sequences"),
        _slider("batch.seq_len", "Sequence length", _powers(1 << 20, 128), 2048, unit="tokens"),
        _group("Parallelism"),
        _slider("plan.tp", "Tensor", _powers(64), plan.tp, "tp"),
        _slider("plan.pp", "Pipeline", _powers(128), plan.pp, "pp"),
        _slider("plan.vpp", "Chunks per stage", list(range(1, 17)), plan.vpp, "vpp"),
        _slider("plan.cp", "Context", _powers(64), plan.cp, "cp"),
        _slider("plan.ep", "Experts", _powers(256), plan.ep, "ep"),
        _choice("plan.schedule", "Pipeline schedule", list(SCHEDULES), by_default=True),
        _group("Memory"),
        _switch("plan.zero", "ZeRO stage", [0, 1, 2, 3], plan.zero),
        _switch("plan.recompute", "Recompute", list(get_args(Recompute)), plan.recompute),
        _choice("plan.optimizer", "Optimizer", list(UPDATE_RULES), default=plan.optimizer),
        _group("Software"),
        _choice("plan.stack", "Stack", list(STACKS), default=DEFAULT_STACK),
        _switch("plan.precision", "Precision", ["bf16", "fp8", "fp16"], plan.precision),
        _group("Cost"),
        _text("campaign.tokens", "Tokens to train on", "1T"),
        _text("campaign.systems.*.on_demand", "Price of a GPU", "3 USD/h"),
    ]


def _group(title: str) -> dict[str, Any]:
    return {"kind": "group", "label": title}


def _choice(
    path: str, label: str, values: list[str], *, default: str = "", by_default: bool = False
) -> dict[str, Any]:
    """A list to choose from; ``by_default`` offers to leave the field out."""
    nothing = [""] if by_default else []
    return _control("choice", path, label, [*nothing, *values], default)


def _slider(
    path: str, label: str, values: list[int], default: int, short: str = "", unit: str = ""
) -> dict[str, Any]:
    return {**_control("slider", path, label, values, default), "short": short, "unit": unit}


def _switch(path: str, label: str, values: list[Any], default: object) -> dict[str, Any]:
    return _control("switch", path, label, values, default)


def _text(path: str, label: str, example: str) -> dict[str, Any]:
    return {**_control("text", path, label, [], ""), "example": example}


def _control(
    kind: str, path: str, label: str, values: list[Any], default: object
) -> dict[str, Any]:
    return {"kind": kind, "path": path, "label": label, "values": values, "default": default}


def job_of(state: State) -> Job:
    """The job that a state describes.

    Raises:
        InputError: With every fault of it.
    """
    if len(json.dumps(state)) > _MOST_BYTES:
        raise InputError.single("", "is too long for the page", hint="use the command line")
    document = with_changes({}, state)
    faults = list(_file_faults(document))
    if faults:
        raise InputError(faults)
    return job_from_document(document)


def state_of(job: Job) -> dict[str, Any]:
    """The state that describes a job.

    What the job reads from files stands in the state itself where that can be said: a model.
    """
    document = dict(job.document)
    model = document["model"]
    if not (isinstance(model, str) and model in model_names()):
        document["model"] = job.model.model_dump(by_alias=True, exclude_unset=True)
    return dict(_flat(document))


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for block, value in document.items():
        if block in _FLATTENED and isinstance(value, Mapping):
            yield from ((f"{block}.{field}", each) for field, each in value.items())
        else:
            yield block, value


def model_of_config(text: str) -> dict[str, Any]:
    """Fields of the model that the text of a Hugging Face ``config.json`` describes.

    Raises:
        InputError: It is no such text, or a network that is not modelled.
    """
    wanted = "paste the whole config.json of a model"
    if len(text) > _MOST_BYTES:
        raise InputError.single("model", "is too long for a config.json", hint=wanted)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError.single("model", f"is not JSON ({error})", hint=wanted) from error
    if not isinstance(values, dict):
        raise InputError.single("model", "must be a JSON object", values, wanted)
    name = values.get("_name_or_path")
    model, _ = read_huggingface_config(values, name if isinstance(name, str) else "")
    return model.model_dump(by_alias=True, exclude_unset=True)


def _file_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    """What names a file of the machine that the studio runs on."""
    rule, hint = "names a file, but the studio reads no files", "use clustersim run for this job"
    for path, value in _texts(document):
        parts = path.split(".")
        if "file" in parts or value.lower().endswith((".yaml", ".yml", ".json", ".csv", ".txt")):
            yield Fault(path, rule, value, hint)


def _texts(node: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a document as text, with its path."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _texts(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        for number, value in enumerate(node):
            yield from _texts(value, f"{path}.{number}")
    else:
        yield path, str(node)
