"""Which command does a job of Kubernetes run, and on how many GPUs?

A PyTorchJob, MPIJob or Job holds the command of its containers and how many replicas have how many
GPUs each; what runs in the first container that trains is a script like any other.

Source: Kubeflow's Training Operator v1 (PyTorchJob), Kubernetes' batch/v1, as facts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

KINDS = ("PyTorchJob", "MPIJob", "Job", "JobSet", "TrainJob")
_GPU = "/gpu"


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


def commands_inside(job: dict[str, Any]) -> Iterator[str]:
    """Commands of its containers, each behind the variables that it is given."""
    for container, _ in _containers(job):
        words = [str(w) for key in ("command", "args") for w in container.get(key) or ()]
        for variable in container.get("env") or ():
            if isinstance(variable, dict) and isinstance(variable.get("value"), str):
                yield f"export {variable.get('name')}={shlex.quote(variable['value'])}"
        if words:
            yield shlex.join(words)


def gpus_of_replicas(job: dict[str, Any]) -> int | None:
    """GPUs of all replicas; None where no container asks for any."""
    total = 0
    for container, replicas in _containers(job):
        resources = container.get("resources")
        limits = resources.get("limits") if isinstance(resources, dict) else None
        for name, number in (limits or {}).items() if isinstance(limits, dict) else ():
            if str(name).endswith(_GPU) and str(number).isdecimal():
                total += replicas * int(number)
    return total or None
