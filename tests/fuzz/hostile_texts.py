"""How does a file become one that nobody would write, or that somebody would to do harm?

Bytes are flipped, cut, repeated and spliced; numbers, words, lines and values of a document are
replaced, swapped, removed and repeated; and some texts are put in that mean something to YAML,
JSON, TOML, CSV or a shell. All of it follows from a seed.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from simulator.described.documents import SafeLoader
from tests.fuzz.samples import Sample

MARK = "executed"
"""Name of the file that hostile texts ask to make."""
MOST_BYTES = 2**18

_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
_WORD = re.compile(rb"[A-Za-z_][\w.-]*")
_NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "0.5", "-0.0", "1e-300", "1e30", "1e308", "1e400", "nan", "inf",
    "-inf", ".nan", ".inf", "2147483648", "99999999999", "9223372036854775808", "1" + "0" * 400,
    "9" * 5000, "0x10", "010", "1_000", "1:30", "1e3", "\u0663", "\u00b2", "true", "false", "null",
    "~", "", '""', "[]", "{}", "[1]", "{a: 1}", '"many"', "-", "8 GiB", "-1 GiB", "0 s",
    "1e400 GiB", "1/0", "4096",
)  # fmt: skip
_WORDS = (
    "", "none", "None", "null", "true", "auto", "h100-sxm-80gb", "gpt2", "../../etc/passwd",
    "/dev/zero", "/dev/stdin", "/", ".", "$HOME", "a" * 5000, "\u202e\u0000", "\U0001f525",
    "__class__", "model", "plan", "base", "value", "source", "file", "{0}", "%s", "<script>", "'",
    '"', "\\", "bf16", "1f1b", "full", "adam", "fp8", "ring", "*",
)  # fmt: skip
_INSERTED = (
    f"!!python/object/apply:os.system ['touch {MARK}']", f"$(touch {MARK})", f"`touch {MARK}`",
    f"__import__('os').system('touch {MARK}')", f"; touch {MARK} #", f"${{X:=$(touch {MARK})}}",
    "!!bool 3", '!!int ""', "!!timestamp x", "!!binary x", "!!set {a, b}", "!!float nan",
    "!!omap []", "2001-01-01", "&a [*a]", "&a", "*a", "<<: {a: 1}", "? {a: b} : c", "---", "...",
    "|", ">-", "- - -", "%YAML 9.9", "{{", "}}", "[[", "]]", "[[a.b]]", "a.b.c = 1", "'''", '"""',
    "=", ":", ",", ";", "\t", "\n", "\r", "\0", "\ufeff", "\u2028", "if [ 1 ]; then", "elif x",
    "fi", "done", "case x in", "esac", "for i in 1 2; do", "<<EOF", "EOF", "${a:-", "${!x}",
    "$((1/0))", "$((2**99999))", "&&", "||", "\\\n", "--num-layers", "--gpus", "--set", "NaN",
    "Infinity", "\\ud800", "1.0.0", "def f(): return f()", "lambda: 0", "[0] * 10**9",
    "'a' * 10**9", "range(10**9)", "# ",
)  # fmt: skip

Change = Callable[[bytes, random.Random], bytes]


def hostile_text(samples: Sequence[Sample], seed: str) -> Sample:
    """One of the samples, changed once to four times as the seed says."""
    draw = random.Random(seed)
    sample = draw.choice(samples)
    content = sample.content
    for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
        change = draw.choice(_CHANGES)
        content = change(content, draw) if change is not _splice else _splice(
            content, draw, draw.choice(samples).content)  # fmt: skip
    return Sample(sample.name, content[:MOST_BYTES])


def _place(content: bytes, draw: random.Random) -> int:
    return draw.randrange(len(content) + 1)


def _span(content: bytes, draw: random.Random) -> tuple[int, int]:
    start = _place(content, draw)
    return start, min(len(content), start + draw.choice((1, 2, 4, 16, 64, 1024)))


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content or b" ")
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    start, end = _span(content, draw)
    return content[:start] + content[end:]


def _end(content: bytes, draw: random.Random) -> bytes:
    return content[: _place(content, draw)]


def _repeat(content: bytes, draw: random.Random) -> bytes:
    start, end = _span(content, draw)
    return content[:end] + content[start:end] * draw.choice((1, 2, 50, 1000)) + content[end:]


def _splice(content: bytes, draw: random.Random, other: bytes = b"") -> bytes:
    start, end = _span(other, draw)
    place = _place(content, draw)
    return content[:place] + other[start:end] + content[place:]


def _matched(
    content: bytes, draw: random.Random, pattern: re.Pattern[bytes], texts: Sequence[str]
) -> bytes:
    found = list(pattern.finditer(content))
    if not found:
        return _insert(content, draw)
    place = draw.choice(found)
    text = draw.choice(texts).encode(errors="surrogatepass")
    return content[: place.start()] + text + content[place.end() :]


def _number(content: bytes, draw: random.Random) -> bytes:
    return _matched(content, draw, _NUMBER, _NUMBERS)


def _word(content: bytes, draw: random.Random) -> bytes:
    return _matched(content, draw, _WORD, (*_WORDS, *_NUMBERS))


def _swap_words(content: bytes, draw: random.Random) -> bytes:
    found = list(_WORD.finditer(content)) + list(_NUMBER.finditer(content))
    if len(found) < 2:
        return content
    first, second = sorted(draw.sample(found, 2), key=lambda match: match.start())
    if second.start() < first.end():
        return content
    return b"".join(
        (content[: first.start()], second[0], content[first.end() : second.start()], first[0],
         content[second.end() :])
    )  # fmt: skip


def _insert(content: bytes, draw: random.Random) -> bytes:
    place = _place(content, draw)
    return content[:place] + draw.choice(_INSERTED).encode() + content[place:]


def _lines(content: bytes, draw: random.Random) -> bytes:
    """A line removed, repeated, moved, or in or out by two spaces."""
    lines = content.splitlines(keepends=True) or [b""]
    number = draw.randrange(len(lines))
    line, where = lines[number], draw.randrange(len(lines) + 1)
    match draw.randrange(5):
        case 0:
            del lines[number]
        case 1:
            lines.insert(where, line)
        case 2:
            lines.insert(where, lines.pop(number))
        case 3:
            lines[number] = b"  " + line
        case _:
            lines[number] = line.removeprefix(b"  ")
    return b"".join(lines)


def _value(content: bytes, draw: random.Random) -> bytes:
    """A value of a JSON or YAML document replaced, removed, renamed, nested or written twice."""
    is_json = content.lstrip()[:1] in (b"{", b"[")
    try:
        document = json.loads(content) if is_json else yaml.load(content, SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError, LookupError):
        return _word(content, draw)
    if not isinstance(document, dict | list) or not document:
        return _number(content, draw)
    parent, key = _drawn_place(document, draw)
    _change_value(parent, key, draw)
    try:
        return (json.dumps(document) if is_json else yaml.safe_dump(document)).encode()
    except (ValueError, TypeError, RecursionError, yaml.YAMLError):
        return content


def _drawn_place(document: Any, draw: random.Random) -> tuple[Any, Any]:
    """Where a value of a document is, deep ones as often as shallow ones."""
    parent = document
    while True:
        key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        inside = parent[key]
        if not isinstance(inside, dict | list) or not inside or draw.randrange(5) == 0:
            return parent, key
        parent = inside


_PLAIN: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 1.5, -0.5, 1e30, 1e-30, 2**31, 2**63, 10**400, float("inf"), float("nan"), True,
    False, None, "", "many", "8 GiB", "0 s", "-1 us", [], {}, [1], [[]], [None], {"a": 1}, {"": 0},
    "h100-sxm-80gb", "none", "full", [1, 1], {"value": 1, "source": {}}, {"base": "gpt2"}, 4, 8, 64,
)  # fmt: skip


def _change_value(parent: Any, key: Any, draw: random.Random) -> None:
    match draw.randrange(7):
        case 0:
            del parent[key]
        case 1:
            value = [parent[key]] if draw.randrange(2) else {str(key): parent[key]}
            parent[key] = value
        case 2 if isinstance(parent, dict):
            parent[str(draw.choice(_WORDS))] = parent.pop(key)
        case 3 if isinstance(parent, list):
            parent.insert(draw.randrange(len(parent) + 1), parent[key])
        case _:
            parent[key] = draw.choice(_PLAIN)


_CHANGES: tuple[Change, ...] = (
    _flip, _cut, _end, _repeat, _splice, _number, _number, _number, _word, _word, _swap_words,
    _insert, _insert, _lines, _value, _value, _value,
)  # fmt: skip
