"""Which rules must the links of a system keep among each other?"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import Fault
from simulator.spec.network import Network


def network_faults(network: Network, path: str) -> Iterator[Fault]:
    """Every rule between nodes, NICs and switches that the network breaks.

    Args:
        network: All links of a system.
        path: Where it lies in what the user wrote.
    """
    yield from _nics_divide(network, path)


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
