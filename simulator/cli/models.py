"""clustersim models: which networks are known by name?"""

from __future__ import annotations

import typer

from simulator.cli.console import number_column, print_table, text_column
from simulator.units import format_count


def build_group() -> typer.Typer:
    """The ``models`` commands."""
    group = typer.Typer(name="models", no_args_is_help=True, help="Shipped models.")
    group.command("list")(list_models)
    group.callback()(lambda: None)
    return group


def list_models() -> None:
    """List the models that a job can name.

    Example:  clustersim models list
    """
    from simulator.cost.parameters import active_parameter_count, parameter_count
    from simulator.spec.load import load_model, model_names

    rows = []
    for name in model_names():
        model = load_model(name)
        experts = f"{model.experts.top_k} of {model.experts.count}" if model.experts else ""
        counts = (parameter_count(model), active_parameter_count(model))
        widths = (model.layers, model.hidden, model.heads, model.vocab)
        rows.append((name, *map(format_count, counts), *map(str, widths), experts))
    numbers = ("parameters", "active", "layers", "hidden", "heads", "vocab", "experts")
    print_table("models", [text_column("name"), *map(number_column, numbers)], rows)
