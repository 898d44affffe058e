"""Which arguments do several commands share?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.spec.job import Job

JobFile = Annotated[
    Path,
    typer.Argument(metavar="JOB.yaml", help="The job: model, cluster, batch and plan."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the job, for example plan.tp=4; may be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")]


def read_job(path: Path, assignments: Sequence[str] | None) -> Job:
    """The job of a file with the ``--set`` assignments applied.

    Raises:
        InputError: The file or an assignment is wrong.
    """
    from simulator.api import load_job

    return load_job(path, parse_assignments(assignments or ()))


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Values by field path of ``FIELD=VALUE`` texts; values are read as YAML does.

    Raises:
        InputError: A text has no field, no ``=``, or a value that is not YAML, or two texts
            set the same field.
    """
    from simulator.spec.documents import parse_yaml

    values: dict[str, Any] = {}
    for assignment in assignments:
        field, equals, text = assignment.partition("=")
        if not equals or not field:
            hint = "write for example --set plan.tp=4"
            raise InputError.single("--set", "must be FIELD=VALUE", assignment, hint)
        if field in values:
            raise InputError.single("--set", f"sets {field} twice", assignment)
        values[field] = parse_yaml(text, f"--set {assignment}")
    return values


def whole_numbers(text: str, option: str) -> list[int]:
    """Positive whole numbers with commas between them.

    Raises:
        InputError: They are none; names the option.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise InputError.single(option, "must be whole numbers with commas, such as 64,128", text)
    return [int(word) for word in words]


def complete_profile(incomplete: str) -> list[str]:
    """Shipped profiles that start with what is typed so far."""
    from simulator.spec.load import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Shipped models that start with what is typed so far."""
    from simulator.spec.load import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


def complete_schedule(incomplete: str) -> list[str]:
    """Pipeline schedules that start with what is typed so far."""
    from simulator.schedule import SCHEDULES

    return [name for name in SCHEDULES if name.startswith(incomplete)]
