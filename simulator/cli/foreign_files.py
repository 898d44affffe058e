"""clustersim import: which job do files of other tools describe?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from simulator.cli.completion import complete_model, complete_profile
from simulator.cli.console import note
from simulator.cli.options import Changes, option, parse_assignments
from simulator.errors import InputError
from simulator.importers.formats import FORMATS, Format

if TYPE_CHECKING:
    from simulator.described.foreign_config import ImportReport
    from simulator.described.job import Job
    from simulator.importers.assembly import Given
    from simulator.importers.hub_models import ModelDocument


Profile = Annotated[
    str,
    option("Hardware profile.", "NAME|FILE", autocompletion=complete_profile),
]
Gpus = Annotated[int | None, option("Number of GPUs, if the file does not state it.", "N")]
ModelName = Annotated[
    str | None,
    option(
        "The model, if the file does not state it: a name, also of the hub, or a config.json.",
        "NAME|PATH",
        name="--model",
        autocompletion=complete_model,
    ),
]
GlobalBatch = Annotated[
    int | None,
    option("Sequences per step (global batch size), in place of the file's.", "N"),
]
MicroBatch = Annotated[int | None, option("Sequences per microbatch, in place of the file's.", "N")]
SeqLen = Annotated[int | None, option("Tokens per sequence, in place of the file's.", "N")]
Ignore = Annotated[
    list[str] | None,
    option("Ignore a setting that is not modelled; may be repeated.", "SETTING"),
]
Define = Annotated[
    list[str] | None,
    option("Define a variable that the file uses; may be repeated.", "NAME=VALUE"),
]


def import_commands() -> dict[str, Callable[..., None]]:
    """The ``import`` commands, by format."""
    return {
        "hf": import_huggingface,
        **{form.name: _command_of(form) for form in FORMATS.values()},
        **{command: _launch_command(command, engine) for command, engine in ENGINES.items()},
        "topo": import_topology,
    }


def import_huggingface(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|ORG/NAME",
            help="A config.json, a folder that holds one, or a name on the hub, whose config.json "
            "is read from the local cache.",
        ),
    ],
    profile: Profile = "h100-sxm-80gb",
    gpus: Annotated[int, option("Number of GPUs.", "N")] = 8,
    global_batch: Annotated[
        int | None, option("Sequences per step (global batch size); by default one per GPU.", "N")
    ] = None,
    seq_len: Annotated[int, option("Tokens per sequence.", "N")] = 4096,
) -> None:
    """Convert a Hugging Face config.json to a job.

    A report of the settings that were read goes to stderr. Nothing is downloaded: for a name on
    the hub, the config.json in the local cache is read, or else the shipped model of that name.

    Example:  clustersim import hf config.json --gpus 64 --global-batch 512 > job.yaml

    Example:  clustersim import hf Qwen/Qwen3-8B > job.yaml
    """
    from simulator.described.load import job_from_document

    model, report = _model_of_hub(config)
    document = {
        "model": model,
        "cluster": {"profile": profile, "gpus": gpus},
        "batch": {"global": global_batch or gpus, "micro": 1, "seq_len": seq_len},
        "plan": {},
    }
    job_from_document(document)
    _echo_yaml(document)
    note(report)
    note("the file does not state cluster, batch and plan: edit them in the job")


def _model_of_hub(config: str, field: str = "CONFIG") -> tuple[ModelDocument, str]:
    """The model of a file, folder or name of the hub as a job writes it, and what was understood.

    Args:
        config: The file, folder or name.
        field: What states it, for messages.

    Raises:
        InputError: Neither this machine nor the package knows the name, or the file is wrong.
    """
    from simulator.described.huggingface.config_file import read_huggingface_config
    from simulator.importers.hub_models import (
        cached_config,
        hub_cache_folder,
        is_hub_name,
        model_document,
        shipped_model,
    )

    if not is_hub_name(config):
        model, report = read_huggingface_config(config)
        return model_document(model), str(report)
    file = cached_config(config)
    if file is not None:
        model, report = read_huggingface_config(file, config.rpartition("/")[2])
        return model_document(model), f"read {file}\n{report}"
    shipped = shipped_model(config)
    if shipped is not None:
        said = shipped if isinstance(shipped, str) else shipped["base"]
        where = f"not in the local cache ({hub_cache_folder()})"
        return shipped, f"{config}: {where}; taken is the shipped model {said}"
    hint = (
        f"get its config.json: hf download {config} config.json, or save "
        f"https://huggingface.co/{config}/raw/main/config.json; then name it or the file here"
    )
    rule = f"is not a file, no shipped model, and not in the local cache {hub_cache_folder()}"
    raise InputError.single(field, rule, config, hint)


def _given(
    *,
    profile: Profile = "h100-sxm-80gb",
    gpus: Gpus = None,
    model: ModelName = None,
    global_batch: GlobalBatch = None,
    micro_batch: MicroBatch = None,
    seq_len: SeqLen = None,
    ignore: Ignore = None,
    changes: Changes = None,
) -> Given:
    """What the user says beside the file; these are the options of all frameworks.

    Raises:
        InputError: A change is not ``FIELD=VALUE``.
    """
    from simulator.importers.assembly import Given

    changed = parse_assignments(changes or ())
    return Given(
        profile=profile,
        # A batch that is stated per GPU follows from their number, whichever option states it.
        gpus=gpus or _whole_or_none(changed.get("cluster.gpus")),
        model=_chosen_model(model),
        global_batch=global_batch,
        micro_batch=micro_batch,
        seq_len=seq_len,
        ignore=tuple(ignore or ()),
        changes=changed,
    )


_ENDINGS_OF_MODELS = (".json", ".yaml", ".yml")


def _chosen_model(name: str | None) -> ModelDocument | None:
    """What ``--model`` says as a job writes it; what a name of the hub stands for is noted."""
    from simulator.importers.hub_models import is_hub_name

    if name is None or name.endswith(_ENDINGS_OF_MODELS) or not is_hub_name(name):
        return name
    model, said = _model_of_hub(name, "--model")
    note(said)
    return model


def _whole_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _with_definitions(given: Given, define: Sequence[str] | None) -> Given:
    """The same with the variables that the user defines.

    Raises:
        InputError: A definition is not ``NAME=VALUE``.
    """
    from simulator.importers.assembly import definitions_of

    return replace(given, definitions=definitions_of(define or ()))


def _command_of(form: Format) -> Callable[..., None]:
    """What ``clustersim import`` does with the files of one framework."""
    shared = _options_of(_given)

    def import_files(**values: Any) -> None:
        files, define = values.pop("files"), values.pop("define", None)
        context = values.pop("context")
        given = _with_definitions(_given(**values), define)
        _tell(*form.read(files if form.takes_more else [files], given))
        if "cluster.profile" not in given.changes:
            _note_assumed_hardware(context, given.profile)

    kind = list[Path] if form.takes_more else Path
    argument = typer.Argument(metavar=form.metavar, help=form.file)
    own = {"files": Parameter("files", Parameter.KEYWORD_ONLY,
                              annotation=Annotated[kind, argument])}  # fmt: skip
    if form.has_variables:
        own["define"] = Parameter("define", Parameter.KEYWORD_ONLY, default=None, annotation=Define)
    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = own | shared | {"context": context}
    # What typer reads of a function.
    import_files.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]
    import_files.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    import_files.__doc__ = (
        f"Convert a file of {form.framework} to a job.\n\nThe file is read, never run.\n\n"
        f"Example:  clustersim import {form.name} {form.example} > job.yaml"
    )
    return import_files


def _options_of(function: Callable[..., object]) -> dict[str, Parameter]:
    """Parameters by name, with their types as they are instead of as they are written."""
    # The one name among them that is not loaded before it is needed.
    types = get_type_hints(function, localns={"Given": object}, include_extras=True)
    return {
        name: each.replace(annotation=types[name])
        for name, each in signature(function).parameters.items()
    }


def _note_assumed_hardware(context: typer.Context, profile: str) -> None:
    """Say which hardware was taken where nobody named any; files of frameworks do not."""
    source = context.get_parameter_source("profile")
    if source is None or source.name != "COMMANDLINE":
        note(f"hardware: {profile}, until --profile names another")


def _tell(job: Job, report: ImportReport) -> None:
    _echo_yaml(job.document)
    note(str(report))


def _echo_yaml(document: Mapping[str, Any]) -> None:
    import yaml

    typer.echo(yaml.safe_dump(dict(document), sort_keys=False), nl=False)


ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
"""Serving engines by the name of their command."""


def _launch_command(command: str, engine: str) -> Callable[..., None]:
    """What ``clustersim import`` does with launch lines and settings of a serving engine."""

    def import_launch(
        file: Annotated[
            Path,
            typer.Argument(metavar="FILE.sh|.yaml", help="A script that starts it, or settings."),
        ],
        profile: Profile = "h100-sxm-80gb",
        model: ModelName = None,
        gpus: Gpus = None,
        ignore: Ignore = None,
        *,
        context: typer.Context,
    ) -> None:
        from simulator.serving.described import load_serving
        from simulator.serving.launch.launch_lines import read_launch

        document, own_choice = read_launch(
            engine, file, profile=profile, model=model, gpus=gpus, ignore=ignore or ()
        )
        job = load_serving(document)
        _echo_yaml(document)
        if own_choice:
            note("taken as the engine chooses by itself:")
            note(f"  {', '.join(own_choice)}")
        note("the file does not state the traffic; until you add a workload, it is")
        note(f"  {job.workload.title}")
        _note_assumed_hardware(context, profile)

    import_launch.__doc__ = (
        f"Convert a launch line of {engine} to a deployment.\n\n"
        "Also a file of its settings. It is read, never run.\n\n"
        f"Example:  clustersim import {command} launch.sh > serving.yaml"
    )
    return import_launch


def import_topology(
    matrix: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Output of nvidia-smi topo -m or rocm-smi --showtopo."),
    ],
    profile: Annotated[
        str,
        option(
            "Profile of the same GPU, for everything that the matrix does not state.",
            "NAME|FILE",
            autocompletion=complete_profile,
        ),
    ],
    nic: Annotated[str | None, option('Line rate of a NIC, such as "400 Gbit/s".', "RATE")] = None,
    nics: Annotated[
        int | None, option("Number of NICs per node that carry collectives.", "N", min=0)
    ] = None,
) -> None:
    """Make a profile from the links of a node.

    The report goes to stderr.

    Example:  clustersim import topo topo.txt --profile h100-sxm-80gb > node.yaml
    """
    from simulator.calibrate.profile_text import SourcedValue, with_sourced_values
    from simulator.described.documents import parse_yaml
    from simulator.described.load import load_profile, profile_file, profile_from_document
    from simulator.described.rules.profile_rules import profile_faults
    from simulator.importers.node_topology import node_topology, read_topology_matrix

    base = load_profile(profile)
    read = read_topology_matrix(matrix)
    node = node_topology(read, base, matrix.name, nics=nics, nic_rate=nic)
    file = profile_file(profile)
    values = {
        path: SourcedValue(fact.value, fact.kind, fact.reference)
        for path, fact in node.values.items()
    }
    text = with_sourced_values(file.read_text(encoding="utf-8"), values, str(file))
    faults = profile_faults(profile_from_document(parse_yaml(text)), file=matrix.name)
    if faults:
        raise InputError(faults)
    typer.echo(text, nl=False)
    note(str(node.report))
