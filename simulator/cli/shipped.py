"""clustersim profile, models and schema: what ships with the package, and what is in it?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.completion import complete_model, complete_profile
from simulator.cli.console import (
    note,
    number_columns,
    print_json,
    print_table,
    text_columns,
    write_picture,
)
from simulator.cli.options import AsJson, file_to_write, option, parse_assignments
from simulator.errors import InputError
from simulator.files import PICTURES, is_there
from simulator.units import format_bytes, format_count, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.described.cluster.hardware import HardwareProfile
    from simulator.described.huggingface.parameter_counts import ParameterCount
    from simulator.errors import Fault
    from simulator.validate.profile_review import Remark


ProfileName = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE", help="A shipped name or a .yaml file.", autocompletion=complete_profile
    ),
]


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
    for path, value in _fields(
        loaded.model_dump(mode="json", by_alias=True, exclude={"description"})
    ):
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
            metavar="PROFILE",
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
    from simulator.serving.described import serving_schema

    builders: dict[SchemaName, Callable[[], dict[str, Any]]] = {
        SchemaName.JOB: schemas.job_schema,
        SchemaName.PROFILE: schemas.profile_schema,
        SchemaName.MODEL: schemas.model_schema,
        SchemaName.OFFERS: offers_schema,
        SchemaName.SERVING: serving_schema,
    }
    return json.dumps(builders[name](), indent=2) + "\n"


AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="A shipped model, a model's .yaml, or a config.json of transformers.",
        autocompletion=complete_model,
    ),
]
_WIDTHS = ("layers", "hidden", "heads", "vocab")


def list_models(*, as_json: AsJson = False) -> None:
    """List the models that a job can name.

    Example:  clustersim models list
    """
    from simulator.described.load import load_model, model_names
    from simulator.program.layer.model_totals import parameter_count_by_part

    documents: list[dict[str, Any]] = []
    for name in model_names():
        model = load_model(name)
        count = parameter_count_by_part(model)
        documents.append(
            {
                "name": name,
                "parameters": count.parameters,
                "active": count.active_parameters,
                **{field: getattr(model, field) for field in _WIDTHS},
                "experts": model.experts.count if model.experts else 0,
                "experts_per_token": model.experts.top_k if model.experts else 0,
            }
        )
    if as_json:
        print_json({"models": documents})
        return
    rows = [
        (
            each["name"],
            format_count(each["parameters"]),
            format_count(each["active"]),
            *(str(each[field]) for field in _WIDTHS),
            f"{each['experts_per_token']} of {each['experts']}" if each["experts"] else "",
        )
        for each in documents
    ]
    numbers = ("parameters", "active", *_WIDTHS, "experts")
    print_table("models", text_columns("name") + number_columns(*numbers), rows)


def show_model(
    model: AnyModel,
    all_fields: Annotated[
        bool, option("Also show fields that have their default values.", name="--all")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a model: dimensions, parameters by part, source.

    Example:  clustersim models show qwen3-30b-a3b
    """
    from simulator.described.load import load_model, model_file
    from simulator.program.layer.model_totals import parameter_count, parameter_count_by_part

    loaded = load_model(model)
    count = parameter_count_by_part(loaded)
    biases = parameter_count(loaded) - count.parameters
    file = model_file(model)
    about = _source_of(file)
    values = dict(_fields(loaded.model_dump(mode="json", by_alias=True)))
    if as_json:
        print_json(
            {
                "name": loaded.name,
                "file": str(file),
                "source": about,
                "parameters": count.parameters,
                "active_parameters": count.active_parameters,
                "by_part": count.by_part,
                "balancing_biases": biases,
                "dimensions": values,
            }
        )
        return
    stated = dict(_fields(loaded.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    rows = [
        (path, str(value), "" if path in stated else "default")
        for path, value in values.items()
        if all_fields or path in stated
    ]
    _print_dimensions(count, rows)
    if biases:
        typer.echo(f"{biases:,} biases that balance experts have no gradient; they are buffers.")
    typer.echo(about or f"The file names no source: {file}")


def _print_dimensions(count: ParameterCount, rows: Sequence[tuple[str, str, str]]) -> None:
    of = "" if count.active_parameters == count.parameters else (
        f", {format_count(count.active_parameters)} of them active per token"
    )  # fmt: skip
    title = f"{count.network}: {format_count(count.parameters)} parameters{of}"
    print_table(title, text_columns("field", "value", ""), rows)
    parts = [
        (part, f"{numel:,}", f"{count.active_by_part[part]:,}", percent(numel / count.parameters))
        for part, numel in count.by_part.items()
    ]
    columns = text_columns("part") + number_columns("parameters", "active", "share")
    print_table("parameters by part", columns, parts)


def _fields(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Fields with a value, nested ones by their paths; the name is none of them."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{key}.")
        elif value is not None and f"{prefix}{key}" != "name":
            yield f"{prefix}{key}", value


def _source_of(file: Path) -> str:
    """What the comment at the head of a model's file says of its source."""
    if file.suffix == ".json":
        return f"Source: {file}"
    head = takewhile(lambda line: line.startswith("#"), file.read_text("utf-8").splitlines())
    return "\n".join(line.lstrip("# ").rstrip() for line in head)


def count_parameters(
    model: AnyModel,
    with_transformers: Annotated[
        bool,
        option(
            "Let the installed transformers build and count the network of a config.json.",
            name="--with-transformers",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count the parameters of a model, part by part.

    For a config.json, the count is exactly that of the causal language model that transformers
    builds from it, or the file is refused. Buffers are not parameters; tied matrices count once.

    Example:  clustersim models count llama3-8b

    Example:  clustersim models count config.json --json
    """
    count = _count(model, with_transformers)
    if as_json:
        print_json(
            {
                "network": count.network,
                "parameters": count.parameters,
                "active_parameters": count.active_parameters,
                "by_part": count.by_part,
            }
        )
        return
    rows = [
        (part, f"{numel:,}", f"{count.active_by_part[part]:,}")
        for part, numel in count.by_part.items()
    ]
    rows.append(("all", f"{count.parameters:,}", f"{count.active_parameters:,}"))
    columns = text_columns("part") + number_columns("parameters", "active")
    print_table(f"parameters of {count.network}", columns, rows)


def _count(name_or_file: str, with_transformers: bool) -> ParameterCount:
    from simulator.capture.installed_transformers import built_network_count
    from simulator.described.huggingface.config_file import load_config
    from simulator.described.huggingface.parameter_counts import network_count
    from simulator.described.load import load_model
    from simulator.program.layer.model_totals import parameter_count_by_part

    path = Path(name_or_file)
    if path.suffix == ".json" or is_there(path / "config.json"):
        config, origin, _ = load_config(path)
        count = (built_network_count if with_transformers else network_count)(config, origin)
        stated = config.get("architectures")
        if isinstance(stated, list) and stated and count.network not in stated:
            note(f"the file is of {stated[0]}; the count is of {count.network}")
        return count
    if with_transformers:
        rule = "needs a config.json of transformers"
        raise InputError.single("--with-transformers", rule, name_or_file)
    return parameter_count_by_part(load_model(name_or_file))
