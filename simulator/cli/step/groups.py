"""clustersim placement and traffic: where does each rank sit, and what do the groups exchange?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    number_columns,
    print_json,
    print_table,
    text_columns,
    write_picture,
)
from simulator.cli.options import (
    AsJson,
    Changes,
    Gpus,
    JobFile,
    JobOrCapture,
    Picture,
    ProfileName,
    option,
    read_job,
)
from simulator.cli.step.capturing import cluster_changes, read_captured
from simulator.errors import InputError
from simulator.units import format_bytes, format_rate, percent

if TYPE_CHECKING:
    from simulator.program.grid.placement import PlacedGroups, Placement
    from simulator.program.ir import Program
    from simulator.results.traffic import ClassTraffic

_SCHEMA_VERSION = 1


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

    placed = placement_of(read_job(job_file, changes, unfolded=None))
    if plot is not None:
        from simulator.plots.machines.placement import build_placement_figure

        write_picture(build_placement_figure(placed), plot)
    if as_json:
        print_json(_to_dict(placed))
    else:
        _print_groups(placed)


def _print_groups(placed: Placement) -> None:
    columns = (
        text_columns("group", "its ranks")
        + number_columns("groups", "ranks")
        + text_columns("first group", "hops cross")
        + number_columns("rate per rank")
    )
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


def traffic(
    job_file: JobOrCapture,
    changes: Changes = None,
    profile: ProfileName = None,
    gpus: Gpus = None,
    as_json: AsJson = False,
    in_order: Annotated[
        int | None,
        option(
            "List the collectives of one rank of this pipeline stage, in the order that it "
            "issues them.",
            "STAGE",
        ),
    ] = None,
) -> None:
    """List the collectives of one training step.

    Shown for each: kind, group, count, message size, and the bytes sent over each kind of link.

    Example:  clustersim traffic job.yaml --set plan.zero=3
    """
    from simulator.program.build import build_program
    from simulator.results.traffic import class_traffic

    captured = read_captured(job_file, changes, profile, gpus)
    if captured is not None:
        title, program = captured.title, captured.timeline.program
    else:
        job = read_job(job_file, cluster_changes(changes, profile, gpus))
        title, program = job.title, build_program(job)
    if in_order is not None:
        _print_in_order(title, program, in_order, as_json=as_json)
        return
    classes = class_traffic(program)
    if as_json:
        print_json(
            {
                "schema_version": _SCHEMA_VERSION,
                "title": title,
                "classes": [{**asdict(each), "port_bytes": each.port_bytes} for each in classes],
            }
        )
        return
    for _, same in groupby(classes, key=lambda each: (each.ranks, each.totals)):
        _print_class(title, list(same))


def _print_class(title: str, same: Sequence[ClassTraffic]) -> None:
    """One table for neighbouring classes whose ranks exchange the same."""
    ports = list(dict.fromkeys(port for total in same[0].totals for port in total.port_bytes))
    rows = [
        (
            total.axis,
            total.kind.value,
            str(total.ranks),
            f"{total.count:,}",
            format_bytes(total.message_bytes),
            format_bytes(total.sent_bytes),
            *(format_bytes(total.port_bytes.get(port, 0.0)) for port in ports),
        )
        for total in same[0].totals
    ]
    sums = same[0].port_bytes
    rows.append(
        (
            "all",
            "",
            "",
            f"{sum(total.count for total in same[0].totals):,}",
            format_bytes(math.fsum(total.message_bytes for total in same[0].totals)),
            format_bytes(math.fsum(total.sent_bytes for total in same[0].totals)),
            *(format_bytes(sums[port]) for port in ports),
        )
    )
    columns = text_columns("group", "kind")
    columns += number_columns("ranks", "count", "messages", "sent per rank")
    columns += number_columns(*(f"through {port}" for port in ports))
    print_table(f"{title}: {_names(same)}, per rank and step", columns, rows)


def _print_in_order(title: str, program: Program, stage: int, *, as_json: bool) -> None:
    from simulator.results.traffic import rank_collectives

    numbers = [i for i, rank_class in enumerate(program.classes) if rank_class.stage == stage]
    if not numbers:
        known = sorted({rank_class.stage for rank_class in program.classes})
        rule = f"must be a pipeline stage of the job, {known[0]} to {known[-1]}"
        raise InputError.single("--in-order", rule, stage)
    issued = list(rank_collectives(program, numbers[0]))
    if as_json:
        print_json(
            {
                "schema_version": _SCHEMA_VERSION,
                "title": title,
                "stage": stage,
                "collectives": [asdict(collective) for collective in issued],
            }
        )
        return
    rows = (
        (
            str(index),
            each.axis,
            each.kind.value,
            str(each.ranks),
            format_bytes(each.num_bytes),
            each.name,
        )
        for index, each in enumerate(issued)
    )
    columns = (
        number_columns("#")
        + text_columns("group", "kind")
        + number_columns("ranks", "message")
        + text_columns("what")
    )
    print_table(f"{title}: stage {stage}, in order of issue", columns, rows)


def _names(same: Sequence[ClassTraffic]) -> str:
    names: Iterable[str] = dict.fromkeys((same[0].name, same[-1].name))
    return " to ".join(names)
