"""clustersim replay: how long does a traced step take on another cluster's links?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import note, number_column, print_json, print_table, text_column, working
from simulator.cli.options import AsJson, complete_profile, note_doubts_on
from simulator.units import format_seconds

if TYPE_CHECKING:
    from simulator.chakra.trace_replay import TracedStep


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACES...", help="A folder of Chakra traces NAME.RANK.et, or such files."
        ),
    ],
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Hardware profile whose links are used.",
            autocompletion=complete_profile,
        ),
    ] = "h100-sxm-80gb",
    *,
    contention: Annotated[
        bool, typer.Option(help="Let communications share links and slow computation.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Replay Chakra execution traces on a cluster's links.

    Computation takes as long as was recorded; communication is priced anew.

    Example:  clustersim replay traces/ --profile a100-sxm-80gb
    """
    from simulator.chakra.trace_files import read_traces
    from simulator.chakra.trace_replay import replay_traces
    from simulator.described.load import load_profile

    links = load_profile(profile)
    note_doubts_on(links)
    with working("reading and replaying traces"):
        read = read_traces(traces)
        step = replay_traces(read, links, contention=contention)
    document = _document(step, links.name)
    if as_json:
        print_json(document)
        return
    rows = [("step time", format_seconds(step.step_time_s))]
    if step.recorded_step_s is not None:
        rows.append(("as recorded", format_seconds(step.recorded_step_s)))
        if step.recorded_step_s:
            ratio = step.step_time_s / step.recorded_step_s
            rows.append(("of the recorded step", f"{ratio:.3f}"))
    rows.append(("computation of the rank with most", format_seconds(step.computation_s)))
    rows += [
        (f"its communication: {kind}", format_seconds(seconds))
        for kind, seconds in step.communication_s.items()
    ]
    title = f"{len(read)} traced ranks on the links of {links.name}"
    print_table(title, [text_column(""), number_column("")], rows)
    note("ranks without a file are taken to behave like those with one")


def _document(step: TracedStep, profile: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "profile": profile,
        "ranks": [c.first_rank for c in step.timeline.program.classes],
        "operations": len(step.timeline.program.operations),
        "step_time_s": step.step_time_s,
        "recorded_step_time_s": step.recorded_step_s,
        "computation_s": step.computation_s,
        "communication_s": dict(step.communication_s),
    }
