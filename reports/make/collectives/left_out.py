"""How far off are predicted collectives of a source that no fit has seen?

A source is what one team measured on one kind of GPU. Each is left out in turn, the networks of all
profiles are fitted to the rest, and its rows are predicted with them.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.make.fit.shipped_networks import (
    Made,
    NetworkFits,
    fitted_networks,
    network_without_others,
)
from simulator.calibrate.network.network_fit import Case
from simulator.described.cluster.network import Network
from simulator.described.load import load_profile, profile_names
from simulator.importers.nccl_tests.measured_collective import CollectiveRow
from simulator.tables.collective_rows import (
    network_of,
    predicted_s,
    read_collective_cells,
    readable_collective_rows,
    reason_to_skip,
)
from simulator.tables.spellings import profile_name_of

COLUMNS = ("id", "source", "gpu", "links", "shipped_error", "left_out_error")
"""Of the table of errors."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row, predicted with and without its source.

    Attributes:
        id: Name of the row.
        source: Team and GPU.
        gpu: GPU as the table spells it.
        links: The fabric that it crosses, or the kind of links that it stays on.
        shipped_error: Predicted over measured time less 1, as shipped.
        left_out_error: The same, with networks fitted without its source.
    """

    id: str
    source: str
    gpu: str
    links: str
    shipped_error: float
    left_out_error: float


def predictions(tables: Sequence[Path]) -> Iterator[Prediction]:
    """Every row of the tables that can be predicted, source by source.

    Raises:
        InputError: A table cannot be read.
    """
    names, source_of = profile_names(), _sources(tables)
    read = [row for table in tables for row in readable_collective_rows(table)]
    rows = [row for row in read if not reason_to_skip(row) and profile_name_of(row.gpu, names)]
    shipped = {name: load_profile(name).network for name in names}
    made: Made = {}
    sources = dict.fromkeys(source_of[row.id] for row in rows)
    for number, source in enumerate(sources, start=1):
        sys.stderr.write(f"{number} of {len(sources)}: without {source}\n")
        without = fitted_networks([row for row in rows if source_of[row.id] != source], made)
        for row in rows:
            if source_of[row.id] == source:
                name = profile_name_of(row.gpu, names) or ""
                yield Prediction(
                    row.id, source, row.gpu, _links(row, name, shipped[name]),
                    _error(row, network_of(row, shipped[name])),
                    _error(row, _left_out(row, name, without)),
                )  # fmt: skip


def _sources(tables: Sequence[Path]) -> Mapping[str, str]:
    """Team and GPU of every row, by its id."""
    cells = [row for table in tables for row in read_collective_cells(table)]
    return {row["id"]: f"{row['source'].partition(':')[0]}, {row['gpu']}" for row in cells}


def _error(row: CollectiveRow, network: Network) -> float:
    return predicted_s(row, network) / row.seconds - 1


def _left_out(row: CollectiveRow, profile: str, without: NetworkFits) -> Network:
    network = network_of(row, without.networks[profile])
    return network_without_others(without, profile, network)


def _links(row: CollectiveRow, profile: str, network: Network) -> str:
    case = Case(row, profile, network_of(row, network))
    return case.network.fabric.kind if case.crosses else case.network.scale_up.kind


def write_predictions(tables: Sequence[Path], path: Path) -> None:
    """Write the table of errors, a source at a time."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for each in predictions(tables):
            errors = f"{each.shipped_error:.4f}", f"{each.left_out_error:.4f}"
            table.writerow((each.id, each.source, each.gpu, each.links, *errors))
            file.flush()


def read_predictions(path: Path) -> list[Prediction]:
    """The table of errors again."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Prediction(
                row["id"], row["source"], row["gpu"], row["links"],
                float(row["shipped_error"]), float(row["left_out_error"]),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip


if __name__ == "__main__":
    *given, out = map(Path, sys.argv[1:])
    write_predictions(given, out)
