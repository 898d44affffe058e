"""Which commands are there, and what does each way of failing look like?

Exit codes: 0 it worked; 1 the job does not fit or a threshold was missed; 2 the input is
wrong, or more than this machine holds; 3 a bug of ours.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from simulator.cli.completion import prepare_completion
from simulator.cli.console import close_stdout, note, print_json
from simulator.errors import ClustersimError, DoesNotFitError, Fault, InputError
from simulator.files import DISK_IS_FULL

INPUT_WRONG, DOES_NOT_FIT, BUG = 2, 1, 3
INTERRUPTED = 130  # as shells have it: 128 + SIGINT

_NEW_OBJECTS_PER_COLLECTION = 100_000
"""Looking for garbage after every 700, as Python does, is a tenth of a short command."""

_COMMANDS = {
    "init": "init",
    "run": "step.run",
    "capture": "step.capturing",
    "compare": "step.comparing",
    "replay": "step.traces",
    "memory": "step.memory",
    "placement": "step.groups",
    "traffic": "step.groups",
    "limits": "planning.variations",
    "balance": "planning.variations",
    "strategies": "planning.advise",
    "sweep": "planning.sweep",
    "plan": "planning.plan",
    "advise": "planning.advise",
    "sensitivity": "planning.variations",
    "checks": "planning.checks",
    "diagnose": "planning.diagnose",
    "distribution": "planning.variations",
    "capacity": "planning.capacity",
    "rent": "planning.capacity",
    "rl": "planning.rl",
    "studio": "studio",
    "schema": "shipped",
    "mcp": "mcp_server",
}
"""Module of each command; the function has the command's name."""

_GROUPS: dict[str, tuple[str, dict[str, str] | str]] = {
    "import": (
        "Import files of other frameworks as jobs or profiles.", "foreign_files.import_commands",
    ),
    "export": ("Export jobs to other frameworks.", "exporting.export_commands"),
    "profile": (
        "List, show, check and make hardware profiles.",
        {
            "list": "shipped.list_profiles", "show": "shipped.show_profile",
            "check": "shipped.check_profiles", "new": "shipped.new_profile",
        },
    ),
    "models": (
        "List and show shipped models; count parameters.",
        {
            "list": "shipped.list_models", "show": "shipped.show_model",
            "count": "shipped.count_parameters",
        },
    ),
    "calibrate": (
        "Make hardware profiles from your own measurements.",
        {
            "gpu": "measuring.calibrating_gpu.gpu",
            "collectives": "measuring.calibrating.collectives",
            "runs": "measuring.calibrating.runs",
        },
    ),
    "validate": (
        "Compare predictions with measurements.",
        {
            "published": "measuring.validating.published",
            "collectives": "measuring.validating.collectives",
            "kernels": "measuring.validating.kernels",
            "serving": "measuring.validating.serving",
            "torch": "measuring.validating_torch.torch",
        },
    ),
    "schedule": (
        "Show and compare pipeline schedules.",
        {
            "list": "schedule.list_schedules", "show": "schedule.show_schedule",
            "compare": "schedule.compare_schedules",
        },
    ),
    "collective": (
        "Show collectives, chunk by chunk.",
        {"list": "collective.list_algorithms", "show": "collective.show_collective"},
    ),
    "trace": (
        "Compare traces of real runs with predictions.", {"compare": "step.traces.compare"},
    ),
    "serve": (
        "Predict throughput and latency of serving.",
        {
            "run": "serving.run", "compare": "serving.compare", "sweep": "serving.sweep",
            "plan": "serving.plan", "capacity": "serving.capacity",
        },
    ),
}  # fmt: skip
"""Help of each group, and functions by command; those for formats that are read and written come
from a function."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "First steps": ("init", "run", "studio"),
    "One step": ("memory", "traffic", "placement", "schedule", "collective", "compare",
                 "distribution", "sensitivity", "checks"),
    "Better plans": ("advise", "plan", "strategies", "limits", "balance", "sweep"),
    "Whole training runs, and serving": ("capacity", "rent", "serve", "rl"),
    "Your own code, files and runs": ("capture", "import", "export", "diagnose", "trace", "replay"),
    "What predictions rest on": ("models", "profile", "calibrate", "validate"),
    "Other programs": ("schema", "mcp"),
}  # fmt: skip
"""Commands as the help lists them, by what a person is after."""


@dataclass
class Settings:
    """What holds for every command of one call.

    Attributes:
        traceback: Whether a bug shows its traceback.
    """

    traceback: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: Words after the program's name; by default those of this process.
    """
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)
    settings = Settings()
    if sys.stdout is None:  # closed by whoever started it: answers would be lost without a word
        note("stdout is closed; leave it open, or send it to a file or to /dev/null")
        sys.exit(INPUT_WRONG)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A letter that a terminal lacks is shown by its number.
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    try:
        build_app(*(prepare_completion(os.environ) or words[:1]))(
            args=words, prog_name="clustersim", obj=settings
        )
    except KeyboardInterrupt:  # while a command was loaded, or its workers ended
        note("interrupted")
        sys.exit(INTERRUPTED)
    except Exception as error:
        if isinstance(error, InputError) and "--json" in words:
            print_json({"errors": list(map(_fault_dict, error.faults))})
        text, code = _why_it_ended(error, settings)
        note(text)
        sys.exit(code)


def _why_it_ended(error: Exception, settings: Settings) -> tuple[str, int]:
    """What to say of an error, and the code to exit with."""
    match error:
        case ClustersimError():
            return str(error), DOES_NOT_FIT if isinstance(error, DoesNotFitError) else INPUT_WRONG
        case OSError(errno=errno) if errno in DISK_IS_FULL:
            where = f" {error.filename}" if error.filename else ""
            return f"cannot write{where}: {error.strerror}", INPUT_WRONG
        case OSError() if error.filename is not None:  # one that the user named
            return f"{error.filename}: {error.strerror}; name another file or folder", INPUT_WRONG
        case MemoryError():
            remedy = "use fewer stages, microbatches or layers, or a larger machine"
            return f"not enough memory here; {remedy}", INPUT_WRONG
    return _bug_report(error, settings), BUG


def _fault_dict(fault: Fault) -> dict[str, Any]:
    """A fault of the input for scripts; its value as text, since it may be anything."""
    value = None if fault.value is None else str(fault.value)
    return {**asdict(fault), "value": value}


def build_app(first_word: str = "") -> typer.Typer:
    """The application with the command that a line's first word names, or with all of them.

    To import and build all takes longer than many a command runs.
    """
    app = typer.Typer(
        name="clustersim",
        cls=_Commands,
        callback=_options,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    known = (*_COMMANDS, *_GROUPS)
    for name in (first_word,) if first_word in known else known:
        if name in _COMMANDS:
            app.command(name)(_named(f"{_COMMANDS[name]}.{name}"))
        else:
            app.add_typer(_group(name))
    return app


def _group(name: str) -> typer.Typer:
    """A command that only holds others."""
    help_text, functions = _GROUPS[name]
    if isinstance(functions, str):
        commands = _named(functions)()
    else:
        commands = {command: _named(path) for command, path in functions.items()}
    group = typer.Typer(name=name, cls=_Group, no_args_is_help=True, help=help_text)
    for command, function in commands.items():
        group.command(command)(function)
    return group


class _Group(TyperGroup):
    """Commands of one kind; names them to who writes a file where one of them belongs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; typer suggests those that are spelt like it."""
        word = args[0]
        if word.isidentifier() or word.startswith("-") or word in self.commands:
            return super().resolve_command(ctx, args)
        return ctx.fail(f"{word!r} is not a command of {self.name}: {', '.join(self.commands)}.")


class _Commands(TyperGroup):
    """All commands; a reader that left is no reason to end with 1, as typer has it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands of each section with their purposes in full."""
        for title, names in SECTIONS.items():
            purposes = (self.commands[name].get_short_help_str(formatter.width) for name in names)
            with formatter.section(title):
                formatter.write_dl(list(zip(names, purposes, strict=True)))

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            close_stdout()
            raise typer.Exit from None
        except KeyboardInterrupt:  # typer would end without a word
            note("interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _named(path: str) -> Callable[..., Any]:
    """A function by its module below this folder and its name."""
    module, _, name = path.rpartition(".")
    function: Callable[..., Any] = getattr(import_module(f"simulator.cli.{module}"), name)
    return function


def _print_version(wanted: bool) -> None:
    if wanted:
        from simulator.version import __version__

        typer.echo(f"clustersim {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            envvar="CLUSTERSIM_TRACEBACK",
            help="Show the traceback of an internal error.",
        ),
    ] = False,
) -> None:
    """Predict step time and memory of LLM training on a cluster, before renting it.

    Start with:  clustersim run llama3-70b-64xh100
    """
    del version  # its callback has done the work
    if context.obj is not None:
        context.obj.traceback = traceback


def _bug_report(error: Exception, settings: Settings) -> str:
    from simulator.version import __version__

    lines = [
        f"internal error: {type(error).__name__}: {error}",
        "This is a bug in clustersim, not in your input. Please report it with the job file,",
        f"the command and this version: clustersim {__version__}, Python {sys.version.split()[0]}",
    ]
    if settings.traceback:
        lines.append("".join(traceback.format_exception(error)))
    else:
        lines.append("To see the traceback, put --traceback before the command.")
    return "\n".join(lines)
