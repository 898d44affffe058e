"""clustersim traffic: what do ranks say to each other in one step, and over which links?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.capturing import cluster_changes, read_captured
from simulator.cli.console import number_column, print_json, print_table, text_column
from simulator.cli.options import AsJson, Changes, Gpus, JobFile, ProfileName, read_job
from simulator.errors import InputError
from simulator.units import format_bytes

if TYPE_CHECKING:
    from simulator.program.ir import Program
    from simulator.results.traffic import ClassTraffic

_SCHEMA_VERSION = 1


def traffic(
    job_file: JobFile,
    changes: Changes = None,
    profile: ProfileName = None,
    gpus: Gpus = None,
    as_json: AsJson = False,
    in_order: Annotated[
        int | None,
        typer.Option(
            metavar="STAGE",
            help="List what a rank of this pipeline stage issues, one by one, in order.",
        ),
    ] = None,
) -> None:
    """List the collectives of one training step.

    Said of each: kind, group, count, bytes of messages, and bytes sent over which links.

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
    for _, alike in groupby(classes, key=lambda each: (each.ranks, each.totals)):
        _print_class(title, list(alike))


def _print_class(title: str, alike: Sequence[ClassTraffic]) -> None:
    """One table for neighbouring classes whose ranks say the same."""
    ports = list(dict.fromkeys(port for total in alike[0].totals for port in total.port_bytes))
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
        for total in alike[0].totals
    ]
    sums = alike[0].port_bytes
    rows.append(
        (
            "all",
            "",
            "",
            f"{sum(total.count for total in alike[0].totals):,}",
            format_bytes(sum(total.message_bytes for total in alike[0].totals)),
            format_bytes(sum(total.sent_bytes for total in alike[0].totals)),
            *(format_bytes(sums[port]) for port in ports),
        )
    )
    columns = [
        text_column("group"),
        text_column("kind"),
        number_column("ranks"),
        number_column("count"),
        number_column("messages"),
        number_column("sent per rank"),
        *(number_column(f"through {port}") for port in ports),
    ]
    print_table(f"{title}: {_names(alike)}, per rank and step", columns, rows)


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
    columns = [
        number_column("#"),
        text_column("group"),
        text_column("kind"),
        number_column("ranks"),
        number_column("message"),
        text_column("what"),
    ]
    print_table(f"{title}: stage {stage}, in order of issue", columns, rows)


def _names(alike: Sequence[ClassTraffic]) -> str:
    names: Iterable[str] = dict.fromkeys((alike[0].name, alike[-1].name))
    return " to ".join(names)
