"""Do two jobs differ only in hardware, and is that of one nowhere faster than that of the other?

Then one cannot train faster, whatever the error of a prediction: both train the same, with the same
software, and more bandwidth or less latency is never slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simulator.described.base import Spec
from simulator.described.job import Job

_PROFILE = "cluster.profile."
SLOWER_WITH_LESS = tuple(
    _PROFILE + field
    for field in (
        "device.memory_bandwidth_bytes_per_s",
        "device.peak.",
        "host.pcie_bytes_per_s",
        "network.fabric.efficiency",
        "network.fabric.nic_bytes_per_s",
        "network.fabric.nics_per_node",
        "network.scale_up.bandwidth_bytes_per_s",
        "network.scale_up.efficiency",
    )
)
SLOWER_WITH_MORE = tuple(
    _PROFILE + field
    for field in (
        "network.fabric.background_load",
        "network.fabric.latency_s",
        "network.fabric.leaf.background_load",
        "network.fabric.leaf.latency_s",
        "network.fabric.leaf.oversubscription",
        "network.fabric.pod.background_load",
        "network.fabric.pod.latency_s",
        "network.fabric.pod.oversubscription",
        "network.fabric.slowness",
        "network.scale_up.background_load",
        "network.scale_up.latency_s",
        "network.scale_up.slowness",
    )
)


def is_on_slower_hardware(job: Job, other: Job) -> bool:
    """Whether the job is the other one on hardware that is nowhere faster, and somewhere slower.

    Ignores: numbers of kernels and of the collective library, for which more may be less.
    """
    differences = list(_differences(job, other))
    return bool(differences) and all(_is_slower(*each) for each in differences)


def _differences(job: Job, other: Job) -> Iterator[tuple[str, object, object]]:
    """Fields of two jobs that differ, by dotted path, with both values."""
    pending: list[tuple[str, object, object]] = [("", job, other)]
    while pending:
        path, mine, theirs = pending.pop()
        if isinstance(mine, Spec) and type(mine) is type(theirs):
            pending += [
                (f"{path}.{name}".lstrip("."), getattr(mine, name), getattr(theirs, name))
                for name in type(mine).model_fields
                if name != "provenance"
            ]
        elif mine != theirs:
            yield path, mine, theirs


def _is_slower(path: str, mine: object, theirs: object) -> bool:
    """Whether a field alone makes its job slower than with the value of the other one."""
    if path == "perturbations" and isinstance(mine, tuple) and isinstance(theirs, tuple):
        return not Counter(theirs) - Counter(mine)
    if not isinstance(mine, int | float) or not isinstance(theirs, int | float):
        return False
    if path.startswith(SLOWER_WITH_LESS):
        return mine < theirs
    return path.startswith(SLOWER_WITH_MORE) and mine > theirs
