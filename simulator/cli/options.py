"""Which arguments do several commands share, and how are commands grouped?"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.completion import complete_change, complete_job, complete_profile
from simulator.cli.console import note
from simulator.errors import InputError
from simulator.files import PICTURES, is_there
from simulator.units import chance, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.api import Answer
    from simulator.described.cluster.hardware import HardwareProfile
    from simulator.described.job import Job
    from simulator.exporters.html.answer_tables import AnswerPage
    from simulator.planning.search.search import PlanChoice
    from simulator.results.views.verdict import WhatIf


def option(help: str, metavar: str | None = None, *, name: str | None = None, **more: Any) -> Any:
    """What a parameter's option says; ``name`` where it is not that of the parameter."""
    return typer.Option(*([name] if name else ()), metavar=metavar, help=help, **more)


JobFile = Annotated[
    Path,
    typer.Argument(
        metavar="JOB.yaml",
        help="The job: a YAML file, the name of a shipped job, or - for standard input.",
        autocompletion=complete_job,
    ),
]
JobOrCapture = Annotated[
    Path,
    typer.Argument(
        metavar="JOB.yaml",
        help="The job: a YAML file, - for standard input, a shipped job's name, or a capture.",
        autocompletion=complete_job,
    ),
]
Changes = Annotated[
    list[str] | None,
    option(
        "Change a field, for example plan.tp=4; may be repeated.",
        "FIELD=VALUE",
        name="--set",
        autocompletion=complete_change,
    ),
]
ProfileName = Annotated[
    str | None,
    option(
        "Hardware profile, in place of the job's or of the capture's.",
        "NAME",
        name="--profile",
        autocompletion=complete_profile,
    ),
]
Gpus = Annotated[
    int | None,
    option("Number of GPUs, in place of the job's or capture's.", "M", name="--gpus", min=1),
]
Risk = Annotated[
    float,
    option(
        "Accepted probability of running out of memory.", "SHARE", name="--risk", min=0.001, max=0.5
    ),
]
AskedRisk = Annotated[
    float | None,
    option(
        "Probability of running out of memory that is accepted; above it, end with 1.",
        "SHARE",
        name="--risk",
        min=0.001,
        max=0.5,
    ),
]
_YES = "CLUSTERSIM_YES"
_MOST_SHOWN = 80
"""Characters of an assignment that an error repeats."""
Yes = Annotated[
    bool,
    option(
        "Simulate without a question what takes minutes or gigabytes.", name="--yes", envvar=_YES
    ),
]
AsJson = Annotated[bool, option("Print one JSON object.", name="--json")]


def read_job(
    path: Path,
    assignments: Sequence[str] | None,
    *,
    unfolded: bool | None = False,
    yes: bool | None = None,
) -> Job:
    """The job of a file with the ``--set`` assignments applied; doubts about hardware are noted.

    Args:
        path: The file, or the name of a shipped job.
        assignments: FIELD=VALUE each.
        unfolded: Whether every rank of it will be simulated by itself; None if no step will be.
        yes: What the option ``--yes`` says; None for a command without it.

    Raises:
        InputError: The file or an assignment is wrong, or a step takes long and nobody says yes.
    """
    from simulator.api import load_job

    refuse_other_files(path)
    job = load_job(path, parse_assignments(assignments or ()))
    note_doubts(job)
    if not (yes or unfolded is None or os.environ.get(_YES)):
        _ask_before_long_work(job, "set CLUSTERSIM_YES=1" if yes is None else "add --yes", unfolded)
    return job


def _ask_before_long_work(job: Job, way_on: str, unfolded: bool) -> None:
    from simulator.program.effort import step_effort

    effort = step_effort(job, unfolded=unfolded)
    if not effort.is_large():
        return
    asks = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if not (asks and typer.confirm(f"A step takes {effort} to simulate. Go on?", err=True)):
        raise effort.refusal(way_on)


def refuse_other_files(path: Path) -> None:
    """Refuse a captured step where a job is needed, one that is not there, and foreign files.

    Raises:
        InputError: It is a capture, is called like one and does not exist, or is the settings
            file of a framework.
    """
    if path.suffix == ".capture" and not is_there(path):
        hint = f"make it with clustersim capture TRAIN.py --world N --out {path}"
        raise InputError.single("JOB.yaml", "is not a file", str(path), hint)
    if path.suffix in {".yaml", ".yml"} or not is_there(path):
        return
    from simulator.capture.file import is_capture
    from simulator.described.other_kinds import refuse_another_ending

    refuse_another_ending(str(path))
    if is_capture(path):
        rule = "is a capture, which only run, traffic and memory read"
        raise InputError.single("JOB.yaml", rule, str(path), "give a job as YAML")


def note_doubts(job: Job) -> None:
    """Say which numbers of a job's hardware no machine has."""
    for cluster in job.cluster.kinds:
        note_doubts_on(cluster.profile, "cluster.")


def note_doubts_on(profile: HardwareProfile, block: str = "") -> None:
    """Say which numbers of a profile no machine has; ``block`` is where a job holds it."""
    from simulator.described.rules.profile_rules import doubts

    for doubt in doubts(profile):
        note(f"doubtful: {block}{doubt}")


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Values by field path of ``FIELD=VALUE`` texts; values are read as YAML does.

    Raises:
        InputError: A text has no field, no ``=``, or a value that is not YAML, or two texts
            set the same field.
    """
    from simulator.described.documents import parse_yaml

    values: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, text = assignment.partition("=")
        if not equals or not field:
            hint = "for example --set plan.tp=4"
            raise InputError.single("--set", "must be FIELD=VALUE", assignment, hint)
        if field in values:
            raise InputError.single("--set", f"sets {field} twice", assignment)
        values[field] = parse_yaml(text, f"--set {assignment:.{_MOST_SHOWN}}")
    return values


def whole_numbers(text: str, option: str, least: int = 1) -> list[int]:
    """Whole numbers with commas between them, each taken once.

    Raises:
        InputError: They are none, or less than ``least``; names the option.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= least for word in words):
        rule = f"must be whole numbers from {least} with commas, such as 8,64"
        raise InputError.single(option, rule, text)
    return list(dict.fromkeys(int(word) for word in words))


def quantity(
    text: str, option: str, dimension: str, *, or_zero: bool = False, example_unit: str = ""
) -> float:
    """SI value of an option such as ``--size "64 MiB"``.

    Args:
        text: A number with a unit.
        option: Its name, for messages.
        dimension: A key of :data:`simulator.units.UNITS`.
        or_zero: Whether zero has a meaning.
        example_unit: Unit that a message shows; the most common one by default.

    Raises:
        InputError: It has no such unit, is negative, or zero without ``or_zero``; names the option.
    """
    from simulator.units import parse_quantity

    try:
        value = parse_quantity(text, dimension, example_unit)
    except ValueError as error:
        raise InputError.single(option, str(error), text) from error
    if value < 0 or (value == 0 and not or_zero):
        rule = "must not be negative" if or_zero else "must be above zero"
        raise InputError.single(option, rule, text)
    return value


_THROUGHPUT = re.compile(r"\s*(\d[\d,_]*(?:\.\d+)?)\s*tok(?:ens)?/s(/GPU)?\s*", re.IGNORECASE)


def measured_step_s(text: str, job: Job) -> float:
    """Seconds of a step that ``--step`` says: its time, or how many tokens it trains per second.

    Args:
        text: "15.9 s", "520,000 tokens/s" of all GPUs, or "8200 tokens/s/GPU" of each.
        job: What ran.

    Raises:
        InputError: It is neither.
    """
    found = _THROUGHPUT.fullmatch(text)
    if found is None:
        return quantity(text, "--step", "s", example_unit="s")
    rate = float(re.sub("[,_]", "", found[1])) * (job.cluster.gpus if found[2] else 1)
    if rate <= 0:
        raise InputError.single("--step", "must be above zero", text)
    return job.batch.global_batch * job.batch.seq_len / rate


TRACES = (".json", ".json.gz")
"""How traces are written."""


PAGES = (".html", ".htm")
"""How pages are written."""


def file_to_write(help: str, *suffixes: str, metavar: str = "FILE", name: str | None = None) -> Any:
    """An option that names a file to write; its suffix is checked before anything takes time.

    Args:
        help: What is written.
        suffixes: How the name may end.
        metavar: What stands for it in the help.
        name: The option's, where it is not that of the parameter.
    """

    def check(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
        if path is not None and not path.name.lower().endswith(suffixes):
            rule = f"is written as {', '.join(suffixes[:-1])} or {suffixes[-1]}"
            raise InputError.single(parameter.opts[0], rule, str(path), "change the suffix")
        return path

    return option(help, metavar, name=name, callback=check)


def folder_of_pictures(help: str) -> Any:
    """An option that names a folder; the name of one picture is refused before anything runs."""

    def check(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
        if path is not None and path.suffix.lower() in PICTURES and not path.is_dir():
            rule = "is the folder of several pictures, not one of them"
            hint = f"name a folder, for example {path.with_suffix('')}"
            raise InputError.single(parameter.opts[0], rule, str(path), hint)
        return path

    return option(help, "DIR", callback=check)


Picture = Annotated[
    Path | None,
    file_to_write("Draw it to this file: .png, .svg or .pdf.", *PICTURES, name="--plot"),
]


BothTimelines = Annotated[
    Path | None,
    file_to_write("Draw both timelines, one below the other (.png, .svg, .pdf).", *PICTURES),
]


PageFile = Annotated[
    Path | None,
    file_to_write("Write a self-contained HTML page to forward or print.", *PAGES, name="--html"),
]


WrittenJob = Annotated[
    Path | None,
    file_to_write(
        "Write the job with the best plan to this file, ready for clustersim run.",
        ".yaml",
        ".yml",
        metavar="FILE.yaml",
        name="--write",
    ),
]


def refuse_to_write_over(job_file: Path, path: Path | None) -> None:
    """Refuse to write a job over the file that it was read from, whose comments would be lost.

    Raises:
        InputError: The two are one file; made before anything takes time.
    """
    if path is not None and path.exists() and is_there(job_file) and path.samefile(job_file):
        rule = "is the job itself, whose comments would be lost"
        raise InputError.single("--write", rule, str(path), "choose another name")


def write_job(job: Job | None, path: Path | None, best: PlanChoice | WhatIf | None) -> None:
    """Write a job where ``--write`` asks for one, and say so.

    Args:
        job: What to write, with files named from the new file's folder; None if nothing fits.
        path: Where to.
        best: Its step and odds, for the first line.
    """
    if job is None or path is None or best is None:
        return
    from simulator.described.documents import moved
    from simulator.described.job import job_yaml
    from simulator.described.load import job_from_document
    from simulator.files import write_whole

    step, odds = format_seconds(best.step_time_s), chance(best.fits_probability)
    why = f"A step is predicted to take {step}, and the job is {odds} likely to fit."
    document = moved(job.document, Path(job.source).parent, path.parent)
    write_whole(path, f"# {why}\n{job_yaml(job_from_document(document, source=str(path)))}")
    note(f"wrote {path}")


def write_answer_page(answer: Answer, path: Path | None, context: typer.Context) -> None:
    """Write an answer's page where ``--html`` asks for one, and say so."""
    if path is not None:
        write_page_of(answer.page(), path, context)


def write_page_of(page: AnswerPage, path: Path, context: typer.Context) -> None:
    """Write a page that says how the command that is running is given again."""
    from simulator.exporters.html.answer_page import write_answer_page

    write_answer_page(replace(page, command=_command_again(context), is_whole_command=True), path)
    note(f"wrote {path}")


_ON_THE_PAGE = frozenset({"changes", "campaign_file", "tokens"})
"""Parameters that are part of the job, which a page shows."""
_OF_THE_MACHINE = frozenset(
    {"as_json", "workers", "dask", "plot", "out", "fresh", "pareto", "write"}
)
"""Parameters that change nothing that a page says."""


def _command_again(context: typer.Context) -> str:
    """The command that is running, for the job of its page."""
    words = context.command_path.split()
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in _ON_THE_PAGE | _OF_THE_MACHINE:
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            words.append("job.yaml")
        elif isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            several = value if isinstance(value, list | tuple) else [value]
            texts = (each.name if isinstance(each, Path) else str(each) for each in several)
            words += [word for text in texts for word in (parameter.opts[0], text)]
    return shlex.join(words)
