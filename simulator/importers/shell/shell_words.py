"""Which commands does a shell script hold, as it is written?

Splits a script into commands of raw words, with quotes and references still in them:
comments and line continuations go, arrays ``NAME=(...)`` and substitutions ``$(...)``
stay whole, here-documents are kept beside their command. Nothing is run or looked up;
:mod:`simulator.importers.shell.launch_script` gives references their values.

Source: POSIX.1-2017, Shell Command Language, section 2.3 (token recognition), and the
Bash manual on arrays; the parts that launch scripts use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from simulator.errors import InputError

_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "\n")
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
        return next((o for o in _OPERATORS if self._text.startswith(o, self._at)), "")

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
        rule = f"is no complete shell script: the {what} of line {line} is never closed"
        return InputError.single("", rule, file=self._origin)
