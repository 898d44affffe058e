"""clustersim diagnose: why is my run not as predicted?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    counting,
    note,
    number_columns,
    percent,
    print_json,
    print_table,
    text_columns,
)
from simulator.cli.options import AsJson, Changes, JobFile, quantity, read_job
from simulator.errors import InputError
from simulator.units import format_bytes, format_seconds, signed_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.described.job import Job
    from simulator.planning.diagnosis.diagnosis import Diagnosis, Hypothesis
    from simulator.planning.diagnosis.observed import MemoryKind, Observation, TimeView

_SCHEMA_VERSION = 1
_MEMORY_KINDS = ("allocated", "reserved", "device")


def diagnose(
    job_file: JobFile,
    *,
    step: Annotated[
        str, typer.Option("--step", metavar="TIME", help='The measured step, such as "15.9 s".')
    ],
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help='Its measured peak of memory: "61 GiB".'),
    ] = None,
    memory_kind: Annotated[
        str,
        typer.Option(
            metavar="|".join(_MEMORY_KINDS),
            help="What --memory is: tensors, torch's reserved memory, or what nvidia-smi shows.",
        ),
    ] = "reserved",
    phase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TIME",
            help="A measured part of the step, by its name in the breakdown of clustersim run: "
            '"optimizer=0.3 s"; may be repeated.',
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE.json.gz", help="One rank's profile of torch.profiler; says most."
        ),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="How far predictions of this system are off where nothing is hidden, one "
            "standard deviation; by default as the model behind its band says.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of hypotheses to show.")] = 5,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Find likely reasons why a run is not as predicted.

    Tries what real runs do without saying: an overlap that is off, recomputation other than
    thought, fp32 reductions, older kernels, slow hosts, cards or GPUs. Each is simulated, and
    weighed by how well it explains step, memory and phases and by how common it is. One is tried
    at a time.

    Example:  clustersim diagnose job.yaml --step "15.9 s" --memory "61 GiB"

    Example:  clustersim diagnose job.yaml --step "15.9 s" --trace rank0.json.gz
    """
    from simulator.planning.diagnosis.diagnosis import diagnose, errors_of, suspects
    from simulator.results.simulation import run_step

    job = read_job(job_file, changes)
    observation = _observation(job, step, memory, memory_kind, phase or (), trace)
    share = _share(error) if error else None
    result = run_step(job)
    with counting("simulations") as count:
        tried = suspects(job, result, on_trial=count)
    found = diagnose(job, result, tried, observation, errors_of(job, result, share))
    if as_json:
        print_json(_document(found))
    else:
        _print(found, top)


def _observation(
    job: Job,
    step: str,
    memory: str | None,
    memory_kind: str,
    phases: Sequence[str],
    trace: Path | None,
) -> Observation:
    from simulator.planning.diagnosis.observed import Observation

    step_s = quantity(step, "--step", "s")
    held = None if memory is None else quantity(memory, "--memory", "bytes")
    return Observation(step_s, held, _memory_kind(memory_kind), _times(job, step_s, phases, trace))


def _memory_kind(word: str) -> MemoryKind:
    for known in _MEMORY_KINDS:
        if word == known:
            return known  # type: ignore[return-value]
    rule = f"must be one of {', '.join(_MEMORY_KINDS)}"
    raise InputError.single("--memory-kind", rule, word)


def _times(job: Job, step_s: float, phases: Sequence[str], trace: Path | None) -> TimeView | None:
    from simulator.planning.diagnosis.observed import TraceTimes, phase_times

    if phases and trace:
        hint = "leave out --phase: a trace holds all phases"
        raise InputError.single("--phase", "cannot be combined with --trace", phases[0], hint)
    if trace:
        return TraceTimes.read(trace, job)
    return phase_times(dict(map(_phase, phases)), step_s) if phases else None


def _phase(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        hint = 'write for example --phase "optimizer=0.3 s"'
        raise InputError.single("--phase", "must be NAME=TIME", text, hint)
    return name.strip(), quantity(value.strip(), "--phase", "s", or_zero=True)


def _share(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        rule = "must be a percentage above 0 and below 100, such as 3%"
        raise InputError.single("--error", rule, text)
    return value


def _print(found: Diagnosis, top: int) -> None:
    observed, result = found.observation, found.result
    off = observed.step_s / result.step_time_s - 1
    typer.echo(
        f"measured {format_seconds(observed.step_s)}, predicted "
        f"{format_seconds(result.step_time_s)}: {signed_percent(off)}"
    )
    columns = text_columns("what may be otherwise") + number_columns(
        "likelihood", "step then", "memory then"
    )
    rows = [_row(each, found) for each in found.hypotheses[:top]]
    nothing = (
        "nothing: the prediction is off as predictions are",
        percent(found.nothing_probability),
        format_seconds(result.step_time_s),
        format_bytes(observed.held_bytes(result)),
    )
    print_table(found.job.title, columns, [*rows, nothing])
    for number, each in enumerate(found.hypotheses[: min(top, 3)], 1):
        typer.echo(f"{number}. {each.words}. To be sure: {each.check}")
    if not found.is_explained:
        typer.echo("No single change on the list explains it: check the job, or the machine.")
    if observed.times is None:
        note("a trace (--trace) or logged parts of the step (--phase) would tell more apart")


def _row(each: Hypothesis, found: Diagnosis) -> tuple[str, ...]:
    return (
        each.words,
        percent(each.probability),
        format_seconds(each.result.step_time_s),
        format_bytes(found.observation.held_bytes(each.result)),
    )


def _document(found: Diagnosis) -> dict[str, Any]:
    observed = found.observation
    return {
        "schema_version": _SCHEMA_VERSION,
        "title": found.job.title,
        "measured_step_s": observed.step_s,
        "measured_memory_bytes": observed.memory_bytes,
        "memory_kind": observed.memory_kind,
        "predicted_step_s": found.result.step_time_s,
        "predicted_memory_bytes": observed.held_bytes(found.result),
        "nothing_probability": found.nothing_probability,
        "is_explained": found.is_explained,
        "hypotheses": [
            {
                "change": each.words,
                "probability": each.probability,
                "step_time_s": each.result.step_time_s,
                "memory_bytes": observed.held_bytes(each.result),
                "fields": dict(each.change.fields),
                "check": each.check,
            }
            for each in found.hypotheses
        ],
    }
