"""clustersim memory: who holds which bytes, per stage, at the peak and over time?"""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.console import (
    counting,
    note,
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
    JobOrCapture,
    ProfileName,
    Yes,
    file_to_write,
    option,
    read_job,
)
from simulator.cli.step.capturing import cluster_changes, end_captured, read_captured
from simulator.errors import InputError
from simulator.files import PICTURES, whole_file
from simulator.units import format_bytes, format_seconds, percent, signed_percent

if TYPE_CHECKING:
    from simulator.api import Result
    from simulator.capture.result import CaptureResult
    from simulator.described.job import Job
    from simulator.planning.changes.trials import Trial
    from simulator.results.step import ClassMemory, HostMemory, StepResult

_BIGGEST, _MOST_SAVINGS = 3, 8


def memory(
    job_file: JobOrCapture,
    *,
    changes: Changes = None,
    profile: ProfileName = None,
    gpus: Gpus = None,
    as_json: AsJson = False,
    savings: Annotated[
        bool, option("Simulate single changes that save memory, and rank them.", name="--savings")
    ] = False,
    over_time: Annotated[
        Path | None,
        file_to_write(
            "Write memory over the step to this file: a .csv table, or a picture.",
            ".csv",
            *PICTURES,
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Show what uses the memory of every pipeline stage.

    Allocated: the bytes of tensors. Reserved: what the caching allocator holds for them. Device:
    what nvidia-smi shows, including the driver's context and the communicators. The last column
    names the moment of the peak. Stages with the same memory share a row. With --savings, single
    changes are simulated and ranked by the memory that they save.

    Exits with 1 if the job does not fit.

    Example:  clustersim memory job.yaml --set plan.recompute=full --over-time memory.png
    """
    from simulator import api

    captured = read_captured(job_file, changes, profile, gpus)
    if captured is not None:
        _show_captured(captured, over_time, as_json=as_json, savings=savings)
        return
    job = read_job(job_file, cluster_changes(changes, profile, gpus), yes=yes)
    with counting("simulations") if savings else contextlib.nullcontext() as count:
        answer = api.memory(job, savings=savings, on_trial=count)
    result = answer.result
    if as_json:
        print_json(answer.to_dict())
    else:
        _print_owners(result)
        print_peaks(result, moments=True)
        if answer.savings is not None:
            _print_savings(answer.savings)
    if over_time is not None:
        _write_over_time(result, over_time)
    if not result.fits:
        note_misfit(result, yes=yes)
        raise typer.Exit(1)


def _show_captured(
    result: CaptureResult, over_time: Path | None, *, as_json: bool, savings: bool
) -> None:
    """Show who holds what in a captured step, as in a job's."""
    if savings:
        raise InputError.single("--savings", "tries changes to a job; a captured step is code")
    if as_json:
        from simulator.api.held_answers import MEMORY_KEYS

        document = result.to_dict()
        print_json({key: document[key] for key in MEMORY_KEYS if key in document})
    else:
        _print_owners(result)
        print_peaks(result, moments=True)
    if over_time is not None:
        _write_over_time(result, over_time)
    end_captured(result)


def _print_savings(found: Sequence[Trial]) -> None:
    from simulator.planning.changes.trials import unbeaten

    best = unbeaten(found)
    columns = text_columns("change") + number_columns("saves per GPU", "step time", "longer by")
    rows = [
        (
            " ".join(f"{path}={value}" for path, value in saving.changes.items()),
            format_bytes(saving.saved_bytes),
            format_seconds(saving.step_time_s),
            signed_percent(saving.slower_share),
        )
        for saving in best[:_MOST_SAVINGS]
    ]
    print_table("what would save most, on the fullest GPU", columns, rows)
    if hidden := len(found) - len(best):
        changes = "change is" if hidden == 1 else "changes are"
        typer.echo(f"{hidden} more {changes} left out: another one saves more in less time.")


def print_peaks(result: StepResult, *, moments: bool = False) -> None:
    """Print the peak of every stage's fullest rank, and its moment if asked."""
    from simulator.results.memory import peak_moment
    from simulator.results.views.rank_classes import fullest_of_each_stage

    def moment(stage: ClassMemory) -> str:
        rank_class = next(i for i, memory in enumerate(result.memory) if memory is stage)
        return peak_moment(result.timeline, rank_class, stage.peak_time_s)

    sizes = sorted({stage.capacity_bytes for stage in result.memory})
    capacity = " or ".join(map(format_bytes, sizes))

    def peak(stage: ClassMemory) -> tuple[str, ...]:
        return (
            format_bytes(stage.peak_allocated_bytes),
            format_bytes(stage.peak_reserved_bytes),
            format_bytes(stage.peak_device_bytes),
            percent(stage.filled_share),
            _biggest_owners(stage),
        )

    rows = [
        (_labels(same), *peak(same[0]), *([moment(same[0])] if moments else []))
        for same in _same_stages(fullest_of_each_stage(result.memory), peak)
    ]
    columns = number_columns("stage", "allocated", "reserved", "device", "of capacity")
    columns += text_columns("largest owners", *(["moment of the peak"] if moments else []))
    print_table(f"peak memory per GPU, capacity {capacity}", columns, rows)
    if result.host is not None:
        _print_host(result.host)


def note_misfit(result: Result, *, yes: bool) -> None:
    """Say why a job does not fit, and what would, unless that takes long and nobody says yes."""
    from simulator.planning.changes.helpful_changes import MOST_TRIED
    from simulator.planning.changes.small_machine import is_small_machine
    from simulator.program.effort import step_effort

    job = result.job
    # Many of the changes that are tried come to as many microbatches as there can be.
    batch = job.batch.model_copy(update={"micro_batch": 1})
    effort = step_effort(job.model_copy(update={"batch": batch})).times(MOST_TRIED)
    searches = yes or not effort.is_large()
    if searches and not (job.cluster.pools or is_small_machine(job)):
        tried = f"at most {MOST_TRIED} changed jobs are simulated"
        note(f"Searching for a change that fits: {tried}, which may take a minute or two.")
    note(result.explain_misfit(search=searches) or "the job does not fit")
    if not searches:
        note(f"To search for a change that fits takes {effort} at most; add --yes for that.")
    if file := _shipped_with_a_comment(job):
        note(f"What is known of this job stands at the top of {file}.")


def _shipped_with_a_comment(job: Job) -> Path | None:
    """The file of a shipped job as it is, if it begins with a comment."""
    from simulator.described.documents import data_folder, read_yaml

    file = Path(job.source)
    if file.parent != data_folder("workloads") or read_yaml(file) != job.document:
        return None
    return file if file.read_text(encoding="utf-8").startswith("#") else None


def end_if_riskier(result: StepResult, risk: float | None) -> None:
    """End with exit code 1 where a step runs out of memory more likely than is accepted.

    ``risk`` is None where nobody asked.
    """
    if risk is not None and result.fits_probability < 1 - risk:
        shares = result.fits_probability, 1 - risk
        likely, wanted = (percent(share, 0) for share in shares)
        if likely == wanted:
            likely, wanted = (percent(share, 2) for share in shares)
        verdict = f"{result.fit} ({likely} likely to fit), but --risk asks for {wanted}"
        note(f"{verdict}; clustersim plan finds a safer one")
        raise typer.Exit(1)


def _print_host(host: HostMemory) -> None:
    owners = list(dict.fromkeys([*host.held_bytes, *host.nvme_held_bytes]))
    places = (
        ("host memory", host.held_bytes, host.capacity_bytes),
        ("NVMe", host.nvme_held_bytes, host.nvme_capacity_bytes),
    )
    used = [(name, held, size) for name, held, size in places if held]
    rows = [
        (
            "pinned buffers" if owner == "communication" else owner.value,
            *(format_bytes(held.get(owner, 0.0)) for _, held, _ in used),
        )
        for owner in owners
    ]
    rows.append(("all", *(format_bytes(math.fsum(held.values())) for _, held, _ in used)))
    rows.append(("capacity", *(format_bytes(size) for _, _, size in used)))
    columns = text_columns("owner") + number_columns(*(name for name, _, _ in used))
    print_table("what was offloaded, on the fullest node", columns, rows)


def _biggest_owners(stage: ClassMemory) -> str:
    owners = sorted(stage.by_owner.items(), key=lambda item: -item[1])[:_BIGGEST]
    return ", ".join(f"{owner.value} {format_bytes(held)}" for owner, held in owners if held)


def _print_owners(result: StepResult) -> None:
    from simulator.results.views.rank_classes import fullest_of_each_stage

    memory = fullest_of_each_stage(result.memory)
    tensors = {owner.value for stage in memory for owner in stage.by_owner}
    known = dict.fromkeys(name for stage in memory for name in stage.device_shares)
    held_by_any = [name for name in known if any(s.device_shares.get(name) for s in memory)]
    names = sorted(held_by_any, key=lambda name: name not in tensors)

    def held(stage: ClassMemory) -> tuple[str, ...]:
        sizes = [stage.device_shares.get(name, 0.0) for name in names]
        return tuple(format_bytes(size) for size in (*sizes, stage.peak_device_bytes))

    groups = _same_stages(memory, held)
    rows = list(zip([*names, "device"], *(held(same[0]) for same in groups), strict=True))
    stages = number_columns(*(f"stage {_labels(same)}" for same in groups))
    print_table(f"{result.title}: memory at the peak", [*text_columns("owner"), *stages], rows)


def _same_stages(
    stages: Sequence[ClassMemory], cells: Callable[[ClassMemory], tuple[str, ...]]
) -> list[list[ClassMemory]]:
    """Neighbouring stages with the same row in a table, in order."""
    return [list(group) for _, group in groupby(stages, key=lambda s: (s.role, cells(s)))]


def _labels(same: Sequence[ClassMemory]) -> str:
    first, last = same[0], same[-1]
    return first.label if first is last else f"{first.stage} to {last.label}"


def _write_over_time(result: StepResult, path: Path) -> None:
    if path.suffix == ".csv":
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_table(result, path)
        note(f"wrote {path}")
        return
    from simulator.plots.memory import build_memory_over_time_figure

    write_picture(build_memory_over_time_figure(result), path)


def _write_table(result: StepResult, path: Path) -> None:
    """One row per moment at which a stage's memory changes, one column per owner."""
    owners = list(dict.fromkeys(o for stage in result.memory for o in stage.owner_bytes))
    with whole_file(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["rank_class", "stage", "time_s", *(f"{owner}_bytes" for owner in owners)])
        for index, stage in enumerate(result.memory):
            nothing = [0.0] * len(stage.time_s)
            columns = [stage.owner_bytes.get(owner, nothing) for owner in owners]
            for time_s, *held in zip(stage.time_s, *columns, strict=True):
                writer.writerow([index, stage.stage, time_s, *held])
