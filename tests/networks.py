"""Which network makes times that can be computed by eye?"""

from __future__ import annotations

from typing import Any

from simulator.described.cluster.network import Network

PLAIN_LINKS = {
    "latency": "0 s", "bulk_latency": "0 s", "low_latency_share": 1.0,
    "pipeline_fill": 0.0, "efficiency": 1.0,
}  # fmt: skip
"""Of a block of links: no latency, no fill, all of their rate."""


def flat_network(kind: str = "nvswitch", **fabric: Any) -> Network:
    """One GPU and one NIC of 1 GB/s per node, no latency: seconds are gigabytes."""
    up = {"kind": kind, "gpus": 1, "bandwidth": "1 GB/s", "launch": "0 s", **PLAIN_LINKS}
    nics = {"kind": "ib", "nics_per_node": 1, "nic": "1 GB/s", **PLAIN_LINKS}
    document = {"gpus_per_node": 1, "scale_up": up, "fabric": {**nics, **fabric}}
    return Network.model_validate(document)
