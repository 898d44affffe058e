"""clustersim models: which models ship with the package, how many parameters has one?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import note, number_columns, print_json, print_table, text_columns
from simulator.cli.options import AsJson, command_group, complete_model, option
from simulator.errors import InputError
from simulator.files import is_there
from simulator.units import format_count, percent

if TYPE_CHECKING:
    from simulator.described.huggingface.parameter_counts import ParameterCount

AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="A shipped model, a model's .yaml, or a config.json of transformers.",
        autocompletion=complete_model,
    ),
]
_WIDTHS = ("layers", "hidden", "heads", "vocab")


def build_models_group() -> typer.Typer:
    """The ``models`` commands."""
    return command_group(
        "models",
        "List and show shipped models; count parameters.",
        {"list": list_models, "show": show_model, "count": count_parameters},
    )


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
    from simulator.program.layer.model_totals import parameter_count_by_part

    loaded = load_model(model)
    count = parameter_count_by_part(loaded)
    file = model_file(model)
    about = _source_of(file)
    values = dict(_fields(loaded.model_dump(mode="json", by_alias=True)))
    stated = dict(_fields(loaded.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    if as_json:
        print_json(
            {
                "name": loaded.name,
                "file": str(file),
                "source": about,
                "parameters": count.parameters,
                "active_parameters": count.active_parameters,
                "by_part": count.by_part,
                "dimensions": values,
            }
        )
        return
    of = "" if count.active_parameters == count.parameters else (
        f", {format_count(count.active_parameters)} of them active per token"
    )  # fmt: skip
    title = f"{loaded.name}: {format_count(count.parameters)} parameters{of}"
    rows = [
        (path, str(value), "" if path in stated else "default")
        for path, value in values.items()
        if all_fields or path in stated
    ]
    print_table(title, text_columns("field", "value", ""), rows)
    parts = [
        (part, f"{numel:,}", f"{count.active_by_part[part]:,}", percent(numel / count.parameters))
        for part, numel in count.by_part.items()
    ]
    columns = text_columns("part") + number_columns("parameters", "active", "share")
    print_table("parameters by part", columns, parts)
    typer.echo(about or f"The file names no source: {file}")


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
