"""Which commands does a shell script hold, and what do their words say with variables put in?

A script is split into commands of raw words, with quotes and references still in them; references
are expanded from the values that are known, and what only a running shell would know stays as it
is written. Nothing is run.

Source: POSIX.1-2017, Shell Command Language, and the Bash manual on arrays.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from simulator.errors import InputError

_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_OPERATOR = re.compile(r"&&|\|\||;;|[;|&\n]")
_CLOSING = {"(": ")", "{": "}"}


@dataclass(slots=True)
class Command:
    """One simple command.

    Attributes:
        words: Its words as written.
        after: The operator before it: a newline, ``;``, ``&&``, ``||``, ``|``.
        document: Text of its here-document; None without one.
    """

    words: list[str] = field(default_factory=list)
    after: str = "\n"
    document: str | None = None


def commands_of(text: str, origin: str = "") -> list[Command]:
    """Commands of a script, in order.

    Raises:
        InputError: A quote or bracket is never closed.
    """
    return _Scanner(text.replace("\r\n", "\n"), origin).commands()


class _Scanner:
    """One pass over the letters of a script."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin
        self._at = 0
        self._word = ""
        self._in_word = False
        self._in_test = False
        self._command = Command()
        self._done: list[Command] = []
        self._awaited: list[tuple[str, Command]] = []

    def commands(self) -> list[Command]:
        text = self._text
        while self._at < len(text):
            if text.startswith("\\\n", self._at):
                self._at += 2
            elif text[self._at] == "#" and not self._in_word:
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif text[self._at] in " \t":
                self._end_word()
                self._at += 1
            elif here := _HERE_DOCUMENT.match(text, self._at):
                self._end_word()
                self._awaited.append((here["end"], self._command))
                self._at = here.end()
            elif operator := self._operator():
                self._end_command(operator)
            else:
                self._take_part()
        self._end_command("\n")
        return self._done

    def _operator(self) -> str:
        # The & of 2>&1 and &> belongs to a redirection.
        if self._text[self._at] == "&" and (
            self._word.endswith((">", "<")) or self._text.startswith("&>", self._at)
        ):
            return ""
        if (self._in_test or self._word == "[[") and self._word != "]]":
            return "\n" if self._text[self._at] == "\n" else ""
        found = _OPERATOR.match(self._text, self._at)
        return found[0] if found else ""

    def _end_word(self) -> None:
        if self._in_word:
            self._command.words.append(self._word)
            self._in_test = self._word == "[[" or (self._in_test and self._word != "]]")
        self._word, self._in_word = "", False

    def _end_command(self, operator: str) -> None:
        self._end_word()
        self._in_test = False
        self._at += len(operator)
        if operator == "\n":
            self._take_documents()
        if self._command.words:
            self._done.append(self._command)
            self._command = Command(after=operator)
        elif operator != "\n":
            self._command.after = operator

    def _take_documents(self) -> None:
        """Here-documents begin on the line after the one that announces them."""
        for end, command in self._awaited:
            lines = []
            while self._at < len(self._text):
                newline = self._text.find("\n", self._at) + 1 or len(self._text) + 1
                line = self._text[self._at : newline - 1]
                self._at = min(newline, len(self._text))
                if line.strip() == end:
                    break
                lines.append(line)
            command.document = "\n".join(lines)
        self._awaited = []

    def _take_part(self) -> None:
        """A letter, a quoted part, a substitution or an array, whole."""
        start = self._at
        letter = self._text[start]
        self._in_word = True
        if letter == "\\":
            self._at += 2
        elif letter in "'\"`":
            self._at = self._end_of_quote(start)
        elif self._text.startswith(("$(", "${"), start):
            self._at = self._end_of_bracket(start + 1)
        elif letter == "(" and self._word.endswith("="):
            self._at = self._end_of_bracket(start)
        else:
            self._at += 1
        self._word += self._text[start : self._at]

    def _end_of_quote(self, start: int) -> int:
        quote = self._text[start]
        at = start + 1
        while at < len(self._text):
            if self._text[at] == "\\" and quote != "'":
                at += 1
            elif self._text[at] == quote:
                return at + 1
            at += 1
        raise self._open(start, quote)

    def _end_of_bracket(self, start: int) -> int:
        """Behind the bracket that closes the one at ``start``; quotes hide brackets."""
        opening = self._text[start]
        closing = _CLOSING[opening]
        depth = 0
        at = start
        while at < len(self._text):
            letter = self._text[at]
            starts_word = self._text[at - 1] in " \t\n("
            if letter == "\\":
                at += 1
            elif letter in "'\"":
                at = self._end_of_quote(at) - 1
            elif letter == "#" and starts_word and opening == "(":
                at = (self._text.find("\n", at) + 1 or len(self._text)) - 1
            elif letter == opening:
                depth += 1
            elif letter == closing:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        raise self._open(start, opening)

    def _open(self, start: int, what: str) -> InputError:
        line = self._text.count("\n", 0, start) + 1
        rule = f"is not a complete shell script: the {what} of line {line} is never closed"
        return InputError.single("", rule, file=self._origin)


Variables = Mapping[str, str | list[str]]
"""Values by name; arrays as lists."""

MAX_LETTERS = 2**18
"""Longest value of a variable, and longest command; doubling loops stop here."""
_MAX_REFERENCE = 1024
"""Longest reference such as ``${NAME:-default}``."""

_REFERENCE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*|[0-9@*#?$!])"
    r"|\{(?P<name>[A-Za-z_]\w*|[0-9]{1,3}|[@*#])(?:\[(?P<index>[@*]|[0-9]{1,9})\])?"
    r"(?:(?P<how>:?[-=+?])(?P<word>.*))?\})",
    re.DOTALL,
)
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}


_ARRAY = re.compile(r"\"?\$(?:\{(?P<name>\w+)\[[@*]\]\}|\{?@\}?)\"?")


class Expansion:
    """Words with the values of variables in place of references."""

    def __init__(self, variables: Variables, unset: Set[str], origin: str) -> None:
        """Take values from ``variables``, as they are when a word is read.

        Args:
            variables: Known values; others may add to them meanwhile.
            unset: Variables that the script would only set where it does not get; they are empty.
            origin: The script's file, for messages.
        """
        self._variables = variables
        self._unset = unset
        self._origin = origin

    def text(self, word: str, *, is_condition: bool = False) -> str:
        """A word's value as one text, without its quotes."""
        return "".join(text for text, _ in self._parts(word, is_condition=is_condition))

    def fields(self, word: str) -> list[str]:
        """The words that a word becomes: quoted arrays by item, unquoted values by space."""
        if array := _ARRAY.fullmatch(word):
            value = self._variables.get(array["name"] or "@", [] if array["name"] else word)
            items = value if isinstance(value, list) else [value]
            return list(items) if word.startswith('"') else " ".join(items).split()
        fields: list[str] = []
        is_open = False
        for text, is_quoted in self._parts(word):
            pieces = [text] if is_quoted else _split(text)
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
                end = _closing_mark(word, at)
                yield word[at + 1 : end].removesuffix("'"), True
                at = end
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
                end = _closing_bracket(reach, 1) if reach[1:2] == "{" and "}" in reach else 0
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
        name = found["plain"] or found["name"]
        value = self._variables.get(name)
        if isinstance(value, list):
            index = found["index"] or "0"
            if index in ("@", "*") or name in ("@", "*"):
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
            return "" if is_condition or name in self._unset else found[0]
        return value

    def _sum(self, text: str, written: str) -> str:
        """Outcome of whole-number arithmetic; as written where it is anything else."""
        text = self.text(re.sub(r"(?<![\w$\{])([A-Za-z_]\w*)", r"${\1}", text))
        text = re.sub(r"^([^?:]*)\?([^?:]*):([^?:]*)$", r"(\2) if (\1) else (\3)", text)
        try:
            if len(text) <= 200:
                return str(_arithmetic(ast.parse(text.strip(), mode="eval").body))
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
            pass
        return written


def _split(text: str) -> list[str]:
    """Words of a text; what a shell would compute stays one word, spaces and all."""
    words, start, at = [], 0, 0
    while at < len(text):
        if text[at].isspace():
            words += [text[start:at]] if at > start else []
            start = at = at + 1
        elif text.startswith("$(", at):
            at = _closing_bracket(text, at + 1)
        elif text[at] == "`":
            at = _closing_mark(text, at)
        else:
            at += 1
    return [*words, *([text[start:at]] if at > start else [])]


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
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _ORDER:
        right = _arithmetic(node.comparators[0])
        return int(_ORDER[type(node.ops[0])](_arithmetic(node.left), right))
    if isinstance(node, ast.IfExp):
        return _arithmetic(node.body if _arithmetic(node.test) else node.orelse)
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


def _closing_mark(text: str, start: int) -> int:
    """Behind the next letter like the one at ``start``, or the end of the text."""
    return (text.find(text[start], start + 1) + 1) or len(text)


def _end_of_bare(word: str, start: int) -> int:
    """Where an unquoted part ends: at a quote outside of brackets and backticks."""
    at = start
    while at < len(word) and word[at] not in "'\"\\":
        if word[at] == "`":
            at = _closing_mark(word, at)
        else:
            at = _closing_bracket(word, at + 1) if word.startswith(("$(", "${"), at) else at + 1
    return at


_HEAD = re.compile(r"([A-Za-z_][\w-]*)\(\)")


class Functions:
    """Functions of a script, and the one that is being read.

    A function's commands are set aside where it is written and read where it is called; those that
    nothing calls are read at the end, since a launch may hide in one.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._bodies: dict[str, list[Command]] = {}
        self._called: set[str] = set()
        self._open = ""
        self._depth = 0

    def takes(self, command: Command) -> bool:
        """Whether a command belongs to a definition; it is then set aside."""
        words = command.words
        if not self._open:
            name = _defined(words)
            if name is None:
                return False
            self._bodies[name], self._open, self._depth = [], name, words.count("{")
            rest = words[words.index("{") + 1 :] if "{" in words else []
            if rest:
                self._bodies[name].append(Command(rest, document=command.document))
            return True
        self._depth += words.count("{") - (words[:1] == ["}"])
        is_over = words[:1] == ["}"] and self._depth == 0
        if not is_over and words != ["{"]:
            self._bodies[self._open].append(command)
        self._open = "" if is_over else self._open
        return True

    def body(self, name: str) -> list[Command] | None:
        """Commands of a function; None where there is none of that name."""
        self._called.add(name)
        return self._bodies.get(name)

    def uncalled(self) -> list[Command]:
        """Commands of the functions that nothing has called."""
        idle = [name for name in self._bodies if name not in self._called]
        return [command for name in idle for command in self._bodies[name]]


def _defined(words: list[str]) -> str | None:
    """Name of the function whose definition begins here; None where none does."""
    if words[:1] == ["function"] and len(words) > 1:
        return words[1].removesuffix("()")
    found = _HEAD.fullmatch(words[0]) if words else None
    if found is None and words[1:2] == ["()"]:
        return words[0]
    return found[1] if found else None
