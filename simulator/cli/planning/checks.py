"""clustersim checks: what should I make sure of before the run?"""

from __future__ import annotations

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
from simulator.cli.options import AsJson, Changes, JobFile, option, read_job
from simulator.cli.planning.sweep import Workers

if TYPE_CHECKING:
    from simulator.api.check_answers import ChecksAnswer

_MOST_EXPLAINED = 3
"""Checks of which is said how to do them."""


def checks(
    job_file: JobFile,
    *,
    top: Annotated[int, option("Number of checks to show.", "N", min=1)] = 7,
    changes: Changes = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Rank what to check before a run, by what it would change.

    A run often does things that its job does not say: it recomputes activations, lacks a fused
    kernel, waits for data. Each is simulated alone. First stands what would move the step most,
    weighed by how often it happens. After the run, clustersim diagnose finds the cause.

    Example:  clustersim checks job.yaml
    """
    from simulator import api

    job = read_job(job_file, changes)
    with counting("simulations") as count:
        answer = api.checks(job, workers=workers, on_trial=count)
    if as_json:
        print_json(answer.to_dict())
    else:
        _print(answer, top)


def _print(answer: ChecksAnswer, top: int) -> None:
    from simulator.api import check_answers

    typer.echo(check_answers.sentence(answer))
    heads = text_columns(*check_answers.WORDS) + number_columns(*check_answers.HEADS)
    shown = answer.found[:top]
    rows = [(*check_answers.words(each), *check_answers.numbers(each)) for each in shown]
    print_table(answer.job.title, heads, rows)
    for number, each in enumerate(shown[:_MOST_EXPLAINED], 1):
        typer.echo(f"{number}. {each.words}. To check: {each.check}")
    if len(answer.found) > top:
        note(f"{len(answer.found) - top} others move the step less or are rarer; --top shows more")
