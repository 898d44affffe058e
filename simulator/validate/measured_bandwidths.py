"""What bus bandwidth do measured collectives reach, beside what is predicted of every size?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.described.cluster.network import Network
from simulator.described.load import load_profile, profile_names
from simulator.importers.nccl_tests.measured_collective import CollectiveRow, bus_share
from simulator.plots.bus_bandwidth import BusBandwidth, build_bus_bandwidth_figure
from simulator.plots.style import save
from simulator.tables.collective_rows import (
    network_of,
    predicted_s,
    readable_collective_rows,
    reason_to_skip,
)
from simulator.tables.spellings import profile_name_of

_CURVE_POINTS = 60
"""Sizes at which a curve is computed between its smallest and largest measurement."""


def draw_bus_bandwidths(csv_path: str | Path, folder: Path) -> Iterator[Path]:
    """Draw a picture per system of a table of collectives; yields each file when it is there.

    Raises:
        InputError: The table cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for gpu, rows in bus_bandwidths(csv_path).items():
        path = folder / f"{_file_name(gpu)}.png"
        save(build_bus_bandwidth_figure(rows, f"{gpu}: bus bandwidth of collectives"), path)
        yield path


def _file_name(system: str) -> str:
    """Its letters and digits: a shell reads brackets and spaces otherwise."""
    return "-".join(re.findall(r"[a-z0-9.]+", system.lower()))


def bus_bandwidths(csv_path: str | Path) -> Mapping[str, Sequence[BusBandwidth]]:
    """Points and curves of every system that has a profile, by its name in the table.

    One panel per collective, scale, and what else the prediction depends on: fabric, NICs,
    a forced algorithm, one process that drives all GPUs, one call that is timed by itself.
    """
    names = profile_names()
    systems: dict[str, list[CollectiveRow]] = {}
    for row in readable_collective_rows(csv_path):
        if not reason_to_skip(row) and profile_name_of(row.gpu, names):
            systems.setdefault(row.gpu, []).append(row)
    return {gpu: _system(rows, names) for gpu, rows in sorted(systems.items())}


def _system(rows: Sequence[CollectiveRow], names: Sequence[str]) -> Sequence[BusBandwidth]:
    name = profile_name_of(rows[0].gpu, names)
    assert name is not None
    network = load_profile(name).network
    panels: dict[tuple[str, ...], list[CollectiveRow]] = {}
    for row in sorted(rows, key=lambda row: (row.kind, row.nodes, row.ranks)):
        panels.setdefault(_panel(row), []).append(row)
    drawn: list[BusBandwidth] = []
    for panel, members in panels.items():
        label = "\n".join(line for line in panel if line)
        seen = network_of(members[0], network)
        drawn += [_bus_bandwidth(label, row, seen, row.seconds) for row in members]
        drawn += [_bus_bandwidth(label, row, seen, None) for row in _between(members)]
    return drawn


def _panel(row: CollectiveRow) -> tuple[str, ...]:
    facts = [
        row.algorithm.replace("_", " "),
        "one process" if row.one_process else "",
        "one call" if row.one_call else "",
    ]
    if row.nodes > 1:
        nics = f"{row.nics_per_node} NICs" if row.nics_per_node else ""
        facts = [f"{row.nodes} nodes", row.fabric or "", nics, *facts]
    scale = f"{row.kind.replace('_', ' ')}, {row.ranks} GPUs"
    return scale, ", ".join(fact for fact in facts if fact)


def _between(rows: Sequence[CollectiveRow]) -> Iterator[CollectiveRow]:
    """The first row at sizes from the smallest to the largest."""
    sizes = [row.num_bytes for row in rows]
    if max(sizes) > min(sizes) > 0:
        for size in np.geomspace(min(sizes), max(sizes), _CURVE_POINTS):
            yield replace(rows[0], num_bytes=float(size))


def _bus_bandwidth(
    label: str, row: CollectiveRow, network: Network, measured_s: float | None
) -> BusBandwidth:
    moved_bytes = row.num_bytes * (bus_share(row.kind, row.ranks) or 1.0)
    return BusBandwidth(
        label,
        row.num_bytes,
        moved_bytes / measured_s if measured_s else None,
        moved_bytes / predicted_s(row, network) if moved_bytes else None,
    )
