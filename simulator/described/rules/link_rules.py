"""Can data move over the links as they are described?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.base import file_name_of_field
from simulator.described.cluster.network import Network
from simulator.errors import Fault

_SHARES = ("efficiency", "low_latency_share")


def link_faults(network: Network, path: str, gpus: int | None = None) -> Iterator[Fault]:
    """Every link that carries nothing, and every domain that cuts a node.

    Args:
        network: The links.
        path: Where they stand in what the user wrote, for messages.
        gpus: GPUs that a job takes; None if there is no job, and any number may come.
    """
    yield from _domain_and_node_divide(network, path)
    if network.scale_up.gpus > 1:
        yield from _scale_up_carries(network, path)
    if gpus is None or gpus > network.scale_up.gpus:
        yield from _fabric_carries(network, path)
    if gpus is not None and gpus > network.scale_up.gpus:
        yield from _fabric_is_described(network, path, gpus)


def _domain_and_node_divide(network: Network, path: str) -> Iterator[Fault]:
    domain, node = network.scale_up.gpus, network.gpus_per_node
    if domain % node and node % domain:
        yield Fault(
            f"{path}.scale_up.gpus",
            f"must divide, or be a multiple of, the {node} GPUs of a node",
            domain,
            f"take {node}, or correct gpus_per_node",
        )


def _scale_up_carries(network: Network, path: str) -> Iterator[Fault]:
    up = network.scale_up
    needed = ["bandwidth_bytes_per_s", *_SHARES]
    if up.in_switch_reduction:
        needed.append("in_switch_efficiency")
    for name in needed:
        if not getattr(up, name):
            rule = f"must be above 0: {up.gpus} GPUs talk over these links"
            hint = "or set scale_up.gpus: 1 if each is alone"
            yield Fault(f"{path}.scale_up.{file_name_of_field(name)}", rule, 0, hint)


def _fabric_carries(network: Network, path: str) -> Iterator[Fault]:
    fabric = network.fabric
    for name in ("nic_bytes_per_s", *_SHARES) if fabric.nics_per_node else ():
        if not getattr(fabric, name):
            rule = f"must be above 0: {fabric.nics_per_node} NICs per node carry what crosses"
            hint = "or set fabric.nics_per_node: 0 if there is no fabric"
            yield Fault(f"{path}.fabric.{file_name_of_field(name)}", rule, 0, hint)


def _fabric_is_described(network: Network, path: str, gpus: int) -> Iterator[Fault]:
    domain = network.scale_up.gpus
    if not network.fabric.nics_per_node:
        yield Fault(
            f"{path}.fabric.nics_per_node",
            f"must be above 0: groups of {gpus} GPUs cross from one domain of {domain} to the "
            "next, over a fabric that is not described",
            0,
            f"describe it (kind, nics_per_node, nic), or take at most {domain} GPUs",
        )
