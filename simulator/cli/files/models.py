"""clustersim models: which networks are known by name?"""

from __future__ import annotations

from typing import Any

import typer

from simulator.cli.console import number_column, print_json, print_table, text_column
from simulator.cli.options import AsJson
from simulator.units import format_count

_WIDTHS = ("layers", "hidden", "heads", "vocab")


def build_group() -> typer.Typer:
    """The ``models`` commands."""
    group = typer.Typer(name="models", no_args_is_help=True, help="Shipped models.")
    group.command("list")(list_models)
    group.callback()(lambda: None)
    return group


def list_models(*, as_json: AsJson = False) -> None:
    """List the models that a job can name.

    Example:  clustersim models list
    """
    from simulator.described.load import load_model, model_names
    from simulator.program.layer.model_totals import active_parameter_count, parameter_count

    documents: list[dict[str, Any]] = []
    for name in model_names():
        model = load_model(name)
        documents.append(
            {
                "name": name,
                "parameters": parameter_count(model),
                "active": active_parameter_count(model),
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
    print_table("models", [text_column("name"), *map(number_column, numbers)], rows)
