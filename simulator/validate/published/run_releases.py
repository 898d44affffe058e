"""Of which releases of frameworks and libraries is a published run?

A run names them, or it is taken to be of those of its time (``simulator/facts/releases.yaml`` and
``framework_names.yaml``).
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping

from simulator.described.plan.releases import known_releases, nearest_release
from simulator.described.plan.shipped_stacks import libraries_of_stack
from simulator.facts import shipped_facts

_NAMES = "framework_names"
_MONTHS = "|".join(name.lower()[:3] for name in calendar.month_name[1:])
_MONTH = re.compile(rf"\b({_MONTHS})[a-z]*\.?,? (?:of )?(20\d\d)(?!\d)")
_YEAR = re.compile(r"(?<![\d.])(20\d\d)(?![\d.])")
_MIDDLE_OF_YEAR = "06"
"""Month of a run that names its year alone (assumption)."""


def named_release(library: str, said: str) -> str | None:
    """The release that a table names, as far as releases are told apart.

    Args:
        library: The framework or library.
        said: Framework and version in small letters.
    """
    words = shipped_facts(_NAMES)["releases"].get(library)
    named = re.search(words, said) if words else None
    return nearest_release(library, named.group(1)) if named else None


def releases_of_their_time(base: str, framework: str, version: str) -> dict[str, str]:
    """Releases that a run names, or those of its time where its stack follows them, by library.

    Args:
        base: The stack that stands for its framework.
        framework: What the table calls the framework.
        version: What it says of its version.
    """
    said = f"{framework} {version}".lower()
    follows = base in ("torchtitan", *shipped_facts(_NAMES)["around_torch"])
    known = ("torch", base, *({"transformer_engine"} & libraries_of_stack(base)))
    found = {library: named_release(library, said) for library in dict.fromkeys(known)}
    unsaid = _unsaid_releases(said) if follows else {}
    releases = {library: release or unsaid.get(library) for library, release in found.items()}
    if "transformers" in libraries_of_stack(base):
        releases["transformers"] = transformers_of_their_time(said)
    return {library: release for library, release in releases.items() if release}


def _unsaid_releases(said: str) -> dict[str, str]:
    """Releases of a run that names none: usual ones, or the newest of its month."""
    usual: Mapping[str, str] = shipped_facts(_NAMES)["unsaid_releases"]
    if (month := _stated_month(said)) is None:
        return dict(usual)
    return {library: _newest(library, month) for library in usual}


def _newest(library: str, month: str) -> str:
    """The newest release of a month, or the oldest that is known."""
    earlier = [release for release, of_release in _months(library).items() if of_release <= month]
    return earlier[-1] if earlier else known_releases(library)[0]


def transformers_of_their_time(said: str) -> str:
    """The release of transformers that a run names, or the newest of its month.

    Args:
        said: Framework and version in small letters.
    """
    return named_release("transformers", said) or _newest("transformers", _month_of(said))


def _month_of(said: str) -> str:
    """Year and month of a run: as it says, or those of what it is built on."""
    if stated := _stated_month(said):
        return stated
    named = [(library, named_release(library, said)) for library in ("torch", "deepspeed")]
    unsaid = ("torch", shipped_facts(_NAMES)["unsaid_releases"]["torch"])
    library, release = next((pair for pair in named if pair[1]), unsaid)
    assert release is not None
    return _months(library)[nearest_release(library, release, _months(library))]


def _stated_month(said: str) -> str | None:
    """Year and month that a run names."""
    if stated := _MONTH.search(said):
        number = _MONTHS.split("|").index(stated.group(1)) + 1
        return f"{stated.group(2)}-{number:02}"
    if year := _YEAR.search(said):
        is_late = re.search(rf"\b(?:end of|late) {year.group(1)}", said)
        return f"{year.group(1)}-{12 if is_late else _MIDDLE_OF_YEAR}"
    return None


def _months(library: str) -> Mapping[str, str]:
    """Year and month by release, the oldest first."""
    months: Mapping[str, str] = shipped_facts("releases")[library]["months"]
    return months
