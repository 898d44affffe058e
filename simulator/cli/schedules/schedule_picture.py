"""How is the picture of a schedule printed?"""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simulator.schedule.terminal_text import Cell

_COLORS: Mapping[str, str] = MappingProxyType(
    {"F": "blue", "B": "green", "I": "cyan", "W": "yellow"}
)
"""Colours of the phases, in the shades that the terminal gives these names."""


def print_lines(lines: Callable[[int | None], list[list[Cell]]]) -> None:
    """Print a picture; on a terminal in colour and folded to its width.

    Args:
        lines: Its lines at a width; None never folds.
    """
    from rich.console import Console
    from rich.text import Text

    from simulator.schedule.terminal_text import lines_text

    if not sys.stdout.isatty():
        typer.echo(lines_text(lines(None)))
        return
    console = Console(highlight=False)
    for line in lines(console.width):
        cells = ((cell.text, _COLORS[cell.phase] if cell.phase else "dim") for cell in line)
        console.print(Text.assemble(*cells), soft_wrap=True)
