"""What do all the schedules look like, side by side, and what are they for?

One page with a table, a picture that compares families, and for every schedule a picture, a
paragraph and its closed forms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from reports.make.galleries.small_bitmap import save_small
from simulator.plots.schedule import build_schedule_comparison_figure, build_schedule_figure
from simulator.schedule import SCHEDULES
from simulator.schedule.info import Note
from simulator.schedule.terminal_text import costs_text, microbatches_text, sizes_text
from simulator.schedule.unit_run import UnitRun, run_schedule

STAGES, MICROBATCHES, CHUNKS = 4, 8, 2
"""Sizes of every picture; the chunks are those of schedules that run with any number."""

FAMILIES = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-min", "dualpipe")
"""One schedule of each idea, for the picture that compares them."""

PAGE, FAMILIES_PICTURE = "README.md", "families.png"


def write_gallery(folder: Path) -> Iterator[Path]:
    """Write the page and its pictures into a folder; yields each file when it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: example(name) for name in SCHEDULES}
    for name, run in runs.items():
        yield save_small(build_schedule_figure(run), folder / f"{name}.png")
    families = build_schedule_comparison_figure([runs[name] for name in FAMILIES])
    yield save_small(families, folder / FAMILIES_PICTURE)
    page = folder / PAGE
    page.write_text(gallery_page(runs.values()), encoding="utf-8")
    yield page


def example(name: str) -> UnitRun:
    """The run of a schedule that the gallery shows."""
    least, most = SCHEDULES[name].chunks
    return run_schedule(name, STAGES, MICROBATCHES, max(least, CHUNKS) if most is None else least)


def gallery_page(runs: Iterable[UnitRun]) -> str:
    """The page as Markdown."""
    runs = list(runs)
    return "\n\n".join([_introduction(runs), _table(runs), *map(_section, runs)]) + "\n"


def _introduction(runs: list[UnitRun]) -> str:
    return f"""\
# Pipeline schedules

Every schedule that `plan.schedule` may name, drawn with {sizes_text(STAGES, MICROBATCHES)} and
{CHUNKS} chunks per rank where their number is free. Communication is free, and all have the
same costs for one microbatch on a whole rank, of which a chunk takes its share:
{costs_text(runs[0].costs)}.
So all do the same work, and a shorter step is a faster one.

Times are in forwards of a rank. *Bubble* is the time that a rank idles per step. *Peak* is the
most activations that the fullest rank holds, in microbatches of its whole share of the model.
*Weights* are the sets of weights that it holds: versions times copies. *Buffers* are the
messages that must fit between two ranks if a send blocks until it is received; 0 is rendezvous.
*p* stages, *v* chunks, *m* microbatches; *tF, tI, tW* are the times of forward, input gradient
and weight gradient, *tB = tI + tW*.

Draw any of them at other sizes with
`clustersim schedule show NAME --pp P --microbatches M --plot FILE`, several on one time axis
with `clustersim schedule compare NAME...`, and this page with
`make schedules`.

![{", ".join(FAMILIES)} on one time axis]({FAMILIES_PICTURE})"""


def _table(runs: list[UnitRun]) -> str:
    rows = [
        "| schedule | step | bubble | peak | weights | buffers | backward | training |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for run in runs:
        cells = [
            f"[{run.info.name}](#{run.info.name})",
            f"{run.step_time:g}",
            f"{100 * run.bubble_share:.1f} %",
            f"{max(run.peaks):g}",
            f"{run.weight_copies}",
            f"{run.buffers_needed}",
            "split" if run.info.splits_backward else "whole",
            "synchronous" if run.info.synchronous else "asynchronous",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _note(run: UnitRun) -> Note:
    assert run.info.note is not None, "every schedule of the registry has one"
    return run.info.note


def _section(run: UnitRun) -> str:
    note = _note(run)
    facts = [f"Source: {run.info.source}", f"Bubble: {_bubble_text(run)}"]
    peak = microbatches_text(max(run.peaks))
    facts.append(f"Activations on the fullest rank: `{note.activations}`; here {peak}")
    if not run.info.synchronous:
        facts.append(_stream_text(run))
    picture = f"![{run.info.name}, {run.info.summary}]({run.info.name}.png)"
    listed = "\n".join(f"- {fact}" for fact in facts)
    return "\n\n".join([f"## {run.info.name}", note.text, picture, listed])


def _bubble_text(run: UnitRun) -> str:
    """The closed form, what it holds for, and what the run shows."""
    note = _note(run)
    formula = "no closed form"
    if note.bubble:
        formula = f"{'at most ' if note.bubble_is_bound else ''}`{note.bubble}`"
    if note.bubble_is_between:
        formula += " between a rank's own start and end"
    if note.bubble_when:
        formula += f", for `{note.bubble_when}`"
    here = f"{run.bubble:g} of {run.step_time:g}"
    if note.bubble_is_between:
        waits = max(run.waits(rank) for rank in range(run.stages))
        here = f"{waits:g}, and {run.bubble:g} of {run.step_time:g} with the stagger of the ranks"
    if not run.info.synchronous:
        formula += " once the pipeline is full"
    return f"{formula}; here {here}"


def _stream_text(run: UnitRun) -> str:
    begun = 1 + max(box.slot.microbatch for box in run.boxes(0))
    versions = ", ".join(map(str, run.weight_versions))
    return (
        f"Never drains: the picture ends when {run.microbatches} microbatches are done and {begun}"
        f" have begun; the next step follows without a gap. Weight versions per rank: {versions}"
    )


if __name__ == "__main__":
    for written in write_gallery(Path(sys.argv[1])):
        print(f"wrote {written}", file=sys.stderr)
