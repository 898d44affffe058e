"""clustersim import: what would a foreign configuration cost to train?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.console import note
from simulator.cli.importing_topology import import_topology
from simulator.cli.options import complete_profile

if TYPE_CHECKING:
    from simulator.spec.model import Model


def build_group() -> typer.Typer:
    """The ``import`` commands."""
    group = typer.Typer(
        name="import", no_args_is_help=True, help="Foreign files to jobs and profiles."
    )
    group.command("hf")(import_huggingface)
    group.command("topo")(import_topology)
    return group


def import_huggingface(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A config.json, or a folder that holds one.")
    ],
    profile: Annotated[
        str, typer.Option(help="Hardware profile.", autocompletion=complete_profile)
    ] = "h100-sxm-80gb",
    gpus: Annotated[int, typer.Option(help="GPUs of the job.")] = 8,
    global_batch: Annotated[int, typer.Option(help="Sequences per step.")] = 8,
    seq_len: Annotated[int, typer.Option(help="Tokens per sequence.")] = 4096,
) -> None:
    """Turn a Hugging Face config.json into a job; the report goes to stderr.

    Example:  clustersim import hf config.json --gpus 64 --global-batch 512 > job.yaml
    """
    import yaml

    from simulator.importers.huggingface import read_huggingface_config
    from simulator.spec.load import job_from_document

    model, report = read_huggingface_config(config)
    document = {
        "model": model_document(model),
        "cluster": {"profile": profile, "gpus": gpus},
        "batch": {"global": global_batch, "micro": 1, "seq_len": seq_len},
        "plan": {},
    }
    job_from_document(document)
    typer.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
    note(str(report))
    note("cluster, batch and plan are yours to choose; the file does not know them")


def model_document(model: Model) -> dict[str, Any]:
    """The model as a job file writes it, without what is left at its default."""
    return {
        "name": model.name,
        **model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"name"}),
    }
