"""Which rules must the links of a system keep among each other?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.described.cluster.network import Fabric, Network, SwitchTier
from simulator.errors import Fault


def network_faults(network: Network, path: str) -> Iterator[Fault]:
    """Every rule between nodes, NICs and switches that the network breaks.

    Args:
        network: All links of a system.
        path: Where it lies in what the user wrote.
    """
    yield from _nics_divide(network, path)
    fabric = network.fabric
    for name, tier in (("leaf", fabric.leaf), ("pod", fabric.pod)):
        yield from _tier_says_what_is_below(tier, f"{path}.fabric.{name}")
        yield from _tier_holds_whole_domains(tier, network, f"{path}.fabric.{name}")
    yield from _pods_hold_whole_leafs(fabric, f"{path}.fabric")


def _nics_divide(network: Network, path: str) -> Iterator[Fault]:
    """Every GPU has the same share of NICs."""
    nics, gpus = network.fabric.nics_per_node, network.gpus_per_node
    if nics and gpus % nics and nics % gpus:
        yield Fault(
            f"{path}.fabric.nics_per_node",
            f"must divide, or be a multiple of, the {gpus} GPUs of a node",
            nics,
            "count only the NICs that carry traffic of GPUs",
        )


def _tier_says_what_is_below(tier: SwitchTier, path: str) -> Iterator[Fault]:
    if tier.gpus == 0 and tier != SwitchTier():
        rule = "is missing: nothing climbs above switches that hold the whole cluster"
        yield Fault(f"{path}.gpus", rule, tier.gpus, "say how many GPUs meet in these switches")


def _tier_holds_whole_domains(tier: SwitchTier, network: Network, path: str) -> Iterator[Fault]:
    domain = network.scale_up.gpus
    if tier.gpus % domain:
        rule = f"must be a multiple of the {domain} GPUs that the scale-up links join"
        yield Fault(f"{path}.gpus", rule, tier.gpus, f"take {-(-tier.gpus // domain) * domain}")


def _pods_hold_whole_leafs(fabric: Fabric, path: str) -> Iterator[Fault]:
    leaf, pod = fabric.leaf.gpus, fabric.pod.gpus
    if pod and not leaf:
        rule = "is missing: pods are made of leafs"
        yield Fault(f"{path}.leaf.gpus", rule, leaf, "say how many GPUs meet in a leaf")
    elif pod and pod % leaf:
        rule = f"must be a multiple of the {leaf} GPUs below a leaf"
        yield Fault(f"{path}.pod.gpus", rule, pod, f"take {-(-pod // leaf) * leaf}")
