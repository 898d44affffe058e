"""Which facts of a framework hold in the releases that a plan names?

``stack: megatron-core@0.14`` names the framework's own release, ``libraries`` those of what it is
built on. A fact that changed between releases says since or before which it holds
(``simulator/facts/stacks``); known releases stand in ``simulator/facts/releases.yaml``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator

from simulator.facts import shipped_facts

_FILE = "releases"
_LIBRARIES = ("transformer_engine", "torch", "transformers", "nccl")
"""What a plan may name the release of, besides its framework."""


def known_releases(library: str) -> Sequence[str]:
    """Releases of a framework or library, the oldest first; none where none are told apart."""
    return tuple(shipped_facts(_FILE).get(library, {}).get("releases", ()))


def nearest_release(library: str, release: str, among: Iterable[str] = ()) -> str:
    """The last known release that is no later than one of two numbers, or else the first.

    Args:
        library: The framework or library.
        release: Its release.
        among: Releases, the oldest first; by default all that are known.
    """
    known = tuple(among) or known_releases(library)
    earlier = [each for each in known if _number(each) <= _number(release)]
    return earlier[-1] if earlier else known[0]


def split_release(name: str) -> tuple[str, str | None]:
    """A framework and its release, of ``framework@release``.

    Raises:
        ValueError: The framework has no such release, or none are told apart.
    """
    framework, at, release = name.partition("@")
    return framework, _known(framework, release) if at else None


def libraries_by_name(given: object) -> Mapping[str, str]:
    """Releases of libraries, as they are known.

    Raises:
        ValueError: It is no block of them, or one is not known.
    """
    if not isinstance(given, Mapping):
        raise ValueError('must be releases by library, such as {transformer_engine: "2.11"}')
    if unknown := sorted(set(given) - set(_LIBRARIES)):
        raise ValueError(f"knows no library {unknown[0]}; known: {', '.join(_LIBRARIES)}")
    return {library: _known(library, release) for library, release in given.items()}


Libraries = Annotated[Mapping[str, str], BeforeValidator(libraries_by_name)]
"""Releases by library."""


def groups_in_effect(
    groups: Sequence[Mapping[str, Any]], releases: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """The groups of facts that hold.

    Args:
        groups: Each with the ``library`` that it follows, if any; one that is ``only_named`` asks
            for a release that was named, as a stack may stand for more than one trainer.
        releases: What was named; others are the newest.
    """
    return [group for group in groups if _holds(group, releases.get(group.get("library", "")))]


def _holds(group: Mapping[str, Any], release: str | None) -> bool:
    if release is None:
        return "before" not in group and "only_named" not in group
    number = _number(release)
    is_late = "since" not in group or number >= _number(group["since"])
    return is_late and ("before" not in group or number < _number(group["before"]))


def _known(library: str, given: object) -> str:
    """The release as the table has it: of three numbers, the first two decide."""
    known = known_releases(library)
    if not known:
        raise ValueError(f"releases of {library} are not told apart; leave @{given} out")
    text = str(given)
    release = ".".join(text.split(".")[:2])
    # YAML reads 2.10 as the number 2.1.
    if isinstance(given, float) and f"{release}0" in known:
        raise ValueError(f'may be {release} or {release}0; quote it, as in {library}: "{release}"')
    if release not in known and _is_newer(release, known[-1]):
        way = f"which holds where none is named: leave {text} out"
        raise ValueError(f"knows no release of {library} after {known[-1]}, {way}")
    if release not in known:
        raise ValueError(f"knows no release {text} of {library}; known: {', '.join(known)}")
    return release


def _is_newer(release: str, known: str) -> bool:
    return release.replace(".", "").isdigit() and _number(release) > _number(known)


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))
