"""Which network parameters make the collective model agree with measured collectives?

Run as ``python -m simulator.calibrate.fit_collectives TABLE.csv [--write]``.

Links inside a node are fitted first, on rows that stay inside; fabrics then, on rows
that cross them. Every parameter starts from, and is weakly held to, a prior taken from
NCCL's own performance model, so that what the rows do not tell stays physical. Errors
are log ratios under a robust loss: one strange row moves nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from simulator.calibrate.network_files import Fit, write_fabric_fit, write_profile_fit
from simulator.importers.measured_collective import CollectiveRow
from simulator.spec.base import file_name_of_field
from simulator.spec.load import load_profile, profile_names
from simulator.spec.network import Network, ScaleUp
from simulator.validate.collective_rows import (
    group_of,
    host_s,
    network_of,
    predicted_s,
    profile_name_of,
    read_collective_rows,
    reason_to_skip,
)


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
copies: 24 channels, each an SM that moves about 40 GB/s.
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

KIN: Mapping[str, str] = MappingProxyType(
    {
        "a100-sxm-40gb": "a100-sxm-80gb",
        "a800-sxm-80gb": "a100-sxm-80gb",
        "h100-hbm2e-96gb-500w": "h100-sxm-80gb",
        "h800": "h100-sxm-80gb",
        "gh200-96gb": "h100-sxm-80gb",
        "gb300-nvl72": "gb200-nvl72",
        "mi325x": "mi300x",
        "v100-sxm3-32gb": "v100-sxm2-32gb",
        "a100-pcie-80gb": "l40s",
        "h100-pcie-80gb": "l40s",
        "rtx-4090": "l40s",
    }
)
"""Systems whose scale-up links take the parameters of their nearest kin, rows joined."""

SAME_LINKS: Mapping[str, str] = MappingProxyType(
    {"h20": "h100-sxm-80gb", "h200-sxm-141gb": "h100-sxm-80gb"}
)
"""Systems with few rows of their own: what is believed of their links before is what the
rows of the same links and switch say. Source: NVIDIA data sheets, 18 NVLink 4 each."""

OWN_FABRIC = frozenset({"mi300x", "mi355x"})
"""Systems whose fabric differs from its kind's because the library is another (RCCL)."""

_FAR = 40.0
_START_SHIFT = {"bulk_latency_s": 2.0, "low_latency_share": -1.0, "pipeline_fill": -1.0}
"""A second start, in spreads: the two protocols far apart."""

_CERTAIN = 0.01
"""Spread of a prior that no row can move."""

_FEW_ROWS = 5
"""Fewer rows than this fit nothing."""

_ROBUST_SCALE = 0.1
"""Log error from which on a row's pull stops growing with its square."""


@dataclass(frozen=True)
class Case:
    """A row and the network it is predicted on, before the parameters are set.

    Attributes:
        row: What was measured.
        profile: Name of the system's profile.
        network: The profile's network with the facts of the row.
    """

    row: CollectiveRow
    profile: str
    network: Network

    @property
    def crosses(self) -> bool:
        """Whether the ranks are in several scale-up domains."""
        return group_of(self.row, self.network).nodes > 1

    @property
    def states_nics(self) -> bool:
        """Whether the row says what NICs its machines have."""
        return None not in (self.row.nics_per_node, self.row.nic_bytes_per_s)


def fit_scale_up(cases: Sequence[Case], scale_up: ScaleUp, same_links: Fit | None = None) -> Fit:
    """Parameters of scale-up links from rows that stay inside one domain.

    Args:
        cases: The rows.
        scale_up: The links.
        same_links: What rows of another system with the same links say, if there are any.
    """
    priors = dict(SCALE_UP_PRIORS)
    if scale_up.in_switch_reduction:
        priors |= IN_SWITCH_PRIORS
    if same_links is not None:
        priors = _centred(priors, same_links.values)
    told = sum(host_s(case.row) == 0.0 for case in cases)
    # Launches from one process hide what the GPUs take: there the priors stand.
    held = ("launch_s", "latency_s") if told < _FEW_ROWS else ()
    return _fit(cases, priors, "scale_up", held)


def fit_fabric(cases: Sequence[Case]) -> Fit:
    """Parameters of a fabric from rows that cross it."""
    return _fit(cases, FABRIC_PRIORS, "fabric")


def _fit(
    cases: Sequence[Case], priors: Mapping[str, Prior], part: str, held: tuple[str, ...] = ()
) -> Fit:
    import numpy as np
    from scipy.optimize import least_squares

    names = list(priors)
    centre = np.log([priors[name].value for name in names])
    spread = np.array([_CERTAIN if name in held else priors[name].spread for name in names])
    most = np.log([priors[name].most for name in names])

    def log_errors(logs: Sequence[float]) -> list[float]:
        values = _values(names, logs)
        return [
            math.log(predicted_s(case.row, _with(case.network, part, values)) / case.row.seconds)
            for case in cases
        ]

    def residuals(logs: Sequence[float]) -> object:
        pulls = _ROBUST_SCALE * (np.asarray(logs) - centre) / spread
        return np.concatenate([log_errors(logs), pulls])

    starts = [centre, centre + spread * np.array([_START_SHIFT.get(name, 0.0) for name in names])]
    solutions = [
        least_squares(
            residuals,
            np.minimum(start, most),
            bounds=(-_FAR, most),
            loss="soft_l1",
            f_scale=_ROBUST_SCALE,
            diff_step=1e-3,
        )
        for start in starts
    ]
    solution = min(solutions, key=lambda found: found.cost)
    errors = [abs(math.expm1(e)) for e in log_errors(solution.x)]
    values = {name: _rounded(x) for name, x in _values(names, solution.x).items()}
    return Fit(part, values, len(cases), statistics.median(errors), held)


def _centred(priors: Mapping[str, Prior], values: Mapping[str, float]) -> dict[str, Prior]:
    """The priors with what another fit found as their best guesses."""
    found = dict(values)
    found["bulk_latency_s"] -= found["latency_s"]
    return {name: prior._replace(value=found[name]) for name, prior in priors.items()}


def _values(names: Sequence[str], logs: Sequence[float]) -> dict[str, float]:
    values = dict(zip(names, (math.exp(x) for x in logs), strict=True))
    values["bulk_latency_s"] += values["latency_s"]
    return values


def _with(network: Network, part: str, values: Mapping[str, float]) -> Network:
    block = getattr(network, part).model_copy(update=dict(values))
    return network.model_copy(update={part: block})


def _rounded(value: float) -> float:
    """Three significant digits: more would be noise."""
    return float(f"{value:.3g}")


def fit_table(csv_path: str | Path, write: bool = False) -> dict[str, Fit]:
    """Every fit that the rows of a table allow, by profile or fabric and part.

    Args:
        csv_path: Table as :func:`simulator.validate.collectives.validate_collectives`
            reads it.
        write: Also put the parameters into the profile and fabric files.
    """
    rows = [row for row in read_collective_rows(csv_path) if not reason_to_skip(row)]
    table = Path(csv_path).name
    fits: dict[str, Fit] = {}
    networks = {name: load_profile(name).network for name in profile_names()}

    for name in sorted(set(networks) - set(KIN), key=lambda name: (name in SAME_LINKS, name)):
        cases = [c for c in _cases(rows, networks) if _kin(c.profile) == name and not c.crosses]
        if len(cases) < _FEW_ROWS:
            continue
        same_links = fits.get(f"{SAME_LINKS.get(name)} scale_up")
        fit = fit_scale_up(cases, networks[name].scale_up, same_links)
        fits[f"{name} scale_up"] = fit
        for member in (member for member in networks if _kin(member) == name):
            own = fit.for_links(networks[member].scale_up)
            networks[member] = _with(networks[member], "scale_up", own.values)
            if write:
                write_profile_fit(member, own, _reference(own, table, member, name))

    crossing = [case for case in _cases(rows, networks) if case.crosses and case.states_nics]
    for fabric in sorted({_fabric_name(case.profile, case.network) for case in crossing}):
        cases = [c for c in crossing if _fabric_name(c.profile, c.network) == fabric]
        if len(cases) < _FEW_ROWS:
            continue
        fit = fit_fabric(cases)
        fits[f"{fabric} fabric"] = fit
        if write:
            _write_fabric(fabric, fit, networks, table)
    return fits


def _write_fabric(fabric: str, fit: Fit, networks: Mapping[str, Network], table: str) -> None:
    if fabric not in networks:
        write_fabric_fit(fabric, fit, _reference(fit, table))
    for profile, network in networks.items():
        if _fabric_name(profile, network) == fabric:
            write_profile_fit(profile, fit, _reference(fit, table))


def _reference(fit: Fit, table: str, profile: str = "", fitted: str = "") -> str:
    rows = f"{table}: {fit.rows} rows, median error {fit.median_error:.1%}"
    if fit.held:
        held = " and ".join(file_name_of_field(name) for name in fit.held)
        rows += f"; {held} not told by them, as in NCCL tuning.cc"
    return rows if profile == fitted else f"as {fitted} ({rows})"


def _kin(profile: str) -> str:
    return KIN.get(profile, profile)


def _fabric_name(profile: str, network: Network) -> str:
    """The profile if its fabric is its own, else the kind of the fabric."""
    kind = network.fabric.kind
    return profile if profile in OWN_FABRIC and kind == "roce" else kind


def _cases(rows: Sequence[CollectiveRow], networks: Mapping[str, Network]) -> list[Case]:
    name_of = cache(lambda gpu: profile_name_of(gpu, networks))
    return [
        Case(row, name, network_of(row, networks[name]))
        for row in rows
        if (name := name_of(row.gpu)) is not None
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, report on standard output, and write the files if asked."""
    parser = argparse.ArgumentParser(prog="fit_collectives", description=__doc__)
    parser.add_argument("table", help="measured collectives (CSV)")
    parser.add_argument("--write", action="store_true", help="put the fits into the profiles")
    options = parser.parse_args(arguments)
    for name, fit in fit_table(options.table, options.write).items():
        values = " ".join(f"{key}={value:g}" for key, value in fit.values.items())
        sys.stdout.write(f"{name}: {fit.rows} rows, median {fit.median_error:.1%}: {values}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
