"""How long do the small exchanges of serving take?"""

from __future__ import annotations

from simulator.cost.collectives import CollectiveKind, Group, collective_cost
from simulator.described.cluster.network import Network
from simulator.serving.kernels.parameters import ExchangeFit


def all_reduce_s(
    fit: ExchangeFit, network: Network, ranks: int, message_bytes: float, *, has_own: bool = True
) -> float:
    """Seconds of an all_reduce: the engine's own kernel inside a node, or the library's.

    One shot: every rank reads the message of all others; two shots: each reduces its part
    and hands it on. The kernel takes the quicker.

    Args:
        fit: Parameters of the family.
        network: The links.
        ranks: Who takes part.
        message_bytes: The message of one rank.
        has_own: Whether the engine takes its own kernel here.
    """
    if ranks <= 1 or message_bytes <= 0:
        return 0.0
    library_s = _library_s(network, ranks, message_bytes, CollectiveKind.ALL_REDUCE)
    if ranks > network.scale_up.gpus or not has_own:
        return library_s
    rate = fit.efficiency * network.scale_up.bandwidth_bytes_per_s
    setup_s = fit.floor_s + (ranks - 1) * fit.rank_s
    one_shot_s = setup_s + (ranks - 1) * message_bytes / rate
    two_shots_s = 2.0 * setup_s + 2.0 * (ranks - 1) / ranks * message_bytes / rate
    return min(one_shot_s, two_shots_s, library_s)


def all_to_all_s(network: Network, ranks: int, message_bytes: float) -> float:
    """Seconds of an all_to_all in which each rank sends ``message_bytes`` in all."""
    return _library_s(network, ranks, message_bytes, CollectiveKind.ALL_TO_ALL)


def all_gather_s(network: Network, ranks: int, message_bytes: float) -> float:
    """Seconds of an all_gather whose output is ``message_bytes``."""
    return _library_s(network, ranks, message_bytes, CollectiveKind.ALL_GATHER)


def _library_s(network: Network, ranks: int, message_bytes: float, kind: CollectiveKind) -> float:
    if ranks <= 1 or message_bytes <= 0:
        return 0.0
    group = Group(ranks, min(ranks, network.scale_up.gpus))
    return collective_cost(kind, message_bytes, group, network).seconds
