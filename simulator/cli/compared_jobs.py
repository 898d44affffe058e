"""Which jobs does a command compare: those of its files, and variants of the first one?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeVar

from simulator.cli.options import option, parse_assignments
from simulator.errors import InputError

Variants = Annotated[
    list[str] | None,
    option(
        "Another job: the first one with changed fields; may be repeated.",
        "'FIELD=VALUE ...'",
        name="--variant",
    ),
]


class _Changeable(Protocol):
    """A job of training or serving."""

    def replace(self, changes: Mapping[str, Any], /) -> Self:
        """A copy with changed fields."""


_JobT = TypeVar("_JobT", bound=_Changeable)


def jobs_to_compare(
    argument: str,
    files: Sequence[Path],
    variants: Sequence[str],
    read: Callable[[Path], _JobT],
    example: str,
) -> list[tuple[str, _JobT]]:
    """Jobs by name, those of the files first.

    Args:
        argument: The command's name for a file, for error messages.
        files: What the user named.
        variants: Changes of the first file's job, each a job of its own.
        read: Reads a file.
        example: A change, for error messages.

    Raises:
        InputError: There are fewer than two, or one is wrong.
    """
    for path in files:
        if "=" in path.name and not path.exists():
            hint = f"write --variant or --set {path}, or '{example} {path}' for one variant of both"
            raise InputError.single(argument, "is a change, not a job", str(path), hint)
    if len(files) + len(variants) < 2:
        hint = f"name two files, or add --variant {example}"
        raise InputError.single(argument, "needs a second job to compare with", str(files[0]), hint)
    jobs = [(_name(path, files), read(path)) for path in files]
    first = jobs[0][1]
    return [
        *jobs,
        *((text, first.replace(parse_assignments(assignments(text)))) for text in variants),
    ]


def _name(path: Path, files: Sequence[Path]) -> str:
    """The file's name without its suffix, with its folder where names repeat."""
    is_unique = sum(other.stem == path.stem for other in files) == 1
    return path.stem if is_unique else str(path.with_suffix(""))


def assignments(text: str) -> list[str]:
    """FIELD=VALUE texts with spaces or commas between them; values may have both, too."""
    return re.split(r"[\s,]+(?=[\w.]+=)", text.strip())
