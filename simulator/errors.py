"""What can go wrong that a user can mend.

The tree::

    ClustersimError
    |-- InputError          a file or argument is wrong (exit 2); lists every fault
    |   `-- UnsupportedError    the combination is one that no framework runs
    `-- DoesNotFitError     an answer, not a mistake: more memory is needed (exit 1)

Anything else that escapes is a bug of ours (exit 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STANDARD_INPUT = "-"
"""The name by which commands read what is piped into them."""
_MOST_SHOWN = 60
"""Characters of a wrong value that are repeated."""


class ClustersimError(Exception):
    """Base of every error that a user can fix."""


@dataclass(frozen=True)
class Fault:
    """One fault of the input, and its remedy.

    Attributes:
        path: Dotted field path as the user writes it, for example ``plan.tp``.
        value: The value that was given, or None if it is missing.
        rule: The rule that it breaks, in words.
        hint: What to do instead; may be empty.
        file: File that it was read from; empty for values given in Python.
    """

    path: str
    rule: str
    value: object = None
    hint: str = ""
    file: str = ""

    def __str__(self) -> str:
        file = "standard input" if self.file == STANDARD_INPUT else self.file
        where = ": ".join(part for part in (file, self.path) if part) or "the whole of it"
        given = "" if self.value is None else f" = {_shorten(self.value)}"
        hint = f"; {self.hint}" if self.hint else ""
        return f"{where}{given}: {self.rule}{hint}"


class InputError(ClustersimError):
    """The input is wrong; lists *all* faults, not only the first.

    Attributes:
        faults: What is wrong, each fault once.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        # Values may be lists, which have no hash; what a fault says tells it apart.
        self.faults = tuple({(str(fault), fault.path): fault for fault in faults}.values())
        count = len(self.faults)
        head = "1 error" if count == 1 else f"{count} errors"
        super().__init__("\n".join([f"{head} in the input:", *(f"  - {f}" for f in self.faults)]))

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Fault, ...]]]:
        """How it travels from one process to another."""
        return type(self), (self.faults,)

    @classmethod
    def single(
        cls, path: str, rule: str, value: object = None, hint: str = "", file: str = ""
    ) -> InputError:
        """The error for one fault."""
        return cls([Fault(path, rule, value, hint, file)])


class UnsupportedError(InputError):
    """A combination that no framework runs, refused with the reason."""


class DoesNotFitError(ClustersimError):
    """The job needs more memory than a device has."""


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
