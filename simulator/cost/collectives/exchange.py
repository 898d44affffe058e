"""How long do direct exchanges between pairs of ranks take?"""

from __future__ import annotations


def send_recv_s(num_bytes: float, link_bytes_per_s: float, hop_latency_s: float) -> float:
    """Seconds to send ``num_bytes`` over one link: alpha + S / B."""
    return hop_latency_s + num_bytes / link_bytes_per_s


def all_to_all_s(
    num_bytes: float, ranks: int, link_bytes_per_s: float, hop_latency_s: float
) -> float:
    """Seconds for an all-to-all in which each rank sends 1/n of ``num_bytes`` to each.

    One rank's own part stays where it is; each of the n-1 others is one message:
    (n-1) (S / (n B) + alpha). Assumes ports, not the paths between them, are the limit.
    """
    return (ranks - 1) * (num_bytes / (ranks * link_bytes_per_s) + hop_latency_s)
