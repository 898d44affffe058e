"""What would a launch script run, without running it?

Reads a script in order and keeps its variables: assignments, arrays, ``${X:-default}``,
whole-number arithmetic, and ``if`` and ``case`` whose outcome the script itself decides.
No command is ever run; what only a running shell would know (``$1``, the environment,
``$(...)``) stays as it is written, and the user can define it.

Simplified: loops are read once, and conditions on unknown things are taken to be false; both are
reported. What a script would only set in a branch that it does not take is empty.

Source: POSIX.1-2017, Shell Command Language, sections 2.6 and 2.9, and the Bash manual on arrays
and conditional constructs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulator.described.documents import parse_yaml
from simulator.errors import InputError
from simulator.files import read_text
from simulator.importers.shell.kubernetes_job import KINDS, commands_inside, gpus_of_replicas
from simulator.importers.shell.scheduler_headers import directives_of, slurm_variables
from simulator.importers.shell.shell_language import (
    MAX_LETTERS,
    Command,
    Expansion,
    Functions,
    commands_of,
    too_long,
)

_MAX_LETTERS_IN_ALL = 2**22
"""Of all values and commands together."""
_MAX_COMMANDS = 20_000
"""Of a script, with each call of a function; one that calls itself never ends."""
_MAX_BRANCHES = 20
"""Deepest nesting of ``if`` and ``case``."""

_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<append>\+?)=(?P<value>.*)", re.DOTALL)
_PLAIN = r"[\"']?\w[\w.]*[\"']?"
_REDIRECTION = re.compile(r"[0-9]*(?:&>|>>?&?|<)(?P<target>.*)")
_OPENING, _MIDDLE = ("if", "elif"), ("then", "do", "{", "!")
_IGNORED = ("fi", "done", "esac", "}", "while", "until", "for")
_SHELLS = ("bash", "sh", "zsh", "sbatch", "qsub", "bsub", "srun", "ssh", "source", ".")
_REMOTE_SHELLS = ("ssh", "pdsh", "clush", "parallel-ssh")
_WORD_PREFIXES = ("export", "declare", "local", "readonly", "typeset", "set", "eval", "exec")
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


@dataclass(slots=True)
class Script:
    """What a script would run.

    Attributes:
        commands: Every command that it reaches, its words expanded.
        variables: Value of each variable at the end; arrays as lists.
        documents: Text of each here-document by the file that it is written to.
        waits: Variables that get a value only under a condition that the script does not decide,
            and that condition.
        notes: Sentences on what was simplified.
        directives: Words of the headers that schedulers read (``#SBATCH``, ``#PBS``, ``#BSUB``).
        gpus: GPUs of the job where what holds the script says it; None for a plain script.
    """

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    directives: list[str] = field(default_factory=list)
    gpus: int | None = None


def read_script(text: str, definitions: Mapping[str, str], origin: str = "") -> Script:
    """What a script would run, found by reading alone.

    Args:
        text: The script, or a single command.
        definitions: Values of variables, which the script cannot overrule.
        origin: Its file, for messages.

    Raises:
        InputError: It is no complete script, or its variables grow without bound.
    """
    header = directives_of(text)
    try:
        script = _Reader(definitions, origin, header).read(commands_of(text, origin))
    except RecursionError as error:
        raise InputError.single("", "is nested too deeply", file=origin) from error
    return script


@dataclass(slots=True)
class _Branch:
    """An ``if`` or ``case`` that is being read.

    Attributes:
        was_taken: Whether one of its branches has been taken.
        is_on: Whether the present branch is.
        undecided: The condition, where only a running shell would know its outcome, or empty.
        subject: What a ``case`` compares; None for an ``if``.
        in_condition: Whether the condition of an ``if`` is still being read.
        pattern: What has been read of the next pattern of a ``case``; None inside a branch.
    """

    was_taken: bool = False
    is_on: bool = True
    undecided: str = ""
    subject: str | None = None
    in_condition: bool = False
    pattern: str | None = None


class _Reader:
    """The state of a shell that runs nothing."""

    def __init__(self, definitions: Mapping[str, str], origin: str, header: Sequence[str]) -> None:
        self._fixed = frozenset(definitions)
        told = {**slurm_variables(header), **definitions}
        self._script = Script(variables=dict(told), directives=list(header))
        self._unset: set[str] = set()
        self._words = Expansion(self._script.variables, self._unset, origin)
        self._functions = Functions()
        self._launcher: list[str] = []
        self._depth = 0
        self._branches: list[_Branch] = []
        self._origin = origin
        self._condition = True
        self._undecided = ""
        self._letters_left = _MAX_LETTERS_IN_ALL
        self._commands_left = _MAX_COMMANDS

    def read(self, commands: list[Command]) -> Script:
        for command in commands:
            self._read(command)
        for command in self._functions.uncalled():
            self._read(command)
        return self._script

    def _read(self, command: Command) -> None:
        self._count_command()
        if self._functions.takes(command):
            return
        words = command.words
        while words and words[0] in (*_MIDDLE, "else"):
            self._go_on(words[0])
            words = words[1:]
        if not words:
            return
        head = words[0]
        if head in _OPENING:
            self._open_or_go_on(head, words[1:])
        elif head == "case":
            self._open_case(words)
        elif head in ("fi", "esac"):
            if self._branches:
                self._branches.pop()
        elif self._awaits_pattern(command):
            self._pattern(words)
        elif head in ("[[", "[", "test"):
            self._judge(command)
        elif head in _IGNORED:
            if head in ("for", "while", "until"):
                self._note(f"a loop ({' '.join(words)[:60]}) is read once")
        else:
            self._run_or_skip(command, words)

    def _run_or_skip(self, command: Command, words: list[str]) -> None:
        """Run a command; one that is not reached leaves what it would set empty."""
        if self._is_reached(command):
            self._run(command, words)
            return
        undecided = next((b.undecided for b in self._branches if b.undecided and not b.is_on), "")
        for found in filter(None, (_ASSIGNMENT.fullmatch(word) for word in words)):
            name = found["name"]
            # A word stays open, so that an option behind it is missed; options are left out.
            if undecided and re.fullmatch(_PLAIN, found["value"]) and name not in self._unset:
                self._script.waits.setdefault(name, undecided)
            else:
                self._script.waits.pop(name, None)
                self._unset.add(name)

    # Conditions

    def _is_reached(self, command: Command) -> bool:
        chained = {"&&": self._condition, "||": not self._condition}
        is_on = all(branch.is_on for branch in self._branches)
        return is_on and chained.get(command.after, True)

    def _go_on(self, word: str) -> None:
        if word == "else":
            self._enter(not self._branches[-1].was_taken if self._branches else True)
        elif word == "then" and self._branches:
            self._branches[-1].in_condition = False

    def _open_case(self, words: list[str]) -> None:
        if len(self._branches) > _MAX_BRANCHES:
            raise InputError.single("", "is nested too deeply", file=self._origin)
        subject = self._words.text(words[1]) if words[1:] else ""
        undecided = f"case {words[1]}"[:60] if _is_argument(subject) else ""
        self._branches.append(
            _Branch(is_on=False, subject=subject, pattern="", undecided=undecided)
        )
        self._pattern(words[3:])

    def _enter(self, is_true: bool) -> None:
        if self._branches:
            self._branches[-1].is_on = is_true
            self._branches[-1].was_taken |= is_true

    def _open_or_go_on(self, head: str, words: list[str]) -> None:
        if head == "if":
            self._branches.append(_Branch())
        elif not self._branches:
            raise InputError.single("", f"has an {head} without an if", file=self._origin)
        elif self._branches[-1].was_taken:
            self._branches[-1].is_on = False
            return
        outer = all(branch.is_on for branch in self._branches[:-1])
        is_true = outer and self._is_true(words)
        self._condition = is_true
        self._branches[-1].undecided = self._undecided if outer and not is_true else ""
        self._enter(is_true)
        self._branches[-1].in_condition = True

    def _judge(self, command: Command) -> None:
        """A further part of an ``if``'s condition, or of a chain such as ``[ a ] && X=1``."""
        if command.after == "&&":
            self._condition = self._condition and self._is_true(command.words)
        elif command.after == "||":
            self._condition = self._condition or self._is_true(command.words)
        else:
            self._condition = self._is_true(command.words)
        if self._branches and self._branches[-1].in_condition:
            branch = self._branches[-1]
            branch.is_on = branch.was_taken = self._condition
            branch.undecided = "" if self._condition else branch.undecided or self._undecided

    def _is_true(self, words: list[str]) -> bool:
        """Outcome of a test; false, and noted, where the script does not decide it."""
        words = [word for word in words if word not in ("[", "]", "[[", "]]", "test", "then")]
        outcome = self._outcome(words)
        self._undecided = " ".join(words)[:60] if outcome is None else ""
        if outcome is None and words:
            self._note(f"the condition ({' '.join(words)[:60]}) is assumed to be false")
        return bool(outcome)

    def _outcome(self, words: list[str]) -> bool | None:
        """Outcome of a test; None where the script does not decide it."""
        for sign, decide in (("||", any), ("&&", all)):
            if sign in words:
                at = words.index(sign)
                parts = [self._outcome(words[:at]), self._outcome(words[at + 1 :])]
                return None if None in parts else decide(parts)
        if words[:1] == ["!"]:
            outcome = self._outcome(words[1:])
            return None if outcome is None else not outcome
        match [self._words.text(word, is_condition=True) for word in words]:
            case ["-z" | "-n" as sign, value]:
                return (sign == "-z") == (not value)
            case [left, "=" | "==" | "!=" as sign, right]:
                is_open = sign != "!=" and (_is_argument(left) or _is_argument(right))
                return None if is_open else (sign != "!=") == (left == right)
            case [left, sign, right] if sign in _COMPARISONS and _are_whole(left, right):
                return _COMPARISONS[sign](int(left), int(right))
        return None

    def _awaits_pattern(self, command: Command) -> bool:
        """Whether a pattern of a ``case`` comes next, as it does behind ``in`` and ``;;``."""
        branch = self._branches[-1] if self._branches else _Branch()
        if branch.subject is not None and command.after == ";;":
            branch.is_on, branch.pattern = False, ""
        return branch.pattern is not None

    def _pattern(self, words: list[str]) -> None:
        """The start of a branch of a ``case``: ``7b|8b)``, and what follows on its line."""
        branch = self._branches[-1]
        text, bracket, rest = " ".join(words).partition(")")
        if not bracket:
            branch.pattern = f"{branch.pattern}{text}|" if text else branch.pattern
            return
        options = [self._words.text(o.strip(" (")) for o in f"{branch.pattern}{text}".split("|")]
        branch.pattern = None
        self._enter(not branch.was_taken and (branch.subject in options or "*" in options))
        for command in commands_of(rest, self._origin):
            self._read(command)

    # Commands

    def _run(self, command: Command, words: list[str]) -> None:
        """Keep what a command assigns or writes; the command itself is only noted."""
        words = self._without_redirections(words, command.document)
        while words and words[0] in _WORD_PREFIXES and words[0] not in ("eval", "exec"):
            words = [word for word in words[1:] if not re.fullmatch(r"-\w+", word)]
        while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
            self._assign(assignment["name"], assignment["value"], bool(assignment["append"]))
            words = words[1:]
        expanded = [text for word in words for text in self._words.fields(word)]
        if expanded[:1] == ["eval"]:
            expanded = " ".join(expanded[1:]).split()
        self._spend(sum(map(len, expanded)), expanded[0] if expanded else "")
        if expanded:
            self._script.commands.append([*self._launcher, *expanded])
            self._go_inside(expanded, command.document)
        self._condition = True

    def _go_inside(self, words: list[str], document: str | None) -> None:
        """Read the commands that a command starts in its turn, after itself.

        They are those of a function, of a text behind ``-c`` or ``--wrap``, of a here-document that
        a shell or scheduler reads, and of a file that the script has written that way.
        """
        if self._depth == _MAX_BRANCHES:
            return
        self._depth += 1
        before = self._launcher
        if (body := self._functions.body(words[0])) is not None:
            self._call(words[1:], body)
        elif (at := _place_of_script(words)) is not None:
            self._launcher = [*before, *words[: at - 1]]
            self._read_text(words[at])
        elif words[0].rpartition("/")[2] in _SHELLS:
            written = [self._script.documents[w] for w in words[1:] if w in self._script.documents]
            for text in [document, *written]:
                if text is not None:
                    self._read_text(text)
        self._launcher = before
        self._depth -= 1

    def _read_text(self, text: str) -> None:
        for command in commands_of(text, self._origin):
            self._read(command)

    def _call(self, arguments: list[str], body: list[Command]) -> None:
        """A function's commands with its arguments as ``$1`` and so on."""
        variables = self._script.variables
        before = dict(variables)
        variables["@"] = list(arguments)
        variables |= {str(number): word for number, word in enumerate(arguments, 1)}
        for command in body:
            self._read(command)
        for name in [name for name in variables if name == "@" or name.isdigit()]:
            variables.pop(name)
            variables |= {name: before[name]} if name in before else {}

    def _without_redirections(self, words: list[str], document: str | None) -> list[str]:
        kept = []
        remaining = iter(words)
        for word in remaining:
            redirection = _REDIRECTION.fullmatch(word)
            if redirection is None:
                kept.append(word)
                continue
            target = redirection["target"] or next(remaining, "")
            if document is not None and ">" in word:
                text = self._words.text(f'"{_escaped(document)}"')
                self._script.documents[self._words.text(target)] = text
        return kept

    def _assign(self, name: str, value: str, is_appended: bool) -> None:
        if name in self._fixed:
            return
        old = self._script.variables.get(name)
        new: str | list[str]
        if value.startswith("(") and value.endswith(")"):
            items = [word for part in commands_of(value[1:-1]) for word in part.words]
            new = [text for item in items for text in self._words.fields(item)]
            if is_appended:
                new = [*(old if isinstance(old, list) else [old] if old else []), *new]
        else:
            new = self._words.text(value)
            if is_appended:
                new = (old if isinstance(old, str) else " ".join(old or ())) + new
        self._spend(len(new) if isinstance(new, str) else sum(map(len, new)), name)
        self._script.variables[name] = new

    def _spend(self, letters: int, what: str) -> None:
        """Count the letters of a value or a command.

        Raises:
            InputError: It is too long, or all of them together are.
        """
        self._letters_left -= letters
        if letters > MAX_LETTERS:
            raise too_long(what, self._origin)
        if self._letters_left < 0:
            rule = f"grows to more than {_MAX_LETTERS_IN_ALL:,} letters"
            raise InputError.single("", rule, file=self._origin)

    def _count_command(self) -> None:
        self._commands_left -= 1
        if self._commands_left < 0:
            rule = f"runs more than {_MAX_COMMANDS:,} commands"
            hint = "does a function call itself? give the launch line alone"
            raise InputError.single("", rule, file=self._origin, hint=hint)

    def _note(self, sentence: str) -> None:
        if sentence not in self._script.notes:
            self._script.notes.append(sentence)


def _place_of_script(words: list[str]) -> int | None:
    """Where a command has the text of commands that it starts; None where it has none."""
    for at, word in enumerate(words[:-1]):
        is_shell = words[at - 1].rpartition("/")[2] in ("bash", "sh", "zsh") if at else False
        if (is_shell and re.fullmatch(r"-\w*c", word)) or word in ("--wrap", "--command"):
            return at + 1
    is_remote = words[0].rpartition("/")[2] in _REMOTE_SHELLS and " " in words[-1]
    return len(words) - 1 if is_remote and len(words) > 1 else None


def _is_argument(text: str) -> bool:
    """Whether a value is one of the script's arguments, which nobody has defined."""
    return bool(re.fullmatch(r"\$\{?\d{1,3}\}?", text))


def _are_whole(*texts: str) -> bool:
    return all(re.fullmatch(r"-?\d{1,18}", text) for text in texts)


def _escaped(document: str) -> str:
    return re.sub(r'(?<!\\)"', r"\"", document)


_MAX_SCRIPT_BYTES = 128 * 1024
"""Launch scripts have some ten thousand bytes at most."""


def read_launch_file(path: str | Path, definitions: Mapping[str, str], wanted: str) -> Script:
    """What a script, or the script inside a Kubernetes job, would run.

    Args:
        path: A shell script, a single launch line, or the YAML of a job.
        definitions: Values of variables, which the script cannot overrule.
        wanted: What kind of file would do, as the way out of an error.

    Raises:
        InputError: It is no such file.
    """
    origin = str(path)
    text = read_text(Path(path), wanted, max_bytes=_MAX_SCRIPT_BYTES)
    if Path(path).suffix in (".yaml", ".yml"):
        job = parse_yaml(text, origin)
        if not isinstance(job, dict) or job.get("kind") not in KINDS:
            rule = f"is neither a script nor a Kubernetes job ({', '.join(KINDS)})"
            raise InputError.single("", rule, file=origin, hint=wanted)
        script = read_script("\n".join(commands_inside(job)), definitions, origin)
        script.gpus = gpus_of_replicas(job)
        return script
    return read_script(text, definitions, origin)
