"""Where does a person get who does what the errors of an importer say, and nothing else?

Every way out names an option; a value that only the user knows is taken from what such files
usually have (8 GPUs, the smallest number that the error names, a llama).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from simulator.errors import Fault, InputError
from simulator.importers.assembly import Given
from simulator.importers.formats import Format
from simulator.importers.interpolation import typed

MOST_ROUNDS = 5
"""Errors that a person would bear."""
_USUAL: Mapping[str, int] = {
    "--gpus": 8, "--seq-len": 2048, "--micro-batch": 1, "--global-batch": 0,
}  # fmt: skip
_SECOND_FILE = Path(__file__).parents[3] / "tests/importers/files/ds_config.json"
_MODEL, _EXPERTS = "llama3.1-8b", "qwen3-30b-a3b"
_DEFINED = (
    (r"(?i).*vocab.*", "32000"), (r"(?i).*seq.*|.*length.*", "2048"), (r"(?i).*hidden.*", "4096"),
    (r"(?i).*layers?", "32"), (r"(?i).*heads?", "32"), (r"(?i).*(gbs|global_batch).*", "512"),
)  # fmt: skip
_FIELDS = {"gpus": "gpus", "seq-len": "seq_len", "micro-batch": "micro_batch",
           "global-batch": "global_batch"}  # fmt: skip

Help = Literal["bare", "options", "ignored", "refused"]


@dataclass(frozen=True)
class Outcome:
    """How far a file came.

    Attributes:
        help: What it took: nothing, options, settings left out, or it is refused.
        reason: Why it is refused, or empty.
        rounds: Errors that were followed.
        is_circular: Whether a way out led to the same error again.
        ignored: Settings that were left out.
    """

    help: Help
    reason: str = ""
    rounds: int = 0
    is_circular: bool = False
    ignored: tuple[str, ...] = ()


def outcome_of(form: Format, paths: Sequence[Path]) -> Outcome:
    """What becomes of settings files whose user follows every hint.

    Args:
        form: Their format.
        paths: The files.
    """
    given, seen = Given(), set[tuple[str, str, str]]()
    for number in range(MOST_ROUNDS + 1):
        try:
            form.read(paths, given)
        except InputError as error:
            faults = error.faults
        else:
            return Outcome(_help(given), rounds=number, ignored=given.ignore)
        known = [fault for fault in faults if _key(fault) in seen]
        final = [fault for fault in known if not fault.hint]
        if known or number == MOST_ROUNDS:
            # What has no way out is the reason, whatever else stands in its shadow.
            reason = (final or known or faults)[0]
            return Outcome("refused", str(reason), number, bool(known) and not final)
        seen |= {_key(fault) for fault in faults}
        changed = given
        for fault in faults:
            changed = _followed(changed, fault)
            if "as a second file" in fault.hint and len(paths) == 1:
                paths = [*paths, _SECOND_FILE]
        if changed == given and paths[-1] != _SECOND_FILE:
            return Outcome("refused", str(faults[0]), number)
        given = changed
    raise AssertionError("every round ends")


def _key(fault: Fault) -> tuple[str, str, str]:
    return fault.path, fault.rule, fault.hint


def _help(given: Given) -> Help:
    if given.ignore:
        return "ignored"
    return "bare" if given == Given() else "options"


def _followed(given: Given, fault: Fault) -> Given:
    """What the user says once he has read a fault."""
    hint = fault.hint
    for name, field in _FIELDS.items():
        if found := re.search(rf"--{name} (\d+|N)", hint):
            said = int(found[1]) if found[1] != "N" else _usual(f"--{name}", given)
            changed: dict[str, Any] = {field: said}
            given = replace(given, **changed)
    if "--model" in hint:
        given = replace(given, model=_MODEL)
    if "model with experts" in fault.rule:
        # Llama was the wrong one.
        return replace(given, model=_EXPERTS)
    if "more --gpus" in hint:
        given = replace(given, gpus=4 * (given.gpus or _USUAL["--gpus"]))
    for name in re.findall(r"--define ([\w.]+)=", hint):
        given = replace(given, definitions={**given.definitions, name: _definition(name)})
    for path, value in re.findall(r"--set ([\w.]+)=([\w.-]+)(?!\.\.)", hint):
        if value != "...":
            given = replace(given, changes={**given.changes, path: typed(value)})
    for path, block in re.findall(r"--set '([\w.]+)=(\{.*?\})'", hint):
        given = replace(given, changes={**given.changes, path: yaml.safe_load(block)})
    names = tuple(re.findall(r"--ignore (\S+)", hint))
    return replace(given, ignore=(*given.ignore, *(n for n in names if n not in given.ignore)))


def _usual(option: str, given: Given) -> int:
    if option == "--global-batch":
        return (given.gpus or 8) * 8
    return _USUAL[option]


def _definition(name: str) -> str:
    return next((value for pattern, value in _DEFINED if re.fullmatch(pattern, name)), "1")
