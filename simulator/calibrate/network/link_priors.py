"""What is believed of a network's parameters before any row of it is seen?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.described.cluster.network import Network
from simulator.tables.collective_rows import WIDEST_NODE_GPUS


class Prior(NamedTuple):
    """What is believed of a parameter before any row is seen.

    Attributes:
        value: Best guess, SI unit.
        spread: Factor, as a natural logarithm, by which it may well be wrong.
        most: Upper bound.
    """

    value: float
    spread: float
    most: float = math.inf


SCALE_UP_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {
        "launch_s": Prior(5e-6, 0.25),
        "latency_s": Prior(0.8e-6, 0.2),
        "bulk_latency_s": Prior(1.2e-6, 0.7),
        "efficiency": Prior(0.78, 0.1, 0.95),
        "low_latency_share": Prior(0.5, 0.4, 1.0),
        "pipeline_fill": Prior(0.4, 0.4, 1.5),
        "local_copy_bytes_per_s": Prior(1e12, 0.5),
    }
)
"""The bulk hop is what it takes beyond the small-message hop.

Source: NCCL src/graph/tuning.cc (LL and Simple hop times, LL bandwidth); local copies: an
assumption, 24 channels (connect.cc), each an SM that moves about 40 GB/s. The start goes with the
architecture: what each tells of itself is 4.1 us (cards over PCIe), 4.9 (H100), 6.1 (V100), 7.5
(B200) and 8.2 (A100). NCCL's base time of LL is 6.6 us, and held to 15 % of it, sources that no fit
has seen are foretold worse. The hop's spread foretells them better than one twice as wide.
"""


CHOICE_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {
        "wide_launch_s": Prior(1e-6, 0.5),
        "loaded_latency_s": Prior(0.25e-6, 0.5),
        "line_latency_s": Prior(1.9e-6, 0.4),
        "chunk_latency_s": Prior(3.4e-6, 0.7),
        "low_latency_share": Prior(0.45, 0.3, 1.0),
    }
)
"""Where it is known which protocol the library takes. Source: NCCL src/graph/tuning.cc (hops of
LL128 and of Simple, LL's rate); what a full hop and a wide kernel take more is an assumption. The
latter is that of ``ScaleUp``, near what H100, B200 and cards over PCIe tell of themselves.
"""


IN_SWITCH_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {"in_switch_efficiency": Prior(0.6, 0.2, 0.9), "in_switch_latency_s": Prior(25e-6, 0.5)}
)
"""Source: NCCL src/graph/tuning.cc, NVLS hop; large-message rates of H100 and B200."""


PCIE_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {"crowding": Prior(0.01, 1.0, 3.0), "socket_link_bytes_per_s": Prior(22e9, 0.2)}
)
"""What the servers of cards are. Source: NCCL src/graph/topo.h, link between processors of servers
with PCIe 5 (SRP_QPI_BW; 24 GB/s on AMD's of that time). Assumption: nothing else crowds.
"""


PCIE_HOP_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {"latency_s": Prior(1.33e-6, 0.2), "line_latency_s": Prior(2.5e-6, 0.4)}
)
"""Source: NCCL src/graph/tuning.cc, hops of rings over PCIe: in LL 1.0 us where NVLink's take 0.6,
in LL128 2.5 us.
"""


RACK_PRIORS: Mapping[str, Prior] = MappingProxyType({"host_ring_share": Prior(1.0, 0.3, 1.0)})
"""An assumption: hosts of a rack are joined as GPUs of a host are."""


FABRIC_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {
        "efficiency": Prior(0.93, 0.05, 0.98),
        "latency_s": Prior(5e-6, 1.0),
        "bulk_latency_s": Prior(15e-6, 1.0),
        "low_latency_share": Prior(0.075, 0.5, 1.0),
        "pipeline_fill": Prior(0.4, 0.4, 1.5),
        "tree_piece_bytes": Prior(1.5e6, 0.15),
    }
)
"""Source: NCCL src/graph/tuning.cc (network hops of LL and Simple on InfiniBand; in LL all channels
pass 39 GB/s between two nodes and 20.4 between more, of 384 with eight NICs of 400 Gbit/s)."""


def priors_of(part: str, network: Network) -> dict[str, Prior]:
    """What NCCL's own model says of the parameters of ``scale_up`` or ``fabric``."""
    if part == "fabric":
        return dict(FABRIC_PRIORS)
    in_switch = IN_SWITCH_PRIORS if network.scale_up.in_switch_reduction else {}
    pcie = {**PCIE_HOP_PRIORS, **PCIE_PRIORS} if network.scale_up.kind == "pcie" else {}
    choice = CHOICE_PRIORS if network.tuning else {}
    rack = RACK_PRIORS if network.scale_up.gpus > WIDEST_NODE_GPUS else {}
    return {**SCALE_UP_PRIORS, **choice, **in_switch, **pcie, **rack}
