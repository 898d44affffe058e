"""Fits the networks of the shipped profiles and fabrics to a table of measured collectives.

Run as ``python -m reports.make.fit.shipped_networks TABLE.csv... [--write]``. Links inside a node
are fitted first, on rows that stay inside; fabrics then, on rows that cross them. Only the lines of
the fitted parameters change in the files.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from simulator.calibrate.network.link_priors import (
    FABRIC_PRIORS,
    PCIE_PRIORS,
    SCALE_UP_PRIORS,
    priors_of,
)
from simulator.calibrate.network.measured_network import value_text
from simulator.calibrate.network.network_fit import (
    FEW_ROWS,
    Case,
    Fit,
    centred,
    fit_links,
    hidden_by_launches,
    with_values,
)
from simulator.described.base import file_name_of_field
from simulator.described.cluster.network import Network
from simulator.described.documents import data_folder
from simulator.described.load import load_profile, profile_names
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.tables.collective_rows import network_of, read_collective_rows, reason_to_skip
from simulator.tables.spellings import profile_name_of

POOLED: Mapping[str, str] = MappingProxyType(
    {
        "a100-sxm-40gb": "a100-sxm-80gb",
        "a800-sxm-80gb": "a100-sxm-80gb",
        "h100-hbm2e-96gb-500w": "h100-sxm-80gb",
        "h800": "h100-sxm-80gb",
        "gh200-96gb": "h100-sxm-80gb",
        "gh200-144gb": "h100-sxm-80gb",
        "gb300-nvl72": "gb200-nvl72",
        "mi325x": "mi300x",
        "v100-sxm3-32gb": "v100-sxm2-32gb",
        "dgx1-v100-32gb": "v100-sxm2-32gb",
        "a100-pcie-40gb": "a100-pcie-80gb",
        "v100-pcie-32gb": "v100-pcie-16gb",
        "mi250": "mi250x",
    }
)
"""Systems whose scale-up links are those of another one: their rows are fitted together."""

_PCIE = (
    "a100-pcie-80gb", "h100-pcie-80gb", "h100-nvl-94gb", "h200-nvl-141gb", "rtx-5090-32gb",
    "rtx-pro-6000-blackwell-96gb", "rtx-4090", "rtx-4070ti-super-16gb", "rtx-6000-ada-48gb",
    "l40s", "l4-24gb", "a10g-24gb", "a40-48gb", "rtx-a6000-48gb", "rtx-3090-24gb",
    "rtx-3090ti-24gb", "v100-pcie-16gb", "t4-16gb", "p100-pcie-16gb", "gb10-dgx-spark",
)  # fmt: skip
"""Systems whose GPUs meet over PCIe."""

PARENTS: Mapping[str, str] = MappingProxyType(
    {
        "a100-sxm-80gb": "h100-sxm-80gb",
        "v100-sxm2-32gb": "h100-sxm-80gb",
        "h20": "h100-sxm-80gb",
        "h200-sxm-141gb": "h100-sxm-80gb",
        "b200-sxm-180gb": "blackwell",
        "b300-sxm": "blackwell",
        "gb200-nvl72": "blackwell",
        "blackwell": "h100-sxm-80gb",
        "mi355x": "mi300x",
        "mi300a": "mi300x",
        "mi250x": "mi300x",
        **dict.fromkeys(_PCIE, "pcie"),
    }
)
"""What is believed of the links of a system before its own rows: what the rows of its whole family
say, and of a family those of the one above it."""

_OTHER_ARCHITECTURE = frozenset({"a100-sxm-80gb", "v100-sxm2-32gb", "blackwell"})
"""Systems and families whose parents are of another architecture. How long a kernel of all channels
takes to start goes with the architecture, and is not inherited."""

_SPREAD_OF_KIN = 0.3
"""Spread of parameters between systems of one family, over that of what is believed of any links:
kin have their switches, their library's code and hosts of one generation in common. Of 1, 0.5 and
0.3, the last foretells sources that no fit has seen best: the median row of NVSwitch is off by 7.9,
6.8 and 6.6 %, and with ``collectives_gathered.csv`` by 6.1 and 5.7 % with the last two."""

_LONGEST_LAUNCH_S = 12e-6
"""What a kernel of a collective takes to start, at the most: no architecture was found to take more
than 8.2 us, so what takes longer is a source's host (assumption)."""

FABRIC_PARENTS: Mapping[str, str] = MappingProxyType(
    {
        "efa-1": "efa", "tcpx": "tcpxo", "slingshot": "roce", "mi300x": "roce", "mi355x": "roce",
    }
)  # fmt: skip
"""The same of fabrics: another generation of one protocol, or other NICs on Ethernet."""

OWN_FABRIC = frozenset({"mi300x", "mi355x"})
"""Systems whose fabric differs from its kind's because the library is another (RCCL)."""


class NetworkFits(NamedTuple):
    """What rows tell of all shipped networks.

    Attributes:
        networks: Of every profile, with the fitted parameters.
        scale_up: Fit and the profile it is of, by profile.
        fabric: Fit by name of fabric: a kind, or the profile that has its own.
    """

    networks: Mapping[str, Network]
    scale_up: Mapping[str, tuple[Fit, str]]
    fabric: Mapping[str, Fit]


def fit_scale_up(
    cases: Sequence[Case], network: Network, parent: Fit | None = None, kinship: float = 1.0
) -> Fit:
    """Parameters of scale-up links from rows that stay inside one domain.

    Args:
        cases: The rows.
        network: The links.
        parent: What rows of another system with links of the kind say, if there are any.
        kinship: Spread around the parent's values, over that of what is believed of any links.
    """
    priors = priors_of("scale_up", network)
    if parent is not None:
        inherited = centred(priors, parent.values)
        priors |= {
            name: prior._replace(spread=kinship * prior.spread) for name, prior in inherited.items()
        }
    priors["launch_s"] = priors["launch_s"]._replace(most=_LONGEST_LAUNCH_S)
    return fit_links(cases, "scale_up", priors, hidden_by_launches(cases))


def fit_fabric(cases: Sequence[Case], network: Network, parent: Fit | None = None) -> Fit:
    """Parameters of a fabric from rows that cross it, and its parent's."""
    priors = priors_of("fabric", network)
    if parent is not None:
        priors |= centred(priors, parent.values)
    return fit_links(cases, "fabric", priors)


def network_without_others(fits: NetworkFits, profile: str, network: Network) -> Network:
    """The network that a row crosses, with nothing but what some fits say of it.

    A row may cross another fabric than its profile's, and links that no fit has seen: what is
    shipped of those may rest on the row itself, so NCCL's own numbers stand for it.

    Args:
        fits: What other rows say.
        profile: The row's system.
        network: Its links and fabric.
    """
    if profile not in fits.scale_up:
        values = {name: prior.value for name, prior in priors_of("scale_up", network).items()}
        network = with_values(network, "scale_up", values)
    of_fabric = _fabric_values(_fabric_name(profile, network), fits.fabric)
    return with_values(network, "fabric", of_fabric)


Made = dict[tuple[object, ...], Fit]
"""Fits by all that they were made of."""


def fitted_networks(rows: Sequence[CollectiveRow], made: Made | None = None) -> NetworkFits:
    """Networks of all shipped profiles as some rows tell them; parents are fitted first.

    Args:
        rows: What was measured.
        made: Fits of other calls, which are not made again; those of this one are added.
    """
    made = {} if made is None else made
    networks = {name: load_profile(name).network for name in profile_names()}
    inside: dict[str, list[Case]] = {}
    for case in _cases(rows, networks):
        if not case.crosses:
            inside.setdefault(_pool(case.profile), []).append(case)
    scale_up: dict[str, tuple[Fit, str]] = {}
    systems = set(map(_pool, networks))
    for name in sorted(systems | set(PARENTS.values()), key=_generation):
        inherited, of = scale_up.get(PARENTS.get(name, ""), (None, ""))
        parent = _of_links_alone(inherited, name) if inherited else None
        members = {name} if name in systems else {each for each in inside if name in _line(each)}
        cases = [case for each in sorted(members) for case in inside.get(each, [])]
        if len(cases) >= FEW_ROWS:
            known = tuple(parent.values.items()) if parent else None
            key = (name, known, *(case.row.id for case in cases))
            if key not in made:
                made[key] = fit_scale_up(cases, cases[0].network, parent, _kinship(name))
            scale_up[name] = made[key], name
        elif parent:
            scale_up[name] = parent, of
    for name, network in tuple(networks.items()):
        if _pool(name) in scale_up:
            fit, fitted = scale_up[_pool(name)]
            fit = fit.for_links(network.scale_up)
            scale_up[name] = fit, fitted
            networks[name] = with_values(network, "scale_up", fit.values)
    return NetworkFits(networks, scale_up, _fit_fabrics(rows, networks, made))


def _of_links_alone(fit: Fit, heir: str) -> Fit:
    """A fit with nothing of the servers that were measured, which links do not tell."""
    unsaid = dict(PCIE_PRIORS)
    if heir in _OTHER_ARCHITECTURE:
        unsaid["launch_s"] = SCALE_UP_PRIORS["launch_s"]
    assumed = {name: prior.value for name, prior in unsaid.items() if name in fit.values}
    return replace(fit, values={**fit.values, **assumed})


def _kinship(heir: str) -> float:
    """How much closer to its parent a system is than links are to what NCCL says of them.

    Cards over PCIe are in servers that have nothing in common.
    """
    is_kin = heir not in _OTHER_ARCHITECTURE and PARENTS.get(heir) != "pcie"
    return _SPREAD_OF_KIN if is_kin else 1.0


def _fit_fabrics(
    rows: Sequence[CollectiveRow], networks: dict[str, Network], made: Made
) -> dict[str, Fit]:
    """Fits of all fabrics; they are set in ``networks``."""
    crossing: dict[str, list[Case]] = {}
    for case in _cases(rows, networks):
        if case.crosses and case.states_nics:
            crossing.setdefault(_fabric_name(case.profile, case.network), []).append(case)
    fits: dict[str, Fit] = {}
    for name, cases in sorted(crossing.items(), key=lambda each: each[0] in FABRIC_PARENTS):
        parent = fits.get(FABRIC_PARENTS.get(name, ""))
        inside = {case.profile: case.network.scale_up for case in cases}
        known = tuple(parent.values.items()) if parent else None
        key = (name, known, *sorted(map(repr, inside.items())), *(case.row.id for case in cases))
        if len(cases) >= FEW_ROWS:
            if key not in made:
                made[key] = fit_fabric(cases, cases[0].network, parent)
            fits[name] = made[key]
    for name, network in networks.items():
        values = _fabric_values(_fabric_name(name, network), fits)
        networks[name] = with_values(network, "fabric", values)
    return fits


def _fabric_values(name: str, fits: Mapping[str, Fit]) -> Mapping[str, float]:
    """Parameters of a fabric; of one without rows, its parent's, or else what NCCL says.

    What is shipped of it may rest on the rows that are left out.
    """
    fit = fits.get(name) or fits.get(FABRIC_PARENTS.get(name, ""))
    if fit is not None:
        return fit.values
    values = {name: prior.value for name, prior in FABRIC_PRIORS.items()}
    return values | {"bulk_latency_s": values["latency_s"] + values["bulk_latency_s"]}


def _pool(profile: str) -> str:
    return POOLED.get(profile, profile)


def _line(name: str) -> list[str]:
    """A system or family, its family, the family above and so on."""
    parent = PARENTS.get(name)
    return [name, *(_line(parent) if parent else [])]


def _generation(profile: str) -> tuple[int, str]:
    """How many parents stand before a profile, so that each is fitted before its children."""
    parent = PARENTS.get(profile)
    return (_generation(parent)[0] + 1 if parent else 0, profile)


def _fabric_name(profile: str, network: Network) -> str:
    """The profile if its fabric is its own, else the kind of the fabric."""
    kind = network.fabric.kind
    return profile if profile in OWN_FABRIC and kind == "roce" else kind


def _cases(rows: Sequence[CollectiveRow], networks: Mapping[str, Network]) -> list[Case]:
    name_of = cache(lambda gpu: profile_name_of(gpu, networks))
    shared: dict[tuple[object, ...], Network] = {}

    def network(row: CollectiveRow, name: str) -> Network:
        """Rows that say the same of their machines share one."""
        facts = (
            name, row.nodes == 1, row.gpus_per_node, row.links, row.fabric, row.nics_per_node,
            row.nic_bytes_per_s,
        )  # fmt: skip
        return shared.setdefault(facts, network_of(row, networks[name]))

    return [
        Case(row, name, network(row, name))
        for row in rows
        if (name := name_of(row.gpu)) is not None
    ]


def write_fits(fits: NetworkFits, tables: str) -> None:
    """Put fits into the files of profiles and fabrics.

    Args:
        fits: What to write.
        tables: Names of the tables that they rest on.
    """
    for profile in fits.networks.keys() & fits.scale_up.keys():
        fit, fitted = fits.scale_up[profile]
        write_profile_fit(profile, fit, _reference(fit, tables, profile, fitted))
    for profile, network in fits.networks.items():
        name = _fabric_name(profile, network)
        if name in fits.fabric:
            write_profile_fit(profile, fits.fabric[name], _reference(fits.fabric[name], tables))
    for name in set(fits.fabric) - set(fits.networks):
        write_fabric_fit(name, fits.fabric[name], _reference(fits.fabric[name], tables))


def _reference(fit: Fit, tables: str, profile: str = "", fitted: str = "") -> str:
    rows = f"{tables}: {fit.rows} rows, median error {fit.median_error:.1%}"
    if fit.held:
        held = " and ".join(file_name_of_field(name) for name in fit.held)
        rows += f"; {held} not determined by them, as in NCCL tuning.cc"
    return rows if profile == fitted else f"as {fitted} ({rows})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, report on standard output, and write the files if asked."""
    parser = argparse.ArgumentParser(prog="shipped_networks", description=__doc__)
    parser.add_argument("table", nargs="+", help="measured collectives (CSV)")
    parser.add_argument("--write", action="store_true", help="put the fits into the profiles")
    options = parser.parse_args(arguments)
    read = [row for table in options.table for row in read_collective_rows(table)]
    fits = fitted_networks([row for row in read if not reason_to_skip(row)])
    own = {name: fit for name, (fit, fitted) in fits.scale_up.items() if name == fitted}
    fabrics = {f"fabric {name}": fit for name, fit in fits.fabric.items()}
    for name, fit in (own | fabrics).items():
        values = " ".join(f"{key}={value:g}" for key, value in fit.values.items())
        sys.stdout.write(f"{name}: {fit.rows} rows, median {fit.median_error:.1%}: {values}\n")
    if options.write:
        write_fits(fits, " and ".join(Path(table).name for table in options.table))
    return 0


def write_profile_fit(profile: str, fit: Fit, reference: str) -> None:
    """Put a fit, and the ``reference`` it rests on, into a shipped profile's network block."""
    path = data_folder("hardware_profiles") / f"{profile}.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(with_profile_fit(text, fit, reference), encoding="utf-8")


def write_fabric_fit(kind: str, fit: Fit, reference: str) -> None:
    """Put a fit into the fabric library."""
    path = data_folder("hardware_profiles") / "fabrics" / f"{kind}.yaml"
    kept = path.read_text(encoding="utf-8").split("\n", 1)[0]
    lines = [kept, f'source: {{kind: fitted, reference: "{reference}"}}']
    lines += [f"{_name(key)}: {value_text(key, value)}" for key, value in fit.values.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def with_profile_fit(text: str, fit: Fit, reference: str) -> str:
    """The profile's text with the fit's parameters in its ``network`` block."""
    header = f"  {fit.part}:\n"
    start = text.index(header, text.index("\nnetwork:")) + len(header)
    length = re.match(r"(?:    .*\n)*", text[start:])
    end = start + (length.end() if length else 0)
    anchor = f"{fit.part}_fit"
    names = {_name(key) for key in fit.values}
    lines = text[start:end].splitlines()
    replaced = [_own_field(line) in names or f"*{anchor}" in line for line in lines]
    first = replaced.index(True) if any(replaced) else len(lines)
    kind = "assumed" if reference.startswith("as ") else "fitted"
    source = f'&{anchor} {{kind: {kind}, reference: "{reference}"}}'
    written = []
    for key, value in fit.values.items():
        written.append(f"    {_name(key)}: {{value: {value_text(key, value)}, source: {source}}}")
        source = f"*{anchor}"
    behind = [line for line, old in zip(lines[first:], replaced[first:], strict=True) if not old]
    kept = lines[:first] + written + behind
    return text[:start] + "\n".join(kept) + "\n" + text[end:]


def _own_field(line: str) -> str:
    """The field that a line of a part sets; empty where it is of a block inside the part."""
    return line[4:].partition(":")[0]


def _name(field: str) -> str:
    return file_name_of_field(field)


if __name__ == "__main__":
    sys.exit(main())
