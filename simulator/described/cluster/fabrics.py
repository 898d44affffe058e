"""How does a kind of network between nodes behave, whatever system it joins?

A profile states the fabric of its system. Rented machines often come with another one;
the library ``hardware_profiles/fabrics`` holds one file per kind, so that the same
system can be looked at on it.
"""

from __future__ import annotations

from typing import Any, get_args

from simulator.described.cluster.network import Fabric, FabricKind
from simulator.described.documents import data_folder, is_number_with_source, read_yaml, validated
from simulator.errors import InputError
from simulator.units import format_quantity


def library_document(kind: FabricKind) -> dict[str, Any]:
    """What the library says of a kind of fabric: fields with their sources, without NICs."""
    document = read_yaml(data_folder("hardware_profiles") / "fabrics" / f"{kind}.yaml")
    return {key: value for key, value in document.items() if key != "description"}


def library_fabric(kind: FabricKind, nics_per_node: int, nic_bytes_per_s: float) -> Fabric:
    """A fabric of ``kind`` with the library's parameters and these NICs.

    Raises:
        InputError: There is no such kind.
    """
    kinds = get_args(FabricKind)
    if kind not in kinds:
        raise InputError.single(
            "fabric.kind", "is not a known kind of fabric", kind, f"use one of {', '.join(kinds)}"
        )
    parameters = {
        key: value["value"] if isinstance(value, dict) and is_number_with_source(value) else value
        for key, value in library_document(kind).items()
        if key != "source"
    }
    nics = {
        "kind": kind,
        "nics_per_node": nics_per_node,
        "nic": format_quantity(nic_bytes_per_s, "bytes_per_s"),
    }
    return validated(Fabric, parameters | nics, "fabric")
