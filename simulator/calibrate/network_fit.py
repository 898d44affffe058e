"""Which parameters of a link make the collective model agree with measured rows?

Every parameter starts from, and is weakly held to, a prior, so that what the rows do not
tell stays physical. Errors are log ratios under a robust loss: one strange row moves
nothing. How far a parameter may be off follows from how the rows respond to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from simulator.calibrate.network_files import Fit
from simulator.errors import InputError
from simulator.importers.measured_collective import CollectiveRow
from simulator.spec.base import file_name_of_field
from simulator.spec.hardware import HardwareProfile
from simulator.spec.network import Network
from simulator.validate.collective_rows import group_of, predicted_s


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

FEW_ROWS = 5
"""Fewer rows than this fit nothing."""

_FAR = 40.0
_START_SHIFT = {"bulk_latency_s": 2.0, "low_latency_share": -1.0, "pipeline_fill": -1.0}
"""A second start, in spreads: the two protocols far apart."""

_ROBUST_SCALE = 0.1
"""Log error from which on a row's pull stops growing with its square."""

_OTHER_MACHINE = 0.3
"""Spread, at the least, between machines of one kind: cabling, drivers, settings (assumption)."""

_GUESS = 1.0
"""Spread, at the least, of a parameter that a profile assumes: a factor of 2.7 (assumption)."""

_LEAST_SCATTER = 0.03
"""Rows are taken as off by this much at the least: repeated runs differ by 0.05 to 2 %, and
the model is no better either (assumption)."""

_MEDIAN_OF_NORMAL = 0.6745
"""Median absolute deviation of a normal distribution over its standard deviation."""

_LEAST = 1e-3
"""Parameters that are 0 are taken as this share of their usual value: they have logarithms."""

_TOLD = 0.5
"""Rows tell a parameter if they leave less than this share of its prior's spread."""


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


def fit_links(
    cases: Sequence[Case],
    part: str,
    priors: Mapping[str, Prior],
    held: Collection[str] = (),
    *,
    hold_untold: bool = False,
) -> Fit:
    """Parameters of one part of the network from rows that depend on it. Needs scipy.

    Args:
        cases: The rows.
        part: ``scale_up`` or ``fabric``.
        priors: What is believed of each parameter.
        held: Parameters that stay at their prior's value.
        hold_untold: Leave also those at their prior's value that the rows hardly tell.
    """
    fit, information = _fit(cases, part, priors, held)
    untold = _untold(information, priors) if hold_untold else []
    if untold:
        fit, _ = _fit(cases, part, priors, [*held, *untold])
    return fit


class _Information(NamedTuple):
    """Inverse covariance of the logarithms of the free parameters.

    Near the best fit time is taken as linear in them, and rows as off independently, by as
    much as the fit leaves.
    """

    names: Sequence[str]
    matrix: Any


def _fit(
    cases: Sequence[Case], part: str, priors: Mapping[str, Prior], held: Collection[str]
) -> tuple[Fit, _Information]:
    import numpy as np

    least_squares = _least_squares()
    names = [name for name in priors if name not in held]
    fixed = {name: priors[name].value for name in priors if name in held}
    centre = np.log([priors[name].value for name in names])
    spread = np.array([priors[name].spread for name in names])
    most = np.log([priors[name].most for name in names])

    def log_errors(logs: Sequence[float]) -> list[float]:
        free = dict(zip(names, np.exp(logs).tolist(), strict=True))
        values = _in_si(fixed | free, priors, held)
        return [
            math.log(
                predicted_s(case.row, with_values(case.network, part, values)) / case.row.seconds
            )
            for case in cases
        ]

    def residuals(logs: Sequence[float]) -> object:
        pulls = _ROBUST_SCALE * (np.asarray(logs) - centre) / spread
        return np.concatenate([log_errors(logs), pulls])

    if not names:
        errors = [abs(math.expm1(error)) for error in log_errors([])]
        fit = Fit(part, {}, len(cases), statistics.median(errors), tuple(held))
        return fit, _Information(names, np.zeros((0, 0)))
    shift = np.array([_START_SHIFT.get(name, 0.0) for name in names])
    solutions = [
        least_squares(
            residuals,
            np.minimum(start, most),
            bounds=(-_FAR, most),
            loss="soft_l1",
            f_scale=_ROBUST_SCALE,
            diff_step=1e-3,
        )
        for start in (centre, centre + spread * shift)
    ]
    best = min(solutions, key=lambda found: found.cost)
    scatter = max(
        _LEAST_SCATTER, statistics.median(map(abs, log_errors(best.x))) / _MEDIAN_OF_NORMAL
    )
    rows = best.jac[: len(cases)] / scatter
    information = _Information(names, rows.T @ rows + np.diag(1 / spread**2))
    logs = dict(zip(names, best.x.tolist(), strict=True))
    free = {name: math.exp(log) for name, log in logs.items()}
    values = _in_si(fixed | free, priors, held)
    errors = [abs(math.expm1(error)) for error in log_errors(best.x)]
    fit = Fit(
        part,
        {name: _rounded(value) for name, value in values.items()},
        len(cases),
        statistics.median(errors),
        tuple(held),
        _spreads(information),
    )
    return fit, information


def _least_squares() -> Any:
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        hint = "install the extra: pip install 'clustersim[calibrate]'"
        raise InputError.single(
            "scipy", "is needed to fit, and not installed", hint=hint
        ) from error
    return least_squares


def _spreads(information: _Information) -> dict[str, float]:
    """Standard deviation of each parameter's logarithm."""
    import numpy as np

    variances = np.diag(np.linalg.inv(information.matrix))
    return {n: math.sqrt(v) for n, v in zip(information.names, variances.tolist(), strict=True)}


def _untold(information: _Information, priors: Mapping[str, Prior]) -> list[str]:
    """Parameters that the rows do not tell, the least told one first.

    Two parameters that only their sum is told of are both uncertain until one is held, so
    they are taken out one by one.
    """
    import numpy as np

    names, matrix = list(information.names), information.matrix
    untold: list[str] = []
    while names:
        spreads = _spreads(_Information(names, matrix))
        left = {name: spreads[name] / priors[name].spread for name in names}
        worst = max(left, key=lambda name: left[name])
        if left[worst] < _TOLD:
            break
        index = names.index(worst)
        matrix = np.delete(np.delete(matrix, index, 0), index, 1)
        names.remove(worst)
        untold.append(worst)
    return untold


def _in_si(
    parameters: Mapping[str, float], priors: Mapping[str, Prior], held: Collection[str]
) -> dict[str, float]:
    """Values of the specification; the fitted bulk hop is what it adds to the small one."""
    latency_s = parameters["latency_s"]
    under_s = priors["latency_s"].value if "bulk_latency_s" in held else latency_s
    bulk_s = max(latency_s, under_s + parameters["bulk_latency_s"])
    return {**parameters, "bulk_latency_s": bulk_s}


def with_values(network: Network, part: str, values: Mapping[str, float]) -> Network:
    """The network with these parameters of one part."""
    block = getattr(network, part).model_copy(update=dict(values))
    return network.model_copy(update={part: block})


def _rounded(value: float) -> float:
    """Three significant digits: more would be noise."""
    return float(f"{value:.3g}")
