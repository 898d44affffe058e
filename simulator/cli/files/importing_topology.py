"""clustersim import topo: which node does a driver's matrix of links describe?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.console import note
from simulator.cli.options import complete_profile
from simulator.errors import InputError


def import_topology(
    matrix: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Text of nvidia-smi topo -m, or of rocm-smi --showtopo."
        ),
    ],
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Profile of the same GPU, for all that the matrix does not tell.",
            autocompletion=complete_profile,
        ),
    ],
    nic: Annotated[
        str | None, typer.Option(metavar="RATE", help='Line rate of a NIC, as "400 Gbit/s".')
    ] = None,
    nics: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="NICs per node that carry collectives.")
    ] = None,
) -> None:
    """Turn the links of a node into a profile.

    The report goes to stderr.

    Example:  clustersim import topo topo.txt --profile h100-sxm-80gb > node.yaml
    """
    from simulator.calibrate.profile_text import SourcedValue, with_sourced_values
    from simulator.described.documents import parse_yaml
    from simulator.described.load import load_profile, profile_file, profile_from_document
    from simulator.described.rules.profile_rules import profile_faults
    from simulator.importers.node_topology import node_topology, read_topology_matrix

    base = load_profile(profile)
    read = read_topology_matrix(matrix)
    node = node_topology(read, base, matrix.name, nics=nics, nic_rate=nic)
    file = profile_file(profile)
    values = {
        path: SourcedValue(told.value, told.kind, told.reference)
        for path, told in node.values.items()
    }
    text = with_sourced_values(file.read_text(encoding="utf-8"), values, str(file))
    faults = profile_faults(profile_from_document(parse_yaml(text)), file=matrix.name)
    if faults:
        raise InputError(faults)
    typer.echo(text, nl=False)
    note(str(node.report))
