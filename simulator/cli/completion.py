"""What may a shell complete: jobs, fields of a job and their values?

A shell asks at every press of the tab key, so nothing here loads more than the specifications.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

_ASKS = "_CLUSTERSIM_COMPLETE"
"""Variable that typer's scripts set where a shell asks; its value names the shell."""
_FIELD = "_CLUSTERSIM_FIELD"
"""Variable of this process: the field whose value is completed, where the shell parted them."""


Completer = Callable[[str], list[str]]
"""What may stand where a person has typed the beginning of it."""


def _names(module: str, names: str) -> Completer:
    """Completes names that a function of a module gives, or that are keys of a mapping there."""

    def complete(incomplete: str) -> list[str]:
        found = getattr(import_module(f"simulator.{module}"), names)
        known = found() if callable(found) else found
        return [name for name in known if name.startswith(incomplete)]

    return complete


complete_profile = _names("described.load", "profile_names")
complete_model = _names("described.load", "model_names")
complete_schedule = _names("schedule", "SCHEDULES")


def _files(*folders: str) -> Completer:
    """Completes shipped names of a folder of workloads, and files."""

    def complete(incomplete: str) -> list[str]:
        return _complete_file(incomplete, *folders)

    return complete


complete_job, complete_serving, complete_offers = _files(), _files("serving"), _files("offers")
complete_rl = _files("rl")


def _complete_file(incomplete: str, *folders: str) -> list[str]:
    from simulator.described.documents import data_folder, names_in

    names = names_in(data_folder("workloads").joinpath(*folders))
    shipped = [name for name in names if name.startswith(incomplete)]
    folder, begun = Path(incomplete).parent, incomplete.rpartition("/")[2]
    prefix = incomplete.removesuffix(begun)
    files = (
        f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
        for path in (Path(incomplete) if prefix == incomplete and prefix else folder).glob("*")
        if path.name.startswith(begun) and (path.is_dir() or path.suffix in {".yaml", ".json"})
    )
    return [*shipped, *sorted(file for file in files if not file.startswith("."))]


def complete_change(incomplete: str) -> list[str]:
    """Fields that start with what is typed so far, or after ``=`` the values of that field."""
    from simulator.described.job import Job

    paths = _values_by_path(Job)
    if parted := os.environ.get(_FIELD):
        return [value for value in map(str, paths.get(parted, ())) if value.startswith(incomplete)]
    field, equals, begun = incomplete.partition("=")
    if equals:
        values = map(str, paths.get(field, ()))
        return [f"{field}={value}" for value in values if value.startswith(begun)]
    found = [path for path in paths if path.startswith(incomplete)]
    depth = incomplete.count(".")
    blocks = dict.fromkeys(".".join(path.split(".")[: depth + 1]) for path in found)
    return [block if block not in paths else f"{block}=" for block in blocks]


def prepare_completion(environment: MutableMapping[str, str]) -> list[str]:
    """The command whose words a shell wants completed, or nothing where none asks.

    bash takes ``plan.tp=4`` for three words, because ``=`` parts words, and completes the last of
    them alone. Those before are joined again; the field of the last is kept in a variable.
    """
    shell = environment.get(_ASKS, "")
    if not shell.startswith("complete_"):
        return []
    if shell == "complete_bash":
        words = environment.get("COMP_WORDS", "").split()
        index = int(environment.get("COMP_CWORD", "0"))
        words, index = joined_assignments(words, index)
        if index < len(words) and not words[index].startswith("-"):
            field, equals, begun = words[index].partition("=")
            if equals:
                environment[_FIELD], words[index] = field, begun
        environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(words), str(index)
    else:
        words = environment.get("_TYPER_COMPLETE_ARGS", "").split()
    return words[1:2]


def joined_assignments(words: list[str], index: int) -> tuple[list[str], int]:
    """Words of a line with ``FIELD = VALUE`` in one, and the place of the word at ``index``."""
    joined: list[str] = []
    for number, word in enumerate(words):
        follows = bool(joined) and (word == "=" or (number > 0 and words[number - 1] == "="))
        if follows and number >= 2:
            joined[-1] += word
        else:
            joined.append(word)
        if number == index:
            place = len(joined) - 1
    return joined, place if index < len(words) else len(joined)


def _values_by_path(block: type[Any], prefix: str = "") -> dict[str, tuple[object, ...]]:
    """Possible values of every field by its path; none where they cannot be counted."""
    from pydantic import BaseModel

    found: dict[str, tuple[object, ...]] = {}
    for name, field in block.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        named = _NAMED.get(path)
        inner = [
            each
            for each in _types(field.annotation)
            if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        if named is not None:
            found[path] = tuple(named())
        elif not inner:
            found[path] = tuple(_values(field.annotation))
        if inner and path not in _ONLY_NAMED:
            # What overrides the profile of a cluster stands beside its name.
            beside = "cluster." if path == "cluster.profile" else f"{path}."
            found = _values_by_path(inner[0], beside) | found
    return found


def _types(annotation: Any) -> Iterator[Any]:
    """The types of ``Annotated[X | Y, ...]``."""
    if get_origin(annotation) in {Literal, tuple, dict, Mapping} or not get_args(annotation):
        yield annotation
        return
    for each in get_args(annotation):
        if get_origin(each) is not None or isinstance(each, type):
            yield from _types(each)


def _values(annotation: Any) -> Iterator[object]:
    for each in _types(annotation):
        if get_origin(each) is Literal:
            yield from get_args(each)
        elif each is bool:
            yield from ("true", "false")


def _models() -> list[str]:
    from simulator.described.load import model_names

    return model_names()


def _profiles() -> list[str]:
    from simulator.described.load import profile_names

    return profile_names()


def _schedules() -> list[str]:
    from simulator.schedule import SCHEDULES

    return list(SCHEDULES)


def _stacks() -> list[str]:
    from simulator.described.plan.shipped_stacks import STACKS

    return list(STACKS)


_NAMED = {
    "model": _models,
    "cluster.profile": _profiles,
    "plan.schedule": _schedules,
    "plan.stack": _stacks,
}
"""Fields whose values are names."""
_ONLY_NAMED = {"plan.stack"}
"""Fields of a block that are too many to be completed."""
