"""clustersim export: how would a framework be told to train this job?"""

from __future__ import annotations

import typer

from simulator.cli.console import note
from simulator.cli.options import Changes, JobFile, read_job


def build_group() -> typer.Typer:
    """The ``export`` commands."""
    group = typer.Typer(name="export", no_args_is_help=True, help="Jobs to foreign files.")
    group.command("megatron")(export_megatron)
    group.command("deepspeed")(export_deepspeed)
    group.command("torchtitan")(export_torchtitan)
    return group


def export_megatron(job_file: JobFile, changes: Changes = None) -> None:
    """Write the launch line of Megatron-LM that trains a job.

    Example:  clustersim export megatron job.yaml > launch.sh
    """
    from simulator.exporters.megatron import megatron_script

    typer.echo(megatron_script(read_job(job_file, changes)), nl=False)
    note("add data, tokenizer, learning rate, and the address where the ranks meet")


def export_deepspeed(job_file: JobFile, changes: Changes = None) -> None:
    """Write the ds_config.json of DeepSpeed for a job.

    Example:  clustersim export deepspeed job.yaml > ds_config.json
    """
    from simulator.exporters.deepspeed import deepspeed_config
    from simulator.exporters.plans import launch_line

    job = read_job(job_file, changes)
    typer.echo(deepspeed_config(job), nl=False)
    note(f"launch:  {launch_line(job, 'TRAIN.py --deepspeed_config CONFIG.json')}")


def export_torchtitan(job_file: JobFile, changes: Changes = None) -> None:
    """Write the TOML of torchtitan that trains a job.

    Example:  clustersim export torchtitan job.yaml > job.toml
    """
    from simulator.exporters.plans import launch_line
    from simulator.exporters.torchtitan import torchtitan_config

    job = read_job(job_file, changes)
    typer.echo(torchtitan_config(job), nl=False)
    note(f"launch:  {launch_line(job, '-m torchtitan.train --job.config_file JOB.toml')}")
