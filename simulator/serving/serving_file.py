"""How does a file become a deployment and its workload, and which fields may it have?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.described.documents import (
    given_or_shipped_file,
    read_naming_yaml,
    validated,
    with_changes,
)
from simulator.described.json_schemas import DIALECT, schema_of
from simulator.described.load import load_model, load_profile
from simulator.errors import InputError
from simulator.files import is_there
from simulator.serving.described import ServingJob


def load_serving(
    source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> ServingJob:
    """A serving job from a YAML file, a shipped name, or what such a file says as a dictionary.

    ``deployment.model`` and ``deployment.profile`` are shipped names or paths.

    Args:
        source: The file, a shipped name, or the document of a file.
        changes: New values by dotted path, for example ``{"deployment.tp": 4}``.

    Raises:
        InputError: With every fault of the job.
    """
    changes = changes or {}
    if isinstance(source, Mapping):
        file, document = "", dict(source)
    else:
        path = given_or_shipped_file("serving job", Path(source), "serving")
        file, document = str(path), read_naming_yaml(path, _WANTED, changes)
    document = with_changes(document, changes)
    deployment = document.get("deployment")
    if isinstance(deployment, Mapping):
        document = {**document, "deployment": _resolved(deployment, Path(file).parent)}
    return validated(ServingJob, document, file=file)


_WANTED = "give a YAML file with a deployment and a workload"


def _resolved(deployment: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    resolved = dict(deployment)
    for field, load in (("model", load_model), ("profile", load_profile)):
        name = deployment.get(field)
        if not isinstance(name, str):
            rule, hint = "must be a name or a path", "for example llama3.1-70b or h100-sxm-80gb"
            raise InputError.single(f"deployment.{field}", rule, name, hint)
        beside = folder / name
        resolved[field] = load(beside if is_there(beside) else name)
    return resolved


_NAMED = {
    "model": "A shipped model, or a path to a .yaml file or to a Hugging Face config.json.",
    "profile": "A shipped hardware profile, or a path to a .yaml file.",
}


def serving_schema() -> dict[str, Any]:
    """JSON schema of a serving job's file."""
    schema = schema_of(ServingJob)
    blocks = schema["$defs"]
    for field, text in _NAMED.items():
        blocks["Deployment"]["properties"][field] = {"type": "string", "description": text}
    return {"$schema": DIALECT, **schema, "$defs": _reached(schema["properties"], blocks)}


def _reached(node: Mapping[str, Any], blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks that a schema refers to, directly or through others."""
    names = set(re.findall(r"#/\$defs/(\w+)", json.dumps(node)))
    known: set[str] = set()
    while names - known:
        known |= names
        names |= set(re.findall(r"#/\$defs/(\w+)", json.dumps([blocks[name] for name in names])))
    return {name: block for name, block in blocks.items() if name in known}
