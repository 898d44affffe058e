"""Which algorithm and protocol does NCCL choose?

NCCL does not try what is fastest. It has a model of its own, a latency and a rate for each pair of
algorithm and protocol, and takes the pair that this model says to be fastest. The model knows
neither a machine's own numbers nor how Simple starts, so at some sizes it is wrong, and measured
times jump there.

Ignores: plugins and settings that change the choice; multicast in all_gather and reduce_scatter,
whose rate NCCL takes for lower than that of rings. Where one of the algorithms that can run is none
of these, such as reductions in the fabric's switches, the fastest is taken.
Source: ``facts/nccl_tuning.yaml``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from math import inf, log2
from typing import Any, NamedTuple

from simulator.cost.collectives.collective_time import reachable_link_share
from simulator.cost.collectives.types import CollectiveKind, Group, Protocol
from simulator.described.cluster.network import Fabric, Network, ScaleUp
from simulator.facts import shipped_facts

_PROTOCOLS = (Protocol.LOW_LATENCY, Protocol.LINES, Protocol.SIMPLE)
"""In the order of NCCL's tables."""

_ROOTED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
_SMALLEST_BYTES = 64
_TWO_NODES = 2


class _Estimate(NamedTuple):
    """What NCCL takes a collective to need.

    Attributes:
        latency_us: Before and between its bytes [us].
        gbytes_per_s: Rate of the buffer [GB/s].
        plateau_bytes: Size from which on the latency is longer [B].
    """

    latency_us: float
    gbytes_per_s: float
    plateau_bytes: float = inf

    def us(self, num_bytes: float, slowness: float) -> float:
        """Of a message of this size, at a rate that is so many times lower [us]."""
        longer = _facts()["plateau"] if num_bytes >= self.plateau_bytes else 1.0
        return float(longer * self.latency_us + slowness * num_bytes / (1000 * self.gbytes_per_s))


class _Graph(NamedTuple):
    """What NCCL knows of the links of a group.

    Attributes:
        ranks, nodes: Of the group; a node is all that NVLink joins.
        links: ``nvlink`` or ``pcie``.
        tuning: Architecture of the GPUs.
        gbytes_per_s: What all channels pass together [GB/s].
        channels: How many there are, before they are doubled.
        fabric_us: What the fabric's plugin says of a hop [us].
    """

    ranks: int
    nodes: int
    links: str
    tuning: str
    gbytes_per_s: float
    channels: float
    fabric_us: float = 0.0

    def hop_us(self, algorithm: str, protocol: int) -> tuple[float, float]:
        """One hop inside a node and one between nodes [us]; ``protocol`` is its place in tables."""
        hop_us = _facts()["hop_us"]
        waits = 2 if _PROTOCOLS[protocol] is Protocol.SIMPLE else 1
        of_trees = "tree" if self.ranks == self.nodes else algorithm
        across_us = hop_us["network"][of_trees][protocol] + waits * self.fabric_us
        return hop_us[self.links][algorithm][protocol], across_us

    @property
    def scale(self) -> int:
        """Place in NCCL's tables: one node, two or more."""
        return min(self.nodes, _TWO_NODES + 1) - 1


def chosen(
    kind: CollectiveKind,
    num_bytes: float,
    group: Group,
    network: Network,
    algorithms: Collection[str],
) -> tuple[str, Protocol] | None:
    """The algorithm and the protocol that NCCL takes; None where it is not known.

    Args:
        kind: What is done.
        num_bytes: Message size as nccl-tests counts it [B].
        group: Who takes part.
        network: The links.
        algorithms: Names of those that can run.
    """
    crosses = group.nodes > 1
    if network.tuning is None or kind is CollectiveKind.ALL_TO_ALL:
        return None
    if crosses and not _is_known_across(network.fabric):
        return None
    found = _estimates(kind, _graph_of(group, network, network.tuning))
    if crosses and not {name for name, _ in found}.issuperset(algorithms):
        return None
    estimates = {
        pair: estimate.us(num_bytes, _slowness(pair, num_bytes))
        for pair, estimate in found.items()
        if pair[0] in algorithms
    }
    return min(estimates, key=lambda pair: estimates[pair], default=None)


def _is_known_across(fabric: Fabric) -> bool:
    return fabric.nccl_chooses and fabric.kind in _facts()["fabric_us"]


def _slowness(pair: tuple[str, Protocol], num_bytes: float) -> float:
    """By how much longer than at its full rate a tree's message takes."""
    if pair[0] != "tree" or num_bytes < _SMALLEST_BYTES:
        return 1.0
    factors = _facts()["tree_correction"][_PROTOCOLS.index(pair[1])]
    size = int(log2(num_bytes // _SMALLEST_BYTES))
    return 1 / factors[size] if size < len(factors) else 1.0


def _graph_of(group: Group, network: Network, tuning: str) -> _Graph:
    up = network.scale_up
    links, channels = "pcie" if up.kind == "pcie" else "nvlink", float(_facts()["channels"])
    rate = link_gbytes_per_s(up, group.local_ranks)
    if group.nodes > 1:
        fabric, channels = network.fabric, _channels_between(group, network)
        fabric_us = float(_facts()["fabric_us"][fabric.kind])
        nic_share = fabric.nics_per_node * fabric.nic_bytes_per_s / network.gpus_per_node
        rate = min(rate, group.local_ranks * nic_share / 1e9 * _facts()["nic_share"])
        return _Graph(group.ranks, group.nodes, links, tuning, rate, channels, fabric_us)
    return _Graph(group.ranks, group.nodes, links, tuning, rate, channels)


def _channels_between(group: Group, network: Network) -> float:
    """Network devices of a node, or rack, that the group's ranks there have to themselves.

    Several NICs of one GPU are one device. Source: aws/aws-ofi-nccl, which joins them; NCCL fuses
    those that share a slot.
    """
    per_gpu = min(1.0, network.fabric.nics_per_node / network.gpus_per_node)
    return max(1.0, per_gpu * group.local_ranks)


@lru_cache(maxsize=1024)
def _estimates(kind: CollectiveKind, graph: _Graph) -> Mapping[tuple[str, Protocol], _Estimate]:
    """NCCL's model of every algorithm and protocol."""
    found = _ring_estimates(kind, graph)
    if kind is CollectiveKind.ALL_REDUCE:
        found |= _tree_estimates(graph) | _in_switch_estimates(graph)
    if graph.links == "pcie":  # LL128 needs stores of 128 bytes that arrive whole.
        found = {pair: each for pair, each in found.items() if pair[1] is not Protocol.LINES}
    return found


def _ring_estimates(kind: CollectiveKind, graph: _Graph) -> dict[tuple[str, Protocol], _Estimate]:
    facts, steps = _facts(), _ring_steps(kind, graph.ranks)
    between = _ring_steps(kind, graph.nodes) if graph.nodes > 1 else 0
    base = facts["base_us"]["ring"]
    name = "chain" if kind in _ROOTED else "ring"
    found = {}
    for i, protocol in enumerate(_PROTOCOLS):
        inside_us, across_us = graph.hop_us("ring", i)
        if kind in _ROOTED:
            latency_us = across_us if graph.nodes > 1 else inside_us
        else:
            least_us = facts["post_us"][i] if graph.nodes > 1 else 0.0
            latency_us = (steps - between) * max(inside_us, least_us) + between * across_us
        rate = _ring_gbytes_per_s(protocol, graph) * graph.ranks / steps
        found[name, protocol] = _Estimate(base[i] + latency_us, rate)
    if kind is CollectiveKind.ALL_REDUCE and graph.nodes > 1:
        plateau_bytes = facts["plateau_bytes"] * graph.channels * graph.ranks
        simple = found[name, Protocol.SIMPLE]
        found[name, Protocol.SIMPLE] = simple._replace(plateau_bytes=plateau_bytes)
    return found


def _tree_estimates(graph: _Graph) -> dict[tuple[str, Protocol], _Estimate]:
    hops, levels = graph.ranks // graph.nodes - 1, int(log2(graph.nodes))
    found = {}
    for i, protocol in enumerate(_PROTOCOLS):
        inside_us, across_us = graph.hop_us("tree", i)
        latency_us = _facts()["base_us"]["tree"][i] + 2 * (hops * inside_us + levels * across_us)
        rate = _tree_gbytes_per_s(protocol, graph) / 2
        found["tree", protocol] = _Estimate(latency_us, rate)
    return found


def _in_switch_estimates(graph: _Graph) -> dict[tuple[str, Protocol], _Estimate]:
    facts, tuning = _facts(), graph.tuning
    if tuning not in facts["in_switch_most_per_rank"]:
        return {}
    latency_us = facts["in_switch_us"]
    if graph.nodes == 1:
        most = graph.ranks * facts["in_switch_most_per_rank"][tuning]
        rate = min(most, graph.gbytes_per_s) * facts["in_switch_share"]
    else:
        most = graph.channels * facts["in_switch_tree_most_per_channel"][tuning][graph.scale - 1]
        twice = _TWO_NODES if graph.nodes == _TWO_NODES else 1
        rate = min(most, twice * graph.gbytes_per_s)
        rate *= graph.ranks / _ring_steps(CollectiveKind.ALL_REDUCE, graph.ranks)
        hop_us = facts["hop_us"]["network"]["in_switch"] + 2 * graph.fabric_us
        latency_us += 2 * int(log2(graph.nodes)) * hop_us
    return {("in_switch", Protocol.SIMPLE): _Estimate(latency_us, rate)}


def link_gbytes_per_s(up: ScaleUp, ranks: int) -> float:
    """What NCCL takes the links of a GPU to pass in a ring of so many of its domain [GB/s]."""
    facts, rate = _facts(), up.bandwidth_bytes_per_s / 1e9
    if up.kind != "pcie":
        return float(rate * facts["nvlink_share"] * reachable_link_share(up, ranks))
    rate *= facts["pcie_share"]
    return float(min(rate, facts["sockets_most"]) if ranks > up.gpus / 2 else rate)


def _ring_steps(kind: CollectiveKind, ranks: int) -> int:
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (ranks - 1)
    return ranks if kind in _ROOTED else ranks - 1


def _ring_gbytes_per_s(protocol: Protocol, graph: _Graph) -> float:
    facts, rate = _facts(), graph.gbytes_per_s
    if protocol is Protocol.LOW_LATENCY:
        return float(min(_low_latency_most(graph), rate * facts["low_latency_share"]))
    if protocol is Protocol.LINES:
        most = graph.channels * facts["line_most_per_channel"]["ring"][graph.tuning][graph.scale]
        return float(min(rate * facts["line_share"], most))
    return rate


def _tree_gbytes_per_s(protocol: Protocol, graph: _Graph) -> float:
    facts = _facts()
    most = graph.channels * facts["tree_most_per_channel"][graph.tuning][graph.scale]
    twice = _TWO_NODES if graph.nodes == _TWO_NODES else 1  # links inside may carry both ways
    rate = min(twice * graph.gbytes_per_s * facts["tree_share"], most)
    if protocol is Protocol.LOW_LATENCY:
        return float(min(rate * facts["tree_low_latency_share"], _low_latency_most(graph)))
    if protocol is Protocol.LINES:
        share = facts["tree_line_share" if graph.nodes == 1 else "tree_line_share_between"]
        most = graph.channels * facts["line_most_per_channel"]["tree"][graph.tuning][graph.scale]
        return float(min(rate * share, most))
    return float(rate)


def _low_latency_most(graph: _Graph) -> float:
    facts = _facts()
    if graph.nodes == 1:
        return float(facts["low_latency_most"][graph.tuning])
    return float(facts["low_latency_most_between"][graph.scale - 1])


def _facts() -> Any:
    return shipped_facts("nccl_tuning")
