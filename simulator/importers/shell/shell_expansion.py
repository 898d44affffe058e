"""What does a word of a shell script say once its variables are put in?

References are expanded from the values that are known; what only a running shell would know
stays as it is written. Quotes are taken off, and decide where one word becomes several.

Source: POSIX.1-2017, Shell Command Language, section 2.6, and the Bash manual on arrays.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from simulator.errors import InputError

Variables = Mapping[str, str | list[str]]
"""Values by name; arrays as lists."""

MAX_LETTERS = 2**18
"""Longest value of a variable, and longest command; doubling loops stop here."""
_MAX_REFERENCE = 1024
"""Longest reference such as ``${NAME:-default}``."""

_REFERENCE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*|[0-9@*#?$!])"
    r"|\{(?P<name>[A-Za-z_]\w*|[0-9@*])(?:\[(?P<index>[@*0-9]+)\])?"
    r"(?:(?P<how>:?[-=+?])(?P<word>.*))?\})",
    re.DOTALL,
)
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.floordiv,
        ast.Mod: operator.mod,
    }
)


class Expansion:
    """Words with the values of variables in place of references."""

    def __init__(self, variables: Variables, origin: str) -> None:
        """Take values from ``variables``, as they are when a word is read.

        Args:
            variables: Known values; others may add to them meanwhile.
            origin: The script's file, for messages.
        """
        self._variables = variables
        self._origin = origin

    def text(self, word: str, *, is_condition: bool = False) -> str:
        """A word's value as one text, without its quotes."""
        return "".join(text for text, _ in self._parts(word, is_condition=is_condition))

    def fields(self, word: str) -> list[str]:
        """The words that a word becomes: quoted arrays by item, unquoted values by space."""
        if array := re.fullmatch(r"\"?\$\{(?P<name>\w+)\[[@*]\]\}\"?", word):
            value = self._variables.get(array["name"], [])
            items = value if isinstance(value, list) else [value]
            return list(items) if word.startswith('"') else " ".join(items).split()
        fields: list[str] = []
        is_open = False
        for text, is_quoted in self._parts(word):
            pieces = [text] if is_quoted else text.split()
            if is_open and pieces and (is_quoted or not text[:1].isspace()):
                fields[-1] += pieces.pop(0)
            fields += pieces
            is_open = bool(fields) and (is_quoted or not text[-1:].isspace())
        return fields

    def _parts(self, word: str, *, is_condition: bool = False) -> Iterator[tuple[str, bool]]:
        """Parts of a word with their references expanded, and whether they were quoted."""
        at = 0
        while at < len(word):
            letter = word[at]
            if letter == "'":
                end = word.find("'", at + 1)
                yield word[at + 1 : end], True
                at = end + 1
            elif letter == '"':
                end = _closing_quote(word, at)
                yield self._expanded(word[at + 1 : end], is_condition), True
                at = end + 1
            elif letter == "\\":
                yield word[at + 1 : at + 2], True
                at += 2
            else:
                end = _end_of_bare(word, at)
                yield self._expanded(word[at:end], is_condition), False
                at = end

    def _expanded(self, text: str, is_condition: bool) -> str:
        result = ""
        at = 0
        while at < len(text):
            if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "$", "`", "\\", "\n"):
                result += text[at + 1].strip("\n")
                at += 2
            elif text.startswith("$((", at):
                end = _closing_bracket(text, at + 1)
                result += self._sum(text[at + 3 : end - 2], text[at:end])
                at = end
            elif text.startswith("$(", at):
                end = _closing_bracket(text, at + 1)
                result += text[at:end]
                at = end
            elif text[at] == "$":
                reach = text[at : at + _MAX_REFERENCE]
                end = _closing_bracket(reach, 1) if reach[1:2] == "{" else 0
                found = _REFERENCE.match(reach[: end or None])
                result += self._value(found, is_condition) if found else "$"
                at += found.end() if found else 1
            else:
                result += text[at]
                at += 1
            if len(result) > MAX_LETTERS:
                raise too_long(text[:40], self._origin)
        return result

    def _value(self, found: re.Match[str], is_condition: bool) -> str:
        """Value of a reference; as written where it is unknown, or empty in conditions."""
        name = found["plain"] or found["name"]
        value = self._variables.get(name)
        if isinstance(value, list):
            index = found["index"] or "0"
            if index in "@*":
                value = " ".join(value)
            else:
                value = value[int(index)] if int(index) < len(value) else None
        how = found["how"] or ""
        # With a colon, an empty value counts as none.
        is_missing = value is None or (how.startswith(":") and not value)
        if how.endswith(("-", "=")) and is_missing:
            return self.text(found["word"])
        if how.endswith("+"):
            return "" if is_missing else self.text(found["word"])
        if value is None:
            return "" if is_condition else found[0]
        return value

    def _sum(self, text: str, written: str) -> str:
        """Outcome of whole-number arithmetic; as written where it is anything else."""
        text = self.text(re.sub(r"(?<![\w$\{])([A-Za-z_]\w*)", r"${\1}", text))
        try:
            if len(text) <= 200:
                return str(_arithmetic(ast.parse(text.strip(), mode="eval").body))
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            pass
        return written


def too_long(what: str, origin: str) -> InputError:
    """The error of a value or command that grows without bound."""
    rule = f"{what!r} grows to more than {MAX_LETTERS} letters"
    return InputError.single("", rule, file=origin)


def _arithmetic(node: ast.expr) -> int:
    """Value of a tree of whole numbers; nothing else is evaluated.

    Raises:
        ValueError: It holds anything else, or grows too large.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = _ARITHMETIC[type(node.op)](_arithmetic(node.left), _arithmetic(node.right))
        if abs(value) < 10**18:
            return value
    raise ValueError("no whole-number arithmetic")


def _closing_quote(word: str, start: int) -> int:
    at = start + 1
    while at < len(word) and word[at] != '"':
        at += 2 if word[at] == "\\" else 1
    return at


def _closing_bracket(text: str, start: int) -> int:
    """Behind the bracket that closes the one at ``start``, or the end of the text."""
    pattern = re.compile({"(": r"[()]", "{": r"[{}]"}[text[start]])
    depth = 0
    for found in pattern.finditer(text, start):
        depth += 1 if found[0] in "({" else -1
        if depth == 0:
            return found.end()
    return len(text)


def _end_of_bare(word: str, start: int) -> int:
    """Where an unquoted part ends: at a quote outside of brackets."""
    at = start
    while at < len(word) and word[at] not in "'\"\\":
        at = _closing_bracket(word, at + 1) if word.startswith(("$(", "${"), at) else at + 1
    return at
