"""Over how many nodes, and over how many ranks, do the choices of one token spread?

A router that is limited to some groups of experts (DeepSeek's node-limited routing) picks
``top_groups`` of ``groups`` first and then its ``top_k`` experts in those. The experts lie over
ranks in order, and ranks over nodes, so a node holds an equal part of the experts: part of a
group, a group, or several. A dispatcher that sends a token once to a node, however many of its
experts are there, sends it as often as this expectation says.

Assumes that all groups are as likely, and all choices of experts in those that are picked.

Source: DeepSeek-V3 (arXiv 2412.19437, sections 2.1.2 and 3.2.2); the expectation is that of
drawing without replacement.
"""

from __future__ import annotations

from math import comb

from simulator.described.model import Experts


def parts_reached(experts: Experts, parts: int) -> float:
    """Expected number of equal parts of the experts in which a token picks at least one.

    Args:
        experts: How many there are, and how a token picks among them.
        parts: How many equal parts they are cut into, a divisor of their number. Where parts
            and groups cut each other, the limit to some groups is not felt (assumption).
    """
    groups, picked = experts.groups, experts.picked_groups
    if groups % parts and parts % groups:
        groups = picked = 1
    of_part = groups // parts
    if parts % groups == 0:
        # A part lies inside one group.
        missed = _missed(experts, experts.count // parts, picked / groups)
        return parts * picked / groups * (1 - missed)
    of_one = experts.count // groups
    return parts * sum(
        _chance(held, of_part, groups, picked)
        * (1 - _missed(experts, held * of_one, picked / groups))
        for held in range(min(of_part, picked) + 1)
    )


def _chance(held: int, of_part: int, groups: int, picked: int) -> float:
    """Chance that so many of the picked groups are among those of a part."""
    return comb(of_part, held) * comb(groups - of_part, picked - held) / comb(groups, picked)


def _missed(experts: Experts, held: int, picked_share: float) -> float:
    """Chance that none of a token's choices is among so many experts of its groups."""
    choices = round(experts.count * picked_share)
    return comb(choices - held, experts.top_k) / comb(choices, experts.top_k)
