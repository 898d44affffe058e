"""Which parameters of a link make the collective model agree with measured rows?

Every parameter starts from a prior, and is weakly held to it, so that what the rows do not tell
stays physical. Errors are log ratios under a robust loss: one strange row moves nothing. Priors are
normal, so that no strange source moves a parameter by many spreads. How far a parameter may be off
follows from how the rows respond to it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from simulator.calibrate.network.link_priors import Prior, priors_of
from simulator.cost.collectives.collective_time import Arithmetic, Links, protocol_timings
from simulator.cost.collectives.types import Demand
from simulator.described.base import file_name_of_field
from simulator.described.cluster.hardware import HardwareProfile
from simulator.described.cluster.network import Network, ScaleUp
from simulator.extras import require
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.tables.collective_rows import (
    counted_s,
    demands_of_row,
    exchange_of,
    group_of,
    links_of_row,
)
from simulator.units import three_digits

_OTHER_MACHINE = 0.3
"""Spread, at the least, between machines of one kind: cabling, drivers, settings (assumption)."""

_GUESS = 1.0
"""Spread, at the least, of a parameter that a profile assumes: a factor of 2.7 (assumption)."""

_LEAST = 1e-3
"""Parameters that are 0 are taken as this share of their usual value: they have logarithms."""

FEW_ROWS = 5
"""Fewer rows than this fit nothing."""

_FAR = 40.0

_START_SHIFT = {"bulk_latency_s": 2.0, "low_latency_share": -1.0, "pipeline_fill": -1.0}
"""A second start, in spreads: the two protocols far apart."""

_ROBUST_SCALE = 0.1
"""Log error from which on a row's pull stops growing with its square."""

_ALIKE = 0.3
"""Power of the number of rows of a source that each row of it weighs less: 0 is rows that are off
independently, 1 a source that counts once. Of 0, 0.3 and 0.5, this foretells best what sources
say that no fit has seen."""

_LEAST_SCATTER = 0.03
"""Rows are taken as off by this much at the least: repeated runs differ by 0.05 to 2 %, and
the model is no better either (assumption)."""

_MEDIAN_OF_NORMAL = 0.6745
"""Median absolute deviation of a normal distribution over its standard deviation."""

_TOLD = 0.5
"""Rows tell a parameter if they leave less than this share of its prior's spread."""


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


@dataclass(frozen=True)
class Fit:
    """Parameters of one block of a network, and what they rest on.

    Attributes:
        part: ``scale_up`` or ``fabric``.
        values: Parameter name, with unit suffix, to value in SI units.
        rows: Measured rows that they were fitted to.
        median_error: Median absolute relative error over these rows.
        held: Parameters that the rows cannot tell, left at their priors.
        spreads: Standard deviation of the logarithm of the others.
    """

    part: str
    values: Mapping[str, float]
    rows: int
    median_error: float
    held: tuple[str, ...] = ()
    spreads: Mapping[str, float] = field(default_factory=dict)

    def for_links(self, scale_up: ScaleUp) -> Fit:
        """The fit without what ``scale_up`` cannot do."""
        values = dict(self.values)
        if not scale_up.in_switch_reduction:
            values = {k: v for k, v in values.items() if not k.startswith("in_switch")}
        if scale_up.kind != "pcie":
            values.pop("crowding", None)
            values.pop("socket_link_bytes_per_s", None)
        return replace(self, values=values)


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


def fit_links(
    cases: Sequence[Case],
    part: str,
    priors: Mapping[str, Prior],
    held: Collection[str] = (),
    *,
    hold_undetermined: bool = False,
) -> Fit:
    """Parameters of one part of the network from rows that depend on it. Needs scipy.

    Args:
        cases: The rows.
        part: ``scale_up`` or ``fabric``.
        priors: What is believed of each parameter.
        held: Parameters that stay at their prior's value.
        hold_undetermined: Leave also those at their prior's value that the rows hardly tell.
    """
    fit, information = _fit(_Search(cases, part, priors, held))
    undetermined = _undetermined(information, priors) if hold_undetermined else []
    if undetermined:
        fit, _ = _fit(_Search(cases, part, priors, [*held, *undetermined]))
    return fit


class _Information(NamedTuple):
    """Inverse covariance of the logarithms of the free parameters.

    Near the best fit time is taken as linear in them, and rows as off independently, by as
    much as the fit leaves.
    """

    names: Sequence[str]
    matrix: Any


@dataclass(frozen=True)
class _Batch:
    """Rows as arrays, so that one evaluation of the formula answers them all.

    A row has as many demands as algorithms could have run. What they ask of the links does not
    depend on the parameters that are fitted.

    Attributes:
        cases: The rows.
        setups: One case of each network and group.
        demands: Arrays of a value per demand.
        setup: Of each demand, the number of its network and group.
        first: Of each row, its first demand.
    """

    cases: Sequence[Case]
    setups: Sequence[Case]
    demands: Demand
    setup: Any
    first: Any

    @classmethod
    def of(cls, cases: Sequence[Case]) -> _Batch:
        """The arrays of some rows."""
        import numpy as np

        setups: dict[tuple[object, ...], tuple[int, Case]] = {}
        rows: list[Demand] = []
        setup, first = [], []
        for case in cases:
            seen = id(case.network), *exchange_of(case.row, case.network)
            number, _ = setups.setdefault(seen, (len(setups), case))
            asked = demands_of_row(case.row, case.network)
            first.append(len(rows))
            rows += asked
            setup += [number] * len(asked)
        columns: Any = [np.array(column) for column in zip(*rows, strict=True)]
        demands = Demand(*columns)
        firsts = [case for _, case in setups.values()]
        return cls(cases, firsts, demands, np.array(setup), np.array(first))

    def log_errors(self, part: str, values: Mapping[str, float]) -> Any:
        """Logarithm of predicted over measured time of each row with these parameters."""
        import numpy as np

        networks = {id(case.network): case.network for case in self.setups}
        fitted = {key: with_values(each, part, values) for key, each in networks.items()}
        links = [links_of_row(case.row, fitted[id(case.network)]) for case in self.setups]
        columns = Links(*(np.array(column)[self.setup] for column in zip(*links, strict=True)))
        timings = protocol_timings(self.demands, columns, Arithmetic(np.maximum, np.where, np.sqrt))
        fastest = np.minimum.reduce([timing.seconds for timing in timings])
        seconds = np.minimum.reduceat(fastest, self.first).tolist()
        return np.log(
            [
                counted_s(case.row, each, case.network) / case.row.seconds
                for case, each in zip(self.cases, seconds, strict=True)
            ]
        )


@dataclass(frozen=True)
class _Search:
    """Rows, and the parameters of one part of the network that are looked for in them.

    Points of the search are the natural logarithms of the free parameters, in order.

    Attributes:
        cases: The rows.
        part: ``scale_up`` or ``fabric``.
        priors: What is believed of each parameter.
        held: Parameters that stay at their prior's value.
    """

    cases: Sequence[Case]
    part: str
    priors: Mapping[str, Prior]
    held: Collection[str]

    @property
    def names(self) -> list[str]:
        """The free parameters."""
        return [name for name in self.priors if name not in self.held]

    def of_free(self, field: str) -> Any:
        """One field of the priors of all free parameters, as an array."""
        import numpy as np

        return np.array([getattr(self.priors[name], field) for name in self.names])

    def values(self, point: Sequence[float]) -> dict[str, float]:
        """All parameters there, held ones included; SI units."""
        import numpy as np

        held = {name: self.priors[name].value for name in self.priors if name in self.held}
        free = dict(zip(self.names, np.exp(point).tolist(), strict=True))
        return _in_si(held | free, self.priors, self.held)

    @cached_property
    def batch(self) -> _Batch:
        """The rows as arrays."""
        return _Batch.of(self.cases)

    def log_errors(self, point: Sequence[float]) -> Any:
        """Logarithm of predicted over measured time of each row, as an array."""
        return self.batch.log_errors(self.part, self.values(point))

    def median_error(self, point: Sequence[float]) -> float:
        """Half of the rows are predicted better than by this share of their time."""
        return statistics.median(abs(math.expm1(error)) for error in self.log_errors(point))

    def best(self) -> Any:
        """The better of the solutions from two starts, as scipy gives it."""
        require("scipy.optimize", "fits profiles")
        import numpy as np
        from scipy.optimize import least_squares

        centre, most = np.log(self.of_free("value")), np.log(self.of_free("most"))
        spread = self.of_free("spread")
        shift = np.array([_START_SHIFT.get(name, 0.0) for name in self.names])

        weights = np.append(_weights(self.cases), np.ones(len(self.names)))
        is_row = np.arange(len(weights)) < len(self.cases)

        def residuals(point: Sequence[float]) -> object:
            pulls = _ROBUST_SCALE * (np.asarray(point) - centre) / spread
            return np.concatenate([self.log_errors(point), pulls])

        def loss(squares: Any) -> object:
            """Soft L1 of rows, the squares of priors, and their two derivatives, weighted."""
            near = 1 + squares
            of_rows = np.array([2 * (near**0.5 - 1), near**-0.5, -0.5 * near**-1.5])
            of_priors = np.array([squares, np.ones_like(squares), np.zeros_like(squares)])
            return weights * np.where(is_row, of_rows, of_priors)

        solutions = [
            least_squares(
                residuals,
                np.minimum(start, most),
                bounds=(-_FAR, most),
                loss=loss,
                f_scale=_ROBUST_SCALE,
                diff_step=1e-3,
            )
            for start in (centre, centre + spread * shift)
        ]
        return min(solutions, key=lambda found: found.cost)

    def information(self, best: Any) -> _Information:
        """What the rows and the priors tell of the free parameters at the best point."""
        import numpy as np

        deviation = statistics.median(map(abs, self.log_errors(best.x)))
        scatter = max(_LEAST_SCATTER, deviation / _MEDIAN_OF_NORMAL)
        rows = best.jac[: len(self.cases)] / scatter
        priors = np.diag(1 / self.of_free("spread") ** 2)
        return _Information(self.names, rows.T @ rows + priors)


def _weights(cases: Sequence[Case]) -> Any:
    """Weight of each row: errors of one source have causes in common, and many rows teach little.

    Rows of no stated source are a user's own, of the very machine that is fitted.
    """
    import numpy as np

    rows_of = Counter(case.row.source for case in cases)
    sources = [case.row.source for case in cases]
    return np.array([rows_of[source] ** -_ALIKE if source else 1.0 for source in sources])


def _fit(search: _Search) -> tuple[Fit, _Information]:
    import numpy as np

    part, rows, held = search.part, len(search.cases), tuple(search.held)
    if not search.names:
        nothing = _Information([], np.zeros((0, 0)))
        return Fit(part, {}, rows, search.median_error([]), held), nothing
    best = search.best()
    information = search.information(best)
    values = {name: three_digits(value) for name, value in search.values(best.x).items()}
    error, spreads = search.median_error(best.x), _spreads(information)
    return Fit(part, values, rows, error, held, spreads), information


def _spreads(information: _Information) -> dict[str, float]:
    import numpy as np

    variances = np.diag(np.linalg.inv(information.matrix))
    return {n: math.sqrt(v) for n, v in zip(information.names, variances.tolist(), strict=True)}


def _undetermined(information: _Information, priors: Mapping[str, Prior]) -> list[str]:
    """Parameters that the rows do not determine, the least determined one first.

    Two parameters of which only the sum is determined are both uncertain until one is held, so
    they are taken out one by one.
    """
    import numpy as np

    names, matrix = list(information.names), information.matrix
    undetermined: list[str] = []
    while names:
        spreads = _spreads(_Information(names, matrix))
        left = {name: spreads[name] / priors[name].spread for name in names}
        worst = max(left, key=lambda name: left[name])
        if left[worst] < _TOLD:
            break
        index = names.index(worst)
        matrix = np.delete(np.delete(matrix, index, 0), index, 1)
        names.remove(worst)
        undetermined.append(worst)
    return undetermined


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


def hidden_by_launches(cases: Sequence[Case]) -> tuple[str, ...]:
    """Parameters that rows of one process hide: it launches slower than the GPUs talk."""
    determined = sum(not case.row.one_process for case in cases)
    return ("launch_s", "latency_s") if determined < FEW_ROWS else ()
