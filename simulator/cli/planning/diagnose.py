"""clustersim diagnose: why is my run not as predicted?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
)
from simulator.cli.options import (
    AsJson,
    Changes,
    JobFile,
    measured_step_s,
    option,
    quantity,
    read_job,
)
from simulator.cli.planning.sweep import Workers
from simulator.errors import InputError
from simulator.units import (
    chance,
    format_bytes,
    format_seconds,
    format_seconds_range,
    percent,
    signed_percent,
)

if TYPE_CHECKING:
    from simulator.planning.observed_run import MemoryKind
    from simulator.planning.run_diagnosis import Diagnosis, Hypothesis

_MEMORY_KINDS: tuple[MemoryKind, ...] = ("allocated", "reserved", "device")
_MOST_CHECKS = 3
"""Causes of which is said what settles them."""
_LEAST_LIKELY = 0.01
"""A cause that is less likely is not worth a check."""
_MOST_LIKELY = 0.5
"""Nothing else can be likelier than what is likelier than this."""


def diagnose(
    job_file: JobFile,
    *,
    step: Annotated[
        str,
        option(
            'The measured step time, such as "15.9 s", or throughput, such as "8200 tokens/s/GPU".',
            "TIME",
            name="--step",
        ),
    ],
    memory: Annotated[
        str | None, option('The measured peak memory, such as "61 GiB".', "SIZE", name="--memory")
    ] = None,
    memory_kind: Annotated[
        str,
        option(
            "Kind of --memory: tensors, torch's reserved memory, or what nvidia-smi shows.",
            "|".join(_MEMORY_KINDS),
        ),
    ] = "reserved",
    phase: Annotated[
        list[str] | None,
        option(
            "A measured part of the step, by its name in the breakdown of clustersim run: "
            '"optimizer=0.3 s"; may be repeated. Backward includes recompute where that is not '
            "given.",
            "NAME=TIME",
        ),
    ] = None,
    trace: Annotated[
        Path | None, option("One rank's profile of torch.profiler; says most.", "TRACE.json.gz")
    ] = None,
    error: Annotated[
        str | None,
        option(
            "Standard deviation of prediction errors of this system; by default that of its "
            "prediction interval.",
            "PERCENT",
        ),
    ] = None,
    top: Annotated[int, option("Number of hypotheses to show.", "N", min=1)] = 5,
    changes: Changes = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Find likely reasons why a run differs from its prediction.

    It tries common hidden causes: overlap turned off, different recomputation, fp32 reductions,
    older kernels, slow hosts, network cards or GPUs. Each cause is simulated alone and weighted by
    how well it explains step time, memory and phases, and by how common it is.

    Example:  clustersim diagnose job.yaml --step "15.9 s" --memory "61 GiB"

    Example:  clustersim diagnose job.yaml --step "15.9 s" --trace rank0.json.gz
    """
    from simulator import api

    job = read_job(job_file, changes)
    if phase and trace:
        hint = "remove --phase: a trace holds all phases"
        raise InputError.single("--phase", "cannot be combined with --trace", phase[0], hint)
    with counting("simulations") as count:
        answer = api.diagnose(
            job,
            measured_step_s(step, job),
            memory_bytes=None if memory is None else quantity(memory, "--memory", "bytes"),
            memory_kind=_memory_kind(memory_kind),
            phases_s=dict(map(_phase, phase or ())),
            trace=trace,
            error_share=_share(error) if error else None,
            workers=workers,
            on_trial=count,
        )
    if as_json:
        print_json(answer.to_dict())
    else:
        _print(answer.found, top)


def _memory_kind(word: str) -> MemoryKind:
    for known in _MEMORY_KINDS:
        if word == known:
            return known
    rule = f"must be one of {', '.join(_MEMORY_KINDS)}"
    raise InputError.single("--memory-kind", rule, word)


def _phase(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        hint = 'for example --phase "optimizer=0.3 s"'
        raise InputError.single("--phase", "must be NAME=TIME", text, hint)
    return name.strip(), quantity(value.strip(), "--phase", "s", or_zero=True, example_unit="s")


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
    from simulator.planning.run_diagnosis import AGREES

    observed, result = found.observation, found.result
    off = observed.step_s / result.step_time_s - 1
    typer.echo(
        f"measured {format_seconds(observed.step_s)}, predicted "
        f"{format_seconds(result.step_time_s)}: {signed_percent(off)}"
    )
    if observed.memory_bytes is not None:
        _echo_memory(found, observed.memory_bytes)
    _echo_phases(found)
    _echo_interval(found)
    if found.agrees:
        typer.echo(AGREES)
    columns = text_columns("possible cause") + number_columns(
        "probability", "step with it", f"{observed.memory_kind} memory with it"
    )
    shown = found.hypotheses[:top]
    rows = [*(_row(each, found) for each in shown), *_other_rows(shown, found)]
    print_table(found.job.title, columns, rows)
    better = found.better_than_nothing
    if not better and not found.agrees:
        typer.echo("No cause on the list explains it better than an ordinary prediction error.")
    likely = [each for each in shown if each in better and each.probability >= _LEAST_LIKELY]
    checks = [] if found.agrees else likely
    for number, each in enumerate(checks[:_MOST_CHECKS], 1):
        typer.echo(f"{number}. {each.words}. To check: {each.check}")
    if not found.is_explained:
        typer.echo(
            "No single cause on the list explains it, not even the likeliest: its probability is "
            "held against that of the others. Check the job or the machine."
        )
    _echo_farthest(found)
    if observed.times is None:
        note("a trace (--trace) or logged parts of the step (--phase) would separate more causes")


def _echo_memory(found: Diagnosis, measured_bytes: float) -> None:
    """How far off the memory is; where another kind of it is nearer, what each is."""
    observed, result = found.observation, found.result
    held = {kind: replace(observed, memory_kind=kind).held_bytes(result) for kind in _MEMORY_KINDS}
    off = {kind: measured_bytes / num_bytes - 1 for kind, num_bytes in held.items()}
    kind = observed.memory_kind
    typer.echo(
        f"{kind} memory measured {format_bytes(measured_bytes)}, "
        f"predicted {format_bytes(held[kind])}: {signed_percent(off[kind])}"
    )
    nearest = min(off, key=lambda each: abs(off[each]))
    if nearest != kind and abs(off[kind]) > found.errors.memory:
        kinds = ", ".join(f"{each} {format_bytes(held[each])}" for each in _MEMORY_KINDS)
        typer.echo(f"predicted of each kind: {kinds}; --memory-kind says which was measured")


def _echo_phases(found: Diagnosis) -> None:
    """How long each part that ``--phase`` gives was, and is predicted."""
    from simulator.planning.observed_run import PhaseTimes

    times = found.observation.times
    if isinstance(times, PhaseTimes):
        predicted_s = times.predicted_s(found.job, found.result)
        for name, seconds in times.measured_s.items():
            measured, predicted = format_seconds(seconds), format_seconds(predicted_s[name])
            typer.echo(f"{name} measured {measured}, predicted {predicted}")


def _echo_farthest(found: Diagnosis) -> None:
    """Where to look if the cause is most likely not on the list: the part that is missed most."""
    times = found.observation.times
    is_unlisted = found.unlisted_probability > _MOST_LIKELY
    if not is_unlisted or times is None:
        return
    measured_s, predicted_s = times.measured_s, times.predicted_s(found.job, found.result)
    missed_s = {name: s - predicted_s.get(name, 0.0) for name, s in measured_s.items()}
    name = max(missed_s, key=lambda each: abs(missed_s[each]))
    measured, predicted = map(format_seconds, (measured_s[name], predicted_s.get(name, 0.0)))
    typer.echo(f"Look first at {name}: measured {measured}, predicted {predicted}.")


def _echo_interval(found: Diagnosis) -> None:
    """Whether the measured step is one that predictions allow for."""
    band_s = found.result.step_time_band_s
    if band_s is not None:
        place = "inside" if found.is_inside else "outside"
        interval = format_seconds_range(*band_s)
        typer.echo(f"the measured step is {place} the 80 % prediction interval, {interval}")


def _other_rows(shown: Sequence[Hypothesis], found: Diagnosis) -> Iterator[tuple[str, ...]]:
    """What else there may be: with the causes that are shown, probabilities sum to 1."""
    held = format_bytes(found.observation.held_bytes(found.result))
    step = format_seconds(found.result.step_time_s)
    yield "none: an ordinary prediction error", percent(found.nothing_probability), step, held
    yield "something that is not on the list", _said(found.unlisted_probability), "", ""
    others = [each.probability for each in found.hypotheses if each not in shown]
    if others:
        most = percent(math.ceil(1000 * max(others)) / 1000)
        words = f"{len(others)} other causes, each at most {most}"
        yield words, percent(math.fsum(others)), "", ""


def _said(probability: float) -> str:
    """No list of causes makes one of them certain."""
    return chance(probability) if probability > _MOST_LIKELY else percent(probability)


def _row(each: Hypothesis, found: Diagnosis) -> tuple[str, ...]:
    return (
        each.words,
        _said(each.probability),
        format_seconds(each.result.step_time_s),
        format_bytes(found.observation.held_bytes(each.result)),
    )
