"""clustersim schema: which fields may a file have?"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable


class SchemaName(StrEnum):
    """The kinds of files that users write."""

    JOB = "job"
    PROFILE = "profile"
    MODEL = "model"


def schema(name: Annotated[SchemaName, typer.Argument(help="The kind of file.")]) -> None:
    """Print the JSON schema of a kind of file, for editors.

    Example:  clustersim schema job > job.schema.json
    """
    typer.echo(schema_text(name), nl=False)


def schema_text(name: SchemaName) -> str:
    """The JSON schema of a kind of file, as text that ends in a newline."""
    from simulator.described import json_schemas as schemas

    builders: dict[SchemaName, Callable[[], dict[str, Any]]] = {
        SchemaName.JOB: schemas.job_schema,
        SchemaName.PROFILE: schemas.profile_schema,
        SchemaName.MODEL: schemas.model_schema,
    }
    return json.dumps(builders[name](), indent=2) + "\n"
