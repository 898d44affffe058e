"""How are YAML documents read, looked up by name, changed, merged and validated?

Nothing here knows what a job is; :mod:`simulator.described.load` does. A document may come
from anyone, so reading refuses whatever is larger, deeper or stranger than a
configuration ever is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

try:  # the C library reads several times as fast; not every build of PyYAML has it
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

import simulator
from simulator.described.faults import faults_of, nearest_hint, without_consequences
from simulator.errors import STANDARD_INPUT, Fault, InputError
from simulator.files import MOST_DIGITS, is_there, read_text

_SpecT = TypeVar("_SpecT", bound=BaseModel)
_NAMED_BLOCKS = ("model", "stack")
"""Blocks that a name can stand for."""

_REFUSED_BY_PYTHON = ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError
"""What PyYAML's constructors let through where a tag belies its value (``!!bool 3``)."""
_NAMES_FILE = frozenset({"model", "base", "profile", "schedule", "file", "trace", "job"})
"""Fields whose text may be the path of a file."""
_NAMED_ENDINGS = (".yaml", ".yml", ".json", ".jsonl", ".csv", ".gz", ".txt")
"""Endings of documents and tables, which a file may name wherever they lie."""
_MAX_DEPTH = 50
_MAX_VALUES = 50_000


def data_folder(name: str) -> Path:
    """Folder of shipped data (``hardware_profiles`` or ``workloads``).

    In an installed package it lies inside the package, in a checkout beside it.
    """
    package = Path(simulator.__file__).parent
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def name_in_errors(file: str) -> str:
    """A file as people named it: one that is shipped by its name, without the package's folder."""
    path = Path(file)
    workloads = data_folder("workloads")
    folders = workloads, workloads / "serving", workloads / "rl"
    return path.stem if path.parent in folders else file


def names_in(folder: Path) -> list[str]:
    """Names of the YAML files in a folder, sorted."""
    return sorted(n.removesuffix(".yaml") for n in os.listdir(folder) if n.endswith(".yaml"))


class _StrictLoader(SafeLoader):
    """Safe YAML that refuses duplicate keys instead of silently taking the last.

    Merge keys are refused too: chains of them grow without bound while they are read. What YAML
    1.1 alone takes for a number stays text: to it ``1:8`` is 68 and ``010`` is 8.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _REFUSED_BY_PYTHON as error:
            kind = node.tag.rpartition(":")[2]
            text = repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
            said = f": {error}" if type(error) is ValueError else f" is not valid as {kind}"
            raise _malformed(f"{text:.60}{said}", node) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise _malformed("merge keys (<<) are not supported; write the fields", key_node)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _malformed(f"the key {key!r} is not text; put it in quotes", key_node)
            if key in seen:
                raise _malformed(f"the key {key!r} appears twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        text = node.value.lstrip("+-")
        if len(text) > MOST_DIGITS:
            raise _malformed(f"a number of {len(text)} digits", node)
        if ":" in text or (text[:1] == "0" and text[1:2].isdigit() and "." not in text):
            return self.construct_scalar(node)
        is_whole = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_number)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _StrictLoader.construct_number)


def _malformed(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def read_yaml(path: Path, wanted: str = "") -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Args:
        path: The file.
        wanted: What kind of file would do, as the way out of an error.

    Raises:
        InputError: The file is missing, too large, not YAML, or not a mapping.
    """
    return yaml_mapping(read_text(path, wanted), str(path))


def read_naming_yaml(path: Path, wanted: str, replaced: Collection[str] = ()) -> dict[str, Any]:
    """The same of a file from anybody, in which fields name other files.

    Errors repeat what the named files hold. A name therefore leads to a document or a table, by
    its ending, or to a file of the project that holds this one, or of the folder where the command
    runs. Names that a user gives in their place may lead anywhere.

    Args:
        path: The file.
        wanted: What kind of file would do, as the way out of an error.
        replaced: Fields of which the user has given other values.

    Raises:
        InputError: As :func:`read_yaml`, or a name leads elsewhere.
    """
    document = read_yaml(path, wanted)
    here = _real_path(path).parent
    project = next((each for each in (here, *here.parents) if os.path.exists(each / ".git")), here)
    rule = f"names a file outside the project that does not end in {', '.join(_NAMED_ENDINGS)}"
    hint = "move it there, or name it with --set"
    faults = [
        Fault(field, rule, name, hint, file=str(path))
        for field, name in _file_names(document)
        if not any(f"{field}.".startswith(f"{each}.") for each in replaced)
        and not _may_be_read(_real_path(here / name), (project, Path.cwd()))
    ]
    if faults:
        raise InputError(faults)
    return document


def _may_be_read(file: Path, folders: Iterable[Path]) -> bool:
    return (
        file.suffix in _NAMED_ENDINGS
        or os.path.isdir(file)
        or any(file.is_relative_to(folder) for folder in folders)
    )


def _real_path(path: Path) -> Path:
    """Where a path leads; one that no file can have leads nowhere, and is refused when read."""
    return Path(os.path.realpath(str(path).replace("\0", "")))


def _file_names(node: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Names of files, or of what is shipped, by their field."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _file_names(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _file_names(value, f"{path}.{number}")
    elif isinstance(node, str) and path.rpartition(".")[2] in _NAMES_FILE:
        yield path, node


def moved(node: Any, here: Path, there: Path, field: str = "") -> Any:
    """A document for another folder: the files that it names are named from there.

    Args:
        node: The document, or a value of it.
        here: Folder that its relative paths start from.
        there: Folder that they start from afterwards.
        field: Name of the field that holds the value.
    """
    if isinstance(node, Mapping):
        return {key: moved(value, here, there, str(key)) for key, value in node.items()}
    if isinstance(node, list):
        return [moved(each, here, there) for each in node]
    if not isinstance(node, str) or field not in _NAMES_FILE or Path(node).is_absolute():
        return node
    is_path = node.endswith(_NAMED_ENDINGS) or os.sep in node
    return os.path.relpath(here / node, there) if is_path and (here / node).exists() else node


def yaml_mapping(text: str, file: str = "") -> dict[str, Any]:
    """The mapping that a YAML text stands for.

    Args:
        text: One document.
        file: Where it was read, for error messages.

    Raises:
        InputError: It is not YAML, too large, or not a mapping.
    """
    document = parse_yaml(text, file)
    if document is None:
        raise InputError.single("", "is empty; it must be a mapping of fields", file=file)
    if not isinstance(document, dict):
        raise InputError.single("", "must be a mapping of fields", document, file=file)
    return document


def parse_yaml(text: str, file: str = "") -> Any:
    """The value that a YAML text stands for.

    Args:
        text: One document.
        file: Where it was read, for error messages.

    Raises:
        InputError: It is not YAML, or larger or deeper than a configuration ever is.
    """
    try:
        _check_depth(text, file)
        value = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        hint = _layout_hint(error) if "\n" in text else ""
        raise InputError.single("", _problem(error), hint=hint, file=file) from error
    except _REFUSED_BY_PYTHON as error:  # a date or number that YAML recognises
        raise InputError.single("", f"is not valid YAML: {error}", file=file) from error
    except RecursionError as error:
        raise InputError.single("", "is nested too deeply", file=file) from error
    _check_extent(value, file)
    return value


def _problem(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "malformed"
    if "nesting depth" in problem:  # libyaml stops at 1,000 levels since PyYAML 6.0.4
        return "is nested too deeply"
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return f"is not valid YAML: {problem}{where}"


def _layout_hint(error: yaml.YAMLError) -> str:
    """Where to look for what breaks the syntax; empty for other faults."""
    is_syntax = isinstance(error, (yaml.scanner.ScannerError, yaml.parser.ParserError))
    mark = getattr(error, "problem_mark", None)
    if not is_syntax or mark is None:
        return ""
    lines = f"lines {mark.line} and {mark.line + 1}" if mark.line else "line 1"
    return (
        f"look at the indentation of {lines}: fields of one block begin in the same column, after "
        "spaces and no tabs, and a blank follows each colon"
    )


def _check_depth(text: str, file: str) -> None:
    """Refuse what would overflow the stack of a reader that calls itself for every level."""
    depth = 0
    for event in yaml.parse(text, Loader=SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise InputError.single("", "is nested too deeply", file=file)


def _check_extent(document: object, file: str) -> None:
    """Refuse values that aliases blow up: they take few bytes and expand to gigabytes."""
    pending = [(document, 0)]
    visited = 0
    while pending:
        value, depth = pending.pop()
        visited += 1
        if depth > _MAX_DEPTH:
            raise InputError.single("", "is nested too deeply", file=file)
        if visited > _MAX_VALUES:
            rule = f"expands to more than {_MAX_VALUES} values"
            raise InputError.single("", rule, hint="write fewer aliases", file=file)
        if isinstance(value, Mapping):
            pending += [(child, depth + 1) for child in value.values()]
        elif isinstance(value, (list, tuple, set)):
            pending += [(child, depth + 1) for child in value]


def given_or_shipped_file(kind: str, path: Path, *folders: str) -> Path:
    """The file itself where there is one, else the shipped one of that name.

    Args:
        kind: What such a file describes, for error messages.
        path: As the user gave it.
        folders: Of the shipped files, inside ``workloads``.
    """
    shipped = data_folder("workloads").joinpath(*folders)
    if is_there(path) or str(path) == STANDARD_INPUT:
        return path
    if path.suffix == ".yaml" and path.stem in names_in(shipped):
        hint = f"the shipped {kind} is called {path.stem}, without folder and suffix"
        raise InputError.single("", "no such file", hint=hint, file=str(path))
    if len(path.parts) > 1:
        return path
    return named_file(kind, str(path), shipped, Path())


def named_file(field: str, name: str, shipped: Path, folder: Path, wanted: str = "") -> Path:
    """A shipped file by its name, or any file by its path.

    Args:
        field: Path of the field that holds the name, for error messages.
        name: A shipped name, or a path (relative to ``folder``) that ends in .yaml.
        shipped: Folder of the shipped files.
        folder: Folder that relative paths start from.
        wanted: The way out where no shipped name resembles it; by default their list.

    Raises:
        InputError: The name is none of the shipped ones, and no path to a YAML file.
    """
    if name.endswith((".yaml", ".yml")):
        return folder / name
    names = names_in(shipped)
    if name not in names:
        rule = "there is no such name, and no such .yaml file"
        raise InputError.single(field, rule, name, nearest_hint(name, names, wanted))
    return shipped / f"{name}.yaml"


def is_number_with_source(node: Mapping[str, Any]) -> bool:
    """Whether the node is ``{value: ..., source: ...}`` instead of a plain value."""
    return "value" in node and set(node) <= {"value", "source"}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, mapping by mapping."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def with_changes(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The document with values set by dotted path; the given one is left as it is.

    A name that stands for a whole block (``model: llama3.1-8b``) becomes the ``base`` of
    that block when one of its fields is changed.

    Raises:
        InputError: A path runs through a value that is no block.
    """
    result = dict(document)
    for path, value in changes.items():
        keys = path.split(".")
        if not all(keys):
            raise InputError.single(path, "is not a field path", value, "for example plan.tp")
        if len(keys) > _MAX_DEPTH:
            raise InputError.single(path[:60], "is nested too deeply", value)
        result = _with_change(result, keys, value, path)
    return result


def _with_change(node: object, keys: Sequence[str], value: object, path: str) -> dict[str, Any]:
    here, (key, *rest) = path.split(".")[: -len(keys)], keys
    if here and here[-1] in _NAMED_BLOCKS and isinstance(node, str):
        node = {"base": node}
    if not isinstance(node, Mapping | None):
        rule = f"{'.'.join(here)} is a value, not a block of fields"
        raise InputError.single(path, rule, value)
    block = dict(node or {})
    block[key] = _with_change(block.get(key), rest, value, path) if rest else value
    return block


def validated(
    spec: type[_SpecT],
    document: object,
    path: str = "",
    *,
    file: str = "",
    siblings: Sequence[str] = (),
) -> _SpecT:
    """The specification of a document.

    Args:
        spec: What the document should be.
        document: The parsed document, or a part of one.
        path: Where the part lies in what the user wrote, for error messages.
        file: Where it was read, for error messages.
        siblings: Names that are right beside the fields of ``spec``.

    Raises:
        InputError: With one fault per wrong field, misspelt names with the nearest right one.
    """
    try:
        # Files have one spelling per field; Python names would slip past an override.
        return spec.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        faults = without_consequences(faults_of(error, spec, path, siblings))
        raise InputError([replace(fault, file=file) for fault in faults]) from error
