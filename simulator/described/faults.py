"""How does a failed validation become faults that a user can mend?

Field paths are spelled as in files, and a misspelt name comes with the nearest right one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simulator.described.other_names import other_name_hint, value_hint
from simulator.errors import Fault

_BLOCK, _LIST = "must be a block of fields", "must be a list"
_SHAPES = {
    "model_type": _BLOCK,
    "model_attributes_type": _BLOCK,
    "dict_type": _BLOCK,
    "mapping_type": _BLOCK,
    "tuple_type": _LIST,
    "list_type": _LIST,
}
_BOUNDS = {
    "ge": "use {} or more",
    "gt": "use more than {}",
    "le": "use {} or less",
    "lt": "use less than {}",
}
_TYPES = {
    "int": "write a whole number",
    "float": "write a number",
    "finite": "write a finite number",
    "bool": "write true or false",
    "string": "write it as text, in quotes if it looks like a number",
}
_NAMED = "write NAME: {...} for each in place of a list"
NO_SUCH_FIELD = "no such field"
"""Rule that a misspelt name breaks."""

_MISSING = "is missing"
_BLOCKS_OF_A_JOB = {
    "model": "model: llama3.1-8b",
    "cluster": "cluster: {profile: h100-sxm-80gb, gpus: 8}",
    "batch": "batch: {global: 64, seq_len: 4096}",
}
"""What those look like that every job has."""
_MANY = 24
"""More names than this are not listed in a hint."""
_MEANT = 3
"""Names that resemble a wrong one; two more are listed where it is how they begin."""


def nearest_hint(word: str, known: Collection[str], otherwise: str = "") -> str:
    """What a user probably meant, or else which names there are; empty if there are none.

    ``otherwise`` is said in place of the list of names.
    """
    parts = [name for name in known if len(word) > 1 and word.lower() in name.lower()]
    begun = [name for name in parts if name.lower().startswith(word.lower())]
    longer = [name for name in known if word.lower().startswith(f"{name.lower()}-")]
    close = begun or longer or _alike(word, known, 0.75) or parts or _alike(word, known, 0.6)
    if close:
        most = _MEANT + 2 if begun else _MEANT
        return f"did you mean {' or '.join(map(repr, close[:most]))}?"
    if otherwise:
        return otherwise
    names = list(known)
    more = ", ..." if len(names) > _MANY else ""
    return f"known: {', '.join(names[:_MANY])}{more}" if names else ""


def _alike(word: str, known: Collection[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(word.lower(), known, n=3, cutoff=cutoff)


def faults_of(
    error: ValidationError, spec: type[BaseModel], prefix: str = "", siblings: Sequence[str] = ()
) -> Iterator[Fault]:
    """One fault per wrong field of a document that is no ``spec``.

    Args:
        error: What pydantic found.
        spec: The specification that the document should have been.
        prefix: Path of the document inside what the user wrote.
        siblings: Names that are right beside the top-level fields of ``spec``.
    """
    for detail in error.errors(include_url=False):
        location = [str(part) for part in detail["loc"] if part != "[key]"]
        path = ".".join(part for part in [prefix, *location] if part)
        names = _names_beside(spec, location)
        fault = _fault(detail, path, [*siblings, *names] if len(location) == 1 else names)
        if detail["type"] == "extra_forbidden":
            deeper = _paths_one_level_down(spec, location)
            meant = f"did you mean {' or '.join(deeper)}?" if deeper else ""
            meant = meant or _job_hint(spec, path, detail["input"])
            fault = replace(fault, hint=meant or fault.hint)
        elif fault.rule == _BLOCK:
            block = _block_at(spec, location)
            inside = list(_field_types(block)) if _is_spec(block) else []
            is_list = isinstance(detail["input"], list) and not inside
            hint = _mean_of(detail["input"], inside) or nearest_hint("", inside)
            fault = replace(fault, hint=_NAMED if is_list else hint)
        written = value_hint(path, detail["input"])
        yield replace(fault, hint=written) if written and written not in fault.rule else fault


def _mean_of(value: object, inside: Collection[str]) -> str:
    """How a number is written that stands for a distribution; empty elsewhere."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"write {{mean: {value}}}" if is_number and "mean" in inside else ""


def without_consequences(faults: Iterable[Fault]) -> list[Fault]:
    """Faults without fields that are missing because another fault has a wrong name for them."""
    found = list(faults)
    hints = "\n".join(fault.hint for fault in found if fault.rule != _MISSING)
    return [fault for fault in found if fault.rule != _MISSING or not _names(hints, fault.path)]


def _names(text: str, path: str) -> bool:
    return bool(re.search(rf"(?<![\w.]){re.escape(path)}(?![\w.])", text))


_BLOCKS = (["plan"], ["plan", "stack"], ["batch"], ["cluster"])
"""Blocks of a job whose fields other frameworks have, too; all of a model's are."""


def _job_hint(spec: type[BaseModel], path: str, value: object) -> str:
    """What a field of a job or a model is called that other frameworks call so; empty elsewhere."""
    *blocks, word = path.split(".")
    in_job = blocks in _BLOCKS if blocks else "plan" in spec.model_fields
    in_model = "kv_heads" in spec.model_fields
    return other_name_hint(word, value) if in_job or in_model else ""


def _fault(detail: ErrorDetails, path: str, names_beside: Sequence[str]) -> Fault:
    value, kind = detail["input"], detail["type"]
    if kind == "missing":
        example = _BLOCKS_OF_A_JOB.get(path)
        return Fault(path, _MISSING, hint=f"add it, such as {example}" if example else "add it")
    if kind == "extra_forbidden":
        word = path.rpartition(".")[2]
        return Fault(path, NO_SUCH_FIELD, value, nearest_hint(word, names_beside))
    if kind == "value_error":
        return Fault(path, str(detail["ctx"]["error"]), _plain(value))
    if kind == "literal_error":
        return Fault(path, _lower_first(detail["msg"]), value, _literal_hint(detail))
    if kind in _SHAPES:
        return Fault(path, _SHAPES[kind], value)
    return Fault(path, _lower_first(detail["msg"]), _plain(value), _way_out(detail))


def _way_out(detail: ErrorDetails) -> str:
    """What to write where a value is out of bounds or of another type."""
    kind, value = detail["type"], str(detail["input"])
    if kind.startswith("greater_than") and value.lstrip().startswith("-"):
        return "leave out the minus sign"
    bounds = detail.get("ctx", {})
    for name, text in _BOUNDS.items():
        if name in bounds:
            return text.format(_plain_number(bounds[name]))
    wanted = kind.partition("_")[0]
    return (
        _whole_number_hint(value) or _TYPES[wanted] if wanted == "int" else _TYPES.get(wanted, "")
    )


def _whole_number_hint(text: str) -> str:
    """How a short form such as 4k or 1e6, or a quoted number, is written; empty for others."""
    if re.fullmatch(r"[0-9]+", text):
        return f"write {text}, without quotes"
    found = re.fullmatch(r"([0-9]{1,9})(?:([kKM])|[eE]([0-9]|1[0-5]))", text.strip())
    if not found:
        return ""
    number, letter, exponent = int(found[1]), found[2], found[3]
    if letter in ("k", "K"):
        return f"write all digits: {1024 * number} or {1000 * number}"
    return f"write all digits: {number * 10 ** (6 if letter else int(exponent))}"


def _plain_number(bound: float) -> str:
    """A bound with all of its digits."""
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _literal_hint(detail: ErrorDetails) -> str:
    known = re.findall(r"'([^']+)'", detail["ctx"]["expected"])
    hint = nearest_hint(str(detail["input"]), known)
    return hint if hint.startswith("did") else ""


def _names_beside(spec: type[BaseModel], location: Sequence[str]) -> list[str]:
    """Names that may stand where the last part of ``location`` stands, as files spell them."""
    block = _block_at(spec, location[:-1])
    return list(_field_types(block)) if _is_spec(block) else []


def _paths_one_level_down(spec: type[BaseModel], location: Sequence[str]) -> list[str]:
    """Paths of fields of that name in the blocks that stand beside it."""
    *parents, word = location or [""]
    block = _block_at(spec, parents)
    beside = _field_types(block) if _is_spec(block) else {}
    return [
        ".".join([*parents, name, word])
        for name, inner in beside.items()
        if _is_spec(inner) and word in _field_types(inner)
    ]


def _block_at(spec: Any, location: Sequence[str]) -> Any:
    for part in location:
        spec = _inside(spec, part)
    return spec


def _field_types(block: type[BaseModel]) -> dict[str, Any]:
    fields = block.model_fields.items()
    return {f.alias or n: _core(f.annotation) for n, f in fields if not f.exclude}


def _inside(block: Any, part: str) -> Any:
    if _is_spec(block):
        fields = block.model_fields.items()
        return next((_core(f.annotation) for n, f in fields if part in (n, f.alias)), None)
    if isinstance(get_origin(block), type) and issubclass(get_origin(block), Mapping):
        return _core(get_args(block)[1])
    if get_origin(block) is tuple:
        return _core(get_args(block)[0])
    return None


def _core(annotation: Any) -> Any:
    """The one type of ``X | None`` or ``Annotated[X, ...]`` that may have fields."""
    if get_origin(annotation) is Annotated:
        return _core(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return next(_core(a) for a in get_args(annotation) if a is not type(None))
    return annotation


def _is_spec(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def _plain(value: object) -> object:
    return value if isinstance(value, (str, int, float, bool, list)) else None


def _lower_first(text: str) -> str:
    text = text.removeprefix("Input ")
    return text[:1].lower() + text[1:]
