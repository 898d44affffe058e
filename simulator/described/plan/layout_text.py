"""Which letters stand on each virtual stage of a pipeline layout string?

The language is that of Megatron-Core's ``--pipeline-model-parallel-layout``: ``E`` is the
embedding, ``t`` a transformer layer, ``m`` a multi-token-prediction module and ``L`` head
and loss; ``|`` ends a virtual stage, ``t*3`` repeats a letter, ``(tt|)*3`` a group, and
commas mean nothing. Stages are in order of the model: all ranks of the first chunk, then
all ranks of the second. Stages between the first and the last may be empty.

Source: Megatron-Core user guide, "Custom Pipeline Model Parallel Layout". Stricter than
there: every module stands beside the loss, because this simulator computes them together.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from simulator.errors import InputError, UnsupportedError

Layout = tuple[int, ...] | str
"""Layers of each virtual stage in order of the model, or a layout string."""

_ORDER = "EtmL"
"""Letters in the order in which a model has them."""

_TERM = re.compile(
    r"\((?P<group>[^()]*)\)\*(?P<group_times>[1-9]\d*)"
    r"|(?P<letter>[EtmL|])(?:\*(?P<letter_times>[1-9]\d*))?"
    r"|,"
)
_MOST_LETTERS = 10_000
"""More than any model has; keeps a short text from growing without bound."""


class _Letter(NamedTuple):
    """A letter and where in the text it was written, counted from 1."""

    name: str
    position: int


def layers_per_stage(layout: Layout) -> tuple[int, ...]:
    """Transformer layers of each virtual stage.

    Raises:
        InputError: It is a string that breaks a rule of its language.
    """
    if isinstance(layout, str):
        return tuple(letters.count("t") for letters in parse_layout(layout))
    return layout


def parse_layout(text: str) -> tuple[str, ...]:
    """Letters of each virtual stage, with all repetitions written out.

    Raises:
        InputError: The text breaks a rule of the language; the error says where.
        UnsupportedError: A multi-token-prediction module is not beside the loss.

    Example:
        >>> parse_layout("Et*2|(t|)*2mL")
        ('Ett', 't', 't', 'mL')
    """
    letters = _expanded(text, text, 0)
    stages = tuple("".join(letter.name for letter in letters).split("|"))
    _check_order(text, [letter for letter in letters if letter.name != "|"])
    _check_ends(text, stages)
    return stages


def _expanded(part: str, text: str, offset: int) -> list[_Letter]:
    letters: list[_Letter] = []
    start = 0
    while start < len(part):
        term = _TERM.match(part, start)
        if term is None:
            raise _unreadable(part[start], text, offset + start + 1)
        if term["group"] is not None:
            group = _expanded(term["group"], text, offset + term.start("group"))
            letters += _repeated(group, term["group_times"], text)
        elif term["letter"]:
            letter = _Letter(term["letter"], offset + start + 1)
            letters += _repeated([letter], term["letter_times"] or "1", text)
        start = term.end()
    return letters


def _repeated(letters: list[_Letter], times: str, text: str) -> list[_Letter]:
    digits = len(str(_MOST_LETTERS))
    if len(times) > digits or len(letters) * int(times) > _MOST_LETTERS:
        raise _fault(f"repeats more than {_MOST_LETTERS} letters", text)
    return letters * int(times)


def _check_order(text: str, letters: list[_Letter]) -> None:
    names = [letter.name for letter in letters]
    for name, meaning in (("E", "embedding"), ("L", "loss")):
        if names.count(name) != 1:
            rule = f"must have one {name} ({meaning}), not {names.count(name)}"
            raise _fault(rule, text, "as in Et*3|t*4|t*3,L")
    for before, after in pairwise(letters):
        if _ORDER.index(before.name) > _ORDER.index(after.name):
            rule = (
                f"the {after.name} at position {after.position} comes after the "
                f"{before.name} at position {before.position}"
            )
            raise _fault(rule, text, "E comes first, then t, then m, and L last")


def _check_ends(text: str, stages: tuple[str, ...]) -> None:
    if "E" not in stages[0]:
        raise _fault("the first stage must hold E (embedding)", text, "put E before the first |")
    if "L" not in stages[-1]:
        raise _fault("the last stage must hold L (loss)", text, "put L after the last |")
    if any("m" in letters for letters in stages[:-1]):
        raise UnsupportedError.single(
            "plan.layout",
            "multi-token-prediction modules (m) are simulated only on the stage of the loss",
            text,
            "end it with mL",
        )


def _unreadable(character: str, text: str, position: int) -> InputError:
    where = f"at position {position}"
    if character == "*":
        return _fault(f"the * {where} must stand between a letter or group and a number", text)
    if character in "()":
        rule = f"the {character} {where} is not part of a group such as (tt|)*3"
        return _fault(rule, text, "groups cannot hold groups")
    return _fault(f"unknown letter {character!r} {where}", text, "known: E, t, m, L and |")


def _fault(rule: str, text: str, hint: str = "") -> InputError:
    return InputError.single("plan.layout", rule, text, hint)
