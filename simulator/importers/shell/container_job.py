"""Which script does a Kubernetes job run, and on how many GPUs?

A PyTorchJob, MPIJob or Job holds the command of its containers and how many replicas have how many
GPUs each; what runs in the first container that trains is a script like any other.

Source: Kubeflow's Training Operator v1 (PyTorchJob), Kubernetes' batch/v1, as facts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.described.documents import parse_yaml
from simulator.errors import InputError
from simulator.files import read_text
from simulator.importers.shell.launch_script import Script, read_script

_KINDS = ("PyTorchJob", "MPIJob", "Job", "JobSet", "TrainJob")
_GPU = "/gpu"
_MAX_SCRIPT_BYTES = 128 * 1024
"""Launch scripts have some ten thousand bytes at most."""


def read_launch_file(path: str | Path, definitions: Mapping[str, str], wanted: str) -> Script:
    """What a script, or the script inside a Kubernetes job, would run.

    Args:
        path: A shell script, a single launch line, or the YAML of a job.
        definitions: Values of variables, which the script cannot overrule.
        wanted: What kind of file would do, as the way out of an error.

    Raises:
        InputError: It is no such file.
    """
    origin = str(path)
    text = read_text(Path(path), wanted, max_bytes=_MAX_SCRIPT_BYTES)
    if Path(path).suffix in (".yaml", ".yml"):
        job = parse_yaml(text, origin)
        if not isinstance(job, dict) or job.get("kind") not in _KINDS:
            rule = f"is neither a script nor a Kubernetes job ({', '.join(_KINDS)})"
            raise InputError.single("", rule, file=origin, hint=wanted)
        script = read_script("\n".join(_commands(job)), definitions, origin)
        script.gpus = _gpus(job)
        return script
    return read_script(text, definitions, origin)


def _containers(node: Any, replicas: int = 1) -> Iterator[tuple[dict[str, Any], int]]:
    """Containers of a job, each with the number of replicas around it."""
    if isinstance(node, dict):
        given = node.get("replicas", node.get("parallelism", 1))
        replicas *= given if isinstance(given, int) and given > 0 else 1
        listed = node.get("containers")
        for container in listed if isinstance(listed, list) else ():
            if isinstance(container, dict):
                yield container, replicas
        for key, inner in node.items():
            if key != "containers":
                yield from _containers(inner, replicas)
    elif isinstance(node, list):
        for inner in node:
            yield from _containers(inner, replicas)


def _commands(job: dict[str, Any]) -> Iterator[str]:
    for container, _ in _containers(job):
        words = [str(w) for key in ("command", "args") for w in container.get(key) or ()]
        for variable in container.get("env") or ():
            if isinstance(variable, dict) and isinstance(variable.get("value"), str):
                yield f"export {variable.get('name')}={shlex.quote(variable['value'])}"
        if words:
            yield shlex.join(words)


def _gpus(job: dict[str, Any]) -> int | None:
    """GPUs of all replicas; None where no container asks for any."""
    total = 0
    for container, replicas in _containers(job):
        resources = container.get("resources")
        limits = resources.get("limits") if isinstance(resources, dict) else None
        for name, number in (limits or {}).items() if isinstance(limits, dict) else ():
            if str(name).endswith(_GPU) and str(number).isdecimal():
                total += replicas * int(number)
    return total or None
