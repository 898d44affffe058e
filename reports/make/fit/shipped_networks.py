"""Fits the networks of the shipped profiles and fabrics to a table of measured collectives.

Run as ``python -m reports.make.fit.shipped_networks TABLE.csv [--write]``. Links inside a node
are fitted first, on rows that stay inside; fabrics then, on rows that cross them. Only the lines of
the fitted parameters change in the files.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from simulator.calibrate.network.measured_network import value_text
from simulator.calibrate.network.network_fit import (
    FEW_ROWS,
    Case,
    Fit,
    centred,
    fit_links,
    hidden_by_launches,
    priors_of,
    with_values,
)
from simulator.described.base import file_name_of_field
from simulator.described.cluster.network import Network
from simulator.described.documents import data_folder
from simulator.described.load import load_profile, profile_names
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.tables.collective_rows import network_of, read_collective_rows, reason_to_skip
from simulator.tables.spellings import profile_name_of

RELATIVES: Mapping[str, str] = MappingProxyType(
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
"""Systems whose scale-up links take the parameters of their nearest relative, rows joined."""


SAME_LINKS: Mapping[str, str] = MappingProxyType(
    {"h20": "h100-sxm-80gb", "h200-sxm-141gb": "h100-sxm-80gb"}
)
"""Systems with few rows of their own: what is believed of their links before is what the
rows of the same links and switch say. Source: NVIDIA data sheets, 18 NVLink 4 each."""


OWN_FABRIC = frozenset({"mi300x", "mi355x"})
"""Systems whose fabric differs from its kind's because the library is another (RCCL)."""


def fit_scale_up(cases: Sequence[Case], network: Network, same_links: Fit | None = None) -> Fit:
    """Parameters of scale-up links from rows that stay inside one domain.

    Args:
        cases: The rows.
        network: The links.
        same_links: What rows of another system with the same links say, if there are any.
    """
    priors = priors_of("scale_up", network)
    if same_links is not None:
        priors = centred(priors, same_links.values)
    return fit_links(cases, "scale_up", priors, hidden_by_launches(cases))


def fit_fabric(cases: Sequence[Case], network: Network) -> Fit:
    """Parameters of a fabric from rows that cross it."""
    return fit_links(cases, "fabric", priors_of("fabric", network))


def fit_table(csv_path: str | Path, write: bool = False) -> dict[str, Fit]:
    """Every fit that the rows of a table allow, by profile or fabric and part.

    Args:
        csv_path: Table as :func:`simulator.validate.collective_errors.validate_collectives`
            reads it.
        write: Also put the parameters into the profile and fabric files.
    """
    rows = [row for row in read_collective_rows(csv_path) if not reason_to_skip(row)]
    table = Path(csv_path).name
    fits: dict[str, Fit] = {}
    networks = {name: load_profile(name).network for name in profile_names()}

    for name in sorted(set(networks) - set(RELATIVES), key=lambda name: (name in SAME_LINKS, name)):
        cases = [
            c for c in _cases(rows, networks) if _relative(c.profile) == name and not c.crosses
        ]
        if len(cases) < FEW_ROWS:
            continue
        same_links = fits.get(f"{SAME_LINKS.get(name)} scale_up")
        fit = fit_scale_up(cases, networks[name], same_links)
        fits[f"{name} scale_up"] = fit
        for member in (member for member in networks if _relative(member) == name):
            own = fit.for_links(networks[member].scale_up)
            networks[member] = with_values(networks[member], "scale_up", own.values)
            if write:
                write_profile_fit(member, own, _reference(own, table, member, name))

    crossing = [case for case in _cases(rows, networks) if case.crosses and case.states_nics]
    for fabric in sorted({_fabric_name(case.profile, case.network) for case in crossing}):
        cases = [c for c in crossing if _fabric_name(c.profile, c.network) == fabric]
        if len(cases) < FEW_ROWS:
            continue
        fit = fit_fabric(cases, cases[0].network)
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
        rows += f"; {held} not determined by them, as in NCCL tuning.cc"
    return rows if profile == fitted else f"as {fitted} ({rows})"


def _relative(profile: str) -> str:
    return RELATIVES.get(profile, profile)


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
    kept = [
        line
        for line in text[start:end].splitlines()
        if line.strip().split(":")[0] not in names and f"*{anchor}" not in line
    ]
    kind = "assumed" if reference.startswith("as ") else "fitted"
    source = f'&{anchor} {{kind: {kind}, reference: "{reference}"}}'
    for key, value in fit.values.items():
        kept.append(f"    {_name(key)}: {{value: {value_text(key, value)}, source: {source}}}")
        source = f"*{anchor}"
    return text[:start] + "\n".join(kept) + "\n" + text[end:]


def _name(field: str) -> str:
    return file_name_of_field(field)
