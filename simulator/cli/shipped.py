"""clustersim profile and schema: which profiles ship with the package, which fields has a file?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
    write_picture,
)
from simulator.cli.options import (
    AsJson,
    command_group,
    complete_profile,
    file_to_write,
    option,
    parse_assignments,
)
from simulator.errors import InputError
from simulator.files import PICTURES
from simulator.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.described.cluster.hardware import HardwareProfile
    from simulator.errors import Fault
    from simulator.validate.profile_review import Remark


ProfileName = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE", help="A shipped name or a .yaml file.", autocompletion=complete_profile
    ),
]


def build_profile_group() -> typer.Typer:
    """The ``profile`` commands."""
    return command_group(
        "profile",
        "List, show, check and make hardware profiles.",
        {
            "list": list_profiles,
            "show": show_profile,
            "check": check_profiles,
            "new": new_profile,
        },
    )


def list_profiles(*, as_json: AsJson = False) -> None:
    """List the shipped hardware profiles.

    Example:  clustersim profile list
    """
    from simulator.described.load import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    if as_json:
        print_json(
            {
                "profiles": [
                    {
                        "name": profile.name,
                        "memory_bytes": profile.device.memory_bytes,
                        "numbers_by_source": _kinds(profile),
                        "description": profile.description,
                    }
                    for profile in profiles
                ]
            }
        )
        return
    rows = [
        (
            profile.name,
            format_bytes(profile.device.memory_bytes),
            ", ".join(f"{count} {kind}" for kind, count in _kinds(profile).items()),
            profile.description,
        )
        for profile in profiles
    ]
    columns = (
        text_columns("name")
        + number_columns("memory")
        + text_columns("numbers by source", "description")
    )
    print_table("hardware profiles", columns, rows)


def show_profile(
    profile: ProfileName,
    plot: Annotated[
        Path | None,
        file_to_write("Draw the system to this file: .png, .svg or .pdf.", *PICTURES),
    ] = None,
    as_yaml: Annotated[
        bool, option("Print the YAML file, as a start for your own profile.", name="--yaml")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every number of a profile and where it comes from.

    Example:  clustersim profile show h100-sxm-80gb --plot system.png

    Example:  clustersim profile show h100-sxm-80gb --yaml > ours.yaml
    """
    from simulator.described.load import load_profile, profile_file

    if as_yaml and as_json:
        raise InputError.single(
            "--yaml", "cannot be combined with --json", hint="remove one of them"
        )
    loaded = load_profile(profile)
    if plot is not None:
        from simulator.plots.machines.system import build_system_figure

        write_picture(build_system_figure(loaded), plot)
    if as_yaml:
        typer.echo(profile_file(profile).read_text(encoding="utf-8"), nl=False)
        return
    rows = []
    for path, value in _numbers(loaded.model_dump(mode="json", by_alias=True)):
        source = loaded.provenance.get(path)
        origin = (source.kind, source.reference) if source else ("default", "")
        rows.append((path, value, *origin))
    names = ("field", "value", "source", "reference")
    if as_json:
        numbers = [dict(zip(names, row, strict=True)) for row in rows]
        about = {"name": loaded.name, "description": loaded.description}
        print_json({**about, "numbers": numbers})
        return
    texts = ([str(value) for value in row] for row in rows)
    columns = text_columns(*names)
    print_table(f"{loaded.name}: {loaded.description}", columns, texts)


def check_profiles(
    profiles: Annotated[
        list[str],
        typer.Argument(
            metavar="PROFILE...",
            help="Shipped names or .yaml files.",
            autocompletion=complete_profile,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Check that profiles are complete, consistent and physical.

    Every number needs a source. Errors exit with 2. Missing numbers, and predictions unlike
    those of profiles of the same generation, are warnings only.

    Example:  clustersim profile check h100-sxm-80gb my-cluster.yaml
    """
    faults: list[Fault] = []
    documents = []
    for name in profiles:
        found = _faults_of_profile(name)
        remarked = [] if found else _remarks_on(name)
        faults += found
        documents.append(
            {
                "profile": name,
                "sound": not found,
                "faults": [str(fault) for fault in found],
                "remarks": [asdict(remark) for remark in remarked],
            }
        )
        if not as_json:
            typer.echo(f"{name}: {'not valid' if found else 'ok'}")
            for remark in remarked:
                typer.echo(f"  {remark}")
    if as_json:
        print_json({"profiles": documents})
    if faults:
        raise InputError(faults)
    note("every number has a source")


def new_profile(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the profile, as jobs use it.")
    ],
    relative: Annotated[
        str,
        option(
            "A similar system: same architecture, same kind of links.",
            "PROFILE",
            name="--from",
            autocompletion=complete_profile,
        ),
    ],
    sheet: Annotated[
        list[str] | None,
        option(
            "A number of the data sheet, for example device.power='300 W'; none for a "
            "feature that the GPU lacks.",
            "FIELD=VALUE",
            name="--set",
        ),
    ] = None,
    source: Annotated[str, option("The data sheet.", "TEXT", name="--source")] = "data sheet",
    description: Annotated[
        str, option("A one-line description of the system.", "TEXT", name="--description")
    ] = "",
) -> None:
    """Start a profile from a data sheet and a similar system.

    The YAML goes to stdout. Numbers that are not set are copied from the similar system and marked
    as assumed.

    Example:  clustersim profile new a10-24gb --from a40-48gb --set device.memory="22 GiB"
    --set device.power="150 W" > a10-24gb.yaml
    """
    from simulator.calibrate.new_profile import new_profile_text, not_stated

    values = {field: str(value) for field, value in parse_assignments(sheet or []).items()}
    typer.echo(new_profile_text(name, relative, values, source, description), nl=False)
    if missing := not_stated(values):
        note(f"still as {relative}: {', '.join(missing)}")
    note("next: clustersim profile check, then clustersim calibrate to measure it")


def _remarks_on(name: str) -> list[Remark]:
    from simulator.described.load import load_profile
    from simulator.validate.profile_review import remarks

    return remarks(load_profile(name))


def _faults_of_profile(name: str) -> list[Fault]:
    from simulator.described.load import load_profile
    from simulator.described.rules.profile_rules import profile_faults

    try:
        return profile_faults(load_profile(name), file=name)
    except InputError as error:
        return list(error.faults)


def _kinds(profile: HardwareProfile) -> dict[str, int]:
    """Numbers by the kind of their source, most first."""
    return dict(Counter(source.kind for source in profile.provenance.values()).most_common())


def _numbers(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}.")
        elif path not in ("name", "description") and value is not None:
            yield path, value


class SchemaName(StrEnum):
    """The kinds of files that users write."""

    JOB = "job"
    PROFILE = "profile"
    MODEL = "model"
    OFFERS = "offers"
    SERVING = "serving"


def schema(name: Annotated[SchemaName, typer.Argument(help="The kind of file.")]) -> None:
    """Print the JSON schema of a kind of file, for editors.

    Example:  clustersim schema job > job.schema.json
    """
    typer.echo(schema_text(name), nl=False)


def schema_text(name: SchemaName) -> str:
    """The JSON schema of a kind of file, as text that ends in a newline."""
    from simulator.described import json_schemas as schemas
    from simulator.planning.offers.offers_file import offers_schema
    from simulator.serving.serving_file import serving_schema

    builders: dict[SchemaName, Callable[[], dict[str, Any]]] = {
        SchemaName.JOB: schemas.job_schema,
        SchemaName.PROFILE: schemas.profile_schema,
        SchemaName.MODEL: schemas.model_schema,
        SchemaName.OFFERS: offers_schema,
        SchemaName.SERVING: serving_schema,
    }
    return json.dumps(builders[name](), indent=2) + "\n"
