"""Can data move over a network as it is described?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import Fault
from simulator.spec.base import file_name_of_field
from simulator.spec.network import Network

_SHARES = ("efficiency", "low_latency_share")


def network_faults(network: Network, path: str, gpus: int | None = None) -> Iterator[Fault]:
    """Every rule that a network breaks.

    Args:
        network: The links.
        path: Where they stand in what the user wrote, for messages.
        gpus: GPUs that a job takes; None if there is no job, and any number may come.
    """
    yield from _domain_and_node_divide(network, path)
    yield from _nics_divide(network, path)
    if network.scale_up.gpus > 1:
        yield from _links_carry_something(network, path)
    yield from _fabric_is_described(network, path, gpus)


def _domain_and_node_divide(network: Network, path: str) -> Iterator[Fault]:
    domain, node = network.scale_up.gpus, network.gpus_per_node
    if domain % node and node % domain:
        yield Fault(
            f"{path}.scale_up.gpus",
            f"must divide or be a multiple of gpus_per_node = {node}: nodes hold whole domains, "
            "or domains whole nodes",
            domain,
            f"take {node}",
        )


def _nics_divide(network: Network, path: str) -> Iterator[Fault]:
    nics, node = network.fabric.nics_per_node, network.gpus_per_node
    if nics and nics % node and node % nics:
        yield Fault(
            f"{path}.fabric.nics_per_node",
            f"must divide or be a multiple of gpus_per_node = {node}: every GPU has the same "
            "share of the NICs",
            nics,
            f"count the NICs that carry collectives: {_nearest_divisor(nics, node)}, for example",
        )


def _nearest_divisor(nics: int, node: int) -> int:
    candidates = [count for count in range(1, max(nics, node) + 1) if not node % count]
    candidates += [node * times for times in range(2, nics // node + 2)]
    return min(candidates, key=lambda count: abs(count - nics))


def _links_carry_something(network: Network, path: str) -> Iterator[Fault]:
    up = network.scale_up
    needed = ["bandwidth_bytes_per_s", *_SHARES]
    if up.in_switch_reduction:
        needed.append("in_switch_efficiency")
    for name in needed:
        if not getattr(up, name):
            rule = f"must be above 0: {up.gpus} GPUs talk over these links"
            hint = "or set scale_up.gpus: 1 if each is alone"
            yield Fault(f"{path}.scale_up.{file_name_of_field(name)}", rule, 0, hint)


def _fabric_is_described(network: Network, path: str, gpus: int | None) -> Iterator[Fault]:
    fabric, domain = network.fabric, network.scale_up.gpus
    if gpus is not None and gpus <= domain:
        return
    described = fabric.nics_per_node > 0
    if gpus is not None and not described:
        yield Fault(
            f"{path}.fabric.nics_per_node",
            f"must be above 0: groups of {gpus} GPUs cross from one domain of {domain} to the "
            "next, over a fabric that is not described",
            0,
            f"describe it (kind, nics_per_node, nic), or take at most {domain} GPUs",
        )
    if not described:
        return
    for name in ("nic_bytes_per_s", *_SHARES):
        if not getattr(fabric, name):
            rule = f"must be above 0: {fabric.nics_per_node} NICs per node carry what crosses"
            hint = "or set fabric.nics_per_node: 0 if there is no fabric"
            yield Fault(f"{path}.fabric.{file_name_of_field(name)}", rule, 0, hint)
