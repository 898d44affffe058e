"""What is believed of a link's parameters before any row is measured?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from simulator.described.base import file_name_of_field
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import Network


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
        "launch_s": Prior(6e-6, 0.4),
        "latency_s": Prior(0.8e-6, 0.4),
        "bulk_latency_s": Prior(1.2e-6, 0.7),
        "efficiency": Prior(0.78, 0.1, 0.95),
        "low_latency_share": Prior(0.5, 0.4, 1.0),
        "pipeline_fill": Prior(0.4, 0.4, 1.5),
        "local_copy_bytes_per_s": Prior(1e12, 0.5),
    }
)
"""The bulk hop is what it takes beyond the small-message hop.

Source: NCCL src/graph/tuning.cc (LL and Simple base and hop times, LL bandwidth); local
copies: an assumption, 24 channels (connect.cc), each an SM that moves about 40 GB/s.
"""

IN_SWITCH_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {"in_switch_efficiency": Prior(0.6, 0.2, 0.9), "in_switch_latency_s": Prior(25e-6, 0.5)}
)
"""Source: NCCL src/graph/tuning.cc, NVLS hop; large-message rates of H100 and B200."""

FABRIC_PRIORS: Mapping[str, Prior] = MappingProxyType(
    {
        "efficiency": Prior(0.93, 0.05, 0.98),
        "latency_s": Prior(5e-6, 1.0),
        "bulk_latency_s": Prior(15e-6, 1.0),
        "low_latency_share": Prior(0.15, 0.5, 1.0),
        "pipeline_fill": Prior(0.4, 0.4, 1.5),
        "tree_piece_bytes": Prior(1.5e6, 0.5),
    }
)
"""Source: NCCL src/graph/tuning.cc (network hops of LL and Simple on InfiniBand)."""

_OTHER_MACHINE = 0.3
"""Spread, at the least, between machines of one kind: cabling, drivers, settings (assumption)."""

_GUESS = 1.0
"""Spread, at the least, of a parameter that a profile assumes: a factor of 2.7 (assumption)."""

_LEAST = 1e-3
"""Parameters that are 0 are taken as this share of their usual value: they have logarithms."""


def priors_of(part: str, network: Network) -> dict[str, Prior]:
    """What NCCL's own model says of the parameters of ``scale_up`` or ``fabric``."""
    if part == "fabric":
        return dict(FABRIC_PRIORS)
    in_switch = IN_SWITCH_PRIORS if network.scale_up.in_switch_reduction else {}
    return {**SCALE_UP_PRIORS, **in_switch}


def priors_around(part: str, profile: HardwareProfile) -> dict[str, Prior]:
    """The same parameters, believed to be what the profile has already.

    What the profile only assumes is believed less.
    """
    block, priors = getattr(profile.network, part), priors_of(part, profile.network)
    # What a network leaves open limits nothing in it, and is not fitted.
    given = {name: value for name in priors if (value := getattr(block, name)) is not None}

    def spread(name: str, prior: Prior) -> float:
        source = profile.provenance.get(f"network.{part}.{file_name_of_field(name)}")
        is_guess = source is not None and source.kind == "assumed"
        return max(prior.spread, _GUESS if is_guess else _OTHER_MACHINE)

    return {
        name: Prior(prior.value, spread(name, prior), max(prior.most, prior.value))
        for name, prior in centred(priors, given).items()
    }


def centred(priors: Mapping[str, Prior], values: Mapping[str, float]) -> dict[str, Prior]:
    """The priors of parameters that have values, with these as their best guesses."""
    found = {**values, "bulk_latency_s": values["bulk_latency_s"] - values["latency_s"]}
    return {
        name: prior._replace(value=max(found[name], _LEAST * prior.value))
        for name, prior in priors.items()
        if name in found
    }
