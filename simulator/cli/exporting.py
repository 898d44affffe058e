"""clustersim export: which files of other tools train or serve what a file describes?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.console import counting, note
from simulator.cli.options import Changes, JobFile, option, parse_assignments, read_job
from simulator.cli.serving import ServingFile
from simulator.errors import InputError
from simulator.files import write_whole


def export_commands() -> dict[str, Callable[..., None]]:
    """The ``export`` commands, by format."""
    return {
        "megatron": export_megatron,
        "deepspeed": export_deepspeed,
        "torchtitan": export_torchtitan,
        "accelerate": export_accelerate,
        "axolotl": export_axolotl,
        "chakra": export_chakra,
        **{command: _serving_command(command) for command in ("vllm", "sglang", "trtllm")},
    }


def _serving_command(command: str) -> Callable[..., None]:
    """What ``clustersim export`` does for a serving engine."""
    engine = "tensorrt-llm" if command == "trtllm" else command

    def export_launch(file: ServingFile, changes: Changes = None) -> None:
        from simulator.serving.described import load_serving
        from simulator.serving.launch.launch_commands import launch_line

        asked = {"deployment.engine": engine, **parse_assignments(changes or ())}
        deployment = load_serving(file, asked).deployment
        typer.echo(launch_line(deployment, deployment.model.name))
        note("put the model's path or name on the hub in its place")

    export_launch.__doc__ = (
        f"Write the launch line of {engine} for a deployment.\n\n"
        f"Example:  clustersim export {command} serving.yaml > launch.sh"
    )
    return export_launch


def export_megatron(job_file: JobFile, changes: Changes = None) -> None:
    """Write the launch line of Megatron-LM that trains a job.

    Example:  clustersim export megatron job.yaml > launch.sh
    """
    from simulator.exporters.megatron import megatron_script

    typer.echo(megatron_script(read_job(job_file, changes, unfolded=None)), nl=False)
    note("add data, tokenizer, learning rate and rendezvous address")


def export_deepspeed(job_file: JobFile, changes: Changes = None) -> None:
    """Write the ds_config.json of DeepSpeed for a job.

    Example:  clustersim export deepspeed job.yaml > ds_config.json
    """
    from simulator.exporters.deepspeed import deepspeed_config, switched_on_in_the_model
    from simulator.exporters.plans import launch_line

    job = read_job(job_file, changes, unfolded=None)
    typer.echo(deepspeed_config(job), nl=False)
    note(f"launch:  {launch_line(job, 'TRAIN.py --deepspeed_config CONFIG.json')}")
    if beside := switched_on_in_the_model(job):
        note(f"beside:  {beside}")


def export_accelerate(job_file: JobFile, changes: Changes = None) -> None:
    """Write the YAML of accelerate that trains a job.

    The TrainingArguments beside it are part of the launch line on stderr.

    Example:  clustersim export accelerate job.yaml > accelerate.yaml
    """
    from simulator.exporters.accelerate import (
        accelerate_config,
        arguments_text,
        training_arguments,
    )

    job = read_job(job_file, changes, unfolded=None)
    typer.echo(accelerate_config(job), nl=False)
    options = arguments_text(training_arguments(job))
    note(f"launch:  accelerate launch --config_file accelerate.yaml TRAIN.py {options}")
    note(f"beside:  the model, and sequences of {job.batch.seq_len} tokens")


def export_axolotl(job_file: JobFile, changes: Changes = None) -> None:
    """Write the YAML of axolotl that trains a job.

    Example:  clustersim export axolotl job.yaml > axolotl.yaml
    """
    from simulator.exporters.axolotl import axolotl_config
    from simulator.exporters.plans import launch_line

    job = read_job(job_file, changes, unfolded=None)
    typer.echo(axolotl_config(job), nl=False)
    note(f"launch:  {launch_line(job, '-m axolotl.cli.train axolotl.yaml')}")
    note("put the model's path or name on the hub into base_model; add datasets and output_dir")


def export_torchtitan(
    job_file: JobFile,
    *,
    out: Annotated[
        Path | None,
        option("Write the TOML to this file; the CSV of a schedule goes beside it.", "FILE.toml"),
    ] = None,
    changes: Changes = None,
) -> None:
    """Write the TOML of torchtitan that trains a job.

    A pipeline schedule that torchtitan has no name for goes into a CSV file beside the TOML.

    Example:  clustersim export torchtitan job.yaml > job.toml

    Example:  clustersim export torchtitan job.yaml --set plan.schedule=zb-h1 --out job.toml
    """
    from simulator.exporters.plans import launch_line
    from simulator.exporters.torchtitan import schedule_csv, torchtitan_config

    job = read_job(job_file, changes, unfolded=None)
    csv_name = (out or Path("job.toml")).with_suffix(".csv").name
    text, order = torchtitan_config(job, csv_name), schedule_csv(job)
    if order is not None and out is None:
        rule = "has no name in torchtitan and goes into a CSV file beside the TOML"
        raise InputError.single(
            "plan.schedule", rule, str(job.plan.schedule), "give --out FILE.toml"
        )
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write(out, text)
        if order is not None:
            _write(out.with_suffix(".csv"), order)
    file = out or "JOB.toml"
    note(f"launch:  {launch_line(job, f'-m torchtitan.train --job.config_file {file}')}")


def export_chakra(
    job_file: JobFile,
    *,
    out: Annotated[Path, option("Folder for one file NAME.RANK.et per rank.", "DIR")],
    ranks: Annotated[
        str | None,
        option(
            "Ranks to write; by default the first rank of each class, which stands for the others.",
            "RANK,RANK,…|all",
        ),
    ] = None,
    changes: Changes = None,
) -> None:
    """Write a simulated step as Chakra execution traces.

    There is one per rank.

    Needs the extra chakra: pip install '.[chakra]' in a clone.

    Example:  clustersim export chakra job.yaml --out traces/

    Example:  clustersim replay traces/ --profile a100-sxm-80gb
    """
    from simulator.api import simulate
    from simulator.chakra.execution_trace import message_types
    from simulator.chakra.from_program import check_traceable, rank_traces
    from simulator.chakra.trace_files import file_name, write_trace

    job = read_job(job_file, changes, unfolded=None)
    check_traceable(job)
    message_types()
    result = simulate(job)
    program = result.timeline.program
    wanted = None if ranks is None else _ranks(ranks, job.cluster.gpus)
    out.mkdir(parents=True, exist_ok=True)
    name, written = job_file.stem, 0
    with counting("traces") as count:
        for trace in rank_traces(job, program, wanted, result.step_time_s):
            write_trace(trace, out / file_name(name, trace.rank))
            written += 1
            count()
    note(f"wrote {written} traces to {out}")


def _ranks(text: str, gpus: int) -> list[int]:
    """The ranks of a list such as ``0,8``, or all of them.

    Raises:
        InputError: Something in it is no number.
    """
    if text == "all":
        return list(range(gpus))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise InputError.single("--ranks", "must be ranks such as 0,8, or all", text)
    return sorted({int(word) for word in words})


def _write(path: Path, text: str) -> None:
    write_whole(path, text)
    note(f"wrote {path}")
