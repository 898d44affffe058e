"""What does the user state of values that only a real run knows?

``FILE:LINE=NUMBER`` states the value that a line of code asks a tensor for. Where it decides a
shape, it is the number of elements that are selected; ``25%`` is a share of those that there are.
``FILE=...`` states it of each line of a file that nothing else is stated of.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.errors import InputError

OPTION = "--value"


@dataclass(frozen=True)
class _Statement:
    text: str
    file: str
    line: int | None
    number: float
    is_share: bool

    def is_of(self, file: str, line: int) -> bool:
        """Whether it is of a line of a file, of which the end of the path is enough."""
        is_file = f"{os.sep}{file}".endswith(f"{os.sep}{self.file}")
        return is_file and self.line in {None, line}


@dataclass
class StatedValues:
    """Values by line of code.

    Attributes:
        note: Told of each line whose value was stated.
    """

    statements: Sequence[_Statement] = ()
    note: Callable[[str], None] = lambda _: None
    _used: set[str] = field(default_factory=set)

    def number(self, file: str, line: int) -> float | None:
        """The value that a line asks for; None where none is stated."""
        return self._found(file, line, 1, shares=False)

    def count(self, file: str, line: int, most: int, known: int | None = None) -> int | None:
        """How many of at most so many elements a line selects; None where none is stated.

        Args:
            file: File of the line.
            line: Its number.
            most: Elements to select from.
            known: What another line stated of the same mask; a statement of this line goes before.
        """
        found = self._found(file, line, most, shares=True, of_file=known is None)
        return known if found is None else round(found)

    def unused(self) -> list[str]:
        """What was stated of lines that did not ask."""
        return [each.text for each in self.statements if each.text not in self._used]

    def _found(
        self, file: str, line: int, most: int, *, shares: bool, of_file: bool = True
    ) -> float | None:
        fit = [each for each in self.statements if each.is_of(file, line)]
        fit = [each for each in fit if of_file or each.line is not None]
        fit = [each for each in fit if shares or not each.is_share]
        if not fit:
            return None
        best = next((each for each in fit if each.line is not None), fit[0])
        self._used.add(best.text)
        self.note(f"{os.path.basename(file)}:{line}: {best.text} was stated")
        return best.number * most if best.is_share else best.number


def read_stated_values(texts: Sequence[str]) -> StatedValues:
    """Statements as the command line has them.

    Raises:
        InputError: One is not ``FILE:LINE=NUMBER``.
    """
    return StatedValues([_statement(text) for text in texts])


def _statement(text: str) -> _Statement:
    place, equals, value = text.rpartition("=")
    file, colon, line = place.rpartition(":")
    is_line = bool(colon) and line.isdigit()
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        number = math.nan
    is_share = value.endswith("%")
    if not (equals and place) or not math.isfinite(number) or (is_share and not 0 <= number <= 100):
        hint = "for example train.py:17=512, train.py:17=25% or train.py=25%"
        raise InputError.single(OPTION, "must be FILE:LINE=NUMBER", text, hint)
    return _Statement(
        text,
        file if is_line else place,
        int(line) if is_line else None,
        number / 100 if is_share else number,
        is_share,
    )
