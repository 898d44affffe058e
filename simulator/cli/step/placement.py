"""clustersim placement: who sits where, and which links does each group cross?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from simulator.cli.console import note, number_column, percent, print_json, print_table, text_column
from simulator.cli.options import AsJson, Changes, JobFile, Picture, read_job
from simulator.units import format_rate

if TYPE_CHECKING:
    from simulator.program.grid.placement import PlacedGroups, Placement


def placement(
    job_file: JobFile,
    changes: Changes = None,
    as_json: AsJson = False,
    plot: Picture = None,
) -> None:
    """Show which ranks form each group, and the links they cross.

    Example:  clustersim placement job.yaml --set plan.rank_order=tp-cp-ep-pp-dp --plot map.png
    """
    from simulator.program.grid.placement import placement as placement_of

    placed = placement_of(read_job(job_file, changes))
    if plot is not None:
        from simulator.plots.machines.placement import draw_placement

        draw_placement(placed, plot)
        note(f"wrote {plot}")
    if as_json:
        print_json(_to_dict(placed))
    else:
        _print_groups(placed)


def _print_groups(placed: Placement) -> None:
    columns = [
        text_column("group"),
        text_column("its ranks"),
        number_column("groups"),
        number_column("ranks"),
        text_column("the first"),
        text_column("hops cross"),
        number_column("rate per rank"),
    ]
    rows = [
        (
            groups.name,
            groups.purpose,
            f"{len(groups.members):,}",
            f"{groups.members.shape[1]:,}",
            _ranks_text(groups),
            _hops_text(groups),
            format_rate(groups.bytes_per_s),
        )
        for groups in placed.groups
    ]
    print_table(placed.title, columns, rows)
    typer.echo(f"rank order {placed.rank_order}, {_system_text(placed)}")


def _ranks_text(groups: PlacedGroups) -> str:
    first = groups.members[0].tolist()
    if len(first) <= 8:
        return " ".join(map(str, first))
    return f"{' '.join(map(str, first[:3]))} ... {first[-1]}"


def _hops_text(groups: PlacedGroups) -> str:
    from simulator.program.grid.placement import LEVEL_NAMES

    return ", ".join(
        LEVEL_NAMES[level] if share == 1 else f"{LEVEL_NAMES[level]} {percent(share)}"
        for level, share in groups.hop_share.items()
    )


def _system_text(placed: Placement) -> str:
    parts = [f"scale-up links join {placed.domain_gpus} GPUs"]
    for name, gpus in (("leaf", placed.leaf_gpus), ("pod", placed.pod_gpus)):
        parts.append(f"{gpus} to a {name}" if gpus else f"all below one {name}")
    return ", ".join(parts[: 2 if not placed.pod_gpus else 3])


def _to_dict(placed: Placement) -> dict[str, Any]:
    """The placement as plain data; every rank of every group is listed."""
    return {
        "job": placed.title,
        "rank_order": placed.rank_order,
        "gpus": placed.gpus,
        "domain_gpus": placed.domain_gpus,
        "leaf_gpus": placed.leaf_gpus or None,
        "pod_gpus": placed.pod_gpus or None,
        "coordinates": {word: axis.tolist() for word, axis in placed.coordinates.items()},
        "groups": [
            {
                "name": groups.name,
                "ranks": groups.members.tolist(),
                "hop_share": {
                    level.name.lower(): share for level, share in groups.hop_share.items()
                },
                "bytes_per_s": groups.bytes_per_s,
            }
            for groups in placed.groups
        ],
    }
