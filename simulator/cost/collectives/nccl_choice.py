"""Which algorithm and protocol does NCCL choose inside one scale-up domain?

NCCL does not try what is fastest. It has a model of its own, a latency and a rate for each pair of
algorithm and protocol, and takes the pair that this model says to be fastest. The model knows
neither a machine's own numbers nor how Simple starts, so at some sizes it is wrong, and measured
times jump there.

Ignores: plugins and settings that change the choice; groups that cross the fabric, where the
fastest is taken; multicast in all_gather and reduce_scatter, whose rate NCCL takes for lower than
that of rings.
Source: ``facts/nccl_tuning.yaml``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

from simulator.cost.collectives.collective_time import reachable_link_share
from simulator.cost.collectives.types import CollectiveKind, Group, Protocol
from simulator.described.cluster.network import ScaleUp
from simulator.facts import shipped_facts

_PROTOCOLS = (Protocol.LOW_LATENCY, Protocol.LINES, Protocol.SIMPLE)
"""In the order of NCCL's tables."""

_ROOTED = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)
_SMALLEST_BYTES = 64


class _Estimate(NamedTuple):
    """What NCCL takes a collective to need: latency [us] and rate of the buffer [GB/s]."""

    latency_us: float
    gbytes_per_s: float

    def us(self, num_bytes: float) -> float:
        return self.latency_us + num_bytes / (1000 * self.gbytes_per_s)


def chosen(
    kind: CollectiveKind,
    num_bytes: float,
    group: Group,
    up: ScaleUp,
    tuning: str,
    algorithms: Collection[str],
) -> tuple[str, Protocol] | None:
    """The algorithm and the protocol that NCCL takes; None where its model has none of them.

    Args:
        kind: What is done.
        num_bytes: Message size as nccl-tests counts it [B].
        group: Who takes part, all in one domain.
        up: The links.
        tuning: Architecture of the GPUs, a key of NCCL's tables.
        algorithms: Names of those that can run.
    """
    if kind is CollectiveKind.ALL_TO_ALL:
        return None
    estimates = {
        pair: estimate.us(num_bytes * _share_of_large(pair, num_bytes))
        for pair, estimate in _estimates(kind, group.ranks, up, tuning).items()
        if pair[0] in algorithms
    }
    return min(estimates, key=lambda pair: estimates[pair], default=None)


def _share_of_large(pair: tuple[str, Protocol], num_bytes: float) -> float:
    """By how much longer than at its full rate a tree's message takes."""
    if pair[0] != "tree" or num_bytes < _SMALLEST_BYTES:
        return 1.0
    factors = _facts()["tree_correction"][_PROTOCOLS.index(pair[1])]
    size = int(log2(num_bytes // _SMALLEST_BYTES))
    return 1 / factors[size] if size < len(factors) else 1.0


@lru_cache(maxsize=1024)
def _estimates(
    kind: CollectiveKind, ranks: int, up: ScaleUp, tuning: str
) -> Mapping[tuple[str, Protocol], _Estimate]:
    """NCCL's model of every algorithm and protocol of one domain."""
    facts, links = _facts(), "pcie" if up.kind == "pcie" else "nvlink"
    rate, base, hop = link_gbytes_per_s(up, ranks), facts["base_us"], facts["hop_us"][links]
    ring = "chain" if kind in _ROOTED else "ring"
    steps = _ring_steps(kind, ranks)
    hops = 1 if kind in _ROOTED else steps
    found = {
        (ring, protocol): _Estimate(
            base["ring"][i] + hops * hop["ring"][i],
            _ring_gbytes_per_s(protocol, rate, tuning) * ranks / steps,
        )
        for i, protocol in enumerate(_PROTOCOLS)
    }
    if kind is CollectiveKind.ALL_REDUCE:
        found |= {
            ("tree", protocol): _Estimate(
                base["tree"][i] + 2 * (ranks - 1) * hop["tree"][i],
                _tree_gbytes_per_s(protocol, rate, tuning) / 2,
            )
            for i, protocol in enumerate(_PROTOCOLS)
        }
        if tuning in facts["in_switch_most_per_rank"]:
            most = ranks * facts["in_switch_most_per_rank"][tuning]
            in_switch = min(most, rate) * facts["in_switch_share"]
            found["in_switch", Protocol.SIMPLE] = _Estimate(facts["in_switch_us"], in_switch)
    if links == "pcie":  # LL128 needs stores of 128 bytes that arrive whole.
        found = {pair: each for pair, each in found.items() if pair[1] is not Protocol.LINES}
    return found


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


def _ring_gbytes_per_s(protocol: Protocol, rate: float, tuning: str) -> float:
    facts = _facts()
    if protocol is Protocol.LOW_LATENCY:
        return float(min(facts["low_latency_most"][tuning], rate * facts["low_latency_share"]))
    if protocol is Protocol.LINES:
        most = facts["channels"] * facts["line_most_per_channel"]["ring"][tuning]
        return float(min(rate * facts["line_share"], most))
    return rate


def _tree_gbytes_per_s(protocol: Protocol, rate: float, tuning: str) -> float:
    facts = _facts()
    most = facts["channels"] * facts["tree_most_per_channel"][tuning]
    rate = min(rate * facts["tree_share"], most)
    if protocol is Protocol.LOW_LATENCY:
        shared = rate * facts["tree_low_latency_share"]
        return float(min(shared, facts["low_latency_most"][tuning]))
    if protocol is Protocol.LINES:
        most = facts["channels"] * facts["line_most_per_channel"]["tree"][tuning]
        return float(min(rate * facts["tree_line_share"], most))
    return rate


def _facts() -> Any:
    return shipped_facts("nccl_tuning")
