"""Which commands are there, and with which options? ``docs/commands.md``, from the commands.

Examples come first from pages whose blocks the tests run, else from the help of the command.
"""

from __future__ import annotations

import re
import shlex
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from simulator.cli.app import build_app

ROOT = Path(__file__).parent.parent
COMMANDS_PAGE = ROOT / "docs" / "commands.md"

_TITLE = """\
# Commands

Written by `make generated` from the commands; do not edit it here. `clustersim COMMAND --help`
prints the same.

Every command prints its answer to stdout and everything else to stderr. `--json` prints one JSON
object for scripts. An option that may be repeated is written once for each value.

## Exit codes

| code | meaning |
|---:|---|
| 0 | success |
| 1 | the job does not fit into memory, or a threshold or deadline is missed |
| 2 | invalid input: every fault is listed with its field, value, rule and remedy |
| 3 | a bug in clustersim; `clustersim --traceback COMMAND` shows where |

Code 1 is an answer, not an error: the output is complete.
"""
_CONSOLE = re.compile(
    r"(?P<fails><!-- exits with \d -->\n)?^```console\n(?P<body>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
_EXAMPLE = "Example:  "


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its words, such as ``schedule show``, in the order of the help."""

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield " ".join(words), command
            return
        for name, each in command.commands.items():
            yield from below(each, (*words, name))

    yield from below(typer.main.get_command(build_app()), ())


def commands_page() -> str:
    """Purpose, usage, options and one example of every command."""
    found = list(commands())
    lines = [_TITLE, "## All commands\n", "| command | purpose |\n|---|---|"]
    lines += [
        f"| [`{name}`](#clustersim-{name.replace(' ', '-')}) | {_purpose(command)} |"
        for name, command in found
    ]
    ran = dict(_examples_that_run())
    for name, command in found:
        lines += ["", *_section(name, command, ran)]
    return "\n".join(lines) + "\n"


def _purpose(command: Any) -> str:
    return str(command.help).partition("\n\n")[0]


def _section(name: str, command: Any, ran: dict[str, tuple[Path, str]]) -> Iterator[str]:
    yield f"## clustersim {name}\n"
    paragraphs = str(command.help).split("\n\n")
    texts = [each for each in paragraphs if not each.startswith(_EXAMPLE)]
    yield "\n\n".join(_plain(each) for each in texts)
    hints = typing.get_type_hints(command.callback)
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    words = [_usage(each) for each in parameters if each.param_type_name == "argument"]
    yield f"\n    clustersim {' '.join([name, *words, '[OPTIONS]'])}\n"
    if parameters:
        yield "| argument or option | default | meaning |\n|---|---|---|"
    for each in parameters:
        cells = (_spelling(each, hints[each.name]), _default(each), each.help or "")
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
    if name in ran:
        page, line = ran[name]
        yield f"\nExample, run on [{_heading(page)}]({page.name}):\n\n    {line}"
    else:
        example = next(each for each in paragraphs if each.startswith(_EXAMPLE))
        yield f"\nExample:\n\n    {' '.join(example.removeprefix(_EXAMPLE).split())}"


def _plain(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text)


def _usage(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    several = "..." if argument.nargs == -1 else ""
    return f"{shown}{several}" if argument.required else f"[{shown}{several}]"


def _spelling(parameter: Any, kind: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.is_flag:
        return names
    values = (parameter.metavar or _values(kind)).split("|")
    return f"{names} {' or '.join(f'`{value}`' for value in values)}"


def _values(kind: Any) -> str:
    """The values of an option that has no word for them."""
    inner = [each for each in typing.get_args(kind) if each is not type(None)]
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, inner))
    if inner:
        return _values(inner[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(each.value) for each in kind)
    return {int: "N", float: "NUMBER", Path: "FILE"}.get(kind, "TEXT")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default is None or default is False or default in ("", (), []):
        return ""
    return f"`{default.value if isinstance(default, Enum) else default}`"


def _heading(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def _examples_that_run() -> Iterator[tuple[str, tuple[Path, str]]]:
    """The shortest successful call of each command on the pages of the guide."""
    names = sorted((name for name, _ in commands()), key=len, reverse=True)
    shortest: dict[str, tuple[Path, str]] = {}
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in _CONSOLE.finditer(page.read_text(encoding="utf-8")):
            for line in re.findall(r"^\$ (clustersim .*[^\\\n])$", block["body"], re.MULTILINE):
                said = " ".join(shlex.split(line.partition(" | ")[0])[1:])
                name = next((each for each in names if f"{said} ".startswith(f"{each} ")), None)
                known = shortest.get(name or "")
                if name and not block["fails"] and (not known or len(line) < len(known[1])):
                    shortest[name] = (page, line)
    yield from shortest.items()
